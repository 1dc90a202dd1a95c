"""Orders whose shares change on the way: exact on both sides, and told back from any number."""

import json
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.sampling.mixture import MixtureOrder, PositionSequence
from autoloader.sampling.schedule import NEVER, PIECES, Curriculum

WEIGHTS = st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any)
PHASES = (0.1, 0.55, 0.7)


def shares(weights: list[int]) -> tuple[float, ...]:
    return tuple(weight / sum(weights) for weight in weights)


def order_of(weights: list[int], block_length: int = 1, **own: Any) -> MixtureOrder:
    return MixtureOrder(shares(weights), PHASES, block_length, None, None, **own)


@st.composite
def changing(draw: st.DrawFn) -> tuple[MixtureOrder, list[int]]:
    """An order with a curriculum or none, and shares set at up to three positions."""
    block_length = draw(st.integers(1, 4))
    own: dict[str, Any] = {"draw_key": draw(st.sampled_from([None, 7]))}
    if draw(st.booleans()):
        own["curriculum"] = Curriculum(shares(draw(WEIGHTS)), draw(st.integers(1, 400)))
    order = order_of(draw(WEIGHTS), block_length, **own)
    positions = sorted(draw(st.lists(st.integers(0, 300), max_size=3)))
    for position in positions:
        order = order.changed(position, shares(draw(WEIGHTS)))
    return order, positions


@given(changing(), st.integers(0, 350), st.integers(0, 300))
def test_numbers_go_on_over_every_leg_and_any_cut(
    found: tuple[MixtureOrder, list[int]], cut: int, base: int
):
    order, _ = found
    sequence = PositionSequence(order)
    dataset, number = sequence.ordinals(0, 700)
    for one in range(3):
        mine = number[dataset == one]
        assert mine.tolist() == list(range(len(mine)))
    parts = [sequence.ordinals(0, cut), sequence.ordinals(cut, 700)]
    assert np.concatenate([part[0] for part in parts]).tolist() == dataset.tolist()
    assert order.samples_before(cut) == tuple(np.bincount(dataset[:cut], minlength=3).tolist())
    # The same order, as it went through a saved state and as it is told from its last change.
    assert MixtureOrder.from_plain(json.loads(json.dumps(asdict(order)))) == order
    begun = PositionSequence(order.begun_at(base)).ordinals(base, 700)
    assert (begun[0].tolist(), begun[1].tolist()) == (
        dataset[base:].tolist(),
        number[base:].tolist(),
    )


@pytest.mark.parametrize("draw_key", [None, 5])
@pytest.mark.parametrize("block_length", [1, 3])
def test_a_curriculum_is_exact_at_every_piece_and_does_not_drift(
    draw_key: int | None, block_length: int
):
    first, last, over = (8, 1, 1), (0, 3, 7), 64 * 3 * 50 + 7
    order = order_of(
        list(first), block_length, curriculum=Curriculum(shares(list(last)), over),
        draw_key=draw_key,
    )  # fmt: skip
    legs = list(order.legs())
    assert len(legs) == PIECES + 1
    due = [Fraction(0)] * 3
    for k, (start, stop, _) in enumerate(legs[:-1]):
        assert stop is not None
        way = Fraction(2 * k + 1, 2 * PIECES)
        for one in range(3):
            share = Fraction(first[one], 10) * (1 - way) + Fraction(last[one], 10) * way
            due[one] += share * (stop - start)
        given = order.samples_before(stop)
        assert all(abs(g - d) < 2 * block_length for g, d in zip(given, due, strict=True))
        middle = (start + stop) // 2
        assert order.shares_at(middle)[2] == pytest.approx(float(Fraction(1, 10) + way * 6 / 10))
    assert legs[-1][0] == -(-over // block_length) * block_length
    behind = PositionSequence(order).ordinals(over + block_length, over + 9000)[0]
    if draw_key is None:
        assert not (behind == 0).any()
        assert abs((behind == 2).mean() - 0.7) < 0.001


def test_what_is_set_ends_a_curriculum_and_a_dataset_without_weight_has_no_next_position():
    order = order_of([1, 1, 1], curriculum=Curriculum((0.0, 0.5, 0.5), 1000))
    order = order.changed(300, (0.5, 0.5, 0.0)).changed(600, (1.0, 0.0, 0.0))
    dataset, _ = PositionSequence(order).ordinals(0, 2000)
    assert set(dataset[300:600].tolist()) == {0, 1}
    assert set(dataset[600:].tolist()) == {0}
    assert order.used == (True, True, True)
    later = np.asarray([1, 2])
    given_ = np.asarray(order.samples_before(2000))
    assert PositionSequence(order).positions(later, given_[later]).tolist() == [NEVER, NEVER]
    assert order.shares_at(599) == (0.5, 0.5, 0.0)
    told = order.begun_at(700)
    assert (told.base, told.curriculum, told.changes) == (600, None, ())
    assert told.used == (True, False, False)


@given(changing(), st.integers(0, 500))
def test_an_order_that_begins_anew_anywhere_goes_on_with_the_same_shares(
    found: tuple[MixtureOrder, list[int]], position: int
):
    order, _ = found
    anew = order.from_position(position)
    assert anew.base == position
    assert anew.samples_before(position) == order.samples_before(position)
    for ahead in range(0, 400, 50):
        behind = position + ahead
        if all(abs(one.position - behind) > order.block_length for one in order.changes):
            assert anew.shares_at(behind) == order.shares_at(behind)
