"""Data and metadata that lie: a quarantined record, or one error with dataset, file and reason."""

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from rlds_files import Written, episode, jpeg, png, write_dataset
from streams import dataset_of, every_sample, spec_of

from autoloader import AutoLoader
from autoloader.errors import PipelineError, SourceError, SpecError
from autoloader.samples.resolve import resolve

STEPS = 4


def build(folder: Path, bad: Any = None, *, everywhere: bool = False) -> Written:
    """Two shards of five episodes; ``bad`` in the place of record 2 of shard 1, or of all."""
    records: list[list[Any]] = [[episode(5 * s + r, STEPS) for r in range(5)] for s in range(2)]
    if everywhere:
        records = [[bad] * 5] * 2
    elif bad is not None:
        records[1][2] = bad
    return write_dataset(folder, records)


def load(written: Written, reader: str, **own: Any) -> AutoLoader:
    spec = spec_of(
        dataset_of(written, **own),
        reader=reader,
        weights="natural",
        batch={"drop_last": False, "size": 4},
        errors={"max_corrupt_ratio": 1},
    )
    return AutoLoader(spec, isolation="thread", ram_floor="64MiB", controller=False, output="numpy")


def change(file: Path, edit: Callable[[Any], None]) -> None:
    document = json.loads(file.read_text())
    edit(document)
    file.write_text(json.dumps(document))


def of_steps(document: Any) -> Any:
    steps = document["featuresDict"]["features"]["steps"]["sequence"]["feature"]
    return steps["featuresDict"]["features"]


# -- features that are not as declared -----------------------------------------------------------


@pytest.mark.parametrize("reader", ["stream", "indexed"])
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"action": [1.0] * 3 * STEPS}, "action has 6"),
        ({"action": [1.0] * STEPS}, "action has 2"),
        ({"observation/state": [1.0] * 5 * STEPS}, "not a multiple of the 3"),
    ],
)
def test_a_dataset_all_of_whose_features_are_of_another_width_is_a_source_error(
    values: dict[str, Any], words: str, reader: str, tmp_path: Path
):
    written = build(tmp_path, episode(7, STEPS, **values), everywhere=True)
    with pytest.raises(SourceError, match=words) as caught, load(written, reader) as loader:
        list(loader)
    assert caught.value.dataset == "robot"
    assert not isinstance(caught.value, PipelineError)


def test_more_columns_than_any_robot_has_are_refused(tmp_path: Path):
    written = build(tmp_path)
    shape = {"dimensions": [str(10**12), str(10**12)]}
    change(
        written.path / "features.json",
        lambda tree: of_steps(tree)["action"]["tensor"].update(shape=shape),
    )
    with pytest.raises(SpecError, match="more than 1048576 columns"):
        resolve(spec_of(written))


# -- metadata ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lengths",
    [[str(10**12), "5"], [str(2**62), "5"], [10**30, 5], ["20000", "5"], ["1" * 5000], [5.5, 5],
     [math.inf, 5], [math.nan], [True, True], ["-1", "5"], {"a": 1}], ids=str,
)  # fmt: skip
def test_shard_lengths_that_cannot_be_are_broken_metadata(lengths: Any, tmp_path: Path):
    written = build(tmp_path)
    change(
        written.path / "dataset_info.json",
        lambda info: info["splits"][0].update(shardLengths=lengths),
    )
    with pytest.raises(SourceError, match=r"dataset robot: .*dataset_info.json is broken"):
        resolve(spec_of(written))


@pytest.mark.parametrize(
    "template", ["../../../etc/passwd", "/etc/hostname", "a\0b", "x" * 5000, "\ud800", "a//b"]
)
def test_file_names_that_lead_elsewhere_or_are_none_are_refused(template: str, tmp_path: Path):
    written = build(tmp_path)
    change(
        written.path / "dataset_info.json",
        lambda info: info["splits"][0].update(filepathTemplate=template),
    )
    with pytest.raises(SourceError, match="filepathTemplate of split 'train' is not a file name"):
        resolve(spec_of(written))


@pytest.mark.parametrize("size", ["²", "9" * 5000, math.inf, {}, None, "-3"])
def test_a_nonsense_size_is_as_none(size: Any, tmp_path: Path):
    written = build(tmp_path)
    change(written.path / "dataset_info.json", lambda info: info["splits"][0].update(numBytes=size))
    (dataset,) = resolve(spec_of(written)).datasets
    assert not dataset.directory.record_bytes


def test_a_version_that_its_directory_does_not_name_is_refused(tmp_path: Path):
    written = build(tmp_path)
    change(written.path / "dataset_info.json", lambda info: info.update(version="9.9.9"))
    with pytest.raises(SourceError, match=r"robot.*says version 9\.9\.9"):
        resolve(spec_of(written))


# -- pictures ------------------------------------------------------------------------------------

GOOD = [jpeg(7, step) for step in range(STEPS)]


def encoded(kind: str, picture: np.ndarray) -> bytes:
    return bytes(cv2.imencode(kind, picture)[1])


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (GOOD[1][:-40], "the JPEG of .* bytes is cut off"),
        (GOOD[1][:30], "the JPEG of 30 bytes is cut off"),
        (GOOD[1][:200] + bytes(range(250)) + GOOD[1][-90:], "the JPEG of .* bytes is damaged"),
        (png(7, 1)[:-30], "not a JPEG or PNG"),
        (b"", "0 bytes"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\xff\xff\xff\0\xff\xff\xff", "pixels; the limit is"),
        (encoded(".tiff", np.zeros((12, 16, 3), np.float32)), "not a JPEG or PNG"),
    ],
    ids=["cut", "header", "garbage", "png cut", "empty", "png bomb", "float tiff"],
)
def test_a_picture_that_cannot_be_decoded_says_in_words_why(bad: bytes, words: str, tmp_path: Path):
    frames = {"observation/image": [GOOD[0], bad, *GOOD[2:]]}
    written = build(tmp_path, episode(7, STEPS, **frames))
    with load(written, "indexed") as loader:
        rows = sum(len(batch["action"]) for batch in loader)
        (found,) = loader.quarantined()
    assert rows == 10 * STEPS
    assert (found.dataset, found.shard, found.record) == ("robot", 1, 2)
    assert re.search(words, found.reason), found.reason


def test_grey_deep_and_odd_sized_pictures_of_one_episode_are_decoded(tmp_path: Path):
    frames = [
        encoded(".jpg", np.full((20, 30), 99, np.uint8)),
        encoded(".png", np.full((1, 1, 3), 99 * 257, np.uint16)),
        encoded(".png", np.full((300, 7, 4), 99, np.uint8)),
        encoded(".png", np.full((12, 16), 99, np.uint8)),
    ]
    written = build(tmp_path, episode(7, STEPS, **{"observation/image": frames}), everywhere=True)
    with load(written, "indexed") as loader:
        shown = np.concatenate([batch["images"]["primary"] for batch in loader])
        assert not loader.quarantined()
    np.testing.assert_allclose(shown.astype(int), 99, atol=2)


# -- what changes while it is read ---------------------------------------------------------------


@pytest.mark.parametrize("garbage", [b"\0", b"\xff", b"\x37"])
def test_an_index_that_is_overwritten_while_it_is_read_is_built_anew(
    garbage: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path / "cache"))
    written = build(tmp_path)
    wanted = every_sample(resolve(spec_of(written)), 0, 0)
    with load(written, "indexed") as loader:
        epochs = [list(loader)]
        files = list((tmp_path / "cache" / "index").iterdir())
        assert len(files) == 2
        for file in files:
            with file.open("r+b") as opened:
                opened.seek(256)
                opened.write(garbage * (file.stat().st_size - 256))
                os.fsync(opened.fileno())
        epochs += [list(loader) for _ in range(20)]  # far beyond what was read ahead
        assert not loader.quarantined()
    for number, epoch in enumerate(epochs):
        places = np.concatenate([batch["provenance"] for batch in epoch]).tolist()
        assert {tuple(place) for place in places} == {
            (dataset, number, *rest) for dataset, _, *rest in wanted
        }
        for batch in epoch:
            for (_, _, shard, record, t), action in zip(
                batch["provenance"].tolist(), batch["action"], strict=True
            ):
                np.testing.assert_allclose(action[0], [5 * shard + record + t / 100, t], rtol=1e-6)
