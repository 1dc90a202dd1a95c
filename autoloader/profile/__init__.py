"""Host profiles: what a machine is, how far it may be used, and the knobs that suit it.

Not here: finding better knobs (``tune``), which combinations are legal (``knobs``).
"""

from autoloader.profile.facts import HostFacts, host_facts
from autoloader.profile.lookup import (
    ResolvedProfile,
    find_profile,
    load_profile,
    profile_paths,
    save_profile,
    shipped_profiles_dir,
    user_profiles_dir,
)
from autoloader.profile.model import Limits, Profile, Provenance, diff

__all__ = [
    "HostFacts",
    "Limits",
    "Profile",
    "Provenance",
    "ResolvedProfile",
    "diff",
    "find_profile",
    "host_facts",
    "load_profile",
    "profile_paths",
    "save_profile",
    "shipped_profiles_dir",
    "user_profiles_dir",
]
