"""Works a scenario's figures out of its raw turns.

Not here: statistics (``bench.paired``), taking turns (``bench.runner``), showing them
(``bench.report``).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.paired import Estimate, estimate, paired_ratios
from bench.peers import LIMITS
from bench.scenario import FigureSpec, Scenario
from bench.shares import share_errors

Turns = Mapping[str, Sequence[Mapping[str, Any]]]
"""Contender → what each of its turns gave, in the order of the rounds."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the result.

    Attributes:
        scenario, title, unit: for people.
        value: the figure; its interval where there is one.
        against: who it was held against, the better one where there were several.
        target: what it should reach, in words; empty where none.
        met: whether it does; ``None`` without a target.
        more_is_better: which side is the good one.
        gate: see ``FigureSpec.gate``.
    """

    scenario: str
    title: str
    unit: str
    value: Estimate
    against: str
    target: str
    met: bool | None
    more_is_better: bool
    gate: str = "interval"


QUIET_CPUS = 0.15
"""Processors that others may use during a turn that counts as calm."""

ENOUGH_CALM = 6
"""Calm rounds from which on the others are left out; six give a 95 % interval."""

MORE_IS_BETTER = ("samples_per_s", "distinct_episodes")


def work_out(scenario: Scenario, turns: Turns) -> list[Figure]:
    """All figures of a scenario."""
    return [_figure(scenario, spec, turns) for spec in scenario.figures]


def _figure(scenario: Scenario, spec: FigureSpec, turns: Turns) -> Figure:
    against = ""
    if spec.kind == "share_error":
        errors = [
            share_errors(turn["order"], turn["shares"], blocks=scenario.count_blocks)[spec.stretch]
            for turn in turns[spec.of]
        ]
        value = estimate(errors)
    elif spec.kind == "value":
        value = estimate(_series(turns, spec.of, spec.measure))
    else:
        own = _series(turns, spec.of, spec.measure)
        against = best(turns, spec.against, spec.measure)
        rounds = calm_rounds(turns, (spec.of, against))
        other = _series(turns, against, spec.measure)
        ratios = paired_ratios([own[i] for i in rounds], [other[i] for i in rounds])
        value = estimate(ratios)
        if spec.kind == "spread":
            wide = 50 * (value.high - value.low)  # half the interval, in per cent
            value = replace(value, median=wide, low=wide, high=wide)
    return Figure(
        scenario.name,
        spec.title,
        spec.unit,
        value,
        against,
        target(spec),
        met(spec, value.median),
        spec.kind not in ("spread", "share_error") and spec.measure in MORE_IS_BETTER,
        spec.gate,
    )


def best(turns: Turns, names: Sequence[str], measure: str) -> str:
    """The contender with the best median, so that nobody is compared with a weak one."""
    choose = max if measure in MORE_IS_BETTER else min
    return choose(names, key=lambda name: statistics.median(_series(turns, name, measure)))


def calm_rounds(turns: Turns, names: Sequence[str]) -> list[int]:
    """The rounds in which nothing else used the machine while ``names`` had their turns.

    All rounds where fewer than ``ENOUGH_CALM`` were calm: the figure then says so by its interval.
    """
    count = len(turns[names[0]])
    calm = [
        number
        for number in range(count)
        if all(turns[name][number].get("others_cpus", 0.0) <= QUIET_CPUS for name in names)
    ]
    return calm if len(calm) >= ENOUGH_CALM else list(range(count))


def _series(turns: Turns, name: str, measure: str) -> list[float]:
    return [float(turn[measure]) for turn in turns[name]]


def target(spec: FigureSpec) -> str:
    """The target in words."""
    if spec.at_least is not None:
        return f"≥ {spec.at_least:g}"
    return "" if spec.at_most is None else f"≤ {spec.at_most:g}"


def met(spec: FigureSpec, value: float) -> bool | None:
    """Whether a value reaches the figure's target."""
    if spec.at_least is None and spec.at_most is None:
        return None
    return (spec.at_least is None or value >= spec.at_least) and (
        spec.at_most is None or value <= spec.at_most
    )


def limit_shares(kinds: Mapping[str, str], turns: Turns) -> dict[str, dict[str, float]]:
    """Contender → short name of a limit → share of it, 1 being all of it.

    Shares are taken round by round, as all ratios are, and their median is told. They stand beside
    every throughput figure, so that it says how much is left to gain.

    Args:
        kinds: contender → its kind; the first of a limit's kind is that limit.
        turns: contender → what each of its turns gave, in the order of the rounds.
    """
    rates = {
        name: [float(turn["samples_per_s"]) for turn in own]
        for name, own in turns.items()
        if own and "samples_per_s" in own[0]
    }
    limits: dict[str, str] = {}
    for name in rates:
        if kinds.get(name) in LIMITS:
            limits.setdefault(LIMITS[kinds[name]], name)
    return {
        name: {
            short: statistics.median(paired_ratios(own, rates[limit]))
            for short, limit in limits.items()
            if len(own) == len(rates[limit])
        }
        for name, own in rates.items()
    }
