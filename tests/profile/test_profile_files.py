"""What a profile file may say, and how it is written."""

from pathlib import Path

import pytest
from doubles import profile_of
from hypothesis import given, settings
from hypothesis import strategies as st

from autoloader.controller.profile import HostFacts, Limits, MixtureKind, Profile, Provenance, diff
from autoloader.controller.profiles import keep_profile, shipped_profiles_dir
from autoloader.errors import ProfileError
from autoloader.spec.knobs import Knobs

MINIMAL = """\
schema_version: 2
name: box
host: {cpus: 8, memory_bytes: 62.5GiB}
limits: {ram_floor: 5GB}
provenance: {source: reasoned, detail: made up for a test}
"""


def refused(text: str) -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        profile_of(text)
    return caught.value


def test_room_for_frames_on_a_disk_is_written_as_it_was_read():
    lent = MINIMAL + "cache: {disk: /nvme/frames, bytes: 2TB}\n"
    profile = profile_of(lent)
    assert (profile.cache.disk, profile.cache.bytes) == ("/nvme/frames", 2 * 10**12)
    assert "bytes: 2000GB" in profile.to_yaml()
    assert profile_of(profile.to_yaml()) == profile
    error = refused(MINIMAL + "cache: {disk: frames, bytes: 2TB}\n")
    assert "box.yaml: cache.disk: 'frames' is not an absolute path" in str(error)
    assert "cache.bytes" in str(refused(MINIMAL + "cache: {disk: /nvme/frames}\n"))


sizes = st.integers(min_value=0, max_value=2**43)
texts = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=200
)


@settings(derandomize=True, max_examples=20, deadline=None)
@given(
    memory=sizes,
    limit=st.none() | sizes,
    floor=st.just(0) | st.integers(64 * 2**20, 2**43),
    detail=texts,
    description=texts,
    cycle=st.integers(1, 64),
    measured=st.dictionaries(
        st.sampled_from(["samples_per_s", "batch", "datasets"]),
        st.integers(0, 10**6) | st.floats(0, 1e9, allow_nan=False),
    ),
)
def test_a_written_profile_reads_back_equal(
    memory: int,
    limit: int | None,
    floor: int,
    detail: str,
    description: str,
    cycle: int,
    measured: dict[str, int | float],
):
    profile = Profile(
        schema_version=2,
        name="box",
        description=description,
        host=HostFacts(cpus=4, memory_bytes=memory, cgroup_limit_bytes=limit, gpus=("A", "A")),
        limits=Limits(ram_floor=floor, cpu_budget=3),
        knobs=Knobs.build({"cycle_length": cycle, "bridge.queue_samples": 7}),
        measurements=measured,
        provenance=Provenance(source="measured", detail=detail, measured_on="2026-01-31"),
    )
    assert profile_of(profile.to_yaml()) == profile


def test_knobs_that_cannot_run_are_refused_when_the_file_is_read():
    error = refused(MINIMAL + "knobs: {cycle_length: 1, num_parallel_calls: 2}\n")
    assert "num_parallel_calls=2" in error.what
    assert "cycle_length=1" in error.what
    assert "num_parallel_calls=1" in error.remedy


@pytest.mark.parametrize(
    ("found", "written", "place"),
    [
        ("cpus: 8", "cpus: 0", "host.cpus"),
        ("62.5GiB", "lots", "host.memory_bytes"),
        ("5GB", "-1", "limits.ram_floor"),
        ("source: reasoned", "source: guessed", "provenance.source"),
        ("schema_version: 2", "schema_version: 3", "schema_version"),
        ("name: box", "name: ../box", "name"),
        ("cpus: 8, ", "", "host.cpus"),
    ],
)
def test_a_wrong_value_is_named_with_its_field(found: str, written: str, place: str):
    error = refused(MINIMAL.replace(found, written))
    assert f"box.yaml: {place}" in error.what
    assert error.remedy


def test_a_place_that_cannot_be_written_is_named_and_left_clean(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfileError, match="cannot be written"):
        keep_profile(profile_of(MINIMAL), out=tmp_path / "file" / "box.yaml", tuned_from=None)
    (tmp_path / "box.yaml").mkdir()
    with pytest.raises(ProfileError, match="cannot be written"):
        keep_profile(profile_of(MINIMAL), out=tmp_path / "box.yaml", tuned_from=None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["box.yaml", "file"]


def test_diff_names_the_fields_that_differ_and_no_other():
    a = profile_of(MINIMAL)
    b = profile_of(MINIMAL.replace("cpus: 8", "cpus: 4") + "knobs: {ring_slots: 6}\n")
    assert diff(a, b) == [("host.cpus", 8, 4), ("knobs.ring_slots", 8, 6)]
    assert diff(a, a) == []


SHIPPED = sorted(shipped_profiles_dir().glob("*.yaml"))


def test_the_five_promised_profiles_ship():
    names = {path.stem for path in SHIPPED}
    assert {"local_dev", "lrz_a100", "mcml_a100", "l40s", "h200"} <= names


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_profile_is_legal_on_its_host_and_says_what_its_numbers_come_from(path: Path):
    profile = Profile.from_yaml(path)
    assert profile.name == path.stem
    assert profile.fit(profile.host, strict=True) == (profile, [])
    measured = profile.provenance.source == "measured"
    assert measured == bool(profile.measurements) == bool(profile.provenance.command)
    assert len(profile.provenance.detail) > 80
    measured_on_29 = profile.model_copy(update={"mixture": MixtureKind(datasets=29)})
    assert measured_on_29.fit(profile.host)[1] == []
