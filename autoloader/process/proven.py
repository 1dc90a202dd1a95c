"""Proven knobs of a run: growths that paid and were in force at the end.

Theory of operation. A run's record holds every move of a knob with its verdict, and the rate of
training every second. A growth is proven where it was judged to pay, was not taken back or shrunk
under pressure since, and has been in force for ``LEAST_S``. Such knobs are a better start for the
next run, so they are *proposed* for its profile; a person accepts them. A knob that was given back
is no finding: it says how fast that trainer was, not what the machine can give. Nor is the size of
the frame cache: memory is the run's.

Not here: deciding (``controller``), profiles (``controller.profile``), records
(``telemetry.run_record``), asking the person (``cli.tune``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from autoloader.controller.profile import MixtureKind
from autoloader.spec.knobs import Knobs
from autoloader.telemetry.run_record import PipelineRecord
from autoloader.telemetry.statistics import Move, Statistics

LEAST_S = 60.0
"""A growth must have been in force for so long."""
_AROUND_S = 30.0
"""Rates so long before and after a change are told beside it."""


@dataclass(frozen=True, slots=True)
class Paid:
    """A growth that paid and lasted.

    Attributes:
        changes: flat knob → value.
        before_per_s, after_per_s: median rates, samples per second; ``None``: not measured.
        held_s: seconds for which the change was in force.
        run: identifier of the run.
    """

    changes: dict[str, int]
    before_per_s: float | None
    after_per_s: float | None
    held_s: float
    run: str

    def describe(self) -> str:
        """One line for people: the changed knobs, and the rates before and after."""
        knobs = ", ".join(f"{key} {value}" for key, value in sorted(self.changes.items()))
        if self.before_per_s and self.after_per_s:
            gain = self.after_per_s / self.before_per_s - 1
            rates = f"{self.before_per_s:.0f} → {self.after_per_s:.0f} samples/s ({gain:+.0%})"
        else:
            rates = "training waited no longer"
        return f"{knobs}: {rates}, held {self.held_s:.0f} s"


@dataclass(frozen=True, slots=True)
class ProvenKnobs:
    """Proven growths of a run's training loader.

    Attributes:
        knobs: flat knob → its last proven value.
        paid: growths behind the values.
        reader: reader of the loader; "" where it is not known.
        cpus: number of processors of the host.
        mixture: kind of the run's mixture, as far as it is known.
        looked_at: number of decisions, or changes, that were looked at.
    """

    knobs: dict[str, int]
    paid: tuple[Paid, ...]
    reader: str
    cpus: int
    mixture: MixtureKind | None
    looked_at: int


def proven_knobs(record: PipelineRecord, run: str) -> ProvenKnobs:
    """Give the proven growths of a loader.

    Args:
        record: record of the loader.
        run: name of the run, for people.
    """
    paid, moments, last = list[Paid](), record.moments, record.last
    for move in record.moves:
        grown, at_s = _growth(move), move.at_s
        held_s = last.at_s - at_s
        if grown and held_s >= LEAST_S and _in_force(grown, at_s, moments):
            before = _rate(moments, at_s - _AROUND_S, at_s)
            after = _rate(moments, at_s, at_s + 2 * _AROUND_S)
            paid.append(Paid(grown, before, after, held_s, run))
    kind = record.facts.get("mixture")
    return ProvenKnobs(
        {key: value for one in paid for key, value in one.changes.items()},
        tuple(paid),
        str(last.knobs.get("reader", "")),
        int(record.facts.get("cpus") or 0),
        None if kind is None else MixtureKind.model_validate(kind),
        len(record.moves),
    )


def _growth(move: Move) -> dict[str, int]:
    """Growth by a change of the policy that was judged to pay; empty for any other."""
    if move.by != "policy" or move.verdict != "paid" or "cache_bytes" in move.changes:
        return {}
    pairs = move.changes.values()
    grew = all(isinstance(new, int) and (old is None or new > old) for old, new in pairs)
    return {key: new for key, (_, new) in move.changes.items()} if grew else {}


def _in_force(grown: dict[str, int], since_s: float, moments: Sequence[Statistics]) -> bool:
    """True if no moment since then had less; the moment of the change itself may be older."""
    later = [one.knobs for one in moments if one.at_s > since_s + 1 and one.knobs]
    return bool(later) and all(
        _at_least(knobs.get(key), to) for knobs in later for key, to in grown.items()
    )


def _rate(moments: Sequence[Statistics], begin_s: float, end_s: float) -> float | None:
    """Median rate between two times, in samples/s; ``None``: not measured."""
    seen = [one.samples_per_s for one in moments if begin_s <= one.at_s <= end_s]
    rates = [rate for rate in seen if rate is not None]
    return median(rates) if rates else None


def proposed(found: ProvenKnobs, start: Knobs) -> Knobs:
    """``start`` with the proven knobs, where they are more."""
    before = start.flat()
    more = {
        key: value
        for key, value in found.knobs.items()
        if not _at_least(before.get(key, before[key.rpartition(".")[2]]), value)
    }
    cycles = {key: value for key, value in more.items() if key.endswith("num_parallel_calls")}
    for key, value in cycles.items():  # never more calls than inputs
        cycle = key.replace("num_parallel_calls", "cycle_length")
        if not _at_least({**before, **more}.get(cycle, before["cycle_length"]), value):
            more[cycle] = value
    return Knobs.build(more, base=start)


def _at_least(value: Any, least: int) -> bool:
    """Tell whether a knob's value is a number and no less."""
    return isinstance(value, int) and value >= least
