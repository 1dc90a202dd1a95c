"""The study: Optuna asks, a measurer answers, the finals decide.

The order of a run: the start (the profile's knobs) is measured first, and its trace says what a
sample costs, so how fast any setting can be (``tune.bound``). A knob set that follows from these
costs is measured next.
Where the start is within noise of the bound the study ends there: no trial can win. It ends there
too where the start won a study before, is as fast as then, and is near the bound. Else TPE draws
from the search space; successive halving prunes on the running rate; the best feasible sets meet
the start in the finals. The storage keeps the knobs of every trial and what it found. So a study
can be resumed by name, and equal hosts can share its trials. Each host judges its own finals.

A study begins once other processes leave the processors alone. A measurement during which they used
the processors is marked. It is made again once they are gone, and the quieter one counts. A study
waits for that a quarter of its budget at most. Then it gives up: no two settings could be compared,
so the start is measured once and stays.

Time: the search ends when the next trial would eat into what the finals need. Nothing is measured
beyond the budget. A start that takes longer is ended, and its rate so far is what the study found.

Not here: running a trial (``trial``), the storage and its errors (``ledger``), judging
finalists (``finals``), showing any of it (``report``).
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import optuna

from autoloader.errors import UsageError
from autoloader.host.clock import Clock
from autoloader.host.frozen import frozen
from autoloader.spec import PipelineSpec
from autoloader.spec.knobs import Knobs
from autoloader.tune import ledger
from autoloader.tune.bound import NOISE_RATIO, Analyst, Bound
from autoloader.tune.finals import Contender, FinalsResult, compare
from autoloader.tune.measurement import LEAST_BATCHES, LEAST_WARMUP, Trace
from autoloader.tune.search_space import SearchSpace
from autoloader.tune.trial import (
    Measurer,
    Outcome,
    TrialProgress,
    TrialResult,
    TrialWatch,
    start_error,
)

logger = logging.getLogger(__name__)

ROUNDS, FINALISTS = 12, 2
"""Rounds of the finals at most, and sets that meet the start there."""

_FINALS_SHARE = 0.5
"""The most of the budget that is kept back for the finals."""

_ROUNDS_KEPT = 5
"""Rounds of the finals that time is kept back for."""

_PATIENCE_SHARE = 0.25
"""The part of the budget that is waited for other processes, at most."""

NEIGHBOUR_RATIO = 0.1
"""Part of the processors that others may use before a measurement is marked."""

_BUSY_SHARE = 0.75
"""The part of the time left that the start's measurement takes at most beside other processes."""

_END_SHARE = 0.05
"""The part of the budget that is kept back for the end: the profile and the report."""

_MOST_DRAWS = 4
"""Draws for each trial that is wanted: in a small space the sampler draws the same sets again."""


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """Options of ``autoloader.tune``.

    Attributes:
        spec_path: the mixture's spec file.
        storage: a storage URL; ``None``: an SQLite file in the user's folder.
        study: name of a study to make or resume; ``None`` makes a new one, of a SLURM job with a
            storage one for the job.
        trials: trials this run adds, the start among them.
        budget_s: wall seconds for everything.
        seed: seed of Optuna's sampler.
        batches: measured batches of a trial; the resource of successive halving.
        floor_bytes: headroom that must remain; ``None``: not known.
        host_profile: name or path of the profile to start from; ``None`` picks as the loader does.
        name: name of the profile to keep; ``None``: the start's where it is the user's own, else
            NAME-tuned. Never a shipped one's.
        out: folder (or file) for the profile; ``None`` is the user's config folder.
        split: the spec's split to measure.
        warmup: batches before a measurement.
        command: the command line, for the profile's provenance.
        spec: the spec in ``spec_path`` with ``settings`` over it; ``None``: as the file has it.
        knobs: knob values over the profile's, to start from.
        settings: words of ``--set``, for the measuring children.
    """

    spec_path: Path
    storage: str | None = None
    study: str | None = None
    trials: int = 12
    budget_s: float = 300.0
    seed: int = 0
    batches: int = LEAST_BATCHES
    floor_bytes: int | None = None
    host_profile: str | None = None
    name: str | None = None
    out: Path | None = None
    split: str = "train"
    warmup: int = LEAST_WARMUP
    command: str = "autoloader.tune"
    spec: PipelineSpec | None = None
    knobs: Mapping[str, Any] = field(default_factory=dict)
    settings: Sequence[str] = ()


class StudyWatcher(Protocol):
    """Watches a study run (``report`` shows the run, tests record it)."""

    def started(self, what: str) -> None:
        """A measurement begins, such as "trial 2/12 (guess)" or "final 1/12 (start)"."""

    def progressed(
        self, progress: TrialProgress | None, headroom_bytes: int | None, best_samples_per_s: float
    ) -> None:
        """A reading, with progress where there was some; ten times a second at most."""

    def ended(self, result: TrialResult, best_samples_per_s: float) -> None:
        """A measurement has ended; ``best_samples_per_s`` includes it."""


@frozen
class StudyResult:
    """Result of a study.

    Attributes:
        verdict: result of the finals.
        first: the start as first measured.
        trials: the measured trials of the whole study.
        name: name of the study in its storage.
        storage: URL of the storage, without a password.
        bound: bound of the rate of any setting; ``None``: no cost was measured.
        ended: reason why the search ended before its trials and time; "": it did not.
    """

    verdict: FinalsResult
    first: TrialResult
    trials: tuple[ledger.TrialRecord, ...]
    name: str
    storage: str
    bound: Bound | None = None
    ended: str = ""

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of trials by outcome."""
        found = Counter(one.result.outcome for one in self.trials)
        return {outcome.value: found[outcome] for outcome in Outcome}

    @property
    def confirmed_ratio(self) -> float | None:
        """Ratio above 0 by which a setting can be faster than the start; ``None``: not known.

        By the bound, and by the finals for the settings that were compared. ``None`` also where
        the start did not win.
        """
        rate, found = self.verdict.start.samples_per_s, [self.verdict.at_most]
        if self.bound is not None and rate and not self.first.busy:
            found.append(max(0.0, self.bound.samples_per_s / rate - 1))
        known = [one for one in found if one is not None]
        return min(known, default=None) if self.verdict.winner.is_start else None


_PROVEN_RATIO = 0.1
"""Distance to the bound within which a start that won a study before is not searched again.

The bound is that of the cheapest trial, and busy processors reach 95 to 97 % of their own.
"""

_WHOLE = ("start", "guess")
"""Trials that are measured to their end, since the bound is made of their traces."""


class _TrialFailed(Exception):  # noqa: N818  (a signal to Optuna's loop, never shown)
    """Tells Optuna that a measurement failed: it marks the trial, and the study goes on.

    A pruned or an infeasible trial raises ``optuna.TrialPruned`` instead.
    """


@dataclass(slots=True, kw_only=True)
class Study:
    """One host's part of a study.

    Attributes:
        space: knobs that are searched; ``space.start`` is the start.
        guesses: the sets to try right after the start, from the start's trace.
        measure: measures one knob set.
        options: options of the study, such as its budget and number of trials.
        clock: time source of the time budget.
        began_s: second of the clock at which the budget began.
        watcher: is shown every step.
        storage: URL of the storage, such as an SQLite file's.
        name: the study's name; an existing one is resumed.
        kin: fingerprint of the hosts that share trials; "": all that open the study do.
        about: mixture that is measured; a study of another one is refused. "": not told.
        analyst: learns what samples cost, and says when no trial can win any more.
        others_cpus: processors that other processes use now; ``None``: not known.
        proven_per_s: samples/s of the start in a study that it won on this host; ``None``: in none.
        waited_s: seconds waited for other processes.
        best_samples_per_s: the highest rate so far.
        first: result of the start, once it was measured.
        done: number of trials that this host has begun.
        ended: reason why the search ended before its trials and time; "": it did not.
        known: results of this host, by ``knobs_key``.
        running: progress of the measurement that was begun last; ``None``: no batch yet.
    """

    space: SearchSpace
    guesses: Callable[[Trace | None], Sequence[Knobs]]
    measure: Measurer
    options: TuneOptions
    clock: Clock
    began_s: float
    watcher: StudyWatcher
    storage: str
    name: str
    kin: str = ""
    about: str = ""
    analyst: Analyst
    others_cpus: Callable[[], float | None] = lambda: None
    proven_per_s: float | None = None
    waited_s: float = field(default=0.0, init=False)
    best_samples_per_s: float = field(default=0.0, init=False)
    first: TrialResult | None = field(default=None, init=False)
    done: int = field(default=0, init=False)
    ended: str = field(default="", init=False)
    known: dict[str, TrialResult] = field(default_factory=dict, init=False)
    running: TrialProgress | None = field(default=None, init=False)

    def run(self) -> StudyResult:
        """Run the study to its verdict.

        Raises:
            BudgetInfeasibleError: the start itself would cross the RAM floor.
            SourceError: the start met data that cannot be read.
            PipelineError: the start could not be measured.
            UsageError: the storage cannot be used.
        """
        url, name = ledger.storage_url(self.storage), self.name
        with ledger.storage_errors(url), ledger.opened_storage(url) as opened:
            study = ledger.open_study(
                opened,
                ledger.kin_study(name, self.kin),
                trials=self.options.trials,
                batches=self.options.batches,
                seed=self.options.seed,
                about=self.about,
            )
            with ledger.storage_errors(url, study=name):
                first = self._search(study)
                verdict = self._judge(study, first)
                return StudyResult(
                    verdict=verdict,
                    first=first,
                    trials=ledger.records(study.get_trials(deepcopy=False)),
                    name=name,
                    storage=ledger.shown_url(url),
                    bound=self.analyst.bound(),
                    ended=self.ended,
                )

    def _search(self, study: optuna.Study) -> TrialResult:
        """Start, the sets from reasoning, then what the sampler draws; returns the start's."""
        self.known = ledger.known_results(ledger.records(study.get_trials(deepcopy=False)))
        for result in self.known.values():
            self._learn(result)
        first = self._measure_start(study)
        point = self.space.parameters
        found = self.guesses(self.analyst.trace)
        reasoned = [one for one in found if point(one) != point(self.space.start)]
        kept_s = 0.0  # the bound is known better with a guess, so it is measured if it can be
        for draw in range(_MOST_DRAWS * self.options.trials):
            if draw or not reasoned:
                kept_s = self._finals_s(first)
                if self._at_the_bound(first):
                    break
            left_s = self._left_s() - kept_s
            if self.ended or self.done >= self.options.trials or left_s <= first.duration_s:
                break
            self._one(study, reasoned.pop(0) if reasoned else None, "guess")
        return first

    def _judge(self, study: optuna.Study, first: TrialResult) -> FinalsResult:
        """Measure start and finalists in turn, on this host."""
        trials = ledger.records(study.get_trials(deepcopy=False))
        verdict = compare(
            self.space.start,
            ledger.pick_finalists(trials, self.space, most=0 if self.ended else FINALISTS),
            self._measure_final,
            rounds=ROUNDS,
            each_s=first.duration_s,
            deadline_s=self.began_s + self.options.budget_s,
            clock=self.clock,
        )
        if not verdict.start.rounds:
            verdict.start.rounds[0] = first
        return verdict

    def _measure_final(self, contender: Contender, number: int, left_s: float) -> TrialResult:
        """Measure a contender in one round of the finals; nothing is pruned there."""
        self._wait_for_quiet()
        who = "start" if contender.is_start else "finalist"
        self.watcher.started(f"final {number + 1}/{ROUNDS} ({who})")
        result = self._run(contender.knobs, left_s, self._watch)
        self.watcher.ended(result, self.best_samples_per_s)
        return result

    def _watch(self, progress: TrialProgress | None, headroom_bytes: int | None) -> bool:
        """Shows a measurement that nothing stops."""
        self.running = progress or self.running
        self.watcher.progressed(progress, headroom_bytes, self.best_samples_per_s)
        return True

    def _one(self, study: optuna.Study, knobs: Knobs | None = None, label: str = "") -> None:
        """Run a trial: of these knobs, or of those that the sampler draws."""
        if knobs is not None:
            study.enqueue_trial(self.space.parameters(knobs), user_attrs={"label": label})
        study.optimize(self._objective, n_trials=1, catch=(_TrialFailed,))

    def _objective(self, trial: optuna.Trial) -> float:
        label = trial.user_attrs.get("label", "search")
        knobs = self.space.suggest(trial)
        if (known := self.known.get(ledger.knobs_key(knobs))) is not None:
            trial.set_user_attr("outcome", ledger.KNOWN)
            return known.samples_per_s or 0.0
        self.done += 1
        self.watcher.started(f"trial {self.done}/{self.options.trials} ({label})")

        def watch(progress: TrialProgress | None, headroom_bytes: int | None) -> bool:
            self._watch(progress, headroom_bytes)
            if progress is None:
                return True
            trial.report(progress.samples_per_s, progress.batches)
            slow = trial.should_prune()  # asked of all: others are held against them
            return not slow or label in _WHOLE or progress.batches >= self.options.batches

        result = self._measured(knobs, watch)
        if knobs == self.space.start and self.first is None:
            self.first = result
        ledger.record(trial, knobs, result, self.options.floor_bytes)
        self.watcher.ended(result, self.best_samples_per_s)
        if result.outcome is Outcome.COMPLETE and result.samples_per_s is not None:
            self.known[ledger.knobs_key(knobs)] = result
            return result.samples_per_s
        if result.outcome is Outcome.FAILED:
            raise _TrialFailed(result.reason)
        raise optuna.TrialPruned(result.reason)

    def _measured(self, knobs: Knobs, watch: TrialWatch) -> TrialResult:
        """A measurement, and where a neighbour was busy the quieter of two."""
        result = self._run(knobs, self._timeout_s(), watch)
        if not result.busy or self.options.trials == 1:
            return result
        patient = not self._impatient()
        self._wait_for_quiet()
        if patient and self._left_s() >= 4 * result.duration_s:
            again = self._run(knobs, self._timeout_s(), self._watch)
            if again.outcome is Outcome.INFEASIBLE:
                return again
            if again.outcome is Outcome.COMPLETE:
                result = min(result, again, key=lambda one: one.others_cpus or 0.0)
        if result.busy and self._impatient():
            self.ended = self._beside(result.others_cpus or 0.0)
        return result

    def _beside(self, others_cpus: float, so: str = "no two settings can be compared") -> str:
        """Say that other processes kept the study from its end."""
        cpus = self.space.limits.cpus
        return f"other processes used {others_cpus:.1f} of {cpus} processors, so {so}"

    def _wait_for_quiet(self) -> None:
        """Wait while other processes use the processors, as long as there is patience."""
        while not self._impatient():
            began_s = self.clock.now_s()
            others = self.others_cpus() or 0.0
            if not self._too_much(others):
                return
            if not self.waited_s:
                most_s = _PATIENCE_SHARE * self.options.budget_s
                logger.warning(
                    "waiting up to %.0f s for other processes, which use %.1f of %d processors",
                    most_s, others, self.space.limits.cpus,
                )  # fmt: skip
            self._watch(None, None)
            self.waited_s += max(self.clock.now_s() - began_s, 1.0)

    def _impatient(self) -> bool:
        """True if no more time is spent on waiting for other processes."""
        return self.waited_s >= _PATIENCE_SHARE * self.options.budget_s or self._left_s() <= 0

    def _too_much(self, others_cpus: float | None) -> bool:
        """True if others use so much of the processors that rates say little."""
        return (others_cpus or 0.0) > NEIGHBOUR_RATIO * self.space.limits.cpus

    def _run(self, knobs: Knobs, timeout_s: float, watch: TrialWatch) -> TrialResult:
        """Measure a knob set, and learn the costs that the measurement tells."""
        self.running = None
        result = self.measure(knobs, timeout_s=timeout_s, watch=watch)
        result = replace(result, busy=self._too_much(result.others_cpus))
        self._learn(result)
        return result

    def _learn(self, result: TrialResult) -> None:
        """Take over the costs and the best rate that a measurement found."""
        if result.outcome is Outcome.COMPLETE and result.samples_per_s is not None:
            self.analyst.learn(result.measurement)
            self.best_samples_per_s = max(self.best_samples_per_s, result.samples_per_s)

    def _at_the_bound(self, first: TrialResult) -> bool:
        """True if the search cannot find a better one than there is; the start ends the study."""
        if self.ended:
            return True
        near = [
            one
            for one in (first, *self.known.values())
            if not one.busy and self.analyst.near(one.samples_per_s)
        ]
        if first in near:
            self.ended = "no setting can be told to be faster, so near is the bound"
        elif self.proven_per_s and not first.busy:
            least_per_s = (1 - NOISE_RATIO) * max(self.proven_per_s, self.best_samples_per_s)
            as_fast = (first.samples_per_s or 0.0) >= least_per_s
            if as_fast and self.analyst.near(first.samples_per_s, _PROVEN_RATIO):
                was = f"it won a study before, at {self.proven_per_s:,.0f} samples/s"
                self.ended = f"{was}, and is as fast today"
        return bool(near or self.ended)

    def _measure_start(self, study: optuna.Study) -> TrialResult:
        """The start's measurement, or the error that ends the study before it begins."""
        self.first = self.known.get(ledger.knobs_key(self.space.start))
        if self.first is None:
            if self.options.trials > 1:
                self._wait_for_quiet()
            self._one(study, self.space.start, "start")
        if self.first is None:  # another host of this study took the enqueued start
            self.first = self._measured(self.space.start, self._watch)
        if self.first.outcome is Outcome.FAILED and self.first.exit_code is None:
            self.first = self._out_of_time(self.first)
        elif self.first.outcome is not Outcome.COMPLETE:
            raise start_error(self.first)
        return self.first

    def _out_of_time(self, first: TrialResult) -> TrialResult:
        """The start's measurement, which was ended since time was up, by its rate so far."""
        others = self.others_cpus() or 0.0
        busy = self._too_much(others)
        self.ended = "the budget ended before the start was measured; give a longer --budget"
        if busy:
            self.ended = self._beside(others, "the start was not measured to its end")
        if self.running is None:
            raise UsageError(
                f"the start gave no batch within the budget of {self.options.budget_s:g} s",
                remedy="give a longer --budget, or end other processes that use the processors",
            )
        rate = self.running.samples_per_s
        self.best_samples_per_s = max(self.best_samples_per_s, rate)
        return replace(first, samples_per_s=rate, busy=busy)

    def _left_s(self) -> float:
        return self.began_s + self.options.budget_s - self.clock.now_s()

    def _timeout_s(self) -> float:
        left_s, most_s = self._left_s(), math.inf
        if self.first is not None:
            most_s = 3 * self.first.duration_s + 10
        elif self.waited_s and self._impatient():
            most_s = _BUSY_SHARE * left_s
        return max(min(left_s - _END_SHARE * self.options.budget_s, most_s), 0.1)

    def _finals_s(self, first: TrialResult) -> float:
        """Seconds of the budget that are kept back for the finals."""
        rounds_s = _ROUNDS_KEPT * (1 + FINALISTS) * first.duration_s
        return min(rounds_s, _FINALS_SHARE * self.options.budget_s)
