"""What a profile file may say, and how it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoloader.controller.profile import (
    HostFacts,
    Limits,
    MixtureKind,
    Profile,
    Provenance,
    diff,
    keep_whole,
    shipped_profiles_dir,
)
from autoloader.errors import ProfileError
from autoloader.host.units import GIB
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
        Profile.from_yaml_text(text, origin="box.yaml")
    return caught.value


def test_sizes_are_read_with_their_units() -> None:
    profile = Profile.from_yaml_text(MINIMAL)
    assert profile.host.memory_bytes == int(62.5 * GIB)
    assert profile.limits.ram_floor == 5 * 10**9
    assert profile.knobs == Knobs()


def test_what_was_not_measured_is_absent_from_the_file() -> None:
    text = Profile.from_yaml_text(MINIMAL).to_yaml()
    assert "measurements" not in text
    assert "null" not in text


def test_sizes_are_written_for_people_and_exactly() -> None:
    text = Profile.from_yaml_text(MINIMAL).to_yaml()
    assert "memory_bytes: 62.5GiB" in text
    assert "ram_floor: 5GB" in text


def test_room_for_frames_on_a_disk_is_written_as_it_was_read() -> None:
    lent = MINIMAL + "cache: {disk: /nvme/frames, bytes: 2TB}\n"
    profile = Profile.from_yaml_text(lent)
    assert profile.cache is not None
    assert (profile.cache.disk, profile.cache.bytes) == ("/nvme/frames", 2 * 10**12)
    assert "bytes: 2000GB" in profile.to_yaml()
    assert Profile.from_yaml_text(profile.to_yaml()) == profile
    error = refused(MINIMAL + "cache: {disk: frames, bytes: 2TB}\n")
    assert "box.yaml: cache.disk: 'frames' is no absolute path" in str(error)
    assert "cache.bytes" in str(refused(MINIMAL + "cache: {disk: /nvme/frames}\n"))


def test_the_same_profile_is_always_written_the_same() -> None:
    first = Profile.from_yaml_text(MINIMAL).to_yaml()
    assert Profile.from_yaml_text(first).to_yaml() == first
    assert first.startswith("#")


sizes = st.integers(min_value=0, max_value=2**43)
texts = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=200
)


@settings(derandomize=True, max_examples=60, deadline=None)
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
) -> None:
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
    assert Profile.from_yaml_text(profile.to_yaml()) == profile


def test_an_unknown_field_names_the_nearest_one() -> None:
    error = refused(MINIMAL.replace("ram_floor", "ram_flor"))
    assert "box.yaml" in error.what
    assert "limits: unknown key 'ram_flor'" in error.what
    assert "'ram_floor'" in error.remedy


def test_an_unknown_knob_names_the_nearest_one() -> None:
    error = refused(MINIMAL + "knobs: {decode_thread: 4}\n")
    assert "decode_thread" in error.what
    assert "'decode_threads'" in error.remedy


@pytest.mark.parametrize(
    "knobs", ["{datasets: {bridge: 5}}", "{datasets: {5: {cycle_length: 2}}}", "{1: 2}", "[1]"]
)
def test_knobs_of_a_wrong_shape_are_refused(knobs: str) -> None:
    assert "knobs" in refused(f"{MINIMAL}knobs: {knobs}\n").what


def test_knobs_that_cannot_run_are_refused_when_the_file_is_read() -> None:
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
def test_a_wrong_value_is_named_with_its_field(found: str, written: str, place: str) -> None:
    error = refused(MINIMAL.replace(found, written))
    assert f"box.yaml: {place}: " in error.what
    assert error.remedy


def test_a_measurement_that_is_no_number_is_refused() -> None:
    assert (
        "measurements.samples_per_s"
        in refused(MINIMAL + "measurements: {samples_per_s: fast}\n").what
    )
    assert "measurements.batch" in refused(MINIMAL + "measurements: {batch: true}\n").what


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "a: [1\n", "name: a\nname: b\n"])
def test_a_file_that_is_no_mapping_in_yaml_is_refused(text: str) -> None:
    assert "box.yaml" in refused(text).what


def test_yaml_is_version_1_2_so_a_bare_no_is_text() -> None:
    text = MINIMAL.replace("made up for a test", "no")
    assert Profile.from_yaml_text(text).provenance.detail == "no"


def test_a_bare_date_is_taken_as_the_day_it_was_measured() -> None:
    text = MINIMAL.replace("made up for a test", "x, measured_on: 2026-01-31")
    assert Profile.from_yaml_text(text).provenance.measured_on == "2026-01-31"


def test_saving_into_a_directory_names_the_file_after_the_profile(tmp_path: Path) -> None:
    profile = Profile.from_yaml_text(MINIMAL)
    path = keep_whole(profile, out=tmp_path / "deep" / "er").path
    assert path == tmp_path / "deep" / "er" / "box.yaml"
    assert Profile.from_yaml(path) == profile


def test_saving_leaves_nothing_but_the_file(tmp_path: Path) -> None:
    profile = Profile.from_yaml_text(MINIMAL)
    for _ in range(2):
        keep_whole(profile, out=tmp_path / "mine.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


def test_a_place_that_cannot_be_written_is_named_and_left_clean(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfileError, match="cannot be written"):
        keep_whole(Profile.from_yaml_text(MINIMAL), out=tmp_path / "file" / "box.yaml")
    (tmp_path / "box.yaml").mkdir()
    with pytest.raises(ProfileError, match="cannot be written"):
        keep_whole(Profile.from_yaml_text(MINIMAL), out=tmp_path / "box.yaml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["box.yaml", "file"]


def test_diff_names_the_fields_that_differ_and_no_other() -> None:
    a = Profile.from_yaml_text(MINIMAL)
    b = Profile.from_yaml_text(MINIMAL.replace("cpus: 8", "cpus: 4") + "knobs: {ring_slots: 6}\n")
    assert diff(a, b) == [("host.cpus", 8, 4), ("knobs.ring_slots", 8, 6)]
    assert diff(a, a) == []


def test_diff_shows_a_field_that_only_one_has() -> None:
    a = Profile.from_yaml_text(MINIMAL)
    b = Profile.from_yaml_text(MINIMAL + "measurements: {samples_per_s: 12.5}\n")
    assert diff(a, b) == [("measurements.samples_per_s", None, 12.5)]
    assert diff(b, a) == [("measurements.samples_per_s", 12.5, None)]


def test_the_json_schema_allows_sizes_with_units() -> None:
    schema = Profile.model_json_schema()
    kinds = {kind["type"] for kind in schema["$defs"]["Limits"]["properties"]["ram_floor"]["anyOf"]}
    assert kinds == {"integer", "string"}
    json.dumps(schema)


SHIPPED = sorted(shipped_profiles_dir().glob("*.yaml"))


def test_the_five_promised_profiles_ship() -> None:
    names = {path.stem for path in SHIPPED}
    assert {"local_dev", "lrz_a100", "mcml_a100", "l40s", "h200"} <= names


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_profile_is_legal_on_its_own_host(path: Path) -> None:
    profile = Profile.from_yaml(path)
    assert profile.name == path.stem
    assert profile.fit(profile.host, strict=True) == (profile, [])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_profile_claims_no_measurement_of_this_library(path: Path) -> None:
    profile = Profile.from_yaml(path)
    assert profile.provenance.source in {"field-record", "reasoned"}
    assert profile.measurements == {}
    assert len(profile.provenance.detail) > 80


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_profile_holds_29_datasets_within_its_cpus(path: Path) -> None:
    profile = Profile.from_yaml(path)
    measured_on_29 = profile.model_copy(update={"mixture": MixtureKind(datasets=29)})
    assert measured_on_29.fit(profile.host)[1] == []
