"""The loader in one process: batches as the contract says, epochs, statistics, and its end."""

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rlds_files import PLAIN, TEXT, Written, episode, image, png, write_dataset, write_steps
from streams import dataset_of, every_sample, spec_of, until

from autoloader import AutoLoader, PipelineSpec
from autoloader.errors import UsageError

KNOBS = {"ring_slots": 4, "decode_threads": 2, "queue_samples": 8}
SHARDS = [[3, 5, 1], [4, 2], [6]]
TOTAL = 21


pytestmark = pytest.mark.usefixtures("no_thread_left_behind")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Written, Written]:
    """Two datasets of 21 samples each."""
    folder = tmp_path_factory.mktemp("pair")
    one, two = (write_steps(folder, SHARDS, encode=png, name=name) for name in "ab")
    return one, two


_reader = ["stream"]


@pytest.fixture(params=["stream", "indexed"], autouse=True)
def _with_each_reader(request: pytest.FixtureRequest) -> None:
    """Every test here holds for both readers."""
    _reader[0] = request.param


def load(spec: PipelineSpec | Path, **own: Any) -> AutoLoader:
    spec = spec if isinstance(spec, PipelineSpec) else PipelineSpec.from_yaml(spec)
    spec = spec.model_copy(update={"reader": _reader[0]})
    own = {"isolation": "thread", "ram_floor": "64MiB", "knobs": KNOBS, "output": "numpy", **own}
    return AutoLoader(spec, **own)


def samples_of(batches: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    return [tuple(row) for batch in batches for row in batch["provenance"].tolist()]


def some(loader: AutoLoader, count: int) -> list[dict[str, Any]]:
    """``count`` batches, over epochs; arrays of their own."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        for batch in loader:
            found.append({k: v.copy() if hasattr(v, "copy") else v for k, v in batch.items()})
            if len(found) == count:
                break
    return found


# --- a batch ------------------------------------------------------------------------------------

SHAPES: dict[str, Any] = {
    "sample": {"frame_offsets": [0, 2], "state_offsets": [-1, 0, 1], "action_horizon": 3},
    "cameras": {"primary": {"size": [12, 16]}, "wrist": {"size": [6, 8]}},
    "pad_to": {"action": 7},
}


@pytest.mark.parametrize("metadata", ["full", "dataset_only", "none"])
@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_a_batch_has_the_contracts_keys_shapes_and_types(
    metadata: str, output: Any, pair: tuple[Written, Written]
):
    both = {"primary": "observation/image", "wrist": "observation/image"}
    spec = spec_of(dataset_of(pair[0], images=both), pair[1], metadata=metadata, **SHAPES)
    with load(spec, output=output) as loader:
        batch = next(iter(loader))
    keys = {"images", "frame_mask", "frame_offset", "action", "action_mask", "state", "state_mask",
            "language"}  # fmt: skip
    keys |= {"none": set(), "dataset_only": {"dataset_index"}}.get(
        metadata, {"dataset_index", "provenance"}
    )
    assert set(batch) == keys
    wanted = {
        "frame_offset": ((4, 2), "int32"),
        "action": ((4, 3, 7), "float32"),
        "action_mask": ((4, 3, 7), "bool"),
        "state": ((4, 3, 3), "float32"),
        "state_mask": ((4, 3, 3), "bool"),
        "dataset_index": ((4,), "int64"),
        "provenance": ((4, 5), "int64"),
    }
    if output == "torch":
        import torch

        assert all(isinstance(batch[key], torch.Tensor) for key in keys & set(wanted))
    for key in keys & set(wanted):
        shape, dtype = wanted[key]
        assert (tuple(batch[key].shape), str(batch[key].dtype).removeprefix("torch.")) == (
            shape,
            dtype,
        )
    assert {c: tuple(v.shape) for c, v in batch["images"].items()} == {
        "primary": (4, 2, 12, 16, 3),
        "wrist": (4, 2, 6, 8, 3),
    }
    assert {c: tuple(v.shape) for c, v in batch["frame_mask"].items()} == {
        "primary": (4, 2),
        "wrist": (4, 2),
    }
    assert str(batch["images"]["primary"].dtype).endswith("uint8")
    assert isinstance(batch["language"], list)
    assert all(isinstance(text, str) for text in batch["language"])


def test_any_of_draws_one_camera_per_episode_and_pass(tmp_path: Path):
    features = {**PLAIN, "left": image(), "right": image(), "other": TEXT}
    shards = [
        [
            episode(i, 4, left=[png(1, 0)] * 4, right=[png(2, 0)] * 4, other=[b"other"] * 4)
            for i in range(10)
        ]
    ]
    written = write_dataset(tmp_path, shards, features=features)
    own = dataset_of(
        written,
        images={"primary": {"any_of": ["left", "right"]}},
        language={"any_of": ["language_instruction", "other"]},
    )
    drawn: dict[tuple[int, int], set[tuple[int, bool]]] = {}
    with load(spec_of(own)) as loader:
        for batch in some(loader, 20):
            for row, (_, pass_, _, record, _) in enumerate(batch["provenance"].tolist()):
                side = (int(batch["images"]["primary"][row, 0, 0, 0, 0]) - 4) // 8
                words = batch["language"][row] == "other"
                drawn.setdefault((pass_, record), set()).add((side, words))
    assert all(len(one) == 1 for one in drawn.values())
    assert {side for one in drawn.values() for side, _ in one} == {1, 2}
    assert {words for one in drawn.values() for _, words in one} == {True, False}
    both = [record for pass_, record in drawn if pass_ == 0 and (1, record) in drawn]
    assert any(drawn[0, record] != drawn[1, record] for record in both)


# --- epochs -------------------------------------------------------------------------------------


def test_natural_weights_make_an_epoch_one_pass_of_everything(pair: tuple[Written, Written]):
    spec = spec_of(*pair, weights="natural", batch={"size": 4, "drop_last": False})
    with load(spec) as loader:
        for epoch in range(2):
            assert len(loader) == 11
            batches = [dict(batch) for batch in loader]
            assert [len(batch["language"]) for batch in batches] == [4] * 10 + [2]
            wanted = {
                sample
                for index in (0, 1)
                for sample in every_sample(loader.plan.mixture, index, epoch)
            }
            found = samples_of(batches)
            assert len(found) == len(set(found)) == 2 * TOTAL
            assert set(found) == wanted


def test_a_dropped_remainder_is_carried_into_the_next_epoch_and_nothing_is_lost(
    pair: tuple[Written, Written],
):
    spec = spec_of(*pair, weights="natural", batch={"size": 5})
    with load(spec) as loader:
        lengths, found = [], []
        for _ in range(5):
            announced = len(loader)
            batches = [dict(batch) for batch in loader]
            assert len(batches) == announced
            lengths.append(announced)
            found += samples_of(batches)
    assert lengths == [8, 8, 9, 8, 9]  # 42 samples an epoch, 210 in five
    for index in (0, 1):
        for pass_ in range(5):
            own = [sample for sample in found if sample[:2] == (index, pass_)]
            assert len(own) == len(set(own)) == TOTAL


def test_an_epoch_of_n_samples_goes_on_where_the_last_one_stopped(pair: tuple[Written, Written]):
    spec = spec_of(
        dataset_of(pair[0], weight=1), dataset_of(pair[1], weight=3), mixing={"epoch": 40}
    )
    with load(spec) as loader:
        found = []
        for _ in range(4):
            assert len(loader) == 10
            batches = [dict(batch) for batch in loader]
            assert len(batches) == 10
            found += samples_of(batches)
    assert len(set(found)) == len(found)
    share = sum(sample[0] == 1 for sample in found) / len(found)
    assert share == pytest.approx(0.75, abs=17 / 160)


# --- state --------------------------------------------------------------------------------------


def test_a_state_saved_as_json_resumes_with_the_very_next_sample(pair: tuple[Written, Written]):
    spec = spec_of(*pair, mixing={"block_length": 2})
    with load(spec, reproducible=True) as loader:
        straight = samples_of(some(loader, 24))
    for stop in (1, 7, 13):
        with load(spec, reproducible=True) as loader:
            some(loader, stop)
            state = json.loads(json.dumps(loader.state_dict()))
        with load(spec, reproducible=True) as loader:
            loader.load_state_dict(state)
            rest = samples_of(some(loader, 24 - stop))
        assert rest == straight[4 * stop :]


def test_a_state_of_another_mixture_is_refused_saying_what_differs(pair: tuple[Written, Written]):
    with load(spec_of(*pair)) as loader:
        state = loader.state_dict()
    passes = spec_of(pair[0], mixing={"epoch": "pass"})
    with load(passes) as loader, pytest.raises(UsageError, match=r"datasets.b is only in"):
        loader.load_state_dict(state)
    with load(spec_of(*pair, seed=5)) as loader, pytest.raises(UsageError, match="seed"):
        loader.load_state_dict(state)


# --- what it says of itself ---------------------------------------------------------------------


def test_statistics_are_a_json_ready_snapshot(pair: tuple[Written, Written]):
    with load(spec_of(*pair)) as loader:
        before = loader.statistics()
        assert (before.samples, before.batches, before.samples_per_s) == (0, 0, None)
        assert before.batch_latency_s is None
        assert before.datasets["a"].share is None
        some(loader, 6)
        after = loader.statistics()
        assert before.batches == 0
    document = json.loads(json.dumps(after.as_dict()))
    assert set(document) >= {
        "samples", "batches", "samples_per_s", "wait_ratio", "batch_latency_s", "headroom_bytes",
        "loader_bytes", "decodes_per_sample", "batch_call_s", "repeats", "ring", "cache", "helpers",
        "datasets", "knobs", "state", "controller", "starts", "restarts", "worker_pids",
    }  # fmt: skip
    assert (after.samples, after.batches) == (24, 6)
    assert after.samples_per_s is not None
    assert after.wait_ratio is not None
    assert 0 <= after.wait_ratio <= 1
    assert sum(one.share or 0 for one in after.datasets.values()) == pytest.approx(1)
    assert after.datasets["a"].weight == pytest.approx(0.5)
    assert after.ring.slots == 4
    assert after.knobs["decode_threads"] == 2
    assert after.worker_pids == ()


# --- knobs --------------------------------------------------------------------------------------


def test_retuning_changes_the_values_in_force_and_loses_nothing(pair: tuple[Written, Written]):
    spec = spec_of(pair[0], weights="natural", batch={"size": 3, "drop_last": False})
    with load(spec) as loader:
        found = []
        for knobs in (
            {"cycle_length": 3},
            {"decode_threads": 1, "ring_slots": 6},
            {"cycle_length": 1, "stream_prefetch": 2},
            {"a__queue_samples": 3},
        ):
            in_force = loader.retune(**knobs)
            assert loader.knobs == in_force
            found += samples_of([dict(batch) for batch in loader])
        assert loader.knobs.for_dataset("a").queue_samples == 3
    for pass_ in range(4):
        own = [sample for sample in found if sample[1] == pass_]
        assert len(own) == len(set(own)) == TOTAL


# --- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_batches_that_are_kept_survive_closing_and_are_never_overwritten(
    output: Any, pair: tuple[Written, Written]
):
    with load(spec_of(*pair), output=output) as loader:
        kept = [batch for batch, _ in zip(loader, range(9), strict=False)]
        copies = [np.asarray(batch["images"]["primary"]).copy() for batch in kept]
        assert loader.statistics().ring.copies > 0
    del loader
    gc.collect()
    for batch, copy in zip(kept, copies, strict=True):
        assert (np.asarray(batch["images"]["primary"]) == copy).all()
        assert copy.any()


def test_a_loader_over_files_that_were_rewritten_under_an_open_one_gives_what_they_hold_now(
    tmp_path: Path,
):
    before = write_dataset(tmp_path / "before", [[episode(1, 4)]])
    after = write_dataset(tmp_path / "after", [[episode(2, 4)]])
    with load(spec_of(before)) as first:
        assert set(next(iter(first))["state"][:, 0, 0]) == {1}
        after.files[0].replace(before.files[0])
        with load(spec_of(before)) as second:
            assert set(next(iter(second))["state"][:, 0, 0]) == {2}


def test_a_loader_that_is_sent_elsewhere_holds_nothing_that_was_read_ahead(
    pair: tuple[Written, Written],
):
    with load(spec_of(*pair), controller=False, reproducible=True) as loader:
        beginning = loader.state_dict()
        batches = iter(loader)
        first = next(batches)["provenance"].tolist()
        until(lambda: loader.statistics().ring.filled > 0)
        loader.suspend()
        loader.load_state_dict(beginning)
        found = loader.statistics()
        assert found.ring.filled == 0
        assert all(one.queue == 0 for one in found.datasets.values())
        assert next(batches)["provenance"].tolist() == first
