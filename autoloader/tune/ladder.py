"""A ladder: one knob at several values, all else held still, as a table with intervals.

For the question "what does this knob do here?", as the field record's table A answers it. The base
and every rung are measured in turn, round by round, the order reversed from round to round, until
the budget ends. A rung's ratio to the base is taken within rounds and has an interval of 95 %.

Not here: one measurement (``trial``), the interval (``finals``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoloader.clock import Clock
from autoloader.errors import UsageError
from autoloader.knobs import KnobLimits, Knobs
from autoloader.tune.finals import LEAST_ROUNDS, Contender, interval_of
from autoloader.tune.progress import TrialProgress
from autoloader.tune.study import StudyWatcher
from autoloader.tune.trial import Measurer, Outcome
from autoloader.units import format_bytes

_LONGEST_S = 300.0
"""A measurement that takes longer has failed, whatever the budget."""

_MIXING = ("mixing.block_length", "mixing.chain")
"""Of the spec, not of the machine: what changes the order of samples is measured where it is named,
and never kept. ``mixing.chain=N`` chains blocks of N."""

MOST_ROUNDS = 9
"""Rounds after which an interval gets little narrower."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One value of a knob.

    Attributes:
        knob: which; "" for the base.
        value: of it.
        contender: its measurements; ``out`` says why it has none any more.
    """

    knob: str
    value: Any
    contender: Contender

    def as_dict(self, base: Contender) -> dict[str, Any]:
        """What ``tune --ladder --json`` says of it."""
        ratios = self.contender.ratios_to(base)
        return {
            "knob": self.knob,
            "value": self.value,
            "samples_per_s": self.contender.samples_per_s,
            "ratio": _mean(ratios),
            "interval": interval_of(ratios),
            "rounds": len(self.contender.rounds),
            "busy_rounds": sum(one.busy for one in self.contender.rounds.values()),
            "peak_rss_bytes": self.contender.peak_rss_bytes,
            "min_headroom_bytes": self.contender.min_headroom_bytes,
            "failed": self.contender.out or None,
        }


@dataclass(frozen=True, slots=True)
class LadderReport:
    """The end of ``autoloader tune --ladder``.

    Attributes:
        base: the knobs that all else is held at.
        rungs: of every ladder, in the order that was asked.
    """

    base: Contender
    rungs: tuple[Rung, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "base": {"knobs": self.base.knobs.flat(), "samples_per_s": self.base.samples_per_s},
            "rungs": [rung.as_dict(self.base) for rung in self.rungs],
        }

    def show(self, console: Console) -> None:
        """Print the table for people."""
        table = Table(title="ladder", title_justify="left")
        table.add_column("knob")
        for head in ("samples/s", "of the base", "95 % between", "rounds", "loader's peak"):
            table.add_column(head, justify="right")
        base = self.base
        table.add_row("(base)", *_cells(base.samples_per_s, 1.0, None, base))
        for rung in self.rungs:
            ratios = rung.contender.ratios_to(base)
            cells = _cells(
                rung.contender.samples_per_s, _mean(ratios), interval_of(ratios), rung.contender
            )
            table.add_row(escape(f"{rung.knob}={rung.value}"), *cells)
        console.print(table)
        for rung in self.rungs:
            if rung.contender.out:
                console.print(f"{rung.knob}={rung.value}: {rung.contender.out}", markup=False)


def parse_ladders(words: Sequence[str]) -> dict[str, list[str]]:
    """``{"decode_threads": ["1", "2"]}`` from "decode_threads=1,2".

    Raises:
        UsageError: a word that names no knob with values.
    """
    ladders: dict[str, list[str]] = {}
    for word in words:
        knob, _, values = word.partition("=")
        rungs = [value.strip() for value in values.split(",") if value.strip()]
        if not knob.strip() or not rungs:
            raise UsageError(
                f"--ladder {word!r} names no knob with values",
                remedy='write knob=value,value, such as "--ladder decode_threads=1,2,4"',
            )
        ladders.setdefault(knob.strip(), []).extend(rungs)
    return ladders


def rungs_of(base: Knobs, ladders: Mapping[str, Sequence[str]], limits: KnobLimits) -> list[Rung]:
    """The rungs, each legal.

    Raises:
        KnobError: a value that is no value of its knob, or may not run here, with the rule.
    """
    rungs = []
    for knob, values in ladders.items():
        for value in values:
            if knob in _MIXING:
                rungs.append(_mixing_rung(knob, value, base))
                continue
            knobs = Knobs.build({knob: value}, base=base)
            knobs.check(limits)
            rungs.append(Rung(knob, knobs.flat()[knob], Contender(knobs)))
    return rungs


def _mixing_rung(knob: str, value: str, base: Knobs) -> Rung:
    """Another order of samples, with the base's knobs."""
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(
            f"--ladder {knob}: {value!r} is no number of samples",
            remedy=f"write numbers from 1 up, such as {knob}=1,4,8",
        )
    mixing = {"block_length": int(value)}
    if knob == "mixing.chain":
        mixing["chain"] = int(value) > 1
    return Rung(knob, int(value), Contender(base, mixing=mixing))


def climb(
    base: Knobs,
    rungs: Sequence[Rung],
    measure: Measurer,
    *,
    clock: Clock,
    budget_s: float,
    watcher: StudyWatcher,
    measure_mixed: Callable[[Mapping[str, Any]], Measurer] | None = None,
) -> LadderReport:
    """Measure the base and every rung in turn.

    Args:
        base: what all else is held at.
        rungs: see ``rungs_of``.
        measure: measures one knob set.
        clock: the budget's clock.
        budget_s: no round beyond the second begins that would likely pass this.
        watcher: is shown every measurement.
        measure_mixed: measures with other fields of ``mixing``; rungs that have some need it.
    """
    began_s, longest_s, done = clock.now_s(), 0.0, 0
    everyone = [Rung("", None, Contender(base, is_start=True)), *rungs]
    planned = len(everyone)

    def watch(progress: TrialProgress | None, headroom_bytes: int | None) -> bool:
        watcher.progressed(progress, headroom_bytes, 0.0)
        return True

    for number in range(MOST_ROUNDS):
        round_s = clock.now_s()
        if number >= LEAST_ROUNDS and round_s + longest_s > began_s + budget_s:
            break
        standing = [rung for rung in everyone if not rung.contender.out]
        for rung in standing if number % 2 == 0 else reversed(standing):
            done += 1
            name = f"{rung.knob}={rung.value}" if rung.knob else "base"
            watcher.trial_started(done, planned * max(LEAST_ROUNDS, number + 1), name)
            mixing = rung.contender.mixing
            measure_it = measure_mixed(mixing) if mixing and measure_mixed else measure
            result = measure_it(
                rung.contender.knobs, timeout_s=max(budget_s, _LONGEST_S), watch=watch
            )
            if result.outcome is Outcome.COMPLETE:
                rung.contender.rounds[number] = result
            else:
                rung.contender.out = result.reason or result.outcome.value
            watcher.trial_ended(done, result, result.samples_per_s or 0.0)
        longest_s = max(longest_s, clock.now_s() - round_s)
        if everyone[0].contender.out:
            break
    return LadderReport(everyone[0].contender, tuple(rungs))


def _mean(ratios: Sequence[float]) -> float | None:
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


def _cells(
    rate: float | None,
    ratio: float | None,
    interval: tuple[float, float] | None,
    contender: Contender,
) -> list[str]:
    peak = contender.peak_rss_bytes
    return [
        "–" if rate is None else f"{rate:.0f}",
        "–" if ratio is None else f"{ratio:.3f}",
        "–" if interval is None else f"{interval[0]:.3f} and {interval[1]:.3f}",
        str(len(contender.rounds)),
        "–" if peak is None else format_bytes(peak),
    ]
