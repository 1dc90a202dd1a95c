"""The policy: transitions, one change at a time, the floor, the unknown, what did not pay."""

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from situations import (
    FLOOR,
    PRICES,
    REQUIRED,
    SHARDS,
    check_answer,
    crowded,
    grew,
    growing,
    holding,
    limits,
    observations,
    seen,
    stage,
    two_processors,
    without,
)

from autoloader.controller import policy
from autoloader.controller.admission import INTERPRETER_BYTES, price_change
from autoloader.controller.observation import Observation
from autoloader.controller.policy import Decision, Verdict, decide, event_of
from autoloader.controller.states import TRANSITIONS, ControllerState, Event, Failure, State
from autoloader.host.units import GIB, MIB
from autoloader.spec.knobs import Knobs

HELD = limits()
ONE_SLOW_STREAM = (
    stage("read", 1, 0.005, dataset="a", share=0.5),
    stage("read", 1, 0.001, dataset="b", share=0.5, busy_ratio=0.2),
    stage("decode", 4, 0.001, busy_ratio=0.1),
)
MANY_SLOTS = Knobs.build({"reader": "indexed", "ring_slots": 32})
SEATED = {"wait_ratio": 0.0, "demand_per_s": 400.0, "occupancy_ratio": 1.0}
"""Of a consumer that waits for nothing and gets what it takes."""


def after(
    state: ControllerState, *steps: Observation, held: Any = HELD
) -> tuple[ControllerState, list[Decision]]:
    made = []
    for here in steps:
        made.append(decide(state, here, held))
        state = made[-1].state
    return state, made


# --- the table ------------------------------------------------------------------------------------


def test_each_state_has_an_answer_to_each_event():
    assert set(TRANSITIONS) == {(state, event) for state in State for event in Event}


def test_below_the_floor_leads_to_emergency_and_pressure_at_least_to_shrink():
    for state in State:
        assert TRANSITIONS[state, Event.BELOW_FLOOR] is State.EMERGENCY
        assert TRANSITIONS[state, Event.PRESSURE] in (State.SHRINK, State.EMERGENCY)


def test_only_hunger_leads_to_growth_and_no_state_is_a_trap():
    for (state, event), to in TRANSITIONS.items():
        assert (to is State.GROW) == (event is Event.HUNGRY), (state, event)


def test_a_silent_consumer_is_parked_and_not_satisfied():
    for state in State:
        assert TRANSITIONS[state, Event.SILENT] is State.PARKED
    quiet = seen(waiting=False, wait_ratio=0.0, silent_s=20.0)
    assert event_of(holding(), quiet, HELD) is Event.SILENT
    _, made = after(holding(10.0), *(replace(quiet, at_s=100.0 + n) for n in range(30)))
    assert all(one.knobs is None for one in made)


def test_a_consumer_that_waits_is_not_silent_however_long():
    assert event_of(growing(), seen(waiting=True, silent_s=60.0), HELD) is Event.HUNGRY


def test_a_slow_consumer_is_not_silent_between_its_batches():
    here = seen(waiting=False, silent_s=6.0, step_s=4.0, wait_ratio=0.0)
    assert event_of(holding(), here, HELD) is Event.SATISFIED


# --- growth ---------------------------------------------------------------------------------------


def test_the_bottleneck_gets_workers_by_littles_law():
    answer = decide(growing(), seen(), HELD)
    assert answer.rule == "decode is the bottleneck"
    # 800 samples/s × 5 ms = 4 workers.
    assert answer.changes == {"decode_threads": 4}
    assert answer.gain_per_s == pytest.approx(400.0)
    assert answer.price_bytes == price_change(
        seen().knobs, Knobs.build(answer.changes, base=seen().knobs), SHARDS, PRICES
    )


def test_threads_grow_by_the_idle_processors_with_a_process_for_every_four():
    answer = decide(growing(), seen(demand_per_s=1e6, idle_cpus=8.0), HELD)
    assert answer.changes == {"decode_threads": 10, "decode_processes": 3}
    assert not decide(growing(), seen(demand_per_s=401.0), HELD).changes


def test_threads_grow_without_processes_where_blocks_lie_in_one_or_memory_is_short():
    here = seen(demand_per_s=1e6, idle_cpus=8.0)
    alone = limits(knobs=replace(HELD.knobs, one_process=True))
    assert decide(growing(), here, alone).changes == {"decode_threads": 8}
    short = replace(here, room_bytes=INTERPRETER_BYTES)
    assert decide(growing(), short, HELD).changes == {"decode_threads": 8}


def test_growth_is_additive_where_few_processors_are_idle():
    stages = (stage("read", 2, 0.05), stage("decode", 2, 0.001, busy_ratio=0.1))
    answer = decide(growing(), seen(stages=stages, demand_per_s=1e6, idle_cpus=8.0), HELD)
    assert answer.changes == {"io_threads": 8}
    answer = decide(growing(), seen(demand_per_s=1e6, idle_cpus=0.4), HELD)
    assert answer.changes["decode_threads"] == 6


@pytest.mark.parametrize(
    "own",
    [{"settled": False}, {"gate_closed": True}, {"batches": 3}, {"parked": True},
     {"waiting": False, "silent_s": 1.2}, {"gpu_busy_ratio": 0.99}],
)  # fmt: skip
def test_nothing_grows_while_figures_are_not_those_of_a_steady_run(own: dict[str, Any]):
    assert decide(growing(), seen(**own), HELD).knobs is None


def test_a_consumer_that_is_about_to_ask_is_no_pause():
    for own in ({"waiting": True}, {"step_s": 1.0}):
        here = seen(**{"waiting": False, "silent_s": 1.2, **own})
        assert decide(growing(), here, HELD).knobs is not None


def test_no_stream_grows_beyond_its_shards():
    knobs = Knobs.build({"reader": "stream", "decode_threads": 4})
    parts = tuple(stage("read", 1, 0.005, dataset=name, share=0.5) for name in "ab")
    full = limits(knobs=replace(HELD.knobs, shards={"a": 1, "b": 1}))
    check_answer(policy, growing(), seen(knobs=knobs, stages=parts), full)


def test_a_stream_that_is_the_bottleneck_gets_more_of_its_own_dataset_alone():
    knobs = Knobs.build({"reader": "stream", "decode_threads": 4})
    answer = decide(growing(), seen(knobs=knobs, stages=ONE_SLOW_STREAM), HELD)
    assert answer.changes
    assert all(key.startswith("a.") for key in answer.changes)


def test_threads_are_not_added_where_no_processor_is_known_to_be_idle():
    for idle in (None, 0.0):
        answer = decide(growing(), seen(idle_cpus=idle), HELD)
        assert "decode_threads" not in answer.changes
        assert "io_threads" not in answer.changes


def test_other_hosts_are_asked_where_this_one_has_no_processor_left_and_only_there():
    busy = {"idle_cpus": 0.0, "helpers_possible": 3}
    answer = decide(growing(), seen(**busy), HELD)
    # 400 samples/s more × 5 ms = 2 processors.
    assert answer.changes == {"helper_slots": 2}
    assert answer.gain_per_s == pytest.approx(400.0)
    assert decide(growing(), seen(**busy, demand_per_s=1e6), HELD).changes == {"helper_slots": 3}
    for other in ({"helpers_possible": None}, {"idle_cpus": None}, {"idle_cpus": 5.0}):
        assert "helper_slots" not in decide(growing(), seen(**busy | other), HELD).changes


def test_helpers_that_training_would_not_miss_are_given_back_at_once():
    knobs = Knobs.build({"reader": "indexed", "decode_threads": 4, "helper_slots": 8})
    calm = {"wait_ratio": 0.0, "waiting": False, "occupancy_ratio": 0.9}
    # 4 threads × 200 samples/s here, and training takes 400.
    _, (answer,) = after(holding(), seen(100.0, knobs=knobs, demand_per_s=400.0, **calm))
    assert answer.changes == {"helper_slots": 0}
    # Helpers do all of it, so nobody knows what this host would do.
    idle = (stage("read", 4, 0.001, busy_ratio=0.1),)
    _, (answer,) = after(holding(), seen(100.0, knobs=knobs, stages=idle, **calm))
    assert answer.changes == {"helper_slots": 2}
    # It takes 1,000: with some to spare 1,300, so 500 more than this host does, or 2.5 processors.
    _, (answer,) = after(holding(), seen(100.0, knobs=knobs, demand_per_s=1000.0, **calm))
    assert answer.changes == {"helper_slots": 3}


TWO = two_processors()


def test_beside_others_more_threads_take_a_larger_share_of_the_processors():
    answer = decide(growing(), crowded(), TWO)
    assert answer.rule == "decode shares processors with other programs"
    assert answer.changes == {"decode_threads": 4}
    # Two beside one get 2/3, four beside one get 4/5: 1.2 times as much.
    assert answer.gain_per_s == pytest.approx(400.0 * 0.2)


@pytest.mark.parametrize("others", [None, 0.2])
def test_without_others_no_thread_is_added_to_busy_processors(others: float | None):
    assert "decode_threads" not in decide(growing(), crowded(others_cpus=others), TWO).changes


def test_threads_beside_others_end_at_twice_the_processors_and_go_when_the_others_go():
    four = Knobs.build({"reader": "indexed", "decode_threads": 4})
    assert "decode_threads" not in decide(growing(), crowded(knobs=four), TWO).changes
    alone = decide(growing(), crowded(knobs=four, others_cpus=0.0, wait_ratio=0.1), TWO)
    assert (alone.rule, alone.changes) == ("more than processors", {"decode_threads": 2})
    # A little waiting, which no buffer is predicted to mend.
    assert not decide(growing(), crowded(knobs=four, wait_ratio=0.1), TWO).changes


def test_one_change_at_a_time_and_the_next_only_after_its_verdict():
    state, made = after(growing(), seen(100.0))
    assert made[0].knobs is not None
    for n in range(1, 4):
        changed = seen(100.0 + n, knobs=made[0].knobs, rate_per_s=400.0)
        state, later = after(state, changed)
        assert later[0].knobs is None


def test_what_pays_is_kept_and_what_does_not_is_taken_back_and_not_tried_again():
    for rate, verdict in ((790.0, Verdict.PAID), (401.0, Verdict.NOTHING), (300.0, Verdict.LOST)):
        state, made = after(growing(), seen(100.0))
        knobs = made[0].knobs
        assert knobs is not None
        end = None
        for n in range(1, 20):
            here = seen(100.0 + n, knobs=knobs, rate_per_s=rate + n % 3)
            state, (end,) = after(state, here)
            if end.verdict is not None:
                break
        assert end.verdict is verdict
        assert end.state.trial is None
        assert (end.knobs == seen().knobs) == (verdict is not Verdict.PAID)
        if verdict is not Verdict.PAID:
            state = replace(state, rates=growing().rates)
            assert "decode_threads" not in decide(state, seen(125.0), HELD).changes
            later = replace(growing(), failures=state.failures, moved=state.moved)
            assert "decode_threads" in decide(later, seen(300.0), HELD).changes


def test_a_datasets_streams_are_taken_back_though_only_some_of_its_knobs_were_its_own():
    own = {"reader": "stream", "cycle_length": 2, "num_parallel_calls": 2}
    before = Knobs.build({**own, "decode_threads": 4, "a.num_parallel_calls": 1})
    here = seen(knobs=before, stages=ONE_SLOW_STREAM)
    state, (made,) = after(growing(), here)
    assert made.changes.keys() == {"a.cycle_length", "a.num_parallel_calls"}
    late = replace(here, at_s=110.0, knobs=made.knobs, rate_per_s=200.0)
    state, answers = after(state, *(replace(late, at_s=110.0 + n) for n in range(8)))
    (back,) = (one for one in answers if one.verdict is Verdict.LOST)
    assert back.knobs == before


def test_after_an_oom_kill_knobs_are_smaller_and_a_promised_order_stays():
    knobs = {"reader": "stream", "cycle_length": 4, "shuffle_samples": 64, "ring_slots": 32}
    for fixed, order in ((True, (4, 64)), (False, (1, 0))):
        smaller = limits(order_fixed=fixed).smaller(Knobs.build({**knobs, "stream_prefetch": 8}))
        assert (smaller.cycle_length, smaller.shuffle_samples) == order
        assert (smaller.ring_slots, smaller.stream_prefetch, smaller.reader) == (16, 0, "stream")


def test_what_failed_is_tried_sooner_where_the_bottleneck_has_changed():
    failure_context = ("decode", 0.005)
    state, made = after(growing(), seen(100.0))
    for n in range(1, 15):
        state, _ = after(state, seen(100.0 + n, knobs=made[0].knobs))
    assert state.failures["decode_threads+"].context == failure_context
    state = replace(state, rates=growing().rates, trial=None)
    slower = (stage("decode", 2, 0.02), stage("read", 4, 0.001, busy_ratio=0.1))
    here = seen(130.0, stages=slower, rate_per_s=100.0)
    assert "decode_threads" in decide(state, here, HELD).changes


def test_a_change_by_somebody_else_ends_the_trial_without_a_verdict():
    state, made = after(growing(), seen(100.0))
    assert made[0].knobs is not None
    state, (answer,) = after(state, seen(103.0, knobs=Knobs.build({"decode_threads": 7})))
    assert state.trial is None
    assert answer.verdict is None


def test_a_pause_of_the_consumer_keeps_the_trial_and_its_evidence():
    state, made = after(growing(), seen(100.0))
    changed = made[0].knobs
    away = {"waiting": False, "wait_ratio": 0.0, "silent_s": 30.0}
    state, _ = after(state, seen(103.0, knobs=changed, rate_per_s=700.0))
    state, _ = after(state, *(seen(104.0 + n, knobs=changed, **away) for n in range(5)))
    assert state.name is State.PARKED
    assert state.trial.rates_after == (700.0,)


def test_promised_orders_are_not_touched():
    held = limits(order_fixed=True)
    knobs = Knobs.build({"reader": "stream", "cycle_length": 2, "shuffle_samples": 64})
    stages = (
        stage("read", 1, 0.01, dataset="a", share=0.5),
        stage("read", 1, 0.01, dataset="b", share=0.5),
    )
    for headroom in (FLOOR + 4 * GIB, FLOOR + MIB, FLOOR - MIB):
        here = seen(knobs=knobs, stages=stages, headroom_bytes=headroom)
        answer = decide(growing(), here, held)
        got = answer.knobs or knobs
        assert (got.cycle_length, got.shuffle_samples) == (2, 64)


# --- enough ---------------------------------------------------------------------------------------


def test_a_consumer_that_hardly_waits_is_enough():
    assert event_of(growing(), seen(wait_ratio=0.009), HELD) is Event.SATISFIED
    assert event_of(growing(), seen(wait_ratio=0.011), HELD) is Event.HUNGRY
    assert event_of(holding(), seen(wait_ratio=0.015), HELD) is Event.SATISFIED


@pytest.mark.parametrize(
    ("gpu", "shared", "event"),
    [
        (0.99, False, Event.SATISFIED),
        (0.6, False, Event.HUNGRY),
        (0.99, True, Event.HUNGRY),
        (None, False, Event.HUNGRY),
    ],
)
def test_a_gpu_of_ones_own_that_is_busy_is_the_bottleneck(
    gpu: float | None, shared: bool, event: Event
):
    assert event_of(growing(), seen(gpu_busy_ratio=gpu, gpu_shared=shared), HELD) is event


def test_what_is_too_much_is_given_back_and_returned_if_that_was_wrong():
    knobs = Knobs.build({"reader": "indexed", "ring_slots": 32, "decode_threads": 2})
    calm = {"wait_ratio": 0.0, "waiting": False, "occupancy_ratio": 0.9}
    state, (answer,) = after(holding(), seen(100.0, knobs=knobs, **calm))
    assert answer.changes == {"ring_slots": 16}
    assert answer.price_bytes == -16 * PRICES.slot_bytes
    state, (wrong,) = after(state, seen(103.0, knobs=answer.knobs, wait_ratio=0.3))
    assert wrong.verdict is Verdict.LOST
    assert wrong.knobs == knobs
    tight = seen(103.0, knobs=answer.knobs, wait_ratio=0.3,
                 headroom_bytes=FLOOR + 300 * MIB)  # fmt: skip
    after_halving, _ = after(holding(), seen(100.0, knobs=knobs, **calm))
    assert decide(after_halving, tight, HELD).knobs is None


def test_nothing_is_given_back_at_once():
    here = seen(100.0, knobs=MANY_SLOTS, wait_ratio=0.0, occupancy_ratio=1.0)
    assert decide(growing(95.0), here, HELD).knobs is None


@pytest.mark.parametrize("own", [{"settled": False}, {"at_s": 57.0}])
def test_nothing_is_given_back_before_all_is_settled_and_seen_for_a_while(own: dict[str, Any]):
    here = seen(60.0, knobs=MANY_SLOTS, **SEATED)
    assert decide(holding(50.0), here, HELD).knobs is not None
    assert decide(holding(50.0), replace(here, **own), HELD).knobs is None
    few = replace(holding(50.0), rates=(400.0,) * 2)  # and that of now
    assert decide(few, here, HELD).knobs is None


def test_what_was_given_back_stays_so_after_five_looks_without_waiting_and_not_sooner():
    here = seen(100.0, knobs=MANY_SLOTS, **SEATED)
    state, (made,) = after(holding(), here)
    assert made.knobs is not None
    settled = (replace(here, at_s=103.0 + n, knobs=made.knobs) for n in range(5))
    state, answers = after(state, *settled)
    assert [one.verdict for one in answers] == [None] * 4 + [Verdict.PAID]
    assert state.trial is None
    assert len(state.rates) == 5


def test_what_was_too_little_is_not_taken_again_where_memory_has_gone_meanwhile():
    here = seen(100.0, knobs=MANY_SLOTS, **SEATED)
    state, (made,) = after(holding(), here)
    hungry = seen(104.0, knobs=made.knobs, headroom_bytes=FLOOR + 257 * MIB)
    state, (answer,) = after(state, hungry)
    assert (answer.knobs, answer.verdict, state.trial) == (None, Verdict.LOST, None)
    assert state.failures.keys() == {"ring_slots-"}


def test_what_fails_again_rests_twice_as_long_and_what_pays_is_forgotten_as_a_failure():
    failed = {
        "decode_threads+": Failure(0.0, 2, ("read", 1.0)),
        "read_ahead+": Failure(0.0, 1, ("", 0.0)),
    }
    state, (made,) = after(replace(growing(), failures=failed), seen(100.0))
    assert made.changes.keys() == {"decode_threads"}
    for rate, times in ((300.0, 3), (790.0, None)):
        later = [seen(103.0 + n, knobs=made.knobs, rate_per_s=rate) for n in range(8)]
        _, answers = after(state, *later)
        (end,) = (one for one in answers if one.verdict is not None)
        assert end.state.failures["read_ahead+"] == failed["read_ahead+"]
        failure = end.state.failures.get("decode_threads+")
        assert (failure and failure.times) == times
        if failure is not None:
            assert failure.until_s == end.state.moved["decode_threads-"] + 4 * HELD.retry_s


# --- memory ---------------------------------------------------------------------------------------


def test_below_the_floor_all_is_at_its_minimum_at_once():
    knobs = Knobs.build({"reader": "indexed", "ring_slots": 32, "read_ahead": 9})
    for name in State:
        state = ControllerState(name, since_s=0.0)
        here = seen(knobs=knobs, headroom_bytes=FLOOR - 1)
        answer = decide(state, here, HELD)
        assert answer.state.name is State.EMERGENCY
        assert answer.knobs == HELD.least(knobs)
        assert (answer.knobs.ring_slots, answer.knobs.read_ahead) == (4, 1)


def test_close_to_the_floor_buffers_are_halved_and_then_watched():
    knobs = Knobs.build({"reader": "indexed", "ring_slots": 32, "decode_threads": 6})
    here = seen(knobs=knobs, headroom_bytes=FLOOR + 100 * MIB)
    state, (answer,) = after(growing(), here)
    assert answer.state.name is State.SHRINK
    assert answer.changes == {"ring_slots": 16, "read_ahead": 1}
    _, (soon,) = after(state, replace(here, at_s=100.5, knobs=answer.knobs or knobs))
    assert soon.knobs is None


def test_the_margin_grows_with_what_300_ms_have_taken():
    near = FLOOR + 400 * MIB
    assert event_of(growing(), seen(headroom_bytes=near), HELD) is Event.HUNGRY
    fast = seen(headroom_bytes=near, growth_bytes=500 * MIB)
    assert event_of(growing(), fast, HELD) is Event.PRESSURE


def test_kernel_pressure_counts_where_memory_is_near_and_not_otherwise():
    high = 80.0
    near, far = FLOOR + 600 * MIB, FLOOR + 4 * GIB
    for headroom, event in ((near, Event.PRESSURE), (None, Event.PRESSURE), (far, Event.HUNGRY)):
        here = seen(headroom_bytes=headroom, pressure_percent=high)
        assert event_of(growing(), here, HELD) is event


def test_nothing_grows_until_pressure_has_been_gone_for_longer_each_time_it_came_back():
    waits = []
    state, at = growing(), 100.0
    for _ in range(3):
        state, _ = after(state, seen(at, headroom_bytes=FLOOR + 1))
        gone = at
        while True:
            at += 1.0
            state, (answer,) = after(state, seen(at))
            assert not grew(seen().knobs, answer.knobs) or state.name is State.GROW
            if state.name is State.GROW:
                break
        waits.append(at - gone)
    assert waits == [10.0, 20.0, 30.0]


def test_a_change_that_does_not_fit_above_floor_and_margin_is_not_made():
    assert decide(growing(), seen(headroom_bytes=FLOOR + 257 * MIB), HELD).knobs is None
    room = seen(headroom_bytes=FLOOR + 270 * MIB)
    assert decide(growing(), room, HELD).knobs is not None
    assert decide(growing(), room, limits(budget_ratio=0.1)).knobs is None
    assert decide(growing(), replace(room, room_bytes=1), HELD).knobs is None


# --- unknown --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REQUIRED)
def test_missing_evidence_never_raises_a_knob(name: str):
    assert grew(seen().knobs, decide(growing(), seen(), HELD).knobs)
    here = without(seen(), name)
    assert not grew(here.knobs, decide(growing(), here, HELD).knobs)


# --- properties -----------------------------------------------------------------------------------

_STATES = st.sampled_from(State).flatmap(
    lambda name: st.builds(
        ControllerState,
        st.just(name),
        since_s=st.floats(0.0, 99.0),
        rates=st.lists(st.floats(1.0, 1e4), max_size=8).map(tuple),
        pressure_s=st.one_of(st.none(), st.floats(0.0, 99.0)),
        pressures=st.integers(0, 5),
    )
)


@given(_STATES, observations())
def test_no_answer_crosses_the_floor_grows_on_the_unknown_or_is_illegal(
    state: ControllerState, here: Observation
):
    check_answer(policy, state, here, HELD)


@given(_STATES, observations(), st.sampled_from(REQUIRED))
def test_without_required_evidence_no_state_grows(
    state: ControllerState, here: Observation, name: str
):
    here = without(here, name)
    assert not grew(here.knobs, decide(state, here, HELD).knobs)


@given(_STATES, observations())
def test_the_same_inputs_give_the_same_answer(state: ControllerState, here: Observation):
    assert decide(state, here, HELD) == decide(state, here, HELD)


@given(_STATES)
def test_from_every_state_a_hungry_consumer_is_helped_within_a_minute(state: ControllerState):
    knobs = seen().knobs
    for n in range(60):
        here = seen(100.0 + n, knobs=knobs)
        answer = decide(state, here, HELD)
        state, knobs = answer.state, answer.knobs or knobs
        if grew(here.knobs, answer.knobs):
            return
    raise AssertionError(f"nothing grew in a minute from {state}")


@given(st.lists(observations(), min_size=1, max_size=12))
def test_any_sequence_of_observations_keeps_the_invariants(steps: list[Observation]):
    state = ControllerState()
    knobs = steps[0].knobs
    for n, one in enumerate(steps):
        here = dataclasses.replace(one, at_s=100.0 + 5 * n, knobs=knobs)
        answer = check_answer(policy, state, here, HELD)
        state, knobs = answer.state, answer.knobs or knobs
