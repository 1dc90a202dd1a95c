"""One budget for all pipelines of a process: nothing is promised twice, shares fit the whole."""

from __future__ import annotations

from typing import Any

import pytest
from doubles import FakeHeadroom, ManualClock
from hypothesis import given
from hypothesis import strategies as st
from situations import FLOOR, limits

from autoloader.controller.budget import (
    OPENING_S,
    PROMISED_S,
    PipelineSizes,
    Share,
    SharedBudget,
    admit_opening,
)
from autoloader.errors import PipelineError
from autoloader.host.units import GIB, MIB
from autoloader.samples.resolve import MixtureSizes
from autoloader.spec.knobs import Knobs

MARGIN = 256 * MIB
NAMES = ("train", "val", "rank 1", "rank 2")

_SIZES = st.integers(0, 2 * GIB)
_ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.sampled_from(range(4)), _SIZES),
        st.tuples(st.just("open"), st.sampled_from(range(4)), _SIZES),
        st.tuples(st.just("park"), st.sampled_from(range(4)), st.booleans()),
        st.tuples(st.just("wait"), st.just(0), st.floats(0.0, 20.0)),
        st.tuples(st.just("touch"), st.just(0), _SIZES),
    ),
    max_size=30,
)


@given(st.lists(st.integers(0, 4 * GIB), min_size=1, max_size=4), st.integers(0, 32 * GIB), _ACTS)
def test_what_is_promised_and_what_may_still_be_taken_never_exceed_what_is_above_every_floor(
    floors: list[int], headroom: int, acts: list[tuple[str, int, Any]]
) -> None:
    clock = ManualClock()
    budget = SharedBudget(clock)
    shares = [budget.join(name, floor) for name, floor in zip(NAMES, floors, strict=False)]
    for act, who, what in acts:
        share = shares[who % len(shares)]
        left = headroom - max(floors) - MARGIN
        if act == "park":
            share.in_use = not what
        elif act == "wait":
            clock.advance(what)
        elif act == "touch":
            headroom = max(0, headroom - what)
        else:
            before = promised(shares, clock)
            given_ = budget.promised(
                share, what, headroom_bytes=headroom, margin_bytes=MARGIN, opening=act == "open"
            )
            assert promised(shares, clock) == before + (what if given_ else 0)
            assert not given_ or what == 0 or before + what <= left
        rooms = [budget.room_bytes(one, headroom, MARGIN) for one in shares]
        left = headroom - max(floors) - MARGIN
        assert min(rooms) >= 0
        assert sum(rooms) == 0 or promised(shares, clock) + sum(rooms) <= left
        assert all(not room for one, room in zip(shares, rooms, strict=True) if not one.in_use)


def promised(shares: list[Share], clock: ManualClock) -> int:
    return sum(one.promised_bytes(clock.now_s()) for one in shares)


def test_two_that_read_the_same_headroom_do_not_spend_it_twice() -> None:
    clock = ManualClock()
    budget = SharedBudget(clock)
    one, two = (budget.join(name, FLOOR) for name in ("one", "two"))
    now = {"headroom_bytes": FLOOR + MARGIN + 100, "margin_bytes": MARGIN}
    assert budget.promised(one, 50, **now)
    assert not budget.promised(two, 50, **now)
    assert budget.promised(two, 25, **now)
    clock.advance(PROMISED_S)
    assert budget.promised(two, 50, **now)
    budget.leave(two)
    assert budget.room_bytes(one, now["headroom_bytes"], MARGIN) == 100
    assert budget.room_bytes(two, now["headroom_bytes"], MARGIN) == 0


def test_the_one_in_use_may_have_all_and_the_parked_one_keeps_what_it_was_promised() -> None:
    clock = ManualClock()
    budget = SharedBudget(clock)
    train, val = budget.join("train", FLOOR), budget.join("val", FLOOR)
    budget.take(train, 40, opening=True)
    train.in_use = False
    headroom = FLOOR + MARGIN + 100
    assert budget.room_bytes(train, headroom, MARGIN) == 0
    assert budget.room_bytes(val, headroom, MARGIN) == 60
    clock.advance(OPENING_S)
    assert budget.room_bytes(val, headroom, MARGIN) == 100


def test_unknown_headroom_has_no_room_but_for_nothing() -> None:
    budget = SharedBudget(ManualClock())
    share = budget.join("train", 0)
    assert budget.room_bytes(share, None, 0) == 0
    assert not budget.promised(share, 1, headroom_bytes=None, margin_bytes=0, opening=True)
    assert budget.promised(share, 0, headroom_bytes=None, margin_bytes=0)


# --- opening --------------------------------------------------------------------------------------

LARGE = Knobs.build({"reader": "indexed", "ring_slots": 32, "read_ahead": 8})
SIZES = MixtureSizes({"a": MIB}, 20 * MIB)
PIPES = PipelineSizes(SIZES, ring_bytes=0, has_tensorflow=False)
HELD = limits()


def opening(budget: SharedBudget, headroom: FakeHeadroom, *, moves: bool = True) -> Any:
    return admit_opening(budget, headroom, LARGE, HELD, PIPES, name="train", moves=moves)


def test_a_pipeline_opens_with_the_knobs_asked_for_where_they_fit_and_else_with_the_least() -> None:
    price = PIPES.price(LARGE)
    exactly = FakeHeadroom(FLOOR + MARGIN + price)
    found = opening(SharedBudget(ManualClock()), exactly)
    assert (found.knobs, found.as_asked) == (LARGE, True)
    exactly.take(1)
    found = opening(SharedBudget(ManualClock()), exactly)
    assert (found.knobs, found.as_asked) == (HELD.least(LARGE), False)
    assert found.price_bytes == PIPES.price(found.knobs) < price


def test_the_second_of_two_that_open_at_once_has_what_the_first_one_left() -> None:
    budget = SharedBudget(ManualClock())
    headroom = FakeHeadroom(FLOOR + MARGIN + PIPES.price(LARGE) + 10 * MIB)
    assert opening(budget, headroom).as_asked
    assert not opening(budget, headroom).as_asked


def test_without_a_controller_knobs_stay_and_count_all_the_same() -> None:
    budget = SharedBudget(ManualClock())
    headroom = FakeHeadroom(FLOOR + MARGIN + PIPES.price(LARGE))
    assert opening(budget, headroom, moves=False).knobs == LARGE
    assert not opening(budget, headroom).as_asked


def test_pages_that_a_ring_has_already_are_not_paid_for_again() -> None:
    full = PipelineSizes(SIZES, ring_bytes=64 * 20 * MIB, has_tensorflow=False)
    assert PIPES.price(LARGE) - full.price(LARGE) == 32 * 20 * MIB


def test_headroom_that_cannot_be_read_opens_with_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise PipelineError("gone", remedy="mount /proc")

    headroom = FakeHeadroom(64 * GIB)
    monkeypatch.setattr(headroom, "read", broken)
    found = opening(SharedBudget(ManualClock()), headroom)
    assert (found.as_asked, found.headroom_bytes) == (False, None)
