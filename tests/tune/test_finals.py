"""The finals: paired, in turn, and hard on luck."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from doubles import ManualClock

from autoloader.knobs import Knobs
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
    hard_s: float | None = None,
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
        finalists,
        measure,
        rounds=rounds,
        soft_deadline_s=budget_s,
        hard_deadline_s=hard_s if hard_s is not None else 2 * budget_s,
        clock=clock,
    )


def test_a_finalist_that_is_faster_in_pairs_wins_with_the_median_ratio() -> None:
    rates = {"start": [100.0, 50.0, 100.0], "fast": [150.0, 80.0, 140.0]}
    verdict = finals(lambda knobs, n: done(rates[who(knobs)][n]), [FAST])
    assert verdict.winner.knobs == FAST
    assert verdict.ratios == pytest.approx((1.5, 1.6, 1.4))
    assert verdict.speedup == pytest.approx(1.5)


def test_a_machine_that_slows_down_for_a_while_crowns_nobody() -> None:
    drift = [1.0, 0.3, 0.7]
    verdict = finals(lambda knobs, n: done(100.0 * drift[n]), [FAST, OTHER])
    assert verdict.winner.is_start
    assert verdict.speedup == 1.0
    assert verdict.ratios == ()


def test_one_lucky_run_does_not_win() -> None:
    rates = {"start": [100.0] * 3, "fast": [300.0, 99.0, 98.0]}
    verdict = finals(lambda knobs, n: done(rates[who(knobs)][n]), [FAST])
    assert verdict.winner.is_start


@pytest.mark.parametrize(
    ("ratios", "wins"),
    [
        ([1.3, 0.97], False),
        ([1.3, 1.2], True),
        ([1.3, 0.99, 1.3], False),
        ([1.3, 0.99, 1.3, 1.2], True),
        ([1.3, 0.99, 1.3, 0.99, 1.3], False),
    ],
)
def test_pairs_that_disagree_crown_nobody(ratios: list[float], wins: bool) -> None:
    verdict = finals(
        lambda knobs, n: done(100.0 * (ratios[n] if knobs == FAST else 1.0)),
        [FAST],
        rounds=len(ratios),
    )
    assert verdict.winner.is_start != wins


def test_a_slower_finalist_never_replaces_the_start_however_small_it_is() -> None:
    verdict = finals(lambda knobs, n: done(99.5, 1) if knobs == FAST else done(100.0, 1000), [FAST])
    assert verdict.winner.is_start


@pytest.mark.parametrize(("rate", "winner"), [(199.0, OTHER), (190.0, FAST)])
def test_among_those_within_two_percent_the_least_memory_wins(rate: float, winner: Knobs) -> None:
    table = {"start": done(100.0, 50), "fast": done(200.0, 90), "other": done(rate, 60)}
    assert finals(lambda knobs, n: table[who(knobs)], [FAST, OTHER]).winner.knobs == winner


def test_the_start_counts_among_those_within_two_percent() -> None:
    table = {"start": done(100.0, 50), "fast": done(101.0, 90)}
    assert finals(lambda knobs, n: table[who(knobs)], [FAST]).winner.is_start


def test_unknown_memory_is_not_taken_for_little() -> None:
    table = {"start": done(100.0, 50), "fast": done(200.0, None), "other": done(199.0, 60)}
    assert finals(lambda knobs, n: table[who(knobs)], [FAST, OTHER]).winner.knobs == OTHER


def test_all_are_measured_in_each_round_and_the_order_turns() -> None:
    order: list[Knobs] = []
    finals(lambda knobs, n: done(1.0), [FAST, OTHER], order=order)
    assert order == [START, FAST, OTHER, OTHER, FAST, START, START, FAST, OTHER]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.INFEASIBLE])
def test_a_finalist_that_fails_once_is_out(outcome: Outcome) -> None:
    def answer(knobs: Knobs, number: int) -> TrialResult:
        if knobs == FAST and number == 1:
            return TrialResult(outcome, reason="breach")
        return done(500.0 if knobs == FAST else 100.0)

    order: list[Knobs] = []
    verdict = finals(answer, [FAST, OTHER], order=order)
    assert verdict.winner.is_start
    assert order.count(FAST) == 2


def test_nothing_is_measured_without_a_finalist() -> None:
    order: list[Knobs] = []
    verdict = finals(lambda knobs, n: done(1.0), [], order=order)
    assert verdict.winner.is_start
    assert not order


def test_a_spent_budget_still_gives_two_pairs_and_not_a_third() -> None:
    order: list[Knobs] = []
    verdict = finals(
        lambda knobs, n: done(200.0 if knobs == FAST else 100.0),
        [FAST],
        budget_s=0.5,
        hard_s=100,
        order=order,
    )
    assert verdict.rounds == 2
    assert verdict.winner.knobs == FAST


def test_the_hard_limit_ends_the_finals_and_one_pair_decides_nothing() -> None:
    verdict = finals(
        lambda knobs, n: done(200.0 if knobs == FAST else 100.0), [FAST], budget_s=1, hard_s=3
    )
    assert verdict.rounds == 1
    assert verdict.winner.is_start
