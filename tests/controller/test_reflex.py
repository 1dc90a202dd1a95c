"""The reflex, the growth meter, prices, budget shares, the test for noise, the flow meter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from situations import FLOOR, PRICES, SHARDS, knob_sets, limits, seen

from autoloader.controller.admission import (
    THREAD_BYTES,
    Prices,
    RollingPrices,
    price_change,
    price_knobs,
)
from autoloader.controller.observation import FlowMeter, FlowTotals, StageTotal
from autoloader.controller.policy import Verdict, chance_of_more, judge
from autoloader.controller.proposals import admits
from autoloader.controller.reflex import Action, GrowthMeter, Reaction, ReflexState, react
from autoloader.host.units import GIB, MIB
from autoloader.samples.resolve import MixtureSizes
from autoloader.spec.knobs import Knobs

HELD = limits()


def reaction(
    headroom: int | None, state: ReflexState | None = None, *, at_s: float = 10.0,
    ready: int = 4, surplus: int | None = 0, growth: int = 0,
) -> Reaction:  # fmt: skip
    return react(
        state or ReflexState(), at_s=at_s, headroom_bytes=headroom, growth_bytes=growth,
        ready_batches=ready, surplus_bytes=surplus, limits=HELD,
    )  # fmt: skip


def test_far_from_the_floor_nothing_is_done():
    answer = reaction(FLOOR + GIB)
    assert (answer.action, answer.admit) == (Action.NOTHING, True)


@pytest.mark.parametrize("growth", [0, 500 * MIB])
def test_memory_is_read_less_often_only_where_two_readings_cannot_take_what_is_left(growth: int):
    margin = max(256 * MIB, growth)
    far = FLOOR + 3 * margin
    assert reaction(far, growth=growth).calm
    for headroom in (far - 1, FLOOR + margin - 1, FLOOR - 1, None):
        assert not reaction(headroom, growth=growth).calm


def test_within_the_margin_no_read_is_admitted_and_below_the_floor_buffers_go():
    near = reaction(FLOOR + 255 * MIB)
    assert (near.action, near.admit) == (Action.GATE, False)
    below = reaction(FLOOR - 1)
    assert (below.action, below.admit) == (Action.DROP, False)


def test_the_gate_opens_somewhat_above_where_it_closed():
    closed = reaction(FLOOR + 255 * MIB).state
    assert not reaction(FLOOR + 260 * MIB, closed).admit
    assert reaction(FLOOR + 330 * MIB, closed).admit


def test_the_gates_margin_follows_the_fastest_loss_of_memory():
    assert not reaction(FLOOR + 400 * MIB, growth=500 * MIB).admit
    assert reaction(FLOOR + 400 * MIB, growth=100 * MIB).admit


@given(st.integers(0, 4 * GIB), st.integers(0, 5), st.floats(0, 100), st.integers(0, GIB))
def test_the_consumer_is_never_blocked_and_the_floor_always_answered(
    headroom: int, ready: int, at_s: float, growth: int
):
    answer = reaction(headroom, at_s=at_s, ready=ready, growth=growth)
    if ready < 2:
        assert answer.admit
    elif headroom < FLOOR + max(256 * MIB, growth):
        assert not answer.admit
    if headroom < FLOOR:
        assert answer.action is Action.DROP


def test_dropping_is_repeated_and_a_large_child_restarted_once():
    state, actions = ReflexState(), []
    for tenth in range(100):
        answer = reaction(FLOOR - 1, state, at_s=tenth / 10, surplus=GIB)
        state = answer.state
        actions.append(answer.action)
    assert actions.count(Action.RESTART) == 1
    assert actions.index(Action.RESTART) == 50
    assert actions.count(Action.DROP) >= 15


@pytest.mark.parametrize("surplus", [None, 0, 200 * MIB])
def test_a_small_child_is_not_restarted_for_a_neighbours_memory(surplus: int | None):
    state = ReflexState()
    for tenth in range(200):
        answer = reaction(FLOOR - 1, state, at_s=tenth / 10, surplus=surplus)
        state = answer.state
        assert answer.action is not Action.RESTART


def test_an_unreadable_headroom_changes_nothing():
    closed = reaction(FLOOR - 1).state
    assert reaction(None, closed).state == closed
    assert not reaction(None, closed).admit
    assert reaction(None).admit


def test_the_growth_meter_knows_what_300_ms_took_at_worst():
    meter = GrowthMeter()
    assert meter.p99_bytes == 0
    for n in range(100):
        meter.note(10 * GIB - n * 40 * MIB)
    assert meter.p99_bytes == 120 * MIB


def test_a_reading_for_two_periods_counts_as_two_readings():
    meter = GrowthMeter()
    for n in range(0, 100, 2):
        meter.note(10 * GIB - n * 40 * MIB, 2)
    assert meter.p99_bytes == 120 * MIB


# --- prices ---------------------------------------------------------------------------------------


@given(knob_sets(), knob_sets())
def test_a_price_is_never_negative_and_never_less_than_the_difference(a: Knobs, b: Knobs):
    b = Knobs.build({"reader": a.reader}, base=b)
    price = price_change(a, b, SHARDS, PRICES)
    assert price >= max(0, price_knobs(b, SHARDS, PRICES) - price_knobs(a, SHARDS, PRICES))


def test_a_stream_that_opens_anew_is_held_twice():
    a = Knobs.build({"reader": "stream"})
    b = Knobs.build({"cycle_length": 2}, base=a)
    prices, threads = Prices(record_bytes={"a": 10 * MIB}), sum(a.pixel_threads.values())
    price = price_change(a, b, {"a": 8}, prices)
    assert price >= price_knobs(b, {"a": 8}, prices) - threads * THREAD_BYTES


def test_each_decode_process_is_priced_with_the_runs_that_it_reads_ahead():
    one = Knobs.build({"reader": "indexed", "read_ahead": 3})
    two = Knobs.build({"decode_processes": 2}, base=one)
    prices = Prices(run_bytes=16 * MIB)
    assert price_change(one, two, SHARDS, prices) == (4 * 16 + 110) * MIB
    large = Prices(run_bytes=200 * MIB)  # two more wait to be decoded
    assert price_change(one, two, SHARDS, large) == (6 * 200 + 110) * MIB


def test_prices_are_95th_percentiles_of_what_was_held():
    prices = RollingPrices(MixtureSizes({"a": 100}, 7))
    assert prices.current().slot_bytes == 7
    assert prices.current().record("a") == 100
    for n in range(1, 101):
        prices.note_run(n * 1000.0)
        prices.note_process(150.0, 100.0)
    assert prices.current().run_bytes == 95_000
    assert prices.current().scale == 1.5
    prices.note_process(1e9, 1.0)
    assert prices.current().scale <= 4.0


def test_what_cannot_be_read_admits_nothing():
    def room(headroom: int | None, price: int = 10, ratio: float = 1.0) -> bool:
        held = limits(ram_floor_bytes=100, margin_bytes=50, budget_ratio=ratio)
        return admits(price, seen(headroom_bytes=headroom), held)

    assert room(160)
    assert not room(159)
    assert not room(None, 0)
    assert not room(149, 0)
    assert room(200, 25, 0.5)
    assert not room(200, 26, 0.5)


# --- the test for noise ---------------------------------------------------------------------------


def test_the_test_of_ranks_is_exact():
    assert chance_of_more([1, 2, 3, 4, 5], [6, 7, 8]) == 1 / 56
    assert chance_of_more([6, 7, 8], [1, 2]) == 1.0
    assert chance_of_more([1, 1], [1, 1]) == 1.0


def test_a_gain_far_above_the_noise_is_seen_at_the_first_look():
    assert judge([100, 101, 99, 100, 102], [130, 131, 129], growing=True) is Verdict.PAID
    assert judge([100, 101, 99, 100, 102], [70, 71, 69], growing=False) is Verdict.LOST
    assert judge([100, 101, 99, 100, 102], [100, 101], growing=True) is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("after", "growing", "verdict"),
    [
        ([99.5] * 3, False, Verdict.UNDECIDED),  # slower, and by less than would matter
        ([99.5] * 5, False, Verdict.PAID),  # given back, and not seen to hurt
        ([100.5] * 7, True, Verdict.UNDECIDED),  # faster, and by less than would matter
        ([100.5] * 8, True, Verdict.NOTHING),
        ([60.0, 140.0, 60.0], True, Verdict.UNDECIDED),  # far apart, and chance may do that
        ([98.0] * 8, True, Verdict.NOTHING),
        ([97.9] * 3, True, Verdict.LOST),
        ([101.1] * 3, True, Verdict.PAID),
    ],
)
def test_a_verdict_needs_a_difference_that_matters_and_is_no_chance(
    after: list[float], growing: bool, verdict: Verdict
):
    assert judge([100.0] * 5, after, growing=growing) is verdict
    assert judge([], after, growing=growing) is Verdict.UNDECIDED


# --- flow -----------------------------------------------------------------------------------------


def totals(at_s: float, batches: int, waited_s: float, **own: object) -> FlowTotals:
    values = {"waiting": False, "mixed": batches * 10, "ready": 2, "slots": 4, **own}
    return FlowTotals(at_s, batches, waited_s, **values)  # type: ignore[arg-type]


def test_waits_and_pace_are_of_the_last_seconds():
    meter = FlowMeter(10)
    for n in range(20):
        meter.note(totals(n, 4 * n, 0.25 * n))
    found = meter.readings()
    assert found["wait_ratio"] == pytest.approx(0.25)
    assert found["demand_per_s"] == pytest.approx(40 / 0.75)
    assert found["rate_per_s"] == pytest.approx(40.0)
    assert found["step_s"] == pytest.approx(0.25)
    assert found["occupancy_ratio"] == 0.5


def test_a_wait_that_is_going_on_counts():
    meter = FlowMeter(10)
    meter.note(totals(0, 1, 0.0))
    for n in range(1, 5):
        meter.note(totals(n, 1, float(n), waiting=True))
    found = meter.readings()
    assert found["wait_ratio"] == pytest.approx(1.0)
    assert found["waiting"] is True
    assert found["silent_s"] == 0.0


def test_a_pause_is_no_time_spent_without_waiting():
    meter = FlowMeter(10)
    for n in range(10):
        meter.note(totals(n, 4 * n, 0.5 * n))
    for n in range(10, 30):
        meter.note(totals(n, 36, 4.5))
    found = meter.readings()
    assert found["silent_s"] == pytest.approx(20.0)
    assert found["wait_ratio"] == pytest.approx(0.5)
    meter.note(totals(30, 40, 4.5))
    meter.note(totals(31, 44, 5.0))
    assert meter.readings()["wait_ratio"] == pytest.approx(0.5)


def test_long_steps_are_no_pauses():
    meter = FlowMeter(10)
    for step in range(5):  # 5 s each, 1.5 s of which training waits
        at_s = 6.5 * step
        meter.note(totals(at_s, step, 1.5 * step))
        meter.note(totals(at_s + 2, step, 1.5 * step))
        meter.note(totals(at_s + 5, step, 1.5 * step, waiting=True))
        meter.note(totals(at_s + 6, step, 1.5 * step + 1, waiting=True))
    meter.note(totals(32.5, 5, 7.5))
    found = meter.readings()
    assert found["step_s"] == pytest.approx(6.5)
    assert found["wait_ratio"] == pytest.approx(1.5 / 6.5)


def test_each_pause_between_long_steps_is_a_pause():
    meter, at_s = FlowMeter(10), 0.0
    for step in range(60):  # 3 s each, and a validation of 30 s behind every twentieth
        meter.note(totals(at_s, step, 0.0))
        meter.note(totals(at_s + 1.5, step, 0.0))
        at_s += 3.0 if step % 20 else 33.0
        if step > 2:
            assert meter.readings()["step_s"] == pytest.approx(3.0)


def test_service_times_are_differences_and_grow_old_when_nothing_comes():
    def stage(work: float, samples: int) -> tuple[StageTotal, ...]:
        return (StageTotal("decode", "", 1.0, 2, work, samples),)

    meter = FlowMeter(10)
    meter.note(totals(0, 0, 0.0, stages=stage(0.0, 0)))
    assert meter.readings()["stages"][0].service_s is None
    meter.note(totals(1, 1, 0.0, stages=stage(1.0, 100)))
    found = meter.readings()["stages"][0]
    assert found.service_s == pytest.approx(0.01)
    assert found.busy_ratio == pytest.approx(0.5)
    for n in range(2, 10):
        meter.note(totals(n, n, 0.0, stages=stage(1.0, 100)))
    assert meter.readings()["stages"][0].service_s is None


def test_totals_that_begin_anew_end_the_window():
    meter = FlowMeter(10)
    for n in range(6):
        meter.note(totals(n, n, 0.0))
    meter.note(totals(6, 0, 0.0))
    assert "wait_ratio" not in meter.readings()
    assert meter.readings()["rate_per_s"] is None
