"""The study: Optuna asks, a measurer answers, the finals decide.

The order of a run: the start (the profile's knobs) is measured first, and its trace says what a
sample costs, so how fast any setting can be (``tune.bound``). A set from that reasoning follows.
Where the start is within noise of the bound the study ends there: no trial can win. Else TPE draws
from the search space; successive halving prunes on the running rate; the best feasible sets meet
the start in the finals. Every trial keeps its knobs and what it found in the storage, so a study
can be resumed by name, and equal hosts can share its trials; each host judges its own finals.

A measurement during which other processes used the processors is marked, and made again where there
is time; the quieter one counts.

Time: the search ends when the next trial would eat into what the finals need; the finals may pass
the budget by a quarter, never more.

Not here: running a trial (``trial``), the storage and its errors (``ledger``), what is sought and
judging finalists (``finals``), showing any of it (``report``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import optuna

from autoloader.host.clock import Clock
from autoloader.spec.knobs import Knobs
from autoloader.tune.bound import Analyst, Supplies
from autoloader.tune.finals import Contender, Fastest, FinalsResult, compare
from autoloader.tune.ledger import (
    KNOWN,
    count_outcomes,
    keep_knobs,
    kin_study,
    knobs_key,
    known_results,
    open_study,
    opened_storage,
    pick_finalists,
    record,
    shown_url,
    storage_errors,
    storage_url,
    there_already,
)
from autoloader.tune.measurement import Trace
from autoloader.tune.page.story import TrialFate, fates
from autoloader.tune.search_space import SearchSpace
from autoloader.tune.trial import (
    Measurer,
    Outcome,
    TrialProgress,
    TrialResult,
    TrialWatch,
    start_error,
)

HARD_FACTOR = 1.25
"""The finals end at this many budgets, whatever is missing."""

_FINALS_SHARE = 0.5
"""The most of the budget that is kept back for the finals."""

_ROUNDS_KEPT = 5
"""Rounds of the finals that time is kept back for."""

_MOST_DRAWS = 4
"""Draws for each trial that is wanted: in a small space the sampler draws the same sets again."""


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """Options of a study.

    Attributes:
        storage: SQLAlchemy URL; ``None`` keeps it in memory.
        name: the study's name; an existing one is resumed.
        trials: trials this run adds, start and guess among them.
        budget_s: wall seconds for everything; see ``HARD_FACTOR``.
        rounds: rounds of the finals, at most.
        finalists: sets that meet the start in the finals.
        seed: seed of Optuna's sampler.
        batches: measured batches of a trial; the resource of successive halving.
        floor_bytes: headroom that must remain, for the sampler; ``None``: not known.
        kin: fingerprint of the hosts that share trials; "": all that open the study do.
        about: what is measured; a study of something else is refused. "": not told.
        resume: the study must be there; with an empty name it is the one that was begun last.
    """

    storage: str
    name: str
    trials: int = 12
    budget_s: float = 300.0
    rounds: int = 12
    finalists: int = 2
    seed: int = 0
    batches: int = 160
    floor_bytes: int | None = None
    kin: str = ""
    about: str = ""
    resume: bool = False


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
    """Result of a study.

    Attributes:
        verdict: who won the finals.
        first: the start as first measured.
        trials: trials of the whole study by outcome.
        name: name of the study in its storage.
        storage: where it lies, without a password.
        ended: why the search ended before its trials and its time; "" where it did not.
        fates: what became of every trial.
    """

    verdict: FinalsResult
    first: TrialResult
    trials: Mapping[str, int]
    name: str
    storage: str
    ended: str = ""
    fates: tuple[TrialFate, ...] = ()


_WHOLE = ("start", "guess")
"""Trials that are measured to their end, since the bound is made of their traces."""


_Guesses = Callable[[Trace | None], Sequence[Knobs]]


class TrialFailed(Exception):  # noqa: N818  (a signal to Optuna's loop, never shown)
    """Tells Optuna that a trial failed and the study goes on."""


def run_study(
    space: SearchSpace,
    guesses: _Guesses,
    measure: Measurer,
    options: StudyOptions,
    *,
    clock: Clock,
    watcher: StudyWatcher,
    analyst: Analyst | None = None,
    objective: Fastest | None = None,
) -> StudyResult:
    """Run a study to its verdict.

    Args:
        space: what is searched; ``space.start`` is the start.
        guesses: the sets to try right after the start, from the start's trace.
        measure: measures one knob set.
        options: how long, how many, where it is kept.
        clock: time source of the time budget.
        watcher: is shown every step.
        analyst: learns what samples cost, and says when no trial can win any more.
        objective: what is sought; by default the rate.

    Raises:
        BudgetInfeasibleError: the start itself would cross the RAM floor.
        SourceError: the start met data that cannot be read.
        PipelineError: the start could not be measured.
        UsageError: the storage cannot be used.
    """
    url = storage_url(options.storage)
    analyst = analyst or Analyst(Supplies(space.limits.cpus))
    search = _Search(space, measure, options, clock, watcher, analyst, objective or Fastest())
    with storage_errors(url), opened_storage(url) as storage:
        name = options.name
        if options.resume:
            name = there_already(storage, name or None, options.kin)
        study = open_study(
            storage,
            kin_study(name, options.kin),
            trials=options.trials,
            batches=options.batches,
            seed=options.seed,
            about=options.about,
        )
        with storage_errors(url, study=name):
            first = search.run(study, guesses)
            verdict = search.judge(study, first)
            trials = study.get_trials(deepcopy=False)
            return StudyResult(
                verdict=verdict,
                first=first,
                trials=count_outcomes(trials),
                name=name,
                storage=shown_url(url),
                ended=search.ended,
                fates=fates(trials),
            )


@dataclass(slots=True)
class _Search:
    """One run's search: what it has measured and how much time it may still take."""

    space: SearchSpace
    measure: Measurer
    options: StudyOptions
    clock: Clock
    watcher: StudyWatcher
    analyst: Analyst
    objective: Fastest
    began_s: float = field(init=False)
    best_samples_per_s: float = 0.0
    first: TrialResult | None = None
    done: int = 0
    ended: str = ""
    known: dict[str, TrialResult] = field(default_factory=dict)
    """Results by ``knobs_key``."""

    def __post_init__(self) -> None:
        self.began_s = self.clock.now_s()

    def run(self, study: optuna.Study, guesses: _Guesses) -> TrialResult:
        """Start, the sets from reasoning, then what the sampler draws; returns the start's."""
        self.known = known_results(study.get_trials(deepcopy=False))
        for result in self.known.values():
            self._learn(result)
        first = self._measure_start(study)
        self._search(study, first, guesses)
        return first

    def _search(self, study: optuna.Study, first: TrialResult, guesses: _Guesses) -> None:
        point = self.space.parameters
        found = guesses(self.analyst.trace)
        reasoned = [one for one in found if point(one) != point(self.space.start)]
        if reasoned and self.options.trials > 1 and self._left_s() > first.duration_s:
            self._enqueue(study, reasoned.pop(0), "guess")  # the bound is known better with it
            self._one(study)
        if not first.busy and self.objective.nothing_to_gain(first, self.analyst):
            self.ended = "the start is within noise of the bound: no trial can win"
        drawn = 0
        while (
            self.done < self.options.trials
            and drawn < _MOST_DRAWS * self.options.trials
            and self._time_for_another(first)
        ):
            if self.ended or self._at_the_bound():
                return
            if reasoned:
                self._enqueue(study, reasoned.pop(0), "guess")
            drawn += 1
            self._one(study)

    def judge(self, study: optuna.Study, first: TrialResult) -> FinalsResult:
        """Measure start and finalists in turn, on this host."""
        trials = study.get_trials(deepcopy=False)
        finalists = pick_finalists(
            trials, self.space, most=0 if self.ended else self.options.finalists
        )
        verdict = compare(
            self.space.start,
            finalists,
            self.measure_final,
            rounds=self.options.rounds,
            soft_deadline_s=self.began_s + self.options.budget_s,
            hard_deadline_s=self.began_s + self.options.budget_s * HARD_FACTOR,
            clock=self.clock,
            objective=self.objective,
        )
        if not verdict.start.rounds:
            verdict.start.rounds[0] = first
        return verdict

    def measure_final(self, contender: Contender, number: int, left_s: float) -> TrialResult:
        """One measurement of the finals; nothing is pruned there."""
        self.watcher.final_started(number, self.options.rounds, contender)
        result = self._run(contender.knobs, left_s, self._watch)
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
        keep_knobs(trial, knobs)
        if (known := self.known.get(knobs_key(knobs))) is not None:
            trial.set_user_attr("outcome", KNOWN)
            return self.objective.score(knobs, known)
        self.done += 1
        self.watcher.trial_started(self.done, self.options.trials, label)

        def watch(progress: TrialProgress | None, headroom_bytes: int | None) -> bool:
            self._watch(progress, headroom_bytes)
            if progress is None or not self.objective.prunes:
                return True
            trial.report(progress.samples_per_s, progress.batches)
            slow = trial.should_prune()  # asked of all: others are held against them
            return not slow or label in _WHOLE or progress.batches >= self.options.batches

        result = self._measured(knobs, watch)
        if knobs == self.space.start and self.first is None:
            self.first = result
        record(trial, result, self.options.floor_bytes)
        self.watcher.trial_ended(self.done, result, self.best_samples_per_s)
        if result.outcome is Outcome.COMPLETE and result.samples_per_s is not None:
            self.known[knobs_key(knobs)] = result
            return self.objective.score(knobs, result)
        if result.outcome is Outcome.FAILED:
            raise TrialFailed(result.reason)
        raise optuna.TrialPruned(result.reason)

    def _measured(self, knobs: Knobs, watch: TrialWatch) -> TrialResult:
        """A measurement, and where a neighbour was busy the quieter of two."""
        result = self._run(knobs, self._timeout_s(), watch)
        if not result.busy or self._left_s() < 4 * result.duration_s:
            return result
        again = self._run(knobs, self._timeout_s(), self._watch)
        if again.outcome is not Outcome.COMPLETE:
            return again if again.outcome is Outcome.INFEASIBLE else result
        quieter = min(result, again, key=lambda one: one.others_cpus or 0.0)
        return replace(quieter, repeats=1)

    def _run(self, knobs: Knobs, timeout_s: float, watch: TrialWatch) -> TrialResult:
        """One measurement, and what it tells of costs."""
        result = self.measure(knobs, timeout_s=timeout_s, watch=watch)
        self._learn(result)
        return result

    def _learn(self, result: TrialResult) -> None:
        """Take over the costs and the best rate that a measurement found."""
        if result.outcome is Outcome.COMPLETE and result.samples_per_s is not None:
            self.analyst.learn(result.measurement)
            self.best_samples_per_s = max(self.best_samples_per_s, result.samples_per_s)

    def _at_the_bound(self) -> bool:
        """True if the best is so near the bound that the search cannot find a better one."""
        best = max(self.known.values(), key=lambda one: one.samples_per_s or 0.0, default=None)
        return (
            best is not None
            and not best.busy
            and self.objective.nothing_to_gain(best, self.analyst)
        )

    def _measure_start(self, study: optuna.Study) -> TrialResult:
        """The start's measurement, or the error that ends the study before it begins."""
        self.first = self.known.get(knobs_key(self.space.start))
        if self.first is None:
            self._enqueue(study, self.space.start, "start")
            self._one(study)
        if self.first is None:  # another host of this study took the enqueued start
            self.first = self._measured(self.space.start, self._watch)
        if self.first.outcome is not Outcome.COMPLETE:
            raise start_error(self.first)
        return self.first

    def _left_s(self) -> float:
        return self.began_s + self.options.budget_s - self.clock.now_s()

    def _timeout_s(self) -> float:
        if self.first is None:
            return max(self._left_s(), 1.0)
        return max(min(self._left_s(), 3 * self.first.duration_s + 10), 1.0)

    def _time_for_another(self, first: TrialResult) -> bool:
        """True if one more trial as long as the start leaves the finals their time."""
        contenders = 1 + self.options.finalists
        finals_s = min(
            _ROUNDS_KEPT * contenders * first.duration_s,
            _FINALS_SHARE * self.options.budget_s,
        )
        return self._left_s() - finals_s > first.duration_s
