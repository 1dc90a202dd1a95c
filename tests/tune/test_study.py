"""A real Optuna study over a fake machine: what each outcome does to it, and who wins."""

import itertools
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
from doubles import ManualClock

from autoloader.errors import BudgetInfeasibleError, PipelineError, SourceError, UsageError
from autoloader.spec.knobs import KnobLimits, Knobs
from autoloader.tune.bound import Analyst
from autoloader.tune.ledger import knobs_key, sqlite_url, storage_url
from autoloader.tune.measurement import StageCost, Trace
from autoloader.tune.search_space import SearchSpace, guesses
from autoloader.tune.study import Study, StudyResult, TuneOptions
from autoloader.tune.trial import Outcome, TrialProgress, TrialResult, TrialWatch

LIMITS = KnobLimits(cpus=8, shards={"a": 16, "b": 4})
START = Knobs.build({"decode_threads": 1})


class Recorder:
    def __init__(self) -> None:
        self.labels: list[str] = []
        self.outcomes: list[Outcome] = []
        self.best: list[float] = []
        self.finals = 0

    def started(self, what: str) -> None:
        kind, _, role = what.partition(" ")
        self.labels += [role.partition("(")[2].rstrip(")")] * (kind == "trial")
        self.finals += kind == "final"

    def progressed(
        self, progress: TrialProgress | None, headroom_bytes: int | None, best_samples_per_s: float
    ) -> None:
        pass

    def ended(self, result: TrialResult, best_samples_per_s: float) -> None:
        self.outcomes.append(result.outcome)
        self.best.append(best_samples_per_s)


class Machine:
    """Measures by a formula; reports progress like a real child, and obeys the watch."""

    def __init__(
        self,
        rate: Callable[[Knobs], float] = lambda knobs: 100.0 * knobs.decode_threads,
        *,
        each_s: float = 10.0,
        fails: Callable[[Knobs, int], TrialResult | None] = lambda knobs, call: None,
        also: Callable[[Knobs, int], dict[str, Any]] = lambda knobs, call: {},
    ) -> None:
        self.clock = ManualClock()
        self.rate = rate
        self.each_s = each_s
        self.fails = fails
        self.also = also
        self.asked: list[Knobs] = []

    def __call__(self, knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        knobs.check(LIMITS)
        assert timeout_s > 0
        self.asked.append(knobs)
        failed = self.fails(knobs, len(self.asked) - 1)
        if failed is not None:
            self.clock.advance(1)
            return failed
        rate = self.rate(knobs)
        for batches in range(20, 180, 20):
            self.clock.advance(self.each_s / 8)
            if not watch(TrialProgress(batches, rate), 10**10):
                return TrialResult(Outcome.PRUNED, duration_s=1, reason="slow")
        return TrialResult(
            Outcome.COMPLETE,
            duration_s=self.each_s,
            samples_per_s=rate,
            peak_rss_bytes=10**6 * knobs.ring_slots,
            min_headroom_bytes=10**10,
            measurement={"samples_per_s": rate, **self.also(knobs, len(self.asked) - 1)},
        )


def study(
    machine: Machine,
    tmp_path: Path,
    *,
    trials: int = 6,
    budget_s: float = 10_000,
    recorder: Recorder | None = None,
    name: str = "s",
    start: Knobs = START,
    with_guess: bool = True,
    **more: Any,
) -> StudyResult:
    space = SearchSpace.around(start, LIMITS)
    values: dict[str, Any] = {
        "space": space,
        "guesses": partial(guesses, space, 48) if with_guess else lambda _: (),
        "measure": machine,
        "options": TuneOptions(Path(), trials=trials, budget_s=budget_s),
        "clock": machine.clock,
        "began_s": machine.clock.now_s(),
        "watcher": recorder or Recorder(),
        "storage": sqlite_url(tmp_path / "s.db"),
        "name": name,
        "analyst": Analyst(LIMITS.cpus),
        **more,
    }
    return Study(**values).run()


def traced(cpu_s: float, others_cpus: float = 0.0) -> dict[str, Any]:
    """What a measuring child says of its costs."""
    stages = {"decode": StageCost(cpu_s, 0.0, 0.0, 2)}
    return {"trace": asdict(Trace(160, 10.0, stages, 0.0, others_cpus=others_cpus))}


def stored(tmp_path: Path, name: str = "s") -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name=name, storage=sqlite_url(tmp_path / "s.db")).trials


def killed(knobs: Knobs, call: int) -> TrialResult | None:
    if call in (2, 4):
        return TrialResult(Outcome.FAILED, reason="SIGKILL", exit_code=-9)
    return None


def test_start_and_guess_come_first_and_the_best_is_found(tmp_path: Path):
    machine, recorder = Machine(), Recorder()
    found = study(machine, tmp_path, recorder=recorder)
    assert machine.asked[0] == START
    assert machine.asked[1].decode_threads == 8
    assert recorder.labels == ["start", "guess", "guess", *["search"] * 3]
    assert found.verdict.winner.knobs.decode_threads >= 8
    assert found.verdict.speedup > 7.9
    assert recorder.best == sorted(recorder.best)
    assert len(found.trials) == 6 == len(stored(tmp_path))


def test_an_oom_kill_is_a_failed_trial_and_never_a_dead_study(tmp_path: Path):
    recorder = Recorder()
    found = study(Machine(fails=killed), tmp_path, recorder=recorder)
    assert found.outcomes["failed"] == 2
    assert len(recorder.labels) == 6
    states = [trial.state for trial in stored(tmp_path)]
    assert states.count(optuna.trial.TrialState.FAIL) == 2


def test_a_start_that_breaches_the_floor_ends_the_study_before_it_begins(tmp_path: Path):
    machine = Machine(fails=lambda knobs, call: TrialResult(Outcome.INFEASIBLE, reason="4 GiB"))
    with pytest.raises(BudgetInfeasibleError, match="4 GiB"):
        study(machine, tmp_path)
    assert len(machine.asked) == 1


@pytest.mark.parametrize(
    ("code", "error"), [(2, UsageError), (4, SourceError), (70, PipelineError), (-9, PipelineError)]
)
def test_a_start_that_fails_ends_as_its_child_ended(
    tmp_path: Path, code: int, error: type[Exception]
):
    failed = TrialResult(Outcome.FAILED, reason="the cause", exit_code=code)
    with pytest.raises(error, match="the cause"):
        study(Machine(fails=lambda knobs, call: failed), tmp_path)


def test_slow_trials_are_pruned_and_the_start_never(tmp_path: Path):
    slow_start = Machine(lambda knobs: 10.0 if knobs == START else 100.0 * knobs.decode_threads)
    assert study(slow_start, tmp_path, trials=14).outcomes["pruned"] >= 1
    assert stored(tmp_path)[0].state is optuna.trial.TrialState.COMPLETE
    again = study(slow_start, tmp_path, trials=2)
    assert again.first.outcome is Outcome.COMPLETE, "not even beside faster trials of before"


@pytest.mark.parametrize(("each_s", "planned_s"), [(40, 0), (40, 20), (150, 20)])
def test_a_study_ends_within_its_budget_however_slow_the_machine(
    tmp_path: Path, each_s: float, planned_s: float
):
    def beside(knobs: Knobs, call: int) -> dict[str, Any]:
        return traced(0.001, others_cpus=3.0 * (call % 5 == 4))

    machine = Machine(lambda knobs: 100.0 + len(machine.asked) % 7, each_s=each_s, also=beside)
    machine.clock.advance(planned_s)
    busy = itertools.cycle([2.0, 2.0, 0.0])
    study(machine, tmp_path, trials=1000, budget_s=360, began_s=0.0, others_cpus=lambda: next(busy))
    assert machine.clock.now_s() <= 360


def test_a_study_is_resumed_by_name_and_its_trials_count(tmp_path: Path):
    machine = Machine()
    first = study(machine, tmp_path, trials=4)
    searched = machine.asked[:4]
    again = Machine()
    second = study(again, tmp_path, trials=3)
    assert not {knobs_key(one) for one in again.asked[:3]} & {knobs_key(one) for one in searched}, (
        "not twice"
    )
    assert len(first.trials) == 4
    assert len(second.trials) == 7
    assert second.name == "s"


def test_a_shared_study_gives_no_finalist_that_this_host_may_not_run(tmp_path: Path):
    study(Machine(), tmp_path, trials=3)
    shared = optuna.load_study(study_name="s", storage=sqlite_url(tmp_path / "s.db"))
    big = Knobs.build({"decode_threads": 400})
    shared.add_trial(optuna.create_trial(value=9e9, user_attrs={"knobs": big.flat()}))
    machine = Machine()
    found = study(machine, tmp_path, trials=2)
    assert big not in machine.asked
    assert found.verdict.winner.knobs.decode_threads <= 16


def test_an_interrupt_leaves_no_trial_running(tmp_path: Path):
    def interrupt(knobs: Knobs, call: int) -> TrialResult | None:
        if call == 2:
            raise KeyboardInterrupt
        return None

    with pytest.raises(KeyboardInterrupt):
        study(Machine(fails=interrupt), tmp_path)
    assert [trial.state.is_finished() for trial in stored(tmp_path)] == [True, True, True]


def test_postgresql_goes_through_psycopg():
    assert storage_url("postgresql://u:p@h/n") == "postgresql+psycopg://u:p@h/n"
    assert storage_url("postgres://h/n") == "postgresql+psycopg://h/n"


def test_a_start_within_noise_of_the_bound_ends_the_study_after_two_trials(tmp_path: Path):
    # 8 cpus at 10 ms a sample give 800 samples/s at most, and the start has 780 of them.
    machine = Machine(lambda knobs: 780.0, also=lambda knobs, call: traced(0.01))
    found = study(machine, tmp_path, trials=30)
    assert len(machine.asked) == 2
    assert "no setting can be told to be faster" in found.ended
    assert found.verdict.winner.is_start
    assert found.verdict.rounds == 0
    assert found.confirmed_ratio == pytest.approx(800 / 780 - 1)


@pytest.mark.parametrize(("proven_per_s", "ends"), [(740.0, True), (900.0, False), (None, False)])
def test_a_start_that_won_before_and_is_as_fast_ends_the_study_after_two_trials(
    tmp_path: Path, proven_per_s: float | None, ends: bool
):
    # 93 % of the bound, as a winner on busy processors is of the cheapest trial's.
    machine = Machine(lambda knobs: 745.0, also=lambda knobs, call: traced(0.01))
    found = study(machine, tmp_path, trials=5, proven_per_s=proven_per_s)
    assert found.verdict.winner.is_start
    if ends:
        assert len(machine.asked) == 2
        assert found.ended == "it won a study before, at 740 samples/s, and is as fast today"
        assert found.confirmed_ratio == pytest.approx(800 / 745 - 1)
    else:
        assert len(machine.asked) > 5
        assert not found.ended


def test_a_start_that_nothing_beats_is_confirmed_by_the_finals(tmp_path: Path):
    def rate(knobs: Knobs) -> float:
        return 100.0 if knobs == START else 100.5 + 0.1 * (len(machine.asked) % 2)

    machine, recorder = Machine(rate), Recorder()
    found = study(machine, tmp_path, trials=4, recorder=recorder)
    assert found.verdict.winner.is_start
    assert recorder.finals == 2 * 3, "two rounds tell that neither finalist is 2 % faster"
    assert found.confirmed_ratio is not None
    assert 0.005 < found.confirmed_ratio < 0.02
    assert "can be more than" in found.verdict.reason


def test_what_was_measured_beside_a_busy_neighbour_is_measured_again_once_it_is_gone(
    tmp_path: Path,
):
    def neighbour(knobs: Knobs, call: int) -> dict[str, Any]:
        return traced(0.001, others_cpus=2.0 if call in (0, 2, 3) else 0.0)

    looks = iter([2.0, 0.9, 0.7, 0.0])
    machine = Machine(also=neighbour)
    study(machine, tmp_path, trials=2, others_cpus=lambda: next(looks, None))
    assert machine.asked[0] == machine.asked[1] == START, "the start was measured again"
    assert machine.asked[2] == machine.asked[3], "and so was the second trial"
    assert next(looks, None) is None, "0.9 of 8 processors is waited for, 0.7 is not"
    first, second = stored(tmp_path)
    assert "busy_neighbour" not in first.user_attrs, "the quieter of the two counts"
    assert second.user_attrs["busy_neighbour"] == 2.0


def test_a_study_gives_up_beside_neighbours_that_stay(tmp_path: Path):
    machine = Machine(also=lambda knobs, call: traced(0.001, others_cpus=6.5))
    recorder = Recorder()
    found = study(machine, tmp_path, budget_s=400, recorder=recorder, others_cpus=lambda: 6.5)
    assert len(machine.asked) == 1, "it waited before, so the start is measured once"
    assert recorder.finals == 0
    assert "other processes used 6.5 of 8 processors" in found.ended
    assert found.verdict.winner.is_start
    assert found.confirmed_ratio is None
    assert machine.clock.now_s() < 200


@pytest.mark.parametrize("began", ["busy", "quiet"])
def test_a_start_that_outlasts_the_budget_beside_neighbours_stays_with_its_rate_so_far(
    tmp_path: Path, began: str
):
    looks: list[float] = []
    machine = Machine()

    def look() -> float:
        looks.append(machine.clock.now_s())
        machine.clock.advance(1.0)
        return 0.0 if began == "quiet" and len(looks) == 1 else 2.0

    def late(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        machine.asked.append(knobs)
        watch(TrialProgress(40, 50.0), None)
        machine.clock.advance(timeout_s)
        return TrialResult(Outcome.FAILED, duration_s=timeout_s, reason="no result")

    found = study(machine, tmp_path, measure=late, budget_s=60, others_cpus=look)
    assert machine.asked == [START]
    assert len(looks) == {"busy": 16, "quiet": 2}[began], "a quarter of the budget, and once more"
    assert machine.clock.now_s() < 60
    assert found.ended.startswith("other processes used 2.0 of 8 processors")
    assert found.verdict.winner.is_start
    assert (found.first.busy, found.verdict.start.samples_per_s) == (True, 50.0)
    assert found.confirmed_ratio is None
    (trial,) = stored(tmp_path)
    assert trial.state is optuna.trial.TrialState.FAIL, "another study measures it again"
