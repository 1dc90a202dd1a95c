"""Which profile is taken, and what using it on another host does."""

from pathlib import Path

import pytest

from autoloader.controller.profile import HostFacts, Profile, host_facts
from autoloader.controller.profiles import (
    find_profile,
    keep_profile,
    load_profile,
    profile_paths,
    user_profiles_dir,
)
from autoloader.errors import ProfileError
from autoloader.host.units import GIB

HOST = HostFacts(cpus=8, memory_bytes=64 * GIB, gpus=("NVIDIA X",))


@pytest.fixture(autouse=True)
def config_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOLOADER_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "config"


def made_for(host: HostFacts, name: str = "mine", **parts: object) -> Profile:
    raw: dict[str, object] = {
        "schema_version": 2,
        "name": name,
        "host": host.model_dump(),
        "limits": {"ram_floor": "5GB"},
        "provenance": {"source": "measured", "detail": "a test"},
    }
    return Profile.model_validate(raw | parts)


def test_without_a_name_and_nothing_saved_the_shipped_default_is_taken_and_said():
    found = load_profile(host=HOST)
    assert found.profile.name == "local_dev"
    assert found.origin == "shipped"
    (line,) = found.notes
    assert line.startswith("default knobs: not tuned here yet (fine to start; autoloader tune")


def test_without_a_name_the_saved_profile_of_this_host_is_taken_and_said():
    rates = {"samples_per_s": 970.0, "bound_samples_per_s": 1000.0}
    path = keep_profile(made_for(HOST, measurements=rates), tuned_from=None).path
    found = load_profile(host=HOST)
    assert found.profile.name == "mine"
    assert found.origin == str(path)
    assert any(str(path) in line for line in found.notes)
    assert found.notes[-1].endswith("mine are measured here: 970 samples/s, 97% of the bound")
    elsewhere = load_profile("mine", host=HOST.model_copy(update={"gpus": ()})).notes
    assert any("mine are measured on another host (8 cpus" in line for line in elsewhere)


@pytest.mark.parametrize(
    "change",
    [
        {"cpus": 4},
        {"memory_bytes": 57 * GIB},
        {"memory_bytes": 72 * GIB},
        {"cgroup_limit_bytes": 32 * GIB},
        {"gpus": ()},
        {"gpus": ("NVIDIA X", "NVIDIA X")},
    ],
)
def test_a_saved_profile_of_another_host_is_not_taken(change: dict[str, object]):
    keep_profile(made_for(HOST.model_copy(update=change)), tuned_from=None)
    assert load_profile(host=HOST).origin == "shipped"


def test_a_broken_saved_profile_is_skipped_and_said():
    user_profiles_dir().mkdir(parents=True)
    (user_profiles_dir() / "broken.yaml").write_text("name: [")
    found = load_profile(host=HOST)
    assert found.origin == "shipped"
    assert any("broken.yaml" in line for line in found.notes)


def test_a_saved_profile_comes_before_a_shipped_one_of_the_same_name():
    assert find_profile("l40s").origin == "shipped"
    path = user_profiles_dir() / "l40s.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(made_for(HOST, "l40s").to_yaml())
    assert find_profile("l40s").origin == str(path)
    assert profile_paths()["l40s"] == path


def test_threads_are_clamped_to_a_smaller_host_and_said():
    small = HOST.model_copy(update={"cpus": 2})
    profile = made_for(HOST, knobs={"decode_threads": 16, "decode_processes": 8})
    fitted, notes = profile.fit(small)
    assert fitted.knobs.decode_threads == 4
    assert fitted.knobs.decode_processes == 2
    assert any("decode_threads: 16 → 4" in line for line in notes)
    assert fitted.host == HOST


def test_a_cpu_budget_holds_threads_as_a_smaller_host_would():
    profile = made_for(
        HOST, limits={"ram_floor": "5GB", "cpu_budget": 3}, knobs={"decode_threads": 16}
    )
    assert profile.fit(HOST)[0].knobs.decode_threads == 6


def test_strict_refuses_what_would_be_clamped():
    keep_profile(made_for(HOST, knobs={"decode_threads": 16}), tuned_from=None)
    small = HOST.model_copy(update={"cpus": 2})
    with pytest.raises(ProfileError, match="decode_threads: 16 → 4") as caught:
        load_profile("mine", strict=True, host=small)
    assert "--strict" in caught.value.remedy
    assert load_profile("mine", host=small).profile.knobs.decode_threads == 4


def test_a_slurm_job_is_recognised(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4(x2)")
    facts = host_facts()
    assert (facts.scheduler, facts.ranks_per_node) == ("slurm", 4)
