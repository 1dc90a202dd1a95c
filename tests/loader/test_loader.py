"""The loader in one process: batches as the contract says, epochs, statistics, and its end."""

from __future__ import annotations

import gc
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rlds_files import PLAIN, TEXT, Written, episode, image, png, write_dataset, write_steps
from streams import dataset_of, every_sample, spec_of

from autoloader import AutoLoader, PipelineSpec
from autoloader.errors import BudgetInfeasibleError, KnobError, UsageError
from autoloader.spec.knobs import KnobLimits

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
) -> None:
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


def test_a_camera_that_a_dataset_lacks_is_zero_and_masked_and_the_others_are_there(
    pair: tuple[Written, Written],
) -> None:
    both = {"primary": "observation/image", "wrist": "observation/image"}
    spec = spec_of(dataset_of(pair[0], images=both), pair[1], batch={"size": 8}, **{
        key: value for key, value in SHAPES.items() if key != "pad_to"
    })  # fmt: skip
    with load(spec) as loader:
        for batch in some(loader, 3):
            has = batch["dataset_index"] == 0
            assert batch["images"]["wrist"][has].any(axis=(1, 2, 3, 4)).all()
            assert batch["frame_mask"]["wrist"][has, 0].all()
            assert not batch["images"]["wrist"][~has].any()
            assert not batch["frame_mask"]["wrist"][~has].any()
            assert batch["images"]["primary"].any(axis=(1, 2, 3, 4)).all()
            assert batch["frame_mask"]["primary"][:, 0].all()


def test_action_and_state_are_zero_padded_to_the_fixed_widths_and_masked(
    pair: tuple[Written, Written],
) -> None:
    spec = spec_of(pair[0], dataset_of(pair[1], state=None), pad_to={"action": 7, "state": 8})
    with load(spec) as loader:
        for batch in some(loader, 4):
            assert batch["action_mask"][:, 0].tolist() == [[True] * 2 + [False] * 5] * 4
            assert not batch["action"][..., 2:].any()
            for row, dataset in enumerate(batch["dataset_index"].tolist()):
                width = 3 if dataset == 0 else 0
                assert batch["state_mask"][row, 0].tolist() == [True] * width + [False] * (
                    8 - width
                )
                assert not batch["state"][row, 0, width:].any()


def test_a_sample_is_located_in_its_file_also_with_a_stride(pair: tuple[Written, Written]) -> None:
    spec = spec_of(dataset_of(pair[0], stride=2, split="train[1:]"))
    with load(spec) as loader:
        for batch in some(loader, 3):
            for row, place in enumerate(batch["provenance"]):
                found = loader.locate(place)
                shard = [str(file) for file in pair[0].files].index(found.path)
                first = sum(len(part) for part in SHARDS[:shard])
                assert found.dataset == "a"
                assert found.step == 2 * found.t
                assert found.pass_ == place[1]
                assert batch["state"][row, 0, 0] == first + found.record
                assert batch["state"][row, 0, 1] == found.step


def test_any_of_draws_one_camera_per_episode_and_pass(tmp_path: Path) -> None:
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


def test_natural_weights_make_an_epoch_one_pass_of_everything(
    pair: tuple[Written, Written],
) -> None:
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
) -> None:
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


def test_an_epoch_of_n_samples_goes_on_where_the_last_one_stopped(
    pair: tuple[Written, Written],
) -> None:
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


def test_a_loop_that_is_left_early_goes_on_in_the_same_epoch(pair: tuple[Written, Written]) -> None:
    with load(spec_of(*pair, mixing={"epoch": 32}), reproducible=True) as loader:
        straight = samples_of(some(loader, 8))
    with load(spec_of(*pair, mixing={"epoch": 32}), reproducible=True) as loader:
        first = [dict(batch) for batch, _ in zip(loader, range(3), strict=False)]
        rest = [dict(batch) for batch in loader]
    # zip asks for one more before it sees that the range is over.
    assert len(rest) in (4, 5)
    assert samples_of(first) == straight[:12]
    assert samples_of(rest)[-16:] == straight[-16:]


def test_a_loader_without_end_has_no_length_and_goes_on(pair: tuple[Written, Written]) -> None:
    with load(spec_of(*pair, mixing={"epoch": "forever"})) as loader:
        with pytest.raises(TypeError, match="forever"):
            len(loader)
        found = [batch["language"] for batch, _ in zip(loader, range(40), strict=False)]
    assert len(found) == 40


def test_n_drawn_samples_per_episode_make_a_pass(pair: tuple[Written, Written]) -> None:
    spec = spec_of(
        pair[0], sample={"per_episode": 2}, weights="natural", batch={"size": 3, "drop_last": False}
    )
    with load(spec) as loader:
        one, two = ([dict(batch) for batch in loader] for _ in range(2))
    for batches in (one, two):
        per_episode: dict[tuple[int, ...], set[int]] = {}
        for sample in samples_of(batches):
            per_episode.setdefault(sample[2:4], set()).add(sample[4])
        lengths = {(s, r): n for s, part in enumerate(SHARDS) for r, n in enumerate(part)}
        assert {key: len(drawn) for key, drawn in per_episode.items()} == {
            key: min(2, n) for key, n in lengths.items()
        }
    assert {s[2:] for s in samples_of(one)} != {s[2:] for s in samples_of(two)}


def test_windows_that_may_not_leave_the_episode_give_the_t_inside_alone(
    pair: tuple[Written, Written],
) -> None:
    sample = {"frame_offsets": [0, 2], "edges": {"end": "drop"}}
    spec = spec_of(pair[0], sample=sample, weights="natural", batch={"size": 1, "drop_last": False})
    with load(spec) as loader:
        batches = [dict(batch) for batch in loader]
        assert all(bool(batch["frame_mask"]["primary"].all()) for batch in batches)
        assert len(batches) == sum(max(0, n - 2) for part in SHARDS for n in part)
        assert loader.plan.counts["a"].short_episodes == 2


def test_a_reproducible_loader_gives_the_same_samples_twice(pair: tuple[Written, Written]) -> None:
    runs = []
    for threads in (1, 3):
        knobs = {**KNOBS, "decode_threads": threads, "queue_samples": 4 * threads}
        knobs |= {"cycle_length": 3, "num_parallel_calls": 3}
        with load(spec_of(*pair), reproducible=True, knobs=knobs) as loader:
            runs.append(samples_of(some(loader, 20)))
    assert runs[0] == runs[1]


def test_another_seed_gives_another_order(pair: tuple[Written, Written]) -> None:
    runs = []
    for seed in (0, 1):
        with load(spec_of(*pair, seed=seed), reproducible=True) as loader:
            runs.append(samples_of(some(loader, 5)))
    assert runs[0] != runs[1]


# --- state --------------------------------------------------------------------------------------


def test_a_state_saved_as_json_resumes_with_the_very_next_sample(
    pair: tuple[Written, Written],
) -> None:
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


def test_a_state_of_another_mixture_is_refused_saying_what_differs(
    pair: tuple[Written, Written],
) -> None:
    with load(spec_of(*pair)) as loader:
        state = loader.state_dict()
    passes = spec_of(pair[0], mixing={"epoch": "pass"})
    with load(passes) as loader, pytest.raises(UsageError, match=r"datasets.b: saved"):
        loader.load_state_dict(state)
    with load(spec_of(*pair, seed=5)) as loader, pytest.raises(UsageError, match="seed"):
        loader.load_state_dict(state)


# --- what it says of itself ---------------------------------------------------------------------


def test_statistics_are_a_json_ready_snapshot(pair: tuple[Written, Written]) -> None:
    with load(spec_of(*pair)) as loader:
        before = loader.statistics()
        assert (before.samples, before.batches, before.samples_per_s) == (0, 0, None)
        assert before.batch_latency_s is None
        assert before.datasets["a"].share is None
        some(loader, 6)
        after = loader.statistics()
        assert before.batches == 0
    document = json.loads(json.dumps(after.as_dict()))
    assert set(document) == {
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


def test_retuning_changes_the_values_in_force_and_loses_nothing(
    pair: tuple[Written, Written],
) -> None:
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


def test_a_retune_takes_the_mapping_that_set_takes(pair: tuple[Written, Written]) -> None:
    with load(spec_of(*pair)) as loader:
        loader.retune({"a.cycle_length": "3", "ring_slots": "6"}, decode_threads=1)
        assert loader.knobs.for_dataset("a").cycle_length == 3
        assert loader.knobs.for_dataset("b").cycle_length == 1
        assert (loader.knobs.ring_slots, loader.knobs.decode_threads) == (6, 1)
        before = loader.knobs
        assert loader.retune({}) == before
        for wrong in ({"z.cycle_length": 1}, {"a.ring_slots": 4}, {"ring_slot": 4}):
            with pytest.raises(KnobError):
                loader.retune(wrong)
        with pytest.raises(UsageError, match="knobs: 1 is no name"):
            loader.retune({1: 2})  # type: ignore[dict-item]
        assert loader.knobs == before


def test_knobs_given_at_the_start_are_held_against_this_host(pair: tuple[Written, Written]) -> None:
    with pytest.raises(KnobError, match="cycle_length=40"):
        load(spec_of(*pair), knobs={"cycle_length": 40})
    with load(spec_of(*pair)) as loader:
        assert isinstance(loader.plan.limits, KnobLimits)
        assert loader.plan.limits.shards == {"a": 3, "b": 3}


# --- before anything starts ---------------------------------------------------------------------


def threads() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("autoloader-")}


def test_a_floor_that_cannot_be_met_is_told_with_the_numbers_before_anything_starts(
    pair: tuple[Written, Written],
) -> None:
    with pytest.raises(BudgetInfeasibleError) as caught:
        load(spec_of(*pair), ram_floor="900TB")
    assert caught.value.exit_code == 3
    assert "GiB" in caught.value.what
    assert "must stay free" in caught.value.what
    assert threads() == set()


def test_a_spec_may_be_named_by_its_path(demo_mix: Path) -> None:
    with AutoLoader(
        demo_mix, isolation="thread", ram_floor="64MiB", knobs=KNOBS, output="numpy"
    ) as loader:
        assert len(loader.dataset_names) == 6
        batch = next(iter(loader))
    assert batch["images"]["primary"].shape == (48, 2, 256, 256, 3)


# --- the end ------------------------------------------------------------------------------------


def test_a_loader_may_be_closed_before_its_first_batch(pair: tuple[Written, Written]) -> None:
    load(spec_of(*pair)).close()


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_batches_that_are_kept_survive_closing_and_are_never_overwritten(
    output: Any, pair: tuple[Written, Written]
) -> None:
    with load(spec_of(*pair), output=output) as loader:
        kept = [batch for batch, _ in zip(loader, range(9), strict=False)]
        copies = [np.asarray(batch["images"]["primary"]).copy() for batch in kept]
        assert loader.statistics().ring.copies > 0
    del loader
    gc.collect()
    for batch, copy in zip(kept, copies, strict=True):
        assert (np.asarray(batch["images"]["primary"]) == copy).all()
        assert copy.any()


def test_an_exception_in_the_training_loop_ends_the_loader_with_the_with_block(
    pair: tuple[Written, Written],
) -> None:
    def train() -> None:
        with load(spec_of(*pair)) as loader:
            next(iter(loader))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()


def test_a_loader_over_files_that_were_rewritten_under_an_open_one_gives_what_they_hold_now(
    tmp_path: Path,
) -> None:
    before = write_dataset(tmp_path / "before", [[episode(1, 4)]])
    after = write_dataset(tmp_path / "after", [[episode(2, 4)]])
    with load(spec_of(before)) as first:
        assert set(next(iter(first))["state"][:, 0, 0]) == {1}
        after.files[0].replace(before.files[0])
        with load(spec_of(before)) as second:
            assert set(next(iter(second))["state"][:, 0, 0]) == {2}
