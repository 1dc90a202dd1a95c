"""The study: Optuna asks, a measurer answers, the finals decide.

The order of a run: the start (the profile's knobs) and a guess from reasoning are enqueued first;
then TPE draws from the search space; successive halving prunes on the running rate; the best
feasible sets meet the start in the finals. Every trial keeps its knobs and outcome in the storage,
so a study can be resumed by name, and several hosts can join one study.

How outcomes lie in the storage: *complete* and *pruned* are Optuna's; an *infeasible* trial is a
pruned one that violates the constraint ``ram_floor``, so the sampler learns where the floor is; a
*failed* one is Optuna's FAIL. ``tune --json`` counts from there.

Time: the search ends when the next trial would eat into what the finals need; the finals may pass
the budget by a quarter, never more.

Not here: running a trial (``trial``), judging finalists (``finals``), the errors of a storage
(``storage``), showing any of it (``report``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import optuna
from optuna.trial import FrozenTrial, TrialState

from autoloader.clock import Clock
from autoloader.errors import (
    BudgetInfeasibleError,
    KnobError,
    PipelineError,
    SourceError,
    UsageError,
)
from autoloader.knobs import Knobs
from autoloader.tune.finals import TIE_RATIO, Contender, FinalsResult, compare
from autoloader.tune.progress import TrialProgress
from autoloader.tune.search_space import SearchSpace
from autoloader.tune.storage import shown_url, storage_errors, storage_url
from autoloader.tune.trial import Measurer, Outcome, TrialResult

LEAST_PRUNE_BATCHES = 40
"""First rung of successive halving: a quarter of the 160 batches that decide."""

NOISE_RATIO = 0.05
"""A running rate this close to the best at the same rung is never pruned."""

HARD_FACTOR = 1.25
"""The finals end at this many budgets, whatever is missing."""

_FINALS_SHARE = 0.5
"""The most of the budget that is kept back for the finals."""

_HEARTBEAT_S = 10
_GRACE_S = 60


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """How a study is run.

    Attributes:
        storage: an SQLAlchemy URL.
        name: the study's name; an existing one is resumed.
        trials: trials this run adds, start and guess among them.
        budget_s: wall seconds for everything; see ``HARD_FACTOR``.
        rounds: rounds of the finals that are wanted.
        finalists: sets that meet the start in the finals.
        seed: of the sampler.
        batches: measured batches of a trial; the resource of successive halving.
    """

    storage: str
    name: str
    trials: int = 12
    budget_s: float = 360.0
    rounds: int = 5
    finalists: int = 2
    seed: int = 0
    batches: int = 160


class StudyWatcher(Protocol):
    """Who wants to see a study run (``report`` shows it, tests record it)."""

    def trial_started(self, number: int, planned: int, label: str) -> None:
        """Trial ``number`` (from 1) of ``planned`` begins; ``label``: start, guess or search."""
        ...

    def progressed(
        self, progress: TrialProgress | None, headroom_bytes: int | None, best_samples_per_s: float
    ) -> None:
        """A reading, with progress where there was some; ten times a second at most."""
        ...

    def trial_ended(self, number: int, result: TrialResult, best_samples_per_s: float) -> None:
        """A trial ended; the best includes it."""
        ...

    def final_started(self, number: int, rounds: int, contender: Contender) -> None:
        """Round ``number`` (from 0) of the finals measures ``contender``."""
        ...

    def final_ended(self, contender: Contender, result: TrialResult) -> None:
        """That measurement ended."""
        ...


@dataclass(frozen=True, slots=True)
class StudyResult:
    """What a study found.

    Attributes:
        verdict: who won the finals.
        first: the start as first measured.
        trials: trials of the whole study by outcome.
        costs_cpu_s: processor seconds per sample, of every measurement of this run that said so.
        name: the study's name.
        storage: where it lies, without a password.
    """

    verdict: FinalsResult
    first: TrialResult
    trials: Mapping[str, int]
    costs_cpu_s: tuple[float, ...]
    name: str
    storage: str


class TrialFailed(Exception):  # noqa: N818  (a signal to Optuna's loop, never shown)
    """Tells Optuna that a trial failed and the study goes on."""


class TolerantPruner(optuna.pruners.BasePruner):
    """Successive halving that spares what noise could explain.

    A trial is pruned when successive halving says so and its rate lies more than ``NOISE_RATIO``
    below the best rate that any trial reported at the same step.
    """

    def __init__(self, least_batches: int) -> None:
        self._halving = optuna.pruners.SuccessiveHalvingPruner(
            min_resource=max(1, least_batches), reduction_factor=2
        )

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        step = trial.last_step
        if step is None or not self._halving.prune(study, trial):
            return False
        value = trial.intermediate_values[step]
        best = max(
            other.intermediate_values.get(step, 0.0) for other in study.get_trials(deepcopy=False)
        )
        return value < best * (1 - NOISE_RATIO)


def _open_study(url: str, options: StudyOptions) -> optuna.Study:
    """The study in its storage, made or resumed; trials of dead workers are failed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.RDBStorage(
        url, heartbeat_interval=_HEARTBEAT_S, grace_period=_GRACE_S
    )
    study = optuna.create_study(
        study_name=options.name,
        storage=storage,
        direction="maximize",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(
            seed=options.seed,
            multivariate=True,
            n_startup_trials=max(4, options.trials // 3),
        ),
        pruner=TolerantPruner(min(LEAST_PRUNE_BATCHES, max(1, options.batches // 4))),
    )
    optuna.storages.fail_stale_trials(study)
    return study


def run_study(
    space: SearchSpace,
    first_guess: Knobs | None,
    measure: Measurer,
    options: StudyOptions,
    *,
    clock: Clock,
    watcher: StudyWatcher,
) -> StudyResult:
    """Run a study to its verdict.

    Args:
        space: what is searched; ``space.start`` is the start.
        first_guess: a set to try right after the start.
        measure: measures one knob set.
        options: how long, how many, where it is kept.
        clock: the budget's clock.
        watcher: is shown every step.

    Raises:
        BudgetInfeasibleError: the start itself would cross the RAM floor.
        SourceError: the start met data that cannot be read.
        PipelineError: the start could not be measured.
        UsageError: the storage cannot be used.
    """
    url = storage_url(options.storage)
    search = _Search(space, measure, options, clock, watcher)
    with storage_errors(url):
        study = _open_study(url, options)
        first = search.run(study, first_guess)
        finalists = pick_finalists(study.get_trials(deepcopy=False), space, options.finalists)
        verdict = compare(
            space.start,
            finalists,
            search.measure_final,
            rounds=options.rounds,
            soft_deadline_s=search.began_s + options.budget_s,
            hard_deadline_s=search.began_s + options.budget_s * HARD_FACTOR,
            clock=clock,
        )
        if not verdict.start.rounds:
            verdict.start.rounds[0] = first
        return StudyResult(
            verdict=verdict,
            first=first,
            trials=count_outcomes(study.get_trials(deepcopy=False)),
            costs_cpu_s=tuple(search.costs_cpu_s),
            name=study.study_name,
            storage=shown_url(url),
        )


def pick_finalists(trials: list[FrozenTrial], space: SearchSpace, most: int) -> list[Knobs]:
    """The sets worth a final: the fastest complete ones, those within 2 % by least memory.

    Sets that this host may not run (another host's, in a shared study), the start itself and
    doubles are left out.
    """
    done = [one for one in trials if one.state is TrialState.COMPLETE]
    best = max((trial.value or 0.0 for trial in done), default=0.0)

    def rank(trial: FrozenTrial) -> tuple[bool, float]:
        value = trial.value or 0.0
        memory = trial.user_attrs.get("peak_rss_bytes")
        if value >= best * (1 - TIE_RATIO):
            return False, float("inf") if memory is None else float(memory)
        return True, -value

    chosen: list[Knobs] = []
    for trial in sorted(done, key=rank):
        try:
            knobs = Knobs.from_saved(trial.user_attrs.get("knobs", {}))
            knobs.check(space.limits)
        except KnobError:
            continue
        if knobs != space.start and knobs not in chosen:
            chosen.append(knobs)
        if len(chosen) == most:
            break
    return chosen


def count_outcomes(trials: list[FrozenTrial]) -> dict[str, int]:
    """Trials by outcome; those that still run elsewhere are not counted."""
    counts = {outcome.value: 0 for outcome in Outcome}
    for trial in trials:
        if trial.state is TrialState.COMPLETE:
            counts["complete"] += 1
        elif trial.state is TrialState.FAIL:
            counts["failed"] += 1
        elif trial.state is TrialState.PRUNED:
            infeasible = trial.user_attrs.get("outcome") == Outcome.INFEASIBLE.value
            counts["infeasible" if infeasible else "pruned"] += 1
    return counts


@dataclass(slots=True)
class _Search:
    """One run's search: what it has measured and how much time it may still take."""

    space: SearchSpace
    measure: Measurer
    options: StudyOptions
    clock: Clock
    watcher: StudyWatcher
    began_s: float = field(init=False)
    best_samples_per_s: float = 0.0
    costs_cpu_s: list[float] = field(default_factory=list)
    first: TrialResult | None = None
    done: int = 0

    def __post_init__(self) -> None:
        self.began_s = self.clock.now_s()

    def run(self, study: optuna.Study, first_guess: Knobs | None) -> TrialResult:
        """Start, guess, then what the sampler draws; returns the start's own measurement."""
        self._enqueue(study, self.space.start, "start")
        self._one(study)
        first = self._require_start()
        if first_guess is not None and first_guess != self.space.start and self.options.trials > 1:
            self._enqueue(study, first_guess, "guess")
        while self.done < self.options.trials and self._time_for_another(first):
            self._one(study)
        return first

    def measure_final(self, contender: Contender, number: int, left_s: float) -> TrialResult:
        """One measurement of the finals; nothing is pruned there."""
        self.watcher.final_started(number, self.options.rounds, contender)

        result = self.measure(contender.knobs, timeout_s=left_s, watch=self._watch)
        self._learn(result)
        self.watcher.final_ended(contender, result)
        return result

    def _watch(self, progress: TrialProgress | None, headroom_bytes: int | None) -> bool:
        """Shows a measurement that nothing stops."""
        self.watcher.progressed(progress, headroom_bytes, self.best_samples_per_s)
        return True

    def _enqueue(self, study: optuna.Study, knobs: Knobs, label: str) -> None:
        study.enqueue_trial(self.space.parameters(knobs), user_attrs={"label": label})

    def _one(self, study: optuna.Study) -> None:
        study.optimize(self._objective, n_trials=1, catch=(TrialFailed,))

    def _objective(self, trial: optuna.Trial) -> float:
        label = trial.user_attrs.get("label", "search")
        knobs = self.space.suggest(trial)
        self.done += 1
        trial.set_user_attr("knobs", knobs.flat())
        self.watcher.trial_started(self.done, self.options.trials, label)

        def watch(progress: TrialProgress | None, headroom_bytes: int | None) -> bool:
            self._watch(progress, headroom_bytes)
            if progress is None:
                return True
            trial.report(progress.samples_per_s, progress.batches)
            slow = trial.should_prune()  # asked for the start too: others are held against it
            return not slow or label == "start" or progress.batches >= self.options.batches

        result = self.measure(knobs, timeout_s=self._timeout_s(), watch=watch)
        if knobs == self.space.start and self.first is None:
            self.first = result
        self._learn(result)
        self._record(trial, result)
        self.watcher.trial_ended(self.done, result, self.best_samples_per_s)
        if result.outcome is Outcome.COMPLETE and result.samples_per_s is not None:
            return result.samples_per_s
        if result.outcome is Outcome.FAILED:
            raise TrialFailed(result.reason)
        raise optuna.TrialPruned(result.reason)

    def _record(self, trial: optuna.Trial, result: TrialResult) -> None:
        trial.set_user_attr("outcome", result.outcome.value)
        for name in ("reason", "min_headroom_bytes", "peak_rss_bytes", "cpu_s_per_sample"):
            value: Any = getattr(result, name)
            if value not in (None, ""):
                trial.set_user_attr(name, value)
        if result.outcome is Outcome.INFEASIBLE:
            trial.set_constraint("ram_floor", 1.0)
        elif result.outcome is Outcome.COMPLETE:
            trial.set_constraint("ram_floor", 0.0)

    def _learn(self, result: TrialResult) -> None:
        if result.cpu_s_per_sample is not None:
            self.costs_cpu_s.append(result.cpu_s_per_sample)
        if result.outcome is Outcome.COMPLETE and result.samples_per_s is not None:
            self.best_samples_per_s = max(self.best_samples_per_s, result.samples_per_s)

    def _require_start(self) -> TrialResult:
        """The start's measurement, or the error that ends the study before it begins."""
        if self.first is None:  # another host of this study took the enqueued start
            timeout_s = self._timeout_s()
            self.first = self.measure(self.space.start, timeout_s=timeout_s, watch=self._watch)
            self._learn(self.first)
        if self.first.outcome is Outcome.COMPLETE:
            return self.first
        if self.first.outcome is Outcome.INFEASIBLE:
            raise BudgetInfeasibleError(
                f"the start itself does not keep the RAM floor: {self.first.reason}",
                remedy="free memory, lower --ram-floor, or start from a smaller profile",
            )
        what = f"the start could not be measured: {self.first.reason}"
        remedy = "`autoloader measure` with the same --spec and profile shows the whole error"
        if self.first.exit_code == UsageError.exit_code:
            raise UsageError(what, remedy=remedy)
        if self.first.exit_code == SourceError.exit_code:
            raise SourceError(what, remedy=remedy)
        raise PipelineError(what, remedy=remedy, stage="measure")

    def _left_s(self) -> float:
        return self.began_s + self.options.budget_s - self.clock.now_s()

    def _timeout_s(self) -> float:
        if self.first is None:
            return max(self._left_s(), 1.0)
        return max(min(self._left_s(), 3 * self.first.duration_s + 10), 1.0)

    def _time_for_another(self, first: TrialResult) -> bool:
        """Whether one more trial as long as the start leaves the finals their time."""
        finals_s = min(
            self.options.rounds * (1 + self.options.finalists) * first.duration_s,
            _FINALS_SHARE * self.options.budget_s,
        )
        return self._left_s() - finals_s > first.duration_s
