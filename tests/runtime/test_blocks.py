"""Blocks of an order with locality: each read once, and the samples are what single reads give."""

import threading
from typing import Any

import numpy as np
import pytest
from rlds_files import Written, episode, jpeg, write_dataset
from streams import Playing, mixture_of, until

from autoloader.pipeline.read.blocks import Blocks
from autoloader.pipeline.read.planned import IndexedReader
from autoloader.samples.resolve import ResolvedMixture
from autoloader.sampling.dealing import Ranks

STEPS, EPISODES = 12, 30
KNOBS = {"decode_threads": 2, "io_threads": 1}
FRAME_BYTES = 4_000
LOCAL: dict[str, Any] = {
    "weights": "natural",
    "sample": {"frame_offsets": [0, 2]},
    "mixing": {"locality": {"block": 2**16, "window": 4}},
    "batch": {"size": 12},
}
BLOCKS = 24
"""Blocks of a pass."""
PASS = STEPS * EPISODES // 12
"""Batches of a pass of one dataset."""


def padded(number: int, step: int) -> bytes:
    """A frame whose bytes fill a block soon: what follows a picture's end is passed over."""
    return jpeg(number, step).ljust(FRAME_BYTES, b"\0")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """360 frames of 4 kB in three shards: 24 blocks, 1.5 MB."""
    shards = [
        [
            episode(
                number, STEPS, **{"observation/image": [padded(number, t) for t in range(STEPS)]}
            )
            for number in range(first, first + EPISODES // 3)
        ]
        for first in range(0, EPISODES, EPISODES // 3)
    ]
    return write_dataset(tmp_path_factory.mktemp("blocks"), shards)


def drained(mixture: ResolvedMixture, batches: int, **how: Any) -> Playing:
    with Playing(mixture, **KNOBS, **how) as came:
        came.batches(batches)
    return came


@pytest.fixture(scope="module")
def alone(written: Written) -> dict[tuple[int, ...], np.ndarray]:
    """Each sample of three passes, read without locality."""
    came = drained(mixture_of(written, **{**LOCAL, "mixing": {}}), 3 * PASS)
    return dict(zip(came.samples, came.joined("images/primary"), strict=True))


def check(came: Playing, alone: dict[tuple[int, ...], np.ndarray]) -> None:
    for sample, images in zip(came.samples, came.joined("images/primary"), strict=True):
        np.testing.assert_array_equal(images, alone[sample])


def blocks_looked_at(blocks: Blocks) -> int:
    """Blocks of all passes that were looked at so far, those ahead of the batches included."""
    return BLOCKS * -(-blocks._looked // (STEPS * EPISODES))


def test_samples_of_blocks_are_those_of_single_reads_and_a_pass_reads_the_data_once(
    written: Written, alone: dict[tuple[int, ...], np.ndarray]
):
    mixture = mixture_of(written, **LOCAL)
    came = drained(mixture, 3 * PASS)
    assert len(set(came.samples)) == len(came.samples)
    assert set(came.samples) == set(alone)
    assert came.samples != list(alone)
    check(came, alone)
    assert came.blocks.single == 0
    # Two frames beyond each block of 16.
    assert came.blocks.read_bytes <= came.blocks.read_blocks * 19 * FRAME_BYTES
    assert 3 * BLOCKS <= came.blocks.read_blocks <= blocks_looked_at(came.blocks)


def test_without_room_for_blocks_frames_are_read_one_by_one(
    written: Written, alone: dict[tuple[int, ...], np.ndarray]
):
    with Playing(mixture_of(written, **LOCAL), **KNOBS) as came:
        came.batches(2)
        came.pipeline.drop()
        reader = came.reader
        assert isinstance(reader, IndexedReader)
        assert reader.blocks is not None
        reader.blocks._room = reader.blocks._most = 0
        came.pipeline.drop()
        came.batches(2 * PASS - 2)
    check(came, alone)
    assert came.blocks.single > 0
    assert set(came.samples) == {sample for sample in alone if sample[1] < 2}


def test_blocks_that_are_dropped_while_a_run_is_planned_are_read_again(
    written: Written, alone: dict[tuple[int, ...], np.ndarray], monkeypatch: pytest.MonkeyPatch
):
    fill, asleep = Blocks.fill, threading.Condition.wait

    def dropped(self: Blocks, *given: Any) -> Any:
        if not drops:  # from then on there is little room, and the thread looks again and again
            until(lambda: self._changed in waiting)
            drops.append(self.drop())
        return fill(self, *given)

    waiting: set[object] = set()
    drops: list[object] = []

    def noted(self: threading.Condition, timeout: float | None = None) -> bool:
        waiting.update({self} if timeout is None else ())
        try:
            return asleep(self, timeout)
        finally:
            waiting.discard(self)

    monkeypatch.setattr(threading.Condition, "wait", noted)
    monkeypatch.setattr(Blocks, "fill", dropped)
    monkeypatch.setattr("autoloader.pipeline.read.blocks.MOST_AHEAD", 24)
    mixture = mixture_of(written, **LOCAL)
    came = drained(mixture, 3)
    check(came, alone)


def test_two_ranks_of_a_process_share_the_blocks(
    written: Written, alone: dict[tuple[int, ...], np.ndarray]
):
    mixture = mixture_of(written, **LOCAL)
    with (
        Playing(mixture, Ranks(0, 2), **KNOBS) as first,
        Playing(mixture, Ranks(1, 2), **KNOBS) as second,
    ):
        for _ in range(PASS // 2):
            first.batch()
            second.batch()
    assert first.blocks is second.blocks
    assert not set(first.samples) & set(second.samples)
    assert len({*first.samples, *second.samples}) == STEPS * EPISODES
    check(first, alone)
    check(second, alone)
    assert BLOCKS <= first.blocks.read_blocks <= blocks_looked_at(first.blocks)


def test_a_resume_within_a_window_goes_on_with_the_same_samples(written: Written):
    mixture = mixture_of(written, **LOCAL)
    whole = drained(mixture, PASS)
    late = drained(mixture, PASS - 7, base=7 * 12)
    assert late.samples == whole.samples[7 * 12 :]
    assert late.blocks.single == 0


@pytest.mark.parametrize(
    "own",
    [
        {"sample": {"frame_offsets": [0, 2]}, "chain": True},
        {"sample": {"frame_offsets": [0], "per_episode": 5}},
        {"sample": {"frame_offsets": [0], "goal": "uniform"}},
        {"sample": {"frame_offsets": [0, 2]}, "strategy": "sample"},
        {"sample": {"frame_offsets": [0, 2]}, "lanes": 2},
    ],
    ids=["chain", "per_episode", "goal", "sample", "lanes"],
)
def test_every_kind_of_order_reads_blocks(written: Written, own: dict[str, Any]):
    near = {"block": 2**16, "window": 4, "lanes": own.get("lanes", 1)}
    mixing = {"locality": near, "strategy": own.get("strategy", "python")}
    if own.get("chain"):
        mixing |= {"chain": True, "block_length": 4}
    top = {**LOCAL, "sample": own["sample"], "mixing": mixing}
    samples = 5 * EPISODES if "per_episode" in own["sample"] else STEPS * EPISODES
    came = drained(mixture_of(written, **top), samples // 12)
    plain = drained(
        mixture_of(written, **{**top, "mixing": {**mixing, "locality": None}}), samples // 12
    )
    assert len(set(came.samples)) == len(came.samples)
    missing = set(plain.samples) ^ set(came.samples)
    assert len(missing) <= 2 * (samples % 12)
    pictures = dict(zip(plain.samples, plain.joined("images/primary"), strict=True))
    for sample, images in zip(came.samples, came.joined("images/primary"), strict=True):
        if sample in pictures:
            np.testing.assert_array_equal(images, pictures[sample])
    assert came.blocks.read_blocks
    assert came.blocks.single <= len(came.samples) // 5
