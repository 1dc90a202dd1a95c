"""One budget for all pipelines of a process: nothing is promised twice, shares fit the whole."""

from typing import Any

from doubles import FakeHeadroom, ManualClock
from hypothesis import given
from hypothesis import strategies as st
from situations import FLOOR, limits

from autoloader.controller.admission import SharedBudget, admit_opening, price_start
from autoloader.host.units import GIB, MIB
from autoloader.samples.resolve import MixtureSizes
from autoloader.spec.knobs import Knobs

MARGIN = 256 * MIB

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
):
    clock = ManualClock()
    budget = SharedBudget(clock)
    shares = [budget.enter(floor) for floor in floors]
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
            before = budget.promised_bytes()
            given_ = budget.try_promise(
                share, what, headroom_bytes=headroom, margin_bytes=MARGIN, opening=act == "open"
            )
            assert budget.promised_bytes() == before + (what if given_ else 0)
            assert not given_ or what == 0 or before + what <= left
        rooms = [budget.room_bytes(one, headroom, MARGIN) for one in shares]
        left = headroom - max(floors) - MARGIN
        assert min(rooms) >= 0
        assert sum(rooms) == 0 or budget.promised_bytes() + sum(rooms) <= left
        assert all(not room for one, room in zip(shares, rooms, strict=True) if not one.in_use)


def test_unknown_headroom_has_no_room_but_for_nothing():
    budget = SharedBudget(ManualClock())
    share = budget.enter(0)
    assert budget.room_bytes(share, None, 0) == 0
    assert not budget.try_promise(share, 1, headroom_bytes=None, margin_bytes=0, opening=True)
    assert budget.try_promise(share, 0, headroom_bytes=None, margin_bytes=0)


# --- opening --------------------------------------------------------------------------------------

LARGE = Knobs.build({"reader": "indexed", "ring_slots": 32, "read_ahead": 8})
SIZES = MixtureSizes({"a": MIB}, 20 * MIB)
HELD = limits()


def price(knobs: Knobs) -> int:
    return price_start(knobs, SIZES, joining=True).total_bytes


def opening(budget: SharedBudget, headroom: FakeHeadroom, *, moves: bool = True) -> Any:
    return admit_opening(budget, headroom, LARGE, HELD, price, moves=moves)


def test_without_a_controller_knobs_stay_and_count_all_the_same():
    budget = SharedBudget(ManualClock())
    headroom = FakeHeadroom(FLOOR + MARGIN + price(LARGE))
    assert opening(budget, headroom, moves=False).knobs == LARGE
    assert not opening(budget, headroom).as_asked
