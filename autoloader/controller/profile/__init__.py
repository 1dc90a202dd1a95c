"""Host profiles: what a machine is, how far it may be used, and the knobs that suit it.

Not here: finding better knobs (``tune``), which combinations are legal (``spec.knobs``).
"""

from autoloader.controller.profile.lookup import (
    Kept,
    ResolvedProfile,
    check_name,
    find_profile,
    free_name,
    keep_entry,
    keep_whole,
    load_profile,
    profile_path,
    profile_paths,
    shipped_profiles_dir,
    user_profiles_dir,
)
from autoloader.controller.profile.model import (
    Entry,
    HostFacts,
    Limits,
    MixtureKind,
    Profile,
    Provenance,
    described_host,
    diff,
    host_facts,
)

__all__ = [
    "Entry",
    "HostFacts",
    "Kept",
    "Limits",
    "MixtureKind",
    "Profile",
    "Provenance",
    "ResolvedProfile",
    "check_name",
    "described_host",
    "diff",
    "find_profile",
    "free_name",
    "host_facts",
    "keep_entry",
    "keep_whole",
    "load_profile",
    "profile_path",
    "profile_paths",
    "shipped_profiles_dir",
    "user_profiles_dir",
]
