"""The law of intervals is what drawn uses follow, by the pass and over all."""

from __future__ import annotations

import numpy as np
import pytest

from autoloader.cache.intervals import IntervalLaw

LAWS = [(1, 1.0), (2, 1.0), (4, 1.0), (1, 0.4), (3, 0.5)]


def drawn_uses(uses: int, chance: float, passes: int) -> np.ndarray:
    """When a frame is used, in passes, ascending."""
    rng = np.random.default_rng(uses)
    at = np.arange(passes)[:, None] + rng.random((passes, uses))
    return np.sort(at[rng.random(at.shape) < chance])


@pytest.mark.parametrize(("uses", "chance"), LAWS)
def test_intervals_are_as_long_as_those_of_drawn_uses(uses: int, chance: float) -> None:
    law, passes = IntervalLaw(uses, chance), 30_000
    interval = np.diff(drawn_uses(uses, chance, passes))
    for longest in (0.2, 0.6, 1.0, 1.7, 3.0):
        short = interval[interval <= longest]
        assert law.hit_ratio(longest) == pytest.approx(len(short) / len(interval), abs=0.01)
        assert law.held_ratio(longest) == pytest.approx(short.sum() / passes, abs=0.01)


def test_one_use_a_pass_has_the_triangular_law() -> None:
    law = IntervalLaw(1)
    for x in (0.1, 0.5, 0.9):
        assert law.hit_ratio(x) == pytest.approx(x**2 / 2, abs=1e-4)
        assert law.held_ratio(x) == pytest.approx(x**3 / 3, abs=1e-4)
        assert law.hit_ratio(2 - x) == pytest.approx(1 - x**2 / 2, abs=1e-4)
    assert law.hit_ratio(2) == pytest.approx(1)
    assert law.held_ratio(2) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("uses", "chance"), LAWS)
def test_from_every_step_of_a_pass_the_next_use_comes_and_as_drawn(
    uses: int, chance: float
) -> None:
    steps = 16
    table = IntervalLaw(uses, chance).from_phases(steps)
    assert table.min() >= 0
    assert table.sum(axis=1) == pytest.approx(np.ones(steps), abs=0.01)
    at = drawn_uses(uses, chance, 40_000)
    for phase in (0, 7, 15):
        own = np.flatnonzero((at[:-1] * steps).astype(int) % steps == phase)
        ahead = ((at[own + 1] - at[own]) * steps)[:, None]
        found = (ahead <= np.asarray([4.5, 12.5, 20.5])).mean(axis=0)
        assert np.cumsum(table[phase])[[3, 11, 19]] == pytest.approx(found, abs=0.02)


def test_what_is_not_known_ahead_is_neither_held_nor_hit() -> None:
    law, known = IntervalLaw(1, 0.2), IntervalLaw(1, 0.2, known=2)
    assert known.hit_ratio(10) == law.hit_ratio(2)
    assert known.held_ratio(10) == law.held_ratio(2)
    assert known.from_phases(8).sum(axis=1).max() < 0.5
