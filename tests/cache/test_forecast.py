"""The forecast of the frame cache: against real plans, use by use, and against drawn uses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np
import pytest

from autoloader.cache.forecast import FrameSet, forecast, frames_by_uses, interval_law
from autoloader.samples.draws import PURPOSE_PHASE, dataset_key, fold, unit
from autoloader.samples.windows import rows
from autoloader.sampling.episodes import DatasetTable
from autoloader.sampling.mixture import MixtureOrder
from autoloader.sampling.plan import NextUse, SamplePlan
from autoloader.sampling.schedule import NEVER
from autoloader.spec import SampleSpec

LAWS = [(1, 1.0), (2, 1.0), (4, 1.0), (1, 0.4), (3, 0.5)]
POINTS = 0.05


@dataclass(frozen=True, slots=True)
class Walk:
    """A mixture of datasets that differ tenfold in size, and every use of a frame in six passes."""

    sets: list[FrameSet]
    uses: list[tuple[int, int, int, int]]
    """(position, dataset, frame, next use)."""
    count_from: int

    @property
    def frames_bytes(self) -> float:
        return sum(one.frames_bytes for one in self.sets)

    def hit_ratio(self, cache_bytes: float) -> float:
        """Hits of a cache that evicts the frame whose next use is least worth its bytes."""
        held: dict[int, int] = {}
        heaps: list[list[tuple[int, int]]] = [[] for _ in self.sets]
        left, hits, counted = cache_bytes, 0, 0
        for now, dataset, frame, after in self.uses:
            hit = held.pop(frame, None) is not None
            left += self.sets[dataset].frame_bytes * hit
            if now >= self.count_from:
                hits, counted = hits + hit, counted + 1
            if after >= NEVER:
                continue
            held[frame] = after
            left -= self.sets[dataset].frame_bytes
            heappush(heaps[dataset], (-after, frame))
            while left < 0:
                for heap in heaps:
                    while heap and held.get(heap[0][1]) != -heap[0][0]:
                        heappop(heap)
                scores = [
                    (-heap[0][0] - now) * one.frame_bytes / one.decode_s if heap else -1.0
                    for heap, one in zip(heaps, self.sets, strict=True)
                ]
                worst = int(np.argmax(scores))
                held.pop(heappop(heaps[worst])[1])
                left += self.sets[worst].frame_bytes
        return hits / counted


def walked(weights: str, offsets: Sequence[int], datasets: int) -> Walk:
    rng = np.random.default_rng(len(offsets))
    sample = SampleSpec.model_validate({"frame_offsets": list(offsets)})
    sizes = np.geomspace(1, 10, datasets)
    tables = []
    for number, size in enumerate((sizes / sizes.sum() * 50).tolist()):
        steps = rng.integers(20, 60, max(2, round(size)), dtype=np.int32)
        key = dataset_key(0, f"dataset {number}")
        none = np.zeros(len(steps), dtype=np.int32)
        tables.append(DatasetTable(key, sample, 1, steps, none, np.arange(len(steps))))
    counts = [table.samples for table in tables]
    own = {
        "equal": [1.0] * datasets,
        "set": np.geomspace(1, 5, datasets)[np.arange(datasets) * 3 % datasets].tolist(),
        "natural": [float(count) for count in counts],
    }[weights]
    order = MixtureOrder(
        shares=tuple(weight / sum(own) for weight in own),
        phases=tuple(unit(fold(table.key, PURPOSE_PHASE)) for table in tables),
        block_length=1,
        pass_samples=tuple(counts) if weights == "natural" else None,
        epoch_samples=sum(counts) if weights == "natural" else None,
        chain=False,
    )
    sets = [
        FrameSet(
            table.samples / order.shares[number],
            frames_by_uses(table),
            1200 + 1200 * (number % 2),
            1e-3 * (1 + number % 3),
        )
        for number, table in enumerate(tables)
    ]
    longest = int(max(one.pass_positions for one in sets))
    return Walk(sets, list(uses_of(order, tables, np.asarray(offsets), 6 * longest)), 2 * longest)


def uses_of(
    order: MixtureOrder, tables: Sequence[DatasetTable], offsets: np.ndarray, positions: int
) -> list[tuple[int, int, int, int]]:
    """Every use of a frame, in the order of positions."""
    plan = SamplePlan(order, tables, chain=False)
    planned, position = plan.samples(0, positions), np.arange(positions)
    steps = [table.steps.astype(np.int64) for table in tables]
    first = np.cumsum([0, *(int(own.sum()) for own in steps)])
    index = np.empty((positions, len(offsets)), dtype=np.int64)
    length, frame = np.empty_like(position), np.empty_like(index)
    for number, table in enumerate(tables):
        at = np.flatnonzero(planned.dataset == number)
        own = planned.episode[at]
        index[at] = rows(planned.t[at], offsets, steps[number][own, None], table.sample).index
        length[at] = steps[number][own]
        before = np.cumsum(steps[number]) - steps[number] + first[number]
        frame[at] = index[at] + before[own, None]
    after = NextUse(plan, tables).after(planned, length, index, position)
    once = np.ones(frame.shape, dtype=np.bool_)
    once[:, 1:] = frame[:, 1:] != frame[:, :-1]  # an edge repeats a frame within a sample
    return [
        (now, int(planned.dataset[now]), int(frame[now, n]), int(after[now, n]))
        for now, n in zip(*(each.tolist() for each in np.nonzero(once)), strict=True)
    ]


@pytest.mark.parametrize("datasets", [2, 6])
@pytest.mark.parametrize("offsets", [(0,), (0, 5)], ids=str)
@pytest.mark.parametrize("weights", ["equal", "set", "natural"])
def test_hits_are_forecast_within_five_points_of_a_walk_of_the_plan(
    weights: str, offsets: tuple[int, ...], datasets: int
):
    walk = walked(weights, offsets, datasets)
    for part in (0.05, 0.25, 0.75, 1.0):
        found = forecast(walk.sets, part * walk.frames_bytes)
        walked_ratio = walk.hit_ratio(part * walk.frames_bytes)
        assert found.hit_ratio == pytest.approx(walked_ratio, abs=POINTS)
        assert found.held_bytes <= part * walk.frames_bytes * 1.001


@pytest.mark.parametrize(("uses", "chance"), LAWS)
def test_intervals_are_as_long_as_those_of_drawn_uses(uses: int, chance: float):
    rng, passes = np.random.default_rng(uses), 30_000
    at = np.arange(passes)[:, None] + rng.random((passes, uses))
    interval = np.diff(np.sort(at[rng.random(at.shape) < chance]))
    x, within, held = interval_law(uses, chance)
    for longest in (0.2, 0.6, 1.0, 1.7, 3.0):
        short = interval[interval <= longest]
        assert np.interp(longest, x, within) == pytest.approx(len(short) / len(interval), abs=0.01)
        assert np.interp(longest, x, held) == pytest.approx(short.sum() / passes, abs=0.01)


def frame_set(**changes: object) -> FrameSet:
    base = FrameSet(1000.0, ((2, 500.0),), 100, 1e-3)
    return replace(base, **changes)


def test_a_goal_hits_where_its_frame_happens_to_be_held():
    without, with_goal = (forecast([frame_set(goals=goals)], 25_000) for goals in (0.0, 1.0))
    held = without.held_bytes / 50_000
    assert with_goal.held_bytes == without.held_bytes
    assert with_goal.hit_ratio == pytest.approx((without.hit_ratio + held) / 2)


def test_a_dear_dataset_is_held_before_a_cheap_one():
    often, seldom = frame_set(), frame_set(pass_positions=4000.0)
    alike = forecast([often, seldom], 50_000)
    dear = forecast([often, replace(seldom, decode_s=1e-2)], 50_000)
    assert dear.hit_ratio < alike.hit_ratio - 0.2, "its frames take the room of others"
