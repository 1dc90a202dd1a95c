"""What a study proposes where another order of samples is faster: lines of the spec, for a person.

An order is proposed when the whole interval of its ratio to the winner, measured in turn with it,
lies above 1. What it costs stands beside it: how many different episodes a batch holds with either.

Not here: which orders are tried (``tune.order.choice``), the finals (``tune.finals``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoloader.tune.finals import Contender, changed_knobs, interval_of

_COSTS = ("distinct_episodes_per_batch", "decodes_per_sample")


@dataclass(frozen=True, slots=True)
class OrderProposal:
    """The fastest of the other orders, beside the winner with the spec's own.

    Attributes:
        mixing: fields of the spec's ``mixing``.
        samples_per_s: with them, the median over the rounds.
        speedup: over the winner, the mean of paired ratios.
        interval: of 95 % for it.
        faster: whether the whole interval lies above 1; only then it is proposed.
        costs: figure → (with the spec's order, with this); those that were measured.
        changed: knobs in which it differs from the winner, and which matter: (winner's, its).
    """

    mixing: Mapping[str, Any]
    samples_per_s: float
    speedup: float
    interval: tuple[float, float]
    faster: bool
    costs: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def spec_lines(self) -> tuple[str, ...]:
        """What to write into the spec."""
        shown = {True: "true", False: "false"}
        lines = (f"  {name}: {shown.get(value, value)}" for name, value in self.mixing.items())
        return ("mixing:", *lines)

    def as_dict(self) -> dict[str, Any]:
        """What ``tune --json`` says of it."""
        return {
            "spec": {"mixing": dict(self.mixing)},
            "samples_per_s": self.samples_per_s,
            "speedup": self.speedup,
            "interval": self.interval,
            "faster": self.faster,
            "costs": {name: list(both) for name, both in self.costs.items()},
            "knobs": {name: its for name, (_, its) in self.changed.items()},
        }

    def describe(self) -> tuple[str, ...]:
        """Lines for people."""
        low, high = self.interval
        ratio = f"{self.speedup:.2f}, with 95 % between {low:.2f} and {high:.2f}"
        told = ", ".join(f"{name}: {value}" for name, value in self.mixing.items())
        if not self.faster:
            return (f"no other order of samples is faster: the best, {told}, gives {ratio}",)
        knobs = ", ".join(f"{name} {a} → {b}" for name, (a, b) in self.changed.items())
        costs = "; ".join(
            f"{name.replace('_', ' ')} {mine:.2f} → {its:.2f}"
            for name, (mine, its) in self.costs.items()
        )
        return (
            f"another order of samples would give {ratio} times the best"
            + (f" ({costs})" if costs else "")
            + ". It changes which samples come together, so no profile keeps it; if you want it, "
            "write into the spec:",
            *self.spec_lines,
            *([f"measured with {knobs}; a study of that spec finds what suits it"] * bool(knobs)),
        )


def propose(winner: Contender, others: Sequence[Contender]) -> OrderProposal | None:
    """The fastest of ``others``, which have orders of their own; ``None``: none was measured."""
    found = []
    for one in others:
        ratios = one.ratios_to(winner)
        interval = interval_of(ratios)
        if interval is not None and one.samples_per_s is not None:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            found.append((mean, interval, one))
    if not found:
        return None
    speedup, interval, best = max(found, key=lambda each: each[0])
    costs = {
        name: (mine, its)
        for name in _COSTS
        if (mine := _median(winner, name)) is not None and (its := _median(best, name)) is not None
    }
    return OrderProposal(
        mixing=dict(best.mixing),
        samples_per_s=best.samples_per_s or 0.0,
        speedup=speedup,
        interval=interval,
        faster=interval[0] > 1.0,
        costs=costs,
        changed=changed_knobs(winner.knobs, best.knobs),
    )


def _median(contender: Contender, name: str) -> float | None:
    """Over its rounds, of a figure of ``measure --json``; ``None`` where it was not measured."""
    told = [(one.measurement or {}).get(name) for one in contender.rounds.values()]
    numbers = [float(value) for value in told if value is not None]
    return statistics.median(numbers) if numbers else None
