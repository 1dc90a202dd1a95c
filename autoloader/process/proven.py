"""Proven knobs of a run: growths that paid and were in force at the end.

Theory of operation. A run's decision log holds every growth with the rates before and after it, and
the verdict. A growth is proven where it was judged to pay, was not taken back or shrunk under
pressure since, and has been in force for ``LEAST_S``. Such knobs are a better start for the next
run, so they are *proposed* for its profile; a person accepts them. A knob that was given back is no
finding: it says how fast that trainer was, not what the machine can give. Nor is the size of the
frame cache: memory is the run's.

Not here: deciding (``controller``), profiles (``controller.profile``), asking the person
(``cli.profile``).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoloader.controller.decisions import Recorded, read_decisions
from autoloader.controller.profile import MixtureKind
from autoloader.controller.states import Trial
from autoloader.controller.verification import Verdict
from autoloader.spec.knobs import Knobs

LEAST_S = 60.0
"""A growth must have been in force for so long."""


@dataclass(frozen=True, slots=True)
class Paid:
    """A growth that paid and lasted.

    Attributes:
        changes: flat knob → value.
        before_per_s, after_per_s: median rates, samples per second; ``None``: not measured.
        held_s: how long it was in force.
        run: identifier of the run.
    """

    changes: dict[str, int]
    before_per_s: float | None
    after_per_s: float | None
    held_s: float
    run: str

    def describe(self) -> str:
        """One line for people."""
        knobs = ", ".join(f"{key} {value}" for key, value in sorted(self.changes.items()))
        if self.before_per_s and self.after_per_s:
            gain = self.after_per_s / self.before_per_s - 1
            rates = f"{self.before_per_s:.0f} → {self.after_per_s:.0f} samples/s ({gain:+.0%})"
        else:
            rates = "training waited no longer"
        return f"{knobs}: {rates}, held {self.held_s:.0f} s"


@dataclass(frozen=True, slots=True)
class ProvenKnobs:
    """Proven growths of the pipelines of a log.

    Attributes:
        knobs: flat knob → value: the last proven value of each, the least where pipelines differ.
        paid: the growths behind it.
        reader: of the pipelines; "" where there was none.
        cpus: number of processors of the host.
        mixture: its kind, as far as it is known.
        looked_at: how many decisions, or changes, there were to look at.
    """

    knobs: dict[str, int]
    paid: tuple[Paid, ...]
    reader: str
    cpus: int
    mixture: MixtureKind | None
    looked_at: int


@dataclass(slots=True)
class _Pipeline:
    """One pipeline, as far as its log was read."""

    last: Recorded | None = None
    paid: list[Trial] = field(default_factory=list)

    def read(self, one: Recorded) -> None:
        self.last = one
        in_force = one.seen.knobs.flat()
        self.paid = [
            paid
            for paid in self.paid
            if all(at_least(in_force.get(key), to) for key, to in paid.changes.items())
        ]
        trial = one.state.trial
        if trial is None or not trial.growing:
            return
        decided = one.decided
        if decided.verdict is Verdict.PAID and decided.verdict_on == trial.knob:
            self.paid.append(trial)


def proven_knobs(lines: Iterable[str], *, origin: str = "the log") -> ProvenKnobs:
    """Proven growths of all pipelines of a decision log.

    Args:
        lines: lines of the decision log.
        origin: names the log in errors.

    Raises:
        UsageError: the log cannot be read: which line, and why.
    """
    pipelines: dict[tuple[str, int], _Pipeline] = {}
    decisions = 0
    for one in read_decisions(lines, origin=origin):
        decisions += 1
        pipelines.setdefault(one.whose, _Pipeline()).read(one)
    every: list[list[Paid]] = []
    reader, cpus, datasets = "", 0, 0
    for (run, _), pipeline in pipelines.items():
        assert pipeline.last is not None
        seen, limits = pipeline.last.seen, pipeline.last.limits.knobs
        reader, cpus = seen.knobs.reader, max(cpus, limits.cpus)
        datasets = max(datasets, len(limits.shards))
        every.append(
            [
                Paid(
                    dict(paid.changes),
                    _median(paid.rates_before),
                    _median(paid.rates_after),
                    seen.at_s - paid.since_s,
                    run,
                )
                for paid in pipeline.paid
            ]
        )
    kind = MixtureKind(datasets=datasets) if datasets else None
    return gather_proven(every, reader=reader, cpus=cpus, mixture=kind, looked_at=decisions)


def gather_proven(
    every: Iterable[Sequence[Paid]],
    *,
    reader: str,
    cpus: int,
    mixture: MixtureKind | None,
    looked_at: int,
) -> ProvenKnobs:
    """Gather proven knobs from growths that paid and were in force at the end.

    Args:
        every: of each pipeline, in their order.
        reader: name of the reader; see ``ProvenKnobs``.
        cpus: processors of the host; see ``ProvenKnobs``.
        mixture: kind of the mixture; see ``ProvenKnobs``.
        looked_at: pipelines that were examined; see ``ProvenKnobs``.
    """
    knobs: dict[str, int] = {}
    kept: list[Paid] = []
    for pipeline in every:
        lasted = [one for one in pipeline if one.held_s >= LEAST_S]
        kept += lasted
        mine: dict[str, int] = {}
        for one in lasted:
            mine |= one.changes
        for key, value in mine.items():
            knobs[key] = min(knobs.get(key, value), value)
    return ProvenKnobs(knobs, tuple(kept), reader, cpus, mixture, looked_at)


def proposed(found: ProvenKnobs, start: Knobs) -> Knobs:
    """``start`` with the proven knobs, where they are more."""
    before = start.flat()
    more = {
        key: value
        for key, value in found.knobs.items()
        if not at_least(before.get(key, before[key.rpartition(".")[2]]), value)
    }
    cycles = {key: value for key, value in more.items() if key.endswith("num_parallel_calls")}
    for key, value in cycles.items():  # never more calls than inputs
        cycle = key.replace("num_parallel_calls", "cycle_length")
        if not at_least({**before, **more}.get(cycle, before["cycle_length"]), value):
            more[cycle] = value
    return Knobs.build(more, base=start)


def at_least(value: Any, least: int) -> bool:
    """True if a knob's value is a number, and no less."""
    return isinstance(value, int) and value >= least


def _median(rates: tuple[float, ...]) -> float | None:
    return statistics.median(rates) if rates else None
