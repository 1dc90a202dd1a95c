"""Keeping profiles: nothing is lost, nothing half-written."""

import os
from pathlib import Path
from typing import Any

import pytest
from ended import ran

from autoloader.controller.profile import HostFacts, MixtureKind, Profile, described_host
from autoloader.controller.profiles import free_name, keep_profile, load_profile
from autoloader.errors import ProfileError
from autoloader.host.units import GIB

HOST = HostFacts(cpus=8, memory_bytes=64 * GIB, cpu_model="X1", storage="ext4")
SMALL = {"datasets": 1, "batch": 16, "frames": 1, "pixels": 4096, "encoding": "jpeg"}
LARGE = {"datasets": 29, "batch": 32, "frames": 2, "pixels": 65536, "encoding": "jpeg"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOLOADER_CONFIG_DIR", str(tmp_path))
    return tmp_path / "profiles"


def tuned(kind: dict[str, Any], threads: int, rate: float, **parts: Any) -> Profile:
    return Profile.model_validate(
        {
            "schema_version": 2,
            "name": "mine",
            "host": HOST.model_dump(),
            "limits": {"ram_floor": "5GB"},
            "mixture": kind,
            "knobs": {"decode_threads": threads},
            "measurements": {"samples_per_s": rate},
            "provenance": {"source": "measured", "detail": "a test", "measured_on": "2026-03-01"},
            **parts,
        }
    )


def test_a_profile_for_other_mixtures_is_replaced_and_kept_aside(folder: Path):
    assert keep_profile(tuned(LARGE, 8, 900), tuned_from=None).notes == []
    assert free_name("mine", HOST, MixtureKind.model_validate(LARGE)) == "mine"
    assert free_name("mine", HOST, MixtureKind.model_validate(SMALL)) == "mine-2"
    second = keep_profile(tuned(SMALL, 2, 5000), tuned_from=None)
    assert "was for another host or mixture: " in second.notes[0]
    assert "29 datasets, batch 32" in second.notes[0]
    [kept] = (folder / "replaced").iterdir()
    assert str(kept) in second.notes[1]
    assert Profile.from_yaml(kept) == tuned(LARGE, 8, 900)


def test_the_nearest_kind_is_taken_and_said():
    keep_profile(tuned(LARGE, 8, 900), tuned_from=None)
    keep_profile(tuned(SMALL, 2, 5000, name="small"), tuned_from=None)
    like = MixtureKind.model_validate(LARGE | {"batch": 64, "datasets": 25})
    loaded = load_profile(host=HOST, mixture=like)
    assert loaded.profile.knobs.decode_threads == 8
    [said] = [note for note in loaded.notes if "doublings" in note]
    assert "knobs for 29 datasets, batch 32" in said
    assert "1.2 doublings from this" in said


def test_a_study_of_one_small_dataset_is_no_default_for_a_large_mixture():
    keep_profile(tuned(SMALL, 2, 5000), tuned_from=None)
    large = load_profile(host=HOST, mixture=MixtureKind.model_validate(LARGE))
    assert large.origin == "shipped"
    assert any("those of mine are for other kinds of mixtures" in note for note in large.notes)
    named = load_profile("mine", host=HOST, mixture=MixtureKind.model_validate(LARGE))
    assert any("another kind of mixture: tune it" in note for note in named.notes)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_saved_profile_that_others_may_have_written_is_no_default_and_said(
    folder: Path, what: str
):
    kept = keep_profile(tuned(LARGE, 8, 900), tuned_from=None).path
    (kept if what == "file" else folder).chmod(0o777)
    found = load_profile(host=HOST, mixture=MixtureKind.model_validate(LARGE))
    assert found.origin == "shipped"
    [said] = [note for note in found.notes if "others may write to it: chmod go-w" in note]
    assert str(kept) in said


def test_a_slower_winner_does_not_replace_faster_knobs_that_it_never_met(folder: Path):
    first = tuned(LARGE, 8, 900)
    keep_profile(first, tuned_from=None)
    slower = keep_profile(tuned(LARGE, 3, 700), tuned_from=None)
    assert "gave 900 samples/s on 2026-03-01, these 700" in slower.notes[0]
    assert Profile.from_yaml(folder / "mine.yaml") == first
    met = keep_profile(tuned(LARGE, 3, 700), tuned_from=first)
    assert Profile.from_yaml(met.path).knobs.decode_threads == 3, (
        "it was measured beside them, on a slower day"
    )


def test_a_profile_of_another_host_is_kept_aside_and_a_free_name_avoids_it(folder: Path):
    other = HOST.model_copy(update={"cpus": 64})
    keep_profile(tuned(LARGE, 8, 900, host=other.model_dump()), tuned_from=None)
    kind = MixtureKind.model_validate(LARGE)
    assert free_name("mine", HOST, kind) == "mine-2"
    assert free_name("mine", other, kind) == "mine"
    kept = keep_profile(tuned(LARGE, 2, 100), tuned_from=None)
    assert "another host" in kept.notes[0]
    assert len(list((folder / "replaced").iterdir())) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_leaves_the_old_profile_whole(tmp_path: Path):
    place = tmp_path / "small"
    place.mkdir()
    mounted = ran("mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", place, code=None)
    if mounted.returncode:
        pytest.skip(f"mount: {mounted.stderr.strip()}")
    try:
        old = tuned(LARGE, 8, 900)
        path = keep_profile(old, out=place, tuned_from=None).path
        (place / "full").write_bytes(bytes(4096))
        long = {"source": "measured", "detail": "d" * 9000}
        with pytest.raises(ProfileError, match="No space left on device") as caught:
            keep_profile(tuned(LARGE, 9, 900, provenance=long), out=place, tuned_from=None)
        assert "--out" in caught.value.remedy
        assert Profile.from_yaml(path) == old
        assert sorted(one.name for one in place.iterdir()) == ["full", "mine.yaml"]
    finally:
        ran("umount", place)


def test_a_machine_in_full_has_a_fingerprint_of_what_rates_hang_on(tmp_path: Path):
    data = tmp_path / "data"
    data.write_bytes(bytes(2**20))
    found = described_host(files=[str(data)], probe_s=0.01)
    assert found.affinity == len(os.sched_getaffinity(0))
    assert found.storage != "unknown"
    assert found.kernel == os.uname().release
    again = described_host(files=[str(data)], probe_s=0)
    assert again.fingerprint == found.fingerprint
    assert again.is_same(found)
    assert found.model_copy(update={"kernel": "9"}).fingerprint == found.fingerprint
    for change in ({"cpus": 99}, {"cpu_model": "Z80"}, {"storage": "tape"}):
        other = found.model_copy(update=change)
        assert other.fingerprint != found.fingerprint
        assert not other.is_same(found)
