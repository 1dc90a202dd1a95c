"""The tf.data front door gives a loader's samples, each once a pass, in the turns asked for."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rlds_files as files
from ended import ran
from streams import opened

from autoloader.errors import KnobError, SpecError, UsageError
from autoloader.sampling.mixture import BlockSequence
from autoloader.spec import PipelineSpec
from autoloader.tfdata import as_dataset

Sample = dict[str, Any]
WINDOWS = {
    "frame_offsets": [-1, 0, 2],
    "state_offsets": [0, 1],
    "action_horizon": 4,
    "edges": {"start": "zero", "end": "repeat"},
}
GREY_LEVELS = 1
"""Of any pixel; two JPEG decoders and two resizes round differently."""


def spec_of(plain: dict[str, Any], **changes: Any) -> PipelineSpec:
    return PipelineSpec.from_mapping({**plain, **changes})


@pytest.fixture(scope="module")
def odd_mixture(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Datasets that differ in all they may: widths, cameras, words, lengths, encodings."""
    folder = tmp_path_factory.mktemp("odd")
    points = {"words": files.numbers(12, dtype="int64")}
    no_words = {key: value for key, value in files.PLAIN.items() if key != "language_instruction"}
    wide = {**no_words, **points, "observation/other": files.image(10, 20)}

    def of_points(number: int, steps: int) -> dict[str, Any]:
        text = [ord(letter) for letter in f"Öffne {number} 🦾"]
        values = dict(files.episode(number, steps))
        del values["language_instruction"]
        values["words"] = (text + [0] * (12 - len(text))) * steps
        values["observation/other"] = [
            files.jpeg(number + 9, s, height=10, width=20) for s in range(steps)
        ]
        return values

    plain = files.write_dataset(
        folder,
        [[files.episode(10 * s + e, 3 + (7 * e + s) % 9) for e in range(5)] for s in range(3)],
        name="plain",
    )
    pictures = files.write_dataset(
        folder, [[files.episode(e, 4 + 3 * e, encode=files.png) for e in range(4)]], name="pictures"
    )
    pointed = files.write_dataset(
        folder, [[of_points(e, 2 * e + 1) for e in range(6)]], name="pointed", features=wide
    )
    return {
        "seed": 5,
        "datasets": [{"name": "plain", "path": str(plain.path), "weight": 3.0,
                      "sample": {"action_relative_to_state": [1]},
                      "images": {"primary": "observation/image"},
                      "action": ["action[1:]",
                                 {"path": "action[:1]", "ops": [{"clip": [0, 2]}, "invert"]}],
                      "state": "observation/state", "language": "language_instruction"},
                     {"name": "pictures", "path": str(pictures.path),
                      "images": {"wrist": "observation/image"}, "action": "action", "stride": 2},
                     {"name": "pointed", "path": str(pointed.path),
                      "images": {"primary": {"any_of": ["observation/image", "observation/other"]},
                                 "wrist": "observation/other"},
                      "state": [{"zeros": 1}, "observation/state[::2]"], "language": "words",
                      "keep": {"match": {"words": "[1-5]"}}},
                     {"name": "blind", "path": str(plain.path), "action": "action", "weight": 0.5}],
        "cameras": {"primary": {"size": [12, 16], "fit": "pad"},
                    "wrist": {"size": [9, 9], "fit": "crop", "resize": "area"}}, "sample": WINDOWS,
        "batch": {"size": 7},
    }  # fmt: skip


@pytest.fixture(scope="module")
def lean_mixture(odd_mixture: dict[str, Any]) -> dict[str, Any]:
    """Three datasets, one with a picture: graphs that are traced soon, for what hangs on turns."""
    blind = odd_mixture["datasets"][-1]
    datasets = [
        {**blind, "name": "often", "weight": 3.0, "images": {"primary": "observation/image"}},
        {**blind, "name": "plain", "weight": 1.0},
        {**blind, "name": "seldom", "weight": 0.5},
    ]
    cameras = {"primary": {"size": [6, 8]}}
    return {"seed": 5, "datasets": datasets, "cameras": cameras, "batch": {"size": 7}}


SAMPLES: dict[str, dict[str, Any]] = {
    "normalised windows over both ends, columns with a method of their own, zeros outside": {
        "sample": {**WINDOWS, "action_zero_outside": [0]},
        "normalize": {
            "action": {
                "method": "q01_q99",
                "clip": 2.2,
                "columns": [{"dims": "[-1:]", "method": "binary"}],
            },
            "state": {
                "method": "min_max",
                "clip": True,
                "arithmetic": "gr00t",
                "columns": [{"dims": [0], "method": "mean_std"}],
            },
        },
    },
    "only whole windows, so that short episodes are empty": {
        "datasets": ("pictures", "pointed"),
        "sample": {
            "frame_offsets": [0, 3],
            "action_start": -1,
            "action_horizon": 4,
            "action_reduce": "sum",
            "edges": {"start": "drop", "end": "drop"},
        },
        "normalize": {"action": {"method": "mean_std"}},
    },
    "a goal behind the offsets of two drawn samples an episode": {
        "datasets": ("plain", "pictures"),
        "sample": {
            "frame_offsets": [0, 2],
            "goal": "uniform",
            "action_horizon": 3,
            "per_episode": 2,
        },
    },
}
"""Changes to the odd mixture; those that name datasets have no other."""


def flat(element: Sample) -> Sample:
    """One sample's arrays by name, of a batch's row or of an element."""
    found = dict(element)
    for part in ("images", "frame_mask"):
        found |= {f"{part}/{camera}": value for camera, value in found.pop(part).items()}
    return found


def of_a_loader(spec: PipelineSpec) -> dict[tuple[int, ...], Sample]:
    """Samples of the first pass of every dataset, by provenance."""
    batch = spec.batch.model_copy(update={"drop_last": False})
    datasets = tuple(one.model_copy(update={"weight": 1.0}) for one in spec.datasets)
    given = {"weights": "natural", "batch": batch, "datasets": datasets}
    spec = spec.model_copy(update=given)
    found = {}
    with opened(spec) as loader:
        for batch in loader:
            rows = flat(batch)
            for row, place in enumerate(rows["provenance"].tolist()):
                found[tuple(place)] = {
                    # A slot is used again: copies.
                    name: values[row] if name == "language" else values[row].copy()
                    for name, values in rows.items()
                }
    return found


def of_a_dataset(dataset: Any) -> dict[tuple[int, ...], Sample]:
    found = {}
    for element in dataset.as_numpy_iterator():
        place = tuple(element["provenance"].tolist())
        assert place not in found
        found[place] = {**flat(element), "language": element["language"].decode()}
    return found


def assert_equal(found: dict[Any, Sample], wanted: dict[Any, Sample]) -> None:
    assert sorted(found) == sorted(wanted)
    for place, sample in wanted.items():
        assert found[place].keys() == sample.keys()
        for name, value in sample.items():
            own = found[place][name]
            if name.startswith("images/"):
                off = np.abs(own.astype(np.int16) - value).max()
                assert off <= GREY_LEVELS, (place, name, off)
            else:
                np.testing.assert_array_equal(own, value, err_msg=f"{place} {name}")
                assert getattr(own, "dtype", None) == getattr(value, "dtype", None)


@pytest.mark.parametrize("changes", SAMPLES.values(), ids=SAMPLES.keys())
def test_one_pass_has_the_samples_of_a_loader_with_their_values(
    odd_mixture: dict[str, Any], changes: dict[str, Any]
):
    every = odd_mixture["datasets"]
    names = changes.get("datasets", [one["name"] for one in every])
    chosen = {"datasets": [one for one in every if one["name"] in names]}
    spec = spec_of(odd_mixture, **{**changes, **chosen})
    knobs = {"cycle_length": 2, "num_parallel_calls": 2, "decode_threads": 2}
    assert_equal(of_a_dataset(as_dataset(spec, passes=1, knobs=knobs)), of_a_loader(spec))


def test_batches_hold_the_samples_in_their_order_with_the_shapes_of_a_loaders(
    odd_mixture: dict[str, Any],
):
    spec = spec_of(odd_mixture, datasets=odd_mixture["datasets"][:2])
    samples = list(as_dataset(spec).take(14).as_numpy_iterator())
    batches = list(as_dataset(spec, batched=True).take(2).as_numpy_iterator())
    with opened(spec) as loader:
        wanted = flat(next(iter(loader)))
    for number, batch in enumerate(map(flat, batches)):
        assert batch.keys() == wanted.keys()
        for name, values in batch.items():
            assert name == "language" or values.shape == wanted[name].shape
            own = [flat(one)[name] for one in samples[7 * number : 7 * number + 7]]
            np.testing.assert_array_equal(values, np.stack(own))


@pytest.mark.parametrize("strategy", ["python", "choose"])
def test_turns_are_those_of_the_schedule_and_passes_follow_each_other(
    lean_mixture: dict[str, Any], strategy: str
):
    mixing = {"strategy": strategy, "block_length": 3, "epoch": "forever"}
    spec = spec_of(lean_mixture, mixing=mixing)
    with opened(spec) as loader:
        sequence = BlockSequence(loader.plan.order)
        sizes = [loader.plan.counts[name].samples for name in loader.dataset_names]
    found = [
        tuple(one["provenance"].tolist()) for one in as_dataset(spec).take(400).as_numpy_iterator()
    ]
    due = itertools.chain.from_iterable([d] * n for d, n in map(sequence.block, itertools.count()))
    assert [place[0] for place in found] == list(itertools.islice(due, 400))
    assert len(set(found)) == 400
    # With one file open at a time a pass ends before the next one begins.
    for dataset, size in enumerate(sizes):
        passes = [place[1] for place in found if place[0] == dataset]
        assert passes == [number // size for number in range(len(passes))]


def test_shards_are_disjoint_and_together_a_pass(lean_mixture: dict[str, Any]):
    spec = spec_of(lean_mixture, datasets=lean_mixture["datasets"][:2])
    parts = [of_a_dataset(as_dataset(spec, passes=1, shard=(2, which))) for which in (0, 1)]
    assert sorted(of_a_loader(spec)) == sorted([*parts[0], *parts[1]])
    assert parts[0]
    assert parts[1]


def test_what_cannot_be_is_refused(lean_mixture: dict[str, Any]):
    with pytest.raises(UsageError, match="passes=0"):
        as_dataset(spec_of(lean_mixture), passes=0)
    with pytest.raises(KnobError, match="num_parallel_calls"):
        as_dataset(spec_of(lean_mixture), knobs={"num_parallel_calls": 2})
    with pytest.raises(SpecError, match="split"):
        as_dataset(spec_of(lean_mixture), split="nowhere")


def test_a_broken_record_is_tensorflows_error_and_what_is_whole_can_be_had(tmp_path: Path):
    written = files.write_dataset(tmp_path, [[files.episode(e, 4) for e in range(4)]] * 2, name="a")
    written.break_payload(0, 2)
    spec = PipelineSpec.from_mapping(
        {
            "datasets": [
                {"name": "a", "path": str(written.path), "images": {"x": "observation/image"}}
            ],
            "cameras": {"x": {"size": [12, 16]}},
        }
    )
    dataset = as_dataset(spec, passes=1)
    with pytest.raises(Exception, match="corrupted record"):
        list(dataset)
    assert len(list(dataset.ignore_errors())) in (24, 28)  # the rest of its file is lost, too


IMPORTS = """
import os, sys
import tensorflow as tf
tf.config.set_visible_devices = lambda *a, **k: print("hidden")
tf.config.optimizer.set_experimental_options = lambda *a: print("set")
if os.fork():
    os.wait()
    print("and in the loader's own process:")
    import autoloader.pipeline.graph.tensorflow
else:
    import autoloader.tfdata
"""


def test_importing_it_leaves_the_programs_tensorflow_as_it_is(warm_python: Path):
    done = ran(warm_python, "-c", IMPORTS)
    assert done.stdout.splitlines() == ["and in the loader's own process:", "hidden", "set"]
