"""What any policy of ours must answer, situation by situation.

``make mutants`` changes the policy and asks whether these tests notice.
"""

from __future__ import annotations

from dataclasses import replace

from situations import (
    FLOOR,
    REQUIRED,
    check_answer,
    crowded,
    grew,
    growing,
    holding,
    limits,
    seen,
    stage,
    two_processors,
    without,
)

from autoloader.controller import admission, policy, verification
from autoloader.controller.observation import Reading
from autoloader.controller.states import ControllerState, State
from autoloader.knobs import Knobs
from autoloader.units import MIB

HELD = limits()


def _decodes(**own: object) -> dict[str, int]:
    return dict(policy.decide(growing(), seen(**own), HELD).changes)


def test_a_bottleneck_grows_by_what_demand_and_rates_allow() -> None:
    assert _decodes() == {"decode_threads": 4}
    assert _decodes(demand_per_s=Reading(1e6)) == {"decode_threads": 6}
    assert _decodes(demand_per_s=Reading(401.0)) == {}
    fresh_state = ControllerState(State.WARMUP, since_s=99.0, rates=growing().rates)
    assert grew(seen().knobs, policy.decide(fresh_state, seen(), HELD).knobs)


def test_unknown_evidence_never_raises_a_knob() -> None:
    for name in REQUIRED:
        for stale in (True, False):
            here = without(seen(), name, stale=stale)
            answer = policy.decide(growing(), here, HELD)
            assert not grew(here.knobs, answer.knobs), name
            assert answer.state.name.value != "GROW" or name == "stages"
    for idle in (None, Reading(5.0, 60.0), Reading(5.0, -1.0), Reading(float("inf")), Reading(0.0)):
        assert "decode_threads" not in _decodes(idle_cpus=idle)
    warming = policy.decide(growing(), seen(batches=3), HELD)
    assert (warming.knobs, warming.state.name.value) == (None, "WARMUP")
    assert not admission.admits(1, headroom_bytes=None, ram_floor_bytes=0, margin_bytes=0)


def test_the_chance_of_a_difference_is_counted_exactly() -> None:
    # All three above all five: one of 56 ways to draw three of eight.
    assert verification.chance_of_more([1, 2, 3, 4, 5], [6, 7, 8]) == 1 / 56
    assert verification.chance_of_more([1, 1], [1, 1]) == 1.0


def test_memory_that_runs_short_shrinks_knobs_and_is_never_spent() -> None:
    for state in (growing(), holding()):
        large = Knobs.build({"reader": "indexed", "ring_slots": 32, "read_ahead": 9})
        here = seen(knobs=large, headroom_bytes=Reading(FLOOR - 1.0))
        answer = check_answer(policy, state, here, HELD)
        assert answer.state.name.value == "EMERGENCY"
        assert answer.knobs == HELD.least(here.knobs)
    for above in (5, 100, 200, 257, 260, 263, 300):
        here = seen(headroom_bytes=Reading(FLOOR + above * MIB))
        check_answer(policy, growing(), here, HELD)
    fast = seen(headroom_bytes=Reading(FLOOR + 400.0 * MIB), growth_bytes=Reading(500.0 * MIB))
    answer = check_answer(policy, growing(), fast, HELD)
    assert answer.state.name.value == "SHRINK"
    changed = dict(answer.changes)
    assert changed == {"read_ahead": 1, "ring_slots": 4}
    again = replace(fast, at_s=fast.at_s + 1.0)
    assert policy.decide(answer.state, again, HELD).knobs is None
    small = limits(budget_ratio=0.01)
    room = seen(headroom_bytes=Reading(FLOOR + 300.0 * MIB))
    assert policy.decide(growing(), room, small).knobs is None
    assert policy.decide(growing(), replace(room, room_bytes=1.0), HELD).knobs is None


def test_a_new_generation_of_a_stream_is_priced_beside_the_old_one() -> None:
    before = Knobs.build({"reader": "stream"})
    after = Knobs.build({"cycle_length": 2}, base=before)
    prices = admission.Prices(record_bytes={"a": 10 * MIB})
    price = admission.price_change(before, after, {"a": 8}, prices)
    assert price >= admission.price_knobs(after, {"a": 8}, prices) - 4 * MIB


def test_each_pressure_doubles_the_calm_that_is_waited_for() -> None:
    state, waits, at = growing(), [], 100.0
    for _ in range(2):
        state = policy.decide(state, seen(at, headroom_bytes=Reading(FLOOR + 1.0)), HELD).state
        gone = at
        while state.name.value != "GROW" and at - gone < 100:
            at += 1.0
            state = policy.decide(state, seen(at), HELD).state
        waits.append(at - gone)
    assert waits == [10.0, 20.0]


def test_a_consumer_that_is_away_or_fed_gets_nothing_more() -> None:
    quiet = seen(waiting=False, silent_s=Reading(30.0), wait_ratio=Reading(0.0))
    busy = seen(waiting=False, silent_s=Reading(30.0), wait_ratio=Reading(0.5))
    for here in (quiet, busy, seen(parked=True)):
        answer = policy.decide(holding(10.0), here, HELD)
        assert answer.state.name.value == "PARKED"
        assert answer.knobs is None
    assert policy.decide(growing(), seen(wait_ratio=Reading(0.005)), HELD).knobs is None
    loaded = {"gpu_busy_ratio": Reading(0.99)}
    assert policy.decide(growing(), seen(**loaded), HELD).knobs is None
    assert policy.decide(growing(), seen(gpu_shared=True, **loaded), HELD).knobs is not None


def test_a_pause_of_the_consumer_is_no_evidence() -> None:
    pause = {"waiting": False, "silent_s": Reading(1.2)}
    assert policy.decide(growing(), seen(**pause), HELD).knobs is None
    assert policy.decide(growing(), seen(**pause), HELD).state.rates == growing().rates
    for steps in ({**pause, "waiting": True}, {**pause, "step_s": Reading(1.0)}):
        assert policy.decide(growing(), seen(**steps), HELD).knobs is not None


def test_a_change_is_kept_only_where_it_paid() -> None:
    for rates, keeps in (
        ((790, 795, 792), True), ((401, 399, 400, 402, 405, 398, 411, 400), False),
        ((300, 301, 299), False), ((420, 380, 440, 390, 430, 385, 410, 395), False),
    ):  # fmt: skip
        state = growing()
        answer = policy.decide(state, seen(100.0), HELD)
        knobs, state = answer.knobs, answer.state
        for n, rate in enumerate((1.0, *map(float, rates)), start=1):
            here = seen(100.0 + n, knobs=knobs, rate_per_s=Reading(rate if n > 1 else 400.0))
            answer = policy.decide(state, here, HELD)
            state = answer.state
            if answer.verdict is not None:
                break
            assert answer.knobs is None, "two changes at a time"
        assert answer.verdict is not None
        assert (answer.knobs is None) == keeps
        if not keeps:
            state = replace(state, rates=growing().rates)
            again = policy.decide(state, seen(here.at_s + 20), HELD)
            assert "decode_threads" not in again.changes
    for own in ({"settled": False}, {"gate_closed": True}):
        assert policy.decide(growing(), seen(**own), HELD).knobs is None


def test_what_training_does_not_need_is_given_back_and_taken_again() -> None:
    knobs = Knobs.build({"reader": "indexed", "ring_slots": 32, "decode_threads": 2})
    calm = {"wait_ratio": Reading(0.0), "waiting": False, "occupancy_ratio": Reading(0.9)}
    first = policy.decide(holding(), seen(100.0, knobs=knobs, **calm), HELD)
    assert first.changes == {"ring_slots": 16}
    hungry = seen(103.0, knobs=first.knobs, wait_ratio=Reading(0.3))
    assert policy.decide(first.state, hungry, HELD).knobs == knobs
    tight = replace(hungry, headroom_bytes=Reading(FLOOR + 300.0 * MIB))
    assert policy.decide(first.state, tight, HELD).knobs is None


def test_no_illegal_knobs_are_asked_for() -> None:
    knobs = Knobs.build({"reader": "indexed", "decode_threads": 16})
    slow = (stage("decode", 16, 0.04), stage("read", 4, 0.001, busy_ratio=Reading(0.1)))
    check_answer(policy, growing(), seen(knobs=knobs, stages=slow), HELD)
    stream = Knobs.build({"reader": "stream", "decode_threads": 4})
    parts = tuple(stage("read", 1, 0.005, dataset=n, share=0.5) for n in "ab")
    here = seen(knobs=stream, stages=parts)
    full = limits(knobs=replace(HELD.knobs, shards={"a": 1, "b": 1}))
    check_answer(policy, growing(), here, full)
    fixed = policy.decide(growing(), here, limits(order_fixed=True))
    assert not any("cycle_length" in key for key in fixed.changes)
    wide = Knobs.build({"reader": "stream", "cycle_length": 4, "ring_slots": 4})
    idle = tuple(stage("read", 1, 1e-5, dataset=n, share=0.5) for n in "ab")
    calm = {"wait_ratio": Reading(0.0), "occupancy_ratio": Reading(0.9), "stages": idle}
    for held, moves in ((HELD, True), (limits(order_fixed=True), False)):
        answer = policy.decide(holding(), seen(100.0, knobs=wide, **calm), held)
        assert ("cycle_length" in answer.changes) == moves


def test_processors_of_others_are_shared_with_them() -> None:
    two = two_processors()
    kept = [Knobs.build({"reader": "indexed", "decode_threads": n}) for n in (2, 3, 4)]

    def changes(**own: object) -> dict[str, int]:
        return dict(policy.decide(growing(), crowded(**own), two).changes)

    assert changes() == {"decode_threads": 4}
    assert policy.decide(growing(), crowded(), two).gain_per_s < 100.0
    assert changes(knobs=kept[1]) == {"decode_threads": 4}
    assert "decode_threads" not in changes(others_cpus=Reading(0.1))
    assert "decode_threads" not in changes(knobs=kept[2])
    # A little waiting, which no buffer is predicted to mend.
    little = {"knobs": kept[2], "wait_ratio": Reading(0.1)}
    assert changes(**little) == {}
    little["knobs"] = Knobs.build({"reader": "stream", "decode_threads": 4})
    for gone in ({"others_cpus": Reading(0.0)}, {"idle_cpus": Reading(0.6)}):
        assert changes(**little, **gone) == {"decode_threads": 2}
