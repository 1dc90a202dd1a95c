"""What is foretold of a cache is what one does on the real plan, use by use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoloader.cache.forecast import FrameSet, forecast
from autoloader.cache.table import FrameTable
from bench.cache_hits import (
    NAME,
    WEIGHTS,
    Case,
    Uses,
    compare_loader,
    foretold,
    hits_by_next_use,
    hits_of_fixed_part,
    hits_of_table,
    made_up,
    ratio,
    uses_of,
)

POINTS = 0.02


class Measured:
    """A mixture, its uses over six of the longest passes, and what caches hit in the last four."""

    def __init__(self, case: Case) -> None:
        self.case, self.warm = case, 2 * case.longest_pass
        self.uses: Uses = uses_of(case, 3 * self.warm)
        self.whole_bytes = sum(one.frames_bytes for one in case.sets)

    def next_use(self, part: float) -> float:
        counted = hits_by_next_use(self.case, self.uses, part * self.whole_bytes, self.warm)
        return ratio(counted)

    def fixed_part(self, part: float) -> float:
        return ratio(hits_of_fixed_part(self.case, self.uses, part, self.warm))

    def foretold(self, part: float) -> float:
        return foretold(self.case, part * self.whole_bytes)["next use"].hit_ratio


@pytest.fixture(scope="module", params=[(w, f) for w in WEIGHTS for f in ((0,), (0, 5))], ids=str)
def measured(request: pytest.FixtureRequest) -> Measured:
    weights, offsets = request.param
    return Measured(made_up(weights, offsets, samples=2000, datasets=6))


@pytest.mark.parametrize("part", [0.05, 0.25, 0.75])
def test_the_hit_ratio_is_foretold_within_two_points(measured: Measured, part: float) -> None:
    assert measured.foretold(part) == pytest.approx(measured.next_use(part), abs=POINTS)


def test_the_loaders_own_cache_hits_what_is_foretold(measured: Measured) -> None:
    counted = hits_of_table(
        measured.case, measured.uses, 0.25 * measured.whole_bytes, measured.warm
    )
    assert measured.foretold(0.25) == pytest.approx(ratio(counted), abs=POINTS)


@pytest.mark.parametrize("read_ahead", [1, 6])
def test_a_running_loader_hits_what_is_foretold(
    read_ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a decode costs is measured, and odd on a busy machine; here all cost the same.
    monkeypatch.setattr(FrameTable, "_refresh_costs", lambda _: None)
    case = made_up("equal", (0, 5), samples=1500 * read_ahead, datasets=2, alike=True, name=NAME)
    (found,) = compare_loader(case, tmp_path, [0.5], isolation="thread", read_ahead=read_ahead)
    assert found["measured"] == pytest.approx(found["foretold"], abs=POINTS)


def test_a_cache_that_holds_everything_hits_everything_in_the_second_pass(
    measured: Measured,
) -> None:
    assert measured.next_use(1.0) == 1.0
    assert measured.foretold(1.0) == 1.0


@pytest.mark.parametrize(
    ("offsets", "part", "times"),
    [((0,), 0.1, 2.0), ((0,), 0.25, 1.55), ((0, 5), 0.1, 3.0), ((0, 5), 0.25, 1.9)],
)
def test_where_passes_end_at_their_own_times_the_next_use_hits_far_more_than_a_drawn_part(
    offsets: Sequence[int], part: float, times: float
) -> None:
    found = Measured(made_up("equal", offsets, samples=2000, datasets=6, alike=True))
    assert found.next_use(part) >= times * found.fixed_part(part)


@pytest.mark.parametrize(("part", "times"), [(0.1, 3.0), (0.25, 1.9)])
def test_with_two_frames_a_sample_it_does_so_wherever_passes_end(part: float, times: float) -> None:
    found = Measured(made_up("natural", (0, 5), samples=2000, datasets=6, alike=True))
    assert found.next_use(part) >= times * found.fixed_part(part)


def test_with_one_frame_a_sample_and_passes_that_end_together_no_rule_hits_more_than_it_holds() -> (
    None
):
    found = Measured(made_up("natural", (0,), samples=2000, datasets=6, alike=True))
    for part in (0.1, 0.25, 0.5):
        assert found.next_use(part) <= part + 0.005
        assert found.foretold(part) == pytest.approx(part, abs=0.005)


@pytest.mark.parametrize("options", [{"per_episode": 12}, {"chain": True}], ids=str)
def test_drawn_t_and_chained_samples_are_foretold_as_well(options: dict[str, int]) -> None:
    found = Measured(made_up("equal", (0, 5), samples=2000, datasets=6, **options))
    for part in (0.1, 0.5):
        assert found.foretold(part) == pytest.approx(found.next_use(part), abs=POINTS)


def test_what_one_of_many_nodes_hits_is_foretold() -> None:
    case = made_up("equal", (0,), samples=1000, datasets=3, alike=True, nodes=16)
    warm, whole_bytes = 12 * case.longest_pass, sum(one.frames_bytes for one in case.sets)
    uses = uses_of(case, 2 * warm)
    for part in (0.1, 0.25):
        told = foretold(case, part * whole_bytes)["next use"].hit_ratio
        counted = hits_of_table(case, uses, part * whole_bytes, warm)
        assert told == pytest.approx(ratio(counted), abs=1.5 * POINTS)


def frame_set(**changes: object) -> FrameSet:
    base = FrameSet("a", "primary", 1.0, 1000, ((1, 1000.0),), 100, 1e-3)
    return replace(base, **changes)


def test_more_memory_never_hits_less_and_never_holds_more_than_there_is() -> None:
    sets = [
        frame_set(share=0.7, shown=((1, 100.0), (2, 900.0))),
        frame_set(dataset="b", share=0.3, samples=5000, shown=((2, 3000.0),), frame_bytes=400),
    ]
    whole = sum(one.frames_bytes for one in sets)
    before = [0.0, 0.0]
    for part in np.linspace(0, 1.2, 7).tolist():
        found = sorted(forecast(sets, int(part * whole)), key=lambda one: one.rule)
        saved = [one.saved_s for one in found]
        assert all(new >= old - 1e-4 for new, old in zip(saved, before, strict=True))
        assert all(one.held_bytes <= max(part * whole, 1) * 1.001 for one in found)
        before = saved
    assert [one.hit_ratio for one in found] == pytest.approx([1, 1])
    assert found[0].missed_s == pytest.approx(0, abs=1e-9)


def test_frames_that_are_planned_ahead_take_room_from_those_that_hit() -> None:
    plain = frame_set(shown=((2, 500.0),))
    found = [
        next(one for one in forecast([plain], 25_000, ahead=far) if one.rule == "next use")
        for far in (lambda *_: 0.0, lambda *_: 50.0, lambda *_: 200.0, lambda *_: 1e9)
    ]
    hits = [one.hit_ratio for one in found]
    assert hits == sorted(hits, reverse=True)
    assert hits[0] > hits[2] + 0.05
    assert hits[3] > hits[0] / 3, "half of the room is left to them"
    assert all(one.held_bytes <= 25_000 for one in found)


def test_nothing_is_held_in_no_bytes() -> None:
    for found in forecast([frame_set()], 0):
        assert found.hit_ratio == found.held_bytes == 0
        assert found.missed_s == pytest.approx(1e-3)


def test_a_goal_hits_where_its_frame_happens_to_be_held() -> None:
    plain = frame_set(shown=((2, 500.0),))
    for without, with_goal in zip(
        forecast([plain], 25_000), forecast([replace(plain, goals=1.0)], 25_000), strict=True
    ):
        held = without.held_bytes / plain.frames_bytes
        assert with_goal.held_bytes == without.held_bytes
        assert with_goal.uses_per_sample == pytest.approx(2)
        assert with_goal.hit_ratio == pytest.approx((without.hit_ratio + held) / 2)


def test_a_dear_dataset_is_held_before_a_cheap_one() -> None:
    sets = [
        frame_set(share=0.5, shown=((2, 500.0),)),
        frame_set(dataset="b", share=0.5, shown=((2, 500.0),), decode_s=1e-2),
    ]
    for found in forecast(sets, 50_000):
        cheap, dear = found.sets
        assert dear.hit_ratio > cheap.hit_ratio + 0.3
    by_next_use = next(one for one in forecast(sets, 50_000) if one.rule == "next use")
    assert by_next_use.longest_positions(sets[1]) == pytest.approx(
        10 * by_next_use.longest_positions(sets[0])
    )


def test_what_a_nodes_near_uses_leave_holds_a_fixed_part() -> None:
    node = frame_set(chance=1 / 16, shown=((2, 1000.0),), samples=2000)
    far, near = (forecast([node], 50_000, known_uses=known)[0] for known in (4.0, math.inf))
    assert far.rule == near.rule == "next use"
    assert far.held_bytes == pytest.approx(50_000, rel=0.01)
    assert 0.55 < far.hit_ratio < near.hit_ratio
    assert forecast([node], 50_000, known_uses=1.0)[0].hit_ratio == pytest.approx(0.5, abs=0.05)
