"""Image–text data in each kind of file: texts, pictures, masks, sizes of the index."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_text_files import (
    SIZE,
    encoded,
    pixels,
    record,
    records,
    spec_of,
    write_lines,
    write_list,
    write_parquet,
    write_tar,
)

from autoloader import AutoLoader, PipelineSpec
from autoloader.cli.verify import Comparer, evenly, taken
from autoloader.errors import SourceError
from autoloader.formats import open_source
from autoloader.formats.tables import NO_FEATURE, Section
from autoloader.index.opening import open_dataset_index
from autoloader.process.draft import draft
from autoloader.samples.resolve import resolve
from autoloader.spec.reading import parse_yaml

pytestmark = pytest.mark.usefixtures("one_child")

COUNTS = [1, 0, 2, 1, 1, 3, 1]
SINGLE = [1, 0, 1, 1, 1, 0, 1]
HOW: dict[str, Any] = {"output": "numpy", "ram_floor": "64MiB"}


def written(folder: Path, kind: str) -> tuple[Path, list[int], dict[str, Any]]:
    """(path, pictures of each record, further fields of the dataset)."""
    if kind in ("lines", "list"):
        found = records(folder / "media", COUNTS)
        write = write_lines if kind == "lines" else write_list
        path = write(folder / ("talk.jsonl" if kind == "lines" else "talk.json"), found)
        return path, COUNTS, {"media": str(folder / "media")}
    if kind == "tar":
        return write_tar(folder / "talk.tar", COUNTS, caption=3), COUNTS, {}
    for number in range(2):
        shard = f"data/train-{number:05}-of-00002.parquet"
        write_parquet(folder / "hub" / shard, SINGLE, kind)
    return folder / "hub", SINGLE * 2, {}


@pytest.mark.parametrize("kind", ["lines", "list", "tar", "snappy"])
def test_a_spec_is_drafted_of_records(tmp_path: Path, kind: str):
    path, counts, more = written(tmp_path, kind)
    said: list[str] = []
    spec = PipelineSpec.from_mapping(parse_yaml(draft(path, said.append)["spec"]))
    entry = spec.datasets[0]
    assert entry.kind == "image_text"
    assert entry.vision.slots == max(counts)
    assert said == ([f"talk: no picture 'p0.png' below {tmp_path}; set media"] if more else [])


@pytest.mark.parametrize("ending", ["jsonl", "tar", "parquet"])
def test_files_of_a_folder_are_of_the_splits_that_their_names_say(tmp_path: Path, ending: str):
    names = {"train": "train_0 more training invalid", "validation": "val a-dev valid.2",
             "test": "3test eval"}  # fmt: skip
    parts = {f"{name}.{ending}": split for split, one in names.items() for name in one.split()}
    if ending == "parquet":
        parts = {f"d/{name}": split for name, split in parts.items()}
        parts |= {"dev/test.parquet": "validation", "of-00001/own-00000-of-00001.parquet": "own"}
    for name in parts:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        write = {"jsonl": lambda one: write_lines(one, [record(0, [])]),
                 "tar": lambda one: write_tar(one, [1]),
                 "parquet": lambda one: write_parquet(one, [1])}[ending]  # fmt: skip
        write(tmp_path / name)
    found = open_source(tmp_path, dataset="talk", kind="image_text").splits
    told = {str(Path(one.path).relative_to(tmp_path)): split
            for split, own in found.items() for one in own}  # fmt: skip
    assert told == parts
    single = open_source(tmp_path / next(iter(parts)), dataset="talk", kind="image_text")
    assert [*single.splits] == ["train"]


@pytest.mark.parametrize(
    ("files", "split"),
    [(["train", "val"], {"train": "train", "val": "validation"}), (["train"], {"train": "train"})],
)
def test_a_draft_has_the_split_to_validate_on_that_is_there(
    tmp_path: Path, files: list[str], split: dict[str, str]
):
    for name in files:
        write_lines(tmp_path / f"{name}.jsonl", [record(0, [])])
    spec = PipelineSpec.from_mapping(parse_yaml(draft(tmp_path, print)["spec"]))
    assert dict(spec.datasets[0].split) == split


def test_a_draft_has_a_name_and_slots_that_a_spec_may_have(tmp_path: Path):
    folder = tmp_path / "añ o"
    found = records(folder, [33])
    for path in (write_lines(folder / "my data.v2.jsonl", found), folder):
        drafted = draft(path, print)
        spec = PipelineSpec.from_mapping(parse_yaml(drafted["spec"]))
        (entry,) = spec.datasets
        assert entry.name == ("a_o" if path == folder else "my_data_v2")
        assert [*drafted["datasets"]] == [entry.name]
        assert entry.vision.slots == 32


def test_a_draft_bears_records_that_indexing_leaves_out(tmp_path: Path):
    good = records(tmp_path, [2])
    bad = [record(1, ["/elsewhere/p0.png"]), record(2, ["../p0.png"]), record(3, ["iVBOR" * 2000])]
    for name, lines in (("../p0.png", bad[1:]), ("iVBOR", bad[2:]), ("/elsewhere/p0.png", bad)):
        other = write_lines(tmp_path / f"talk_{len(lines)}.jsonl", [*lines, *good])
        other.write_text('{"conversations": [\n' + other.read_text())
        said: list[str] = []
        spec = PipelineSpec.from_mapping(parse_yaml(draft(other, said.append)["spec"]))
        assert spec.datasets[0].vision.slots == 2
        (told,) = said
        assert f"no picture '{name}" in told
        assert told.endswith(f"below {tmp_path}; set media")
        assert len(told) < 500


def test_other_json_is_no_file_of_records(tmp_path: Path):
    (tmp_path / "info.json").write_text('{"robot": 1}')
    with pytest.raises(
        SourceError, match=r"info\.json: its records cannot be read: it has no text"
    ):
        draft(tmp_path / "info.json", print)
    said: list[str] = []
    with pytest.raises(SourceError, match="holds no readable dataset"):
        draft(tmp_path, said.append)
    (told,) = said
    assert told.startswith(
        f"{tmp_path}: left out: {tmp_path}: its records cannot be read: it has no"
    )


def test_a_fault_of_a_folder_of_records_is_named(tmp_path: Path):
    found = records(tmp_path, [2])
    for name in ("talk.jsonl", "more.json"):
        write_lines(tmp_path / name, found)
    said: list[str] = []
    with pytest.raises(SourceError, match="the lines above") as refused:
        draft(tmp_path, said.append)
    assert "the lines above say what was left out" in refused.value.remedy
    assert any("holds records in files of several kinds: .json, .jsonl" in one for one in said)


@pytest.mark.parametrize("kind", ["lines", "list", "tar", "snappy", "none", "zstd"])
def test_texts_and_pictures_come_as_they_are_stored(tmp_path: Path, kind: str):
    path, counts, more = written(tmp_path, kind)
    vision = {"slots": 2, "size": list(SIZE)}
    spec = spec_of(path, vision=vision, batch={"size": 4, "drop_last": False}, **more)
    firsts = np.cumsum([0, *counts])
    if kind not in ("lines", "list", "tar"):
        firsts = np.concatenate([np.cumsum([0, *SINGLE[:-1]])] * 2)
    seen = []
    with AutoLoader(spec, **HOW) as loader:
        for batch in loader:
            for row, (_, _, shard, number, t) in enumerate(batch["provenance"].tolist()):
                k = shard * len(SINGLE) + number
                seen.append(k)
                said = {name: batch["features"][name][row] for name in batch["features"]}
                turns = json.loads(said["conversation"])
                assert said["answer"] == turns[-1]["text"]
                assert (
                    batch["language"][row]
                    == said["prompt"]
                    == "\n".join(turn["text"] for turn in turns[:-1])
                )
                if kind == "tar" and k == 3:
                    assert (said["prompt"], said["answer"]) == ("", "a caption 3 é")
                else:
                    assert said["answer"].startswith(f"answer {number}")
                for slot in range(2):
                    there = slot < counts[k]
                    assert batch["frame_mask"][f"vision_{slot}"][row].tolist() == [there]
                    wanted = pixels(int(firsts[k]) + slot) if there else 0
                    assert (batch["images"][f"vision_{slot}"][row, 0] == wanted).all()
                assert not batch["has_action"][row]
                assert not t
    assert sorted(seen) == list(range(len(counts)))


@pytest.mark.parametrize("kind", ["lines", "tar", "snappy"])
def test_the_index_is_small(tmp_path: Path, kind: str):
    path, counts, more = written(tmp_path, kind)
    (dataset,) = resolve(spec_of(path, **more)).datasets
    index = open_dataset_index(dataset)
    of_record = of_picture = 0
    for shard in index.shards.values():
        for (section, _), entry in shard.front.entries().items():
            size = section.dtype.itemsize * entry.width
            if section in (Section.STEPS, Section.RECORD_OFFSETS, Section.PICTURE_FIRST):
                of_record += size * entry.items
            elif section not in (Section.SCHEMA, Section.DAMAGE, Section.TEXT_BYTES):
                of_picture += size * entry.items
        assert not shard.has(Section.FIRST_ROWS, NO_FEATURE)
    assert of_record <= 16 * (len(counts) + len(index.shards))
    if kind != "snappy":
        assert of_picture <= 16 * sum(counts) + 8


@pytest.mark.parametrize("kind", ["lines", "list", "tar", "snappy"])
def test_verify_agrees(tmp_path: Path, kind: str):
    path, _, more = written(tmp_path, kind)
    if kind == "list":
        more["sample"] = {"frame_offsets": [-1, 0], "edges": {"start": "zero"}, "per_episode": 1}
    if kind == "tar":
        more["sample"] = {"delta_timestamps": {"frames": [0, 0.5]}, "edges": {"end": "drop"}}
    spec = evenly(spec_of(path, vision={"slots": 2, "size": list(SIZE)}, **more))
    with AutoLoader(spec, rank=0, world_size=1, **HOW) as loader:
        found = Comparer(spec, loader)
        assert list(found.rows(list(taken(loader, 20))))
    assert found.differences == []
    assert found.texts == 20


@pytest.mark.parametrize(
    "kind", ["jpeg", "png", "webp", "gif", "grey", "clear", "alpha", "palette"]
)
def test_pictures_of_each_kind_are_decoded(tmp_path: Path, kind: str):
    (tmp_path / "a").write_bytes(encoded(2, kind))
    path = write_lines(tmp_path / "t.jsonl", [record(0, ["a"])] * 4)
    wanted = pixels(2).astype(float)
    if kind == "grey":
        wanted[:] = wanted[..., :1]
    if kind == "clear":
        wanted[:] = 255
    if kind == "alpha":
        wanted = wanted * 0.2 + 255 * 0.8
    with AutoLoader(spec_of(path), **HOW) as loader:
        (batch,) = loader
    assert np.abs(batch["images"]["top"][0, 0] - wanted).max() <= (8 if kind == "jpeg" else 1)


def test_pictures_are_fitted_to_the_mixtures_cameras_or_to_their_own(tmp_path: Path):
    (tmp_path / "a").write_bytes(encoded(2))
    path = write_lines(tmp_path / "t.jsonl", [record(0, ["a"])] * 4)
    spec = spec_of(
        path, vision={"slots": 1, "size": [32, 32], "fit": "pad"}, images={"top": "image_0"},
        cameras={"top": {"size": [6, 8]}},
    )  # fmt: skip
    with AutoLoader(spec, **HOW) as loader:
        (batch,) = loader
    assert batch["images"]["top"].shape == (4, 1, 6, 8, 3)
    own = batch["images"]["vision_0"][0, 0]
    assert own.shape == (32, 32, 3)
    assert not own[:3].any()
    assert (own[16] == pixels(2)[0, 0]).all()


def test_records_weigh_as_any_sample(tmp_path: Path):
    path, counts, more = written(tmp_path, "lines")
    zero = np.zeros(len(counts))
    zero[[1, 4]] = 2.0, 1.0
    np.savez(tmp_path / "w.npz", episode=np.arange(len(counts)), step=0 * zero, w=zero)
    weights = {"file": str(tmp_path / "w.npz"), "key": "w", "use": "draw"}
    spec = spec_of(path, sample_weight=weights, mixing={"epoch": 8}, **more)
    with AutoLoader(spec, **HOW) as loader:
        seen = [number for batch in loader for *_, number, _ in batch["provenance"].tolist()]
    assert sorted(seen) == [1] * 4 + [4] * 4
