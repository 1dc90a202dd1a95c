"""The finals: paired, in turn, and hard on luck."""

from collections.abc import Callable

import pytest
from doubles import ManualClock

from autoloader.spec.knobs import Knobs
from autoloader.tune.finals import Contender, FinalsResult, compare
from autoloader.tune.trial import Outcome, TrialResult

START = Knobs.build({"decode_threads": 1})
FAST = Knobs.build({"decode_threads": 2})
OTHER = Knobs.build({"decode_threads": 3})


def who(knobs: Knobs) -> str:
    return {1: "start", 2: "fast", 3: "other"}[knobs.decode_threads]


def done(rate: float, memory: int | None = None) -> TrialResult:
    return TrialResult(
        Outcome.COMPLETE, samples_per_s=rate, peak_rss_bytes=memory, min_headroom_bytes=10
    )


def finals(
    answer: Callable[[Knobs, int], TrialResult],
    finalists: list[Knobs],
    *,
    rounds: int = 3,
    budget_s: float = 1e6,
    each_s: float = 1.0,
    order: list[Knobs] | None = None,
) -> FinalsResult:
    clock = ManualClock()

    def measure(contender: Contender, number: int, left_s: float) -> TrialResult:
        assert left_s > 0
        clock.advance(each_s)
        if order is not None:
            order.append(contender.knobs)
        return answer(contender.knobs, number)

    return compare(
        START,
        [Contender(knobs) for knobs in finalists],
        measure,
        rounds=rounds,
        each_s=each_s,
        deadline_s=budget_s,
        clock=clock,
    )


def test_a_finalist_that_is_faster_in_pairs_wins_with_the_median_ratio():
    rates = {"start": [100.0, 50.0, 100.0], "fast": [150.0, 80.0, 140.0]}
    verdict = finals(lambda knobs, n: done(rates[who(knobs)][n]), [FAST])
    assert verdict.winner.knobs == FAST
    assert verdict.ratios == pytest.approx((1.5, 1.6, 1.4))
    assert verdict.speedup == pytest.approx((1.5 * 1.6 * 1.4) ** (1 / 3))
    assert 1.0 < verdict.interval[0] < verdict.speedup < verdict.interval[1]


def test_rounds_end_when_the_interval_excludes_a_difference_or_none_is_left():
    def asked(ratio: Callable[[int], float]) -> int:
        order: list[Knobs] = []
        finals(
            lambda knobs, n: done(100.0 * (ratio(n) if knobs == FAST else 1.0)),
            [FAST],
            rounds=12,
            order=order,
        )
        return order.count(FAST)

    assert asked(lambda n: 1.3 + 0.01 * (n % 2)) == 3, "clearly faster"
    assert asked(lambda n: 1.0 + 0.001 * (n % 2)) == 2, "clearly not 2 % faster"
    assert asked(lambda n: 0.9 + 0.01 * (n % 2)) == 2, "clearly slower"
    assert asked(lambda n: 1.03 + 0.15 * (-1) ** n) == 12, "not clear at all"


def test_a_slower_finalist_never_replaces_the_start_however_small_it_is():
    verdict = finals(lambda knobs, n: done(99.5, 1) if knobs == FAST else done(100.0, 1000), [FAST])
    assert verdict.winner.is_start


@pytest.mark.parametrize(("rate", "winner"), [(199.0, OTHER), (190.0, FAST)])
def test_among_those_within_two_percent_the_least_memory_wins(rate: float, winner: Knobs):
    table = {"start": done(100.0, 50), "fast": done(200.0, 90), "other": done(rate, 60)}
    assert finals(lambda knobs, n: table[who(knobs)], [FAST, OTHER]).winner.knobs == winner


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.INFEASIBLE])
def test_a_finalist_that_fails_once_is_out(outcome: Outcome):
    def answer(knobs: Knobs, number: int) -> TrialResult:
        if knobs == FAST and number == 1:
            return TrialResult(outcome, reason="breach")
        return done(500.0 if knobs == FAST else 100.0)

    order: list[Knobs] = []
    assert finals(answer, [FAST, OTHER], order=order).winner.is_start
    assert order.count(FAST) == 2


def test_a_start_that_is_killed_once_is_measured_again():
    killed: list[int] = []

    def answer(knobs: Knobs, number: int) -> TrialResult:
        if knobs == START and number == 1 and not killed:
            killed.append(number)
            return TrialResult(Outcome.FAILED, reason="SIGKILL")
        return done(200.0 if knobs == FAST else 100.0)

    verdict = finals(answer, [FAST])
    assert killed
    assert verdict.winner.knobs == FAST
    assert verdict.rounds == 3


def test_no_round_begins_that_would_pass_the_deadline():
    order: list[Knobs] = []
    verdict = finals(lambda knobs, n: done(100.0), [FAST], budget_s=3.9, order=order)
    assert order == [START, FAST]
    assert verdict.winner.is_start
    assert verdict.at_most is None
    assert verdict.reason == "nothing was compared with it"


def test_what_was_ended_at_the_deadline_is_not_out_for_that():
    def answer(knobs: Knobs, number: int) -> TrialResult:
        if number == 3:
            return TrialResult(Outcome.FAILED, reason="no result")
        return done((200.0 if knobs == FAST else 100.0) + 20 * number)

    assert finals(answer, [FAST], rounds=9, budget_s=8.0).winner.knobs == FAST
