"""Both readers against the witness: windows, edges, goals, sums, differences, keep."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_samples import Episode, Sample, samples_of
from plain_tfds import plain_episodes, text_at
from rlds_files import PLAIN, TEXT, Written, episode, numbers, write_dataset
from streams import dataset_of, episodes_of_pass, mixture_of

from autoloader.index import count_indexed, open_dataset_index
from autoloader.index.planned import RunPlanner
from autoloader.index.valid import table_of
from autoloader.samples.block import SampleBlock
from autoloader.samples.resolve import ResolvedMixture, resolve
from autoloader.sampling.mixture import mixture_order
from autoloader.sampling.plan import SamplePlan
from autoloader.spec import PipelineSpec

SHARDS = [[1, 9, 4], [2, 6], [13, 3]]
PASSES = 2
FILE_PATH = "episode_metadata/file_path"
Key = tuple[int, int, int, int]
"""Pass, shard, record, t."""
Offsets = st.lists(st.integers(-4, 6), min_size=1, max_size=3)
EDGES = st.sampled_from(["repeat", "zero", "drop"])


@dataclass(frozen=True)
class Data:
    """A dataset as files, and its episodes by shard and record as plain TFDS reads them."""

    written: Written = field(repr=False)
    episodes: Mapping[tuple[int, int], Episode] = field(repr=False)


@pytest.fixture(scope="module")
def data(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Written, dict[tuple[int, int], Episode]]:
    """Episodes of 1 to 13 steps, as files and as plain TFDS reads them."""
    features = {
        **PLAIN,
        "episode_metadata/file_path": TEXT,
        "episode_metadata/id": numbers(dtype="int64"),
        "task": TEXT,
    }
    found: dict[tuple[int, int], Episode] = {}
    shards = []
    for shard, lengths in enumerate(SHARDS):
        records = []
        for record, steps in enumerate(lengths):
            number = 3 * shard + record
            words = [["", f"pick {number}", "  "][(number + s // 3) % 3] for s in range(steps)]
            tasks = ["fold" if s % 4 else "idle" for s in range(steps)]
            name = f"/{'success' if number % 3 else 'failure'}/{number}"
            values = episode(
                number,
                steps,
                language_instruction=[word.encode() for word in words],
                task=[task.encode() for task in tasks],
                **{"episode_metadata/file_path": [name.encode()], "episode_metadata/id": [number]},
            )
            records.append(values)
            found[shard, record] = Episode(
                frames={"primary": values["observation/image"]},
                action=np.asarray(values["action"], np.float32).reshape(steps, -1),
                state=np.asarray(values["observation/state"], np.float32).reshape(steps, -1),
                language=words,
                texts={"task": tasks},
                metadata={"episode_metadata/file_path": name, "episode_metadata/id": str(number)},
            )
        shards.append(records)
    folder = tmp_path_factory.mktemp("eager")
    written = write_dataset(folder, shards, features=features)
    (written.path.parent / "keep.json").write_text(json.dumps(RANGES))
    return Data(written, found)


@st.composite
def samples(draw: st.DrawFn) -> dict[str, Any]:
    """Every key of a spec's ``sample``."""
    return {
        "frame_offsets": draw(Offsets),
        "state_offsets": draw(Offsets),
        "action_start": draw(st.integers(-3, 3)),
        "action_horizon": draw(st.integers(1, 4)),
        "action_step": draw(st.integers(1, 2)),
        "action_reduce": draw(st.sampled_from(["none", "sum"])),
        "action_per": draw(st.sampled_from(["sample", "sample", "step"])),
        "action_relative_to_state": draw(st.sampled_from([[], [1], [0, 1]])),
        "edges": {"start": draw(EDGES), "end": draw(EDGES)},
        "goal": draw(st.sampled_from(["none", "uniform"])),
        "per_episode": draw(st.sampled_from(["all", "all", 1, 3])),
    }


def wanted_of(
    data: Data, mixture: ResolvedMixture, sample: Mapping[str, Any], **own: Any
) -> dict[Key, Sample]:
    """Every sample of the first passes by the reference."""
    (dataset,) = mixture.datasets
    return {
        (pass_, *place, t): found
        for pass_ in range(PASSES)
        for place, one in data.episodes.items()
        for t, found in samples_of(one, sample, (pass_, *place), key=dataset.key, **own).items()
    }


def read_from_index(mixture: ResolvedMixture) -> Iterator[tuple[Key, SampleBlock, int]]:
    """What the indexed reader plans for the first passes; frames are read at their ranges."""
    (dataset,) = mixture.datasets
    index = open_dataset_index(dataset)
    table = table_of(dataset, index)
    assert count_indexed(index).samples == table.samples
    if not table.samples:
        return
    order = mixture_order(mixture, {dataset.name: table.samples})
    planned = SamplePlan(order, [table]).samples(0, PASSES * table.samples)
    run, reads = RunPlanner([dataset], mixture.layout, [index], [False]).run(planned)
    contents = [Path(path).read_bytes() for path in reads.files]
    for camera, ranges in reads.ranges.items():
        lists = (each.tolist() for each in (ranges.file, ranges.offset, ranges.length))
        run.frames[camera] = [
            None if file < 0 else contents[file][offset : offset + length]
            for file, offset, length in zip(*lists, strict=True)
        ]
    for k, (_, pass_, shard, record, t, _) in enumerate(run.columns["ledger"].tolist()):
        yield (pass_, shard, record, t), run, k


def read_from_stream(mixture: ResolvedMixture) -> Iterator[tuple[Key, SampleBlock, int]]:
    """What the stream reader gives in the first passes."""
    for pass_ in range(PASSES):
        for item in episodes_of_pass(mixture, pass_=pass_, cycle_length=2):
            if isinstance(item, SampleBlock):
                place = item.place
                for k, t in enumerate(item.t.tolist()):
                    yield (pass_, place.shard, place.record, t), item, k
            else:
                assert item.reason is None


def check(wanted: Mapping[Key, Sample], found: Iterator[tuple[Key, SampleBlock, int]]) -> None:
    """Every sample once, and each with the reference's values to the bit."""
    came = []
    for key, group, k in found:
        came.append(key)
        one = wanted[key]
        zeroed = group.frame_zeroed[k].tolist()
        for camera, frames in one.frames.items():
            rows = group.frame_row[k].tolist()
            assert frames == [
                None if zero else group.frames[camera][row]
                for row, zero in zip(rows, zeroed, strict=True)
            ]
        arrays = {name: column[k] for name, column in group.columns.items()}
        for camera in one.frames:
            assert arrays[f"frame_mask/{camera}"].tolist() == one.frame_mask
        assert arrays["frame_offset"].tolist() == one.frame_offset
        for name in ("action", "action_mask", "state", "state_mask"):
            np.testing.assert_array_equal(arrays[name], getattr(one, name))
        assert group.texts[k].decode() == one.language
    assert sorted(came) == sorted(wanted)


RANGES = {
    "/failure/0|0": [[0, 1]],
    "/success/4|4": [[1, 3], [2, 5]],
    "/success/7|7": [[4, 400]],
    "/success/5|5": [[3, 3]],
    "/failure/6|6": [[0, 2], [9, 11]],
    "no episode": [[0, 9]],
}
PATTERNS = st.dictionaries(
    st.sampled_from(["episode_metadata/file_path", "task"]),
    st.sampled_from(["success", "^/s", "fold", "e$"]),
    max_size=2,
)


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any] | None:
    """A spec's ``keep``; half of the time none, so that windows are seen alone."""
    found: dict[str, Any] = {"match": draw(PATTERNS)}
    if draw(st.booleans()):
        found["language"] = draw(st.sampled_from(["required", "anywhere"]))
    if draw(st.booleans()):
        key = "{episode_metadata/file_path}|{episode_metadata/id}"
        found["ranges"] = {"file": "keep.json", "key": key}
    return found if any(found.values()) and draw(st.booleans()) else None


CASES = (samples(), st.integers(1, 3), rules())


def held(data: Data, sample: dict[str, Any], stride: int, keep: dict[str, Any] | None) -> Any:
    """The mixture, and what the reference makes of it."""
    if keep and "ranges" in keep:
        file = str(data.written.path.parent / keep["ranges"]["file"])
        keep = {**keep, "ranges": {**keep["ranges"], "file": file}}
    own: dict[str, Any] = {"stride": stride, "keep": keep}
    mixture = mixture_of(dataset_of(data.written, **own), sample=sample)
    return mixture, wanted_of(data, mixture, sample, **own)


@given(*CASES)
def test_the_indexed_reader_gives_what_the_witness_gives(
    data: Data, sample: dict[str, Any], stride: int, keep: dict[str, Any] | None
):
    mixture, wanted = held(data, sample, stride, keep)
    check(wanted, read_from_index(mixture))


@given(*CASES)
@settings(max_examples=8)
def test_the_stream_reader_gives_what_the_witness_gives(
    data: Data, sample: dict[str, Any], stride: int, keep: dict[str, Any] | None
):
    mixture, wanted = held(data, sample, stride, keep)
    check(wanted, read_from_stream(mixture))


@pytest.fixture(scope="module")
def kitchen(demo_spec: PipelineSpec) -> tuple[PipelineSpec, Data]:
    """A dataset that TFDS has written, read by plain TFDS; one episode a shard."""
    declared = demo_spec.dataset("demo_kitchen_sink")
    assert declared.path is not None
    episodes = {}
    for shard, steps in enumerate(plain_episodes(declared.path, "train")):
        episodes[shard, 0] = Episode(
            frames={},
            action=np.stack([step["action"] for step in steps]),
            state=np.stack([step["observation"]["state"] for step in steps]),
            language=[text_at(step, "language_instruction") for step in steps],
            metadata={FILE_PATH: text_at(steps[0], FILE_PATH)},
        )
    spec = demo_spec.model_copy(update={"datasets": (declared,)})
    return spec, Data(Written(declared.name, Path(declared.path), []), episodes)


@pytest.mark.parametrize("read", [read_from_index, read_from_stream])
def test_files_of_tfds_give_what_plain_tfds_reads(
    read: Any, kitchen: tuple[PipelineSpec, Data], tmp_path: Path
):
    spec, data = kitchen
    sample = {
        "frame_offsets": [-1, 0, 3], "state_offsets": [0, -2], "action_start": -1,
        "action_horizon": 4, "action_reduce": "none", "action_per": "step",
        "action_relative_to_state": [0, 1, 5],
        "edges": {"start": "zero", "end": "repeat"}, "goal": "uniform", "per_episode": "all",
    }  # fmt: skip
    names = [one.metadata[FILE_PATH] for one in data.episodes.values()]
    ranges = {f"a {names[0]}": [[2, 9], [11, 12]], f"a {names[1]}": [[0, 7]]}
    (tmp_path / "keep.json").write_text(json.dumps(ranges))
    keep = {
        "language": "required",
        "match": {FILE_PATH: "/"},
        "ranges": {"file": str(tmp_path / "keep.json"), "key": f"a {{{FILE_PATH}}}"},
    }
    plain = spec.model_dump(mode="json")
    plain["datasets"][0] |= {"keep": keep, "stride": 2}
    mixture = resolve(PipelineSpec.from_mapping({**plain, "sample": sample}))
    wanted = wanted_of(data, mixture, sample, stride=2, keep=keep)
    assert len(wanted) == PASSES * (4 + 4)
    check(wanted, read(mixture))
