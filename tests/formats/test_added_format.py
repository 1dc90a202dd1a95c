"""A dataset format that another package brings, from its entry point to the rows of batches."""

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_lines import Cli
from lerobot_files import picture, shown, write_video

from autoloader import AutoLoader, PipelineSpec
from autoloader.errors import SourceError, SpecError, UnsupportedError
from autoloader.formats import open_source, sources
from autoloader.formats.files import UnreadableError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/mp4_folder"
LENGTHS = (12, 7, 9)
WORDS = ("pick up the cube", "put it down")


@pytest.fixture
def site(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A folder of installed packages, with the example's, or with its line in ``BUILT_IN``."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "mp4_folder.py").write_text((EXAMPLE / "mp4_folder.py").read_text())
    about = (EXAMPLE / "pyproject.toml").read_text()
    _, _, formats = about.partition(f'[project.entry-points."{sources.GROUP}"]')
    found = dict(re.findall(r'^(\w+) = "(\w+:\w+)"$', formats, re.MULTILINE))
    if getattr(request, "param", "installed") == "installed":
        install(folder, "mp4-folder", found)
    else:
        (kind,) = found
        monkeypatch.setitem(sources.BUILT_IN, kind, ("recording.json", found[kind]))
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("mp4_folder", None)


def install(folder: Path, name: str, formats: Mapping[str, str]) -> None:
    """Write the metadata of an installed package that brings formats."""
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{kind} = {value}\n" for kind, value in formats.items()]
    (about / "entry_points.txt").write_text(f"[{sources.GROUP}]\n" + "".join(lines))


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    folder = tmp_path / "data/bench"
    folder.mkdir(parents=True)
    (folder / "recording.json").write_text(json.dumps({"fps": 10}))
    for episode, length in enumerate(LENGTHS):
        frames = [picture(0, episode, t) for t in range(length)]
        write_video(folder / f"take_{episode}.mp4", frames, "libx264", gop=4)
        with (folder / f"take_{episode}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["state_t", "state_episode", "action_x", "instruction"])
            rows.writerows([t, episode, t / 2, WORDS[episode % 2]] for t in range(length))
    return folder


def spec_of(folder: Path, **more: Any) -> PipelineSpec:
    dataset = {
        "name": "bench", "path": str(folder), "kind": "mp4_folder", "images": {"top": "camera"},
        "state": "state", "action": "action", "language": "instruction",
    }  # fmt: skip
    return PipelineSpec.from_mapping(
        {
            "schema_version": 1,
            "datasets": [dataset | more],
            "sample": {"frame_offsets": [0], "action_horizon": 2},
            "cameras": {"top": {"size": [64, 96]}},
            "batch": {"size": 5, "drop_last": False},
            "mixing": {"epoch": "pass"},
        }
    )


def test_every_row_is_the_one_that_was_recorded(site: Path, recordings: Path):
    found = {}
    with AutoLoader(spec_of(recordings), ram_floor="200MB", output="numpy") as loader:
        for batch in loader:
            for k, words in enumerate(batch["language"]):
                t, episode = batch["state"][k, 0].astype(int).tolist()
                found[episode, t] = batch["action"][k, :, 0].tolist()
                assert shown(batch["images"]["top"][k, 0]) == (0, episode, t)
                assert words == WORDS[episode % 2]
    assert sorted(found) == [(e, t) for e, length in enumerate(LENGTHS) for t in range(length)]
    assert found[1, 3] == [1.5, 2.0]


@pytest.mark.parametrize("site", ["installed", "built in"], indirect=True)
def test_commands_find_it_and_hold_it_against_plain_readers(
    site: Path, recordings: Path, tmp_path: Path, cli: Cli
):
    def told(*words: str) -> Any:
        return cli.json(*words)

    (tmp_path / "empty").mkdir()
    assert "mp4_folder" in cli("init", tmp_path / "empty", code=4).err
    mix = tmp_path / "mix.yaml"
    mix.write_text(told("init", str(recordings.parent))["spec"])
    read = told("inspect", str(recordings))["read"]
    assert read["first"]["camera"]["stored_as"] == "h264"
    few = ("--spec", str(mix), "--ram-floor", "64MiB")
    assert told("plan", *few)["datasets"]["bench"]["decode_s"] > 0
    if "mp4_folder" in sources.BUILT_IN:
        return  # a loader's child has not got the line
    held = told("verify", *few, "-n", "20")
    assert held["frames"] == 20
    assert held["differences"] == []


def test_an_episode_whose_video_is_short_is_left_out_with_the_reason(site: Path, recordings: Path):
    write_video(recordings / "take_1.mp4", [picture(0, 1, t) for t in range(4)], "libx264", gop=4)
    spec = spec_of(recordings).model_copy(
        update={"errors": spec_of(recordings).errors.model_copy(update={"max_corrupt_ratio": 0.5})}
    )
    with AutoLoader(spec, ram_floor="200MB", output="numpy") as loader:
        rows = sum(len(batch["language"]) for batch in loader)
        assert rows == LENGTHS[0] + LENGTHS[2]
        (told,) = loader.quarantined()
    assert "take_1.mp4: it has 4 frames, and the episode needs 0 to 6" in str(told)


def test_floats_where_integers_are_declared_are_not_cut_off(site: Path, recordings: Path):
    code = (site / "mp4_folder.py").read_text()
    as_whole = code.replace("numbers(name, width)", 'numbers(name, width, "int64")')
    assert as_whole != code
    (site / "mp4_folder.py").write_text(as_whole)
    directory: Any = open_source(recordings, kind="mp4_folder", dataset="bench")
    path = directory.splits["train"][0].path
    (give,) = directory.stored(path, slice(None), None, {})
    with pytest.raises(UnreadableError, match=r"action holds .*, and its type, int64, cannot"):
        give()


def test_a_kind_that_nobody_brings_is_refused_with_those_that_are_known(
    site: Path, recordings: Path
):
    with pytest.raises(SpecError, match=r"datasets\[bench\].kind: .*'mp4'") as refused:
        AutoLoader(spec_of(recordings, kind="mp4"), ram_floor="200MB").state_dict()
    known = sorted([*sources.BUILT_IN, "mp4_folder"])
    assert f"choose one of: {', '.join(known)};" in refused.value.remedy
    assert "mp4_folder" in refused.value.remedy


def test_a_folder_of_another_format_is_refused_by_its_marker(site: Path, tmp_path: Path):
    with pytest.raises(SourceError, match=r"holds no MP4 folder dataset.*recording\.json"):
        sources.format_of("mp4_folder", field="kind").check(tmp_path, dataset="bench")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("nowhere:Format", "ModuleNotFoundError"),
        ("leaves:Format", "SystemExit: no licence"),
        ("json:loads", "no subclass"),
    ],
)
def test_a_package_whose_format_cannot_be_loaded_is_named(
    site: Path, recordings: Path, value: str, why: str
):
    (site / "leaves.py").write_text("import sys\nsys.exit('no licence')")
    install(site, "broken", {"broken": value})
    with pytest.raises(SourceError, match=f"'broken' cannot be loaded from {value}.*{why}"):
        open_source(recordings, dataset="bench", kind="broken")


@pytest.mark.parametrize("kind", sources.BUILT_IN)
def test_the_registry_and_a_format_agree_on_its_marker(kind: str):
    assert sources.format_of(kind, field="kind").marker == sources.BUILT_IN[kind][0]


@pytest.mark.parametrize("kind", sorted({*sources.BUILT_IN, "mp4_folder"} - {"tfds"}))
def test_what_is_read_by_index_alone_is_refused_in_a_bucket(site: Path, kind: str):
    with pytest.raises(UnsupportedError, match=r"is remote; .* read from local disks") as refused:
        open_source("gs://bucket/data", dataset="far", kind=kind)
    assert "mount the bucket" in refused.value.remedy


def test_a_format_whose_dataset_is_one_file_is_found_by_it(site: Path, recordings: Path):
    (site / "takes.py").write_text(
        "from mp4_folder import Mp4Folder\nclass Take(Mp4Folder):\n    marker = '*.csv'\n"
    )
    install(site, "takes", {"take": "takes:Take"})
    file = recordings / "take_0.csv"
    assert sources.dataset_versions(file, print) == [[file]]
    assert sources.format_at(file).__name__ == "Take"


def test_rows_are_numbers_as_the_file_has_them(site: Path, recordings: Path):
    directory = open_source(recordings, dataset="bench", kind="mp4_folder")
    steps = directory.plain_reader().episode(directory.splits["train"][2], 0)
    np.testing.assert_array_equal([step["state"] for step in steps], [[t, 2] for t in range(9)])
