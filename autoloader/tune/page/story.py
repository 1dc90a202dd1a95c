"""Contents of a study's report: every trial's fate, the Pareto front, knobs that mattered.

Theory of operation. *Influence* of a knob is the square of Spearman's rank correlation between its
value and the rate over complete trials: the share of the ranks' variance that goes with that knob
alone. It sees no interplay, and few trials make it large by chance, so it is shown with their
number; a knob that took fewer than two values has none.

Not here: showing it (``html``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from autoloader.spec.knobs import UNUSED_KNOBS

LEAST_TRIALS = 4
"""Complete trials below which no influence is told."""


@dataclass(frozen=True, slots=True)
class TrialFate:
    """One trial of the storage.

    Attributes:
        number: in the storage, from 0.
        label: start, guess or search.
        outcome: complete, pruned, infeasible, failed, running, waiting, or known: drawn again and
            not measured again.
        reason: why it did not complete.
        knobs: values by the knob's full name.
        samples_per_s: measured; of a pruned trial the running rate at its end.
        peak_rss_bytes, min_headroom_bytes: as measured.
        busy: processors that others used meanwhile; ``None``: not marked.
        host: name of the host that ran it.
        stderr: the end of what its process wrote there; "" where it completed.
    """

    number: int
    label: str
    outcome: str
    reason: str = ""
    knobs: Mapping[str, Any] = field(default_factory=dict)
    samples_per_s: float | None = None
    peak_rss_bytes: int | None = None
    min_headroom_bytes: int | None = None
    busy: float | None = None
    host: str = ""
    stderr: str = ""

    @property
    def used_knobs(self) -> dict[str, Any]:
        """Those that its reader has a use for."""
        unused = UNUSED_KNOBS.get(str(self.knobs.get("reader", "auto")), ())
        return {k: v for k, v in self.knobs.items() if k.rpartition(".")[2] not in unused}


@dataclass(frozen=True, slots=True)
class Figures:
    """Measurements of one knob set in the finals."""

    samples_per_s: float | None
    peak_rss_bytes: int | None
    min_headroom_bytes: int | None


@dataclass(frozen=True, slots=True)
class Story:
    """Everything a report shows.

    Attributes:
        study: name of the study.
        host: the machine, in one line.
        floor_bytes: bytes of the RAM floor.
        start, best: what the finals measured; the same where the start stays.
        start_stays: whether nothing was faster.
        verdict: the finals in a sentence.
        ratios: best over start, one for each round.
        changed: knob → (start's, best's).
        bound_samples_per_s: what the machine can give at most; ``None``: not known.
        bound_lines: what limits it and what would lift it.
        trials: every trial's fate, in order.
        notes: what became of the profile.
        facts: further (name, value), such as storage and command.
    """

    study: str
    host: str
    floor_bytes: int
    start: Figures
    best: Figures
    start_stays: bool
    verdict: str
    ratios: tuple[float, ...]
    changed: Mapping[str, tuple[Any, Any]]
    bound_samples_per_s: float | None
    bound_lines: tuple[str, ...]
    trials: tuple[TrialFate, ...]
    notes: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def complete(self) -> list[TrialFate]:
        """Trials with a measured rate."""
        return [one for one in self.trials if one.outcome == "complete" and one.samples_per_s]

    def front(self) -> list[TrialFate]:
        """Complete trials that none beats in both rate and memory, by memory."""
        known = [one for one in self.complete if one.peak_rss_bytes is not None]
        best: list[TrialFate] = []
        for one in sorted(known, key=lambda t: (t.peak_rss_bytes or 0, -(t.samples_per_s or 0))):
            if not best or (one.samples_per_s or 0) > (best[-1].samples_per_s or 0):
                best.append(one)
        return best

    def slices(self) -> dict[str, list[tuple[Any, float]]]:
        """Knob → (value, rate) of complete trials, for knobs that took two values or more.

        Trials whose reader has no use for a knob say nothing of it.
        """
        found: dict[str, list[tuple[Any, float]]] = {}
        for one in self.complete:
            for knob, value in one.used_knobs.items():
                found.setdefault(knob, []).append((value, one.samples_per_s or 0.0))
        return {knob: pairs for knob, pairs in found.items() if len({str(v) for v, _ in pairs}) > 1}

    def influence(self) -> dict[str, float]:
        """Knob → its influence, the largest first; empty with too few trials."""
        if len(self.complete) < LEAST_TRIALS:
            return {}
        found = {
            knob: _rank_correlation(pairs) ** 2
            for knob, pairs in self.slices().items()
            if len(pairs) >= LEAST_TRIALS
        }
        return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))


def fates(trials: Sequence[FrozenTrial]) -> tuple[TrialFate, ...]:
    """Every trial of a study, as its storage has it."""
    return tuple(_fate(trial) for trial in sorted(trials, key=lambda one: one.number))


def _fate(trial: FrozenTrial) -> TrialFate:
    attrs = trial.user_attrs
    outcomes = {TrialState.COMPLETE: "complete", TrialState.FAIL: "failed"}
    outcome = outcomes.get(trial.state, trial.state.name.lower())
    if attrs.get("outcome") == "known":
        outcome = "known"
    if trial.state is TrialState.PRUNED and attrs.get("outcome") == "infeasible":
        outcome = "infeasible"
    rate = None
    if trial.state is TrialState.COMPLETE:
        rate = attrs.get("measurement", {}).get("samples_per_s", trial.value)
    elif trial.intermediate_values:
        rate = trial.intermediate_values[max(trial.intermediate_values)]
    reason = attrs.get("reason", "")
    if trial.state is TrialState.FAIL and not reason:
        reason = "its process was gone; the trial was queued again"
    return TrialFate(
        trial.number,
        attrs.get("label", "search"),
        outcome,
        reason,
        attrs.get("knobs", {}),
        rate,
        attrs.get("peak_rss_bytes"),
        attrs.get("min_headroom_bytes"),
        attrs.get("busy_neighbour"),
        attrs.get("host", ""),
        attrs.get("stderr", ""),
    )


def _rank_correlation(pairs: Sequence[tuple[Any, float]]) -> float:
    """Spearman's, ties by midranks; 0 where one side does not vary."""
    numbers = all(isinstance(value, (int, float)) for value, _ in pairs)
    left = _ranks([value if numbers else str(value) for value, _ in pairs])
    right = _ranks([rate for _, rate in pairs])
    if left.std() == 0 or right.std() == 0:
        return 0.0
    return float(np.corrcoef(left, right)[0, 1])


def _ranks(values: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    ordered = sorted(values)
    return np.array([ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values])
