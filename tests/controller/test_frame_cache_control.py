"""The frame cache under control: the first to go, grown while training waits, judged by no rate."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doubles import FakeHeadroom
from governed import knobs_of, loop_of
from rlds_files import Written, written_steps
from situations import FLOOR
from streams import spec_of

from autoloader import AutoLoader
from autoloader.controller.limits import ControllerLimits
from autoloader.controller.observation import Observation
from autoloader.controller.policy import decide
from autoloader.controller.proposals import grown_cache, lowered_cache, missing_bytes
from autoloader.controller.states import ControllerState, State
from autoloader.host.processes import StorageReads
from autoloader.host.units import GIB, MIB
from autoloader.pipeline.read.planned import RUN_SAMPLES
from autoloader.process.observer import Displaced
from autoloader.spec.knobs import KnobLimits, Knobs
from autoloader.telemetry.statistics import (
    CacheStatistics,
    DatasetStatistics,
    StageMoment,
    Statistics,
)

MARGIN = 256 * MIB


def limits(**own: Any) -> ControllerLimits:
    knobs = KnobLimits(cpus=4, shards={"a": 2}, cache_bytes=own.pop("room", 8 * GIB))
    least = Knobs.build({"reader": "indexed", "ring_slots": 4, "read_ahead": 1, "io_threads": 1})
    return ControllerLimits(FLOOR, knobs, least, **own)


def hungry(cache: CacheStatistics | None, cache_bytes: int = 0, **own: Any) -> Observation:
    knobs = Knobs.build({"reader": "indexed", "cache_bytes": cache_bytes, "ring_slots": 16})
    return Observation(
        at_s=100.0,
        knobs=knobs,
        batches=100,
        rate_per_s=100.0,
        wait_ratio=0.5,
        headroom_bytes=own.pop("headroom", FLOOR + MARGIN + 4 * GIB),
        idle_cpus=0.0,
        stages=(StageMoment("decode", "", 2, 0.02, 1.0, 100.0),),
        cache=cache,
        **own,
    )


def frames(held_bytes: int, wanting: bool) -> CacheStatistics:
    """A frame cache; one that wants more leaves out frames that are shown again."""
    return CacheStatistics(
        held_bytes=held_bytes, allocated_bytes=held_bytes, threshold=1.0 if wanting else None
    )


GROWING = ControllerState(State.GROW, 90.0, rates=(100.0,) * 8)


def test_a_loader_that_waits_holds_frames_step_by_step_each_once_the_last_is_full():
    first = decide(GROWING, hungry(frames(0, False)), limits())
    assert first.changes == {"cache_bytes": 256 * MIB}
    assert first.state.trial is None  # it pays a pass later: the next rates say nothing of it
    filling = hungry(frames(100 * MIB, False), 256 * MIB)
    assert "cache_bytes" not in decide(GROWING, filling, limits()).changes
    full = hungry(frames(250 * MIB, True), 256 * MIB)
    assert decide(GROWING, full, limits()).changes == {"cache_bytes": 512 * MIB}
    whole = hungry(frames(250 * MIB, False), 256 * MIB)  # all that is shown again is held
    assert "cache_bytes" not in decide(GROWING, whole, limits()).changes


def test_it_does_not_grow_while_training_does_not_wait_and_is_not_taken_back_either():
    calm = replace(hungry(frames(250 * MIB, True), 256 * MIB), wait_ratio=0.0)
    state = ControllerState(State.HOLD, 10.0, rates=(100.0,) * 8)
    for _ in range(50):
        answer = decide(state, calm, limits())
        assert "cache_bytes" not in answer.changes
        state = answer.state
        calm = replace(
            calm, at_s=calm.at_s + 1, knobs=answer.knobs or calm.knobs, occupancy_ratio=1.0
        )


def test_frames_that_cost_more_reading_than_they_save_are_given_back_and_do_not_come_again():
    dear = hungry(frames(GIB, True), GIB, saved_ratio=0.2, reread_ratio=0.3)
    first = decide(GROWING, dear, limits())
    assert first.changes == {"cache_bytes": 768 * MIB}
    assert "read again" in first.rule
    soon = decide(first.state, replace(dear, at_s=105.0), limits())
    assert "cache_bytes" not in soon.changes  # what it gave is not measured yet
    again = decide(first.state, replace(dear, at_s=120.0), limits())
    assert again.changes == {"cache_bytes": 768 * MIB}
    cheap = replace(dear, at_s=140.0, saved_ratio=0.3, reread_ratio=0.2)
    assert "cache_bytes" not in decide(again.state, cheap, limits()).changes
    later = decide(replace(again.state, trial=None), replace(cheap, at_s=2000.0), limits())
    assert later.changes == {"cache_bytes": 2 * GIB}
    assert decide(GROWING, cheap, limits()).changes == {"cache_bytes": 2 * GIB}


def test_it_grows_to_what_was_asked_for_and_what_the_floor_left():
    full = hungry(frames(1000 * MIB, True), 1000 * MIB)
    for own in ({"most_cache_bytes": 1100 * MIB}, {"room": 1100 * MIB}):
        assert grown_cache(full, limits(**own)).cache_bytes == 1100 * MIB
    assert grown_cache(full, limits(most_cache_bytes=0)) is None


@pytest.mark.parametrize("short", [MIB, 100 * MIB, 255 * MIB, 300 * MIB, 2 * GIB])
def test_under_pressure_and_below_the_floor_nothing_else_shrinks_while_frames_are_held(short: int):
    seen = hungry(frames(GIB, True), GIB, headroom=FLOOR + MARGIN - short)
    answer = decide(GROWING, seen, limits())
    assert set(answer.changes) == {"cache_bytes"}
    assert answer.changes["cache_bytes"] <= max(0, GIB - short)
    assert answer.changes["cache_bytes"] <= GIB // 2
    after = replace(seen, knobs=Knobs.build({"cache_bytes": 0}, base=seen.knobs))
    assert decide(answer.state, after, limits()).changes.get("ring_slots", 16) < 16


def test_what_is_missing_comes_back_and_no_more():
    assert missing_bytes(FLOOR + MARGIN, FLOOR, MARGIN) == 0
    missing = missing_bytes(FLOOR + MARGIN - MIB, FLOOR, MARGIN)
    assert missing == 65 * MIB  # reads are admitted again at a quarter of the margin more
    knobs = Knobs.build({"cache_bytes": 2 * GIB})
    assert lowered_cache(knobs, GIB, missing).cache_bytes == GIB - missing
    assert lowered_cache(knobs, 80 * MIB, missing).cache_bytes == 0


# --- what displaced pages cost --------------------------------------------------------------------


class FakeStorage:
    """Storage that so many bytes came from."""

    def __init__(self) -> None:
        self.bytes: int | None = 0

    def read(self, pids: Sequence[int]) -> int | None:
        return self.bytes


def activity(second: int, *, held: int) -> Statistics:
    """Each second 1000 hits of frames that take 0.5 ms, and 100 MiB read in 0.4 s."""
    return Statistics(
        datasets={"a": DatasetStatistics(decode_s=1.0, frames=2000)},
        read_bytes=second * 100 * MIB, reading_s=0.4 * second,
        cache=CacheStatistics(held_bytes=held, hits=1000 * second),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("size", "storage", "held", "reread"),
    [
        (100 * GIB, 50 * MIB, 10 * GIB, 0.0),  # nothing was read twice so far
        (GIB, 0, GIB, 0.0),  # all comes from the page cache
        (GIB, 50 * MIB, 0, 0.0),  # nothing is held
        (GIB, 50 * MIB, GIB, 0.4),  # all files would be in memory
        (GIB, 50 * MIB, 256 * MIB, 0.2),  # a quarter would be, of twice as much
        (GIB, None, GIB, 0.0),  # not told
    ],
)
def test_reads_from_storage_beyond_the_files_are_put_down_to_what_is_held(
    size: int, storage: int | None, held: int, reread: float
):
    counter = FakeStorage()
    price = Displaced(counter.read, lambda: size)
    for second in range(40):
        counter.bytes = None if storage is None else second * storage
        price.note(float(second), activity(second, held=held), [1])
    assert price.seconds() == pytest.approx((0.0 if storage is None else 0.5, reread))


def test_what_processes_read_from_storage_counts_from_the_first_look(tmp_path: Path):
    def told(pid: int, count: int) -> None:
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        text = f"rchar: 9\nread_bytes: {count}\ncancelled_write_bytes: 0\n"
        (tmp_path / str(pid) / "io").write_text(text)

    reads = StorageReads(tmp_path)
    assert reads.read([1]) is None
    told(1, 1000)
    assert reads.read([1, 2]) == 0
    told(1, 1500)
    told(2, 7)
    assert reads.read([1, 2]) == 500
    told(2, 17)
    assert reads.read([2]) == 510  # what one that has ended read still counts


# --- a loader that runs ---------------------------------------------------------------------------


written = written_steps([[40] * 4] * 2, name="a")


def load(written: Written, **knobs: Any) -> AutoLoader:
    spec = spec_of(
        written,
        mixing={"epoch": "forever"},
        reader="indexed",
        cameras={"primary": {"size": [256, 256]}},
    )
    values = {"ring_slots": 8, "decode_threads": 2, "read_ahead": 2, **knobs}
    return AutoLoader(spec, isolation="thread", ram_floor=FLOOR, knobs=values, output="numpy")


def test_the_reflex_takes_frames_and_leaves_ring_queues_and_reads_alone(
    written: Written, headroom: FakeHeadroom
):
    with load(written, cache_bytes="500MiB") as loader:
        batches: Iterator[Any] = iter(loader)
        loop = loop_of(loader)
        for _ in range(120):
            next(batches)
        assert loader.statistics().cache.held_bytes > 40 * MIB
        headroom.headroom_bytes = FLOOR + MARGIN - 2 * MIB
        loop.react_once()
        assert knobs_of(loader).cache_bytes == 0  # less than a step would be left
        assert loader.knobs.ring_slots == 8
        assert loader.knobs.read_ahead == 2
        # What runs in hand and read ahead show goes once they are shown.
        for _ in range((2 + loader.knobs.read_ahead) * RUN_SAMPLES // 4):
            next(batches)
        assert loader.statistics().cache.held_bytes == 0


def test_auto_is_what_the_floor_leaves_and_a_number_is_the_most(
    written: Written, headroom: FakeHeadroom
):
    with load(written, cache_bytes="auto") as loader:
        assert loader.knobs.cache_bytes == 0
        assert loader.plan.most_cache_bytes is None
    with load(written, cache_bytes="64MiB") as loader:
        assert loader.knobs.cache_bytes == 64 * MIB
        assert loader.plan.most_cache_bytes == 64 * MIB
