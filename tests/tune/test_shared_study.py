"""A study that several processes share: one is killed, nothing is lost, one verdict."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import optuna
import pytest
from doubles import ManualClock

from autoloader.clock import SystemClock
from autoloader.errors import UsageError
from autoloader.knobs import Knobs
from autoloader.tune.shared import HostTurns, Workers, kin_study, postgres, shown_study
from autoloader.tune.storage import opened_storage, sqlite_url, storage_errors, storage_url
from autoloader.tune.trial import Outcome, TrialResult, TrialWatch

QUICK = {"beat_s": 0.1, "look_s": 0.05}
GONE_SOON = {**QUICK, "gone_s": 2.0}
"""For tests in which nobody lives who must not be taken for gone, however slow the machine is."""


@dataclass(frozen=True, slots=True)
class Verdict:
    winner: Knobs
    by: str


@contextlib.contextmanager
def opened(url: str, name: str = "s@1") -> Iterator[optuna.Study]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with opened_storage(url, grace_s=1) as storage:
        yield optuna.create_study(study_name=name, storage=storage, load_if_exists=True)


@contextlib.contextmanager
def worker(url: str, **how: float) -> Iterator[Workers]:
    with opened(url) as study, Workers(study, SystemClock(), **(how or QUICK)) as one:
        yield one


def verdict_of(who: Workers, by: str, calls: list[str] | None = None) -> tuple[Verdict, bool]:
    def judge() -> Verdict:
        if calls is not None:
            calls.append(by)
        return Verdict(Knobs.build({"decode_threads": 3}), by)

    return who.one_verdict(judge, Verdict, run_waiting=lambda: None)


def test_processes_that_begin_a_study_together_all_get_it(tmp_path: Path) -> None:
    url, together, found = sqlite_url(tmp_path / "s.db"), threading.Barrier(4), []

    def begin() -> None:
        together.wait()
        with opened(url) as study:
            found.append(study.study_name)

    tasks = [threading.Thread(target=begin) for _ in range(4)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert found == ["s@1"] * 4


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite_url(tmp_path / "s.db")


def test_one_of_several_workers_judges_and_all_have_its_verdict(url: str) -> None:
    calls: list[str] = []
    found: list[tuple[Verdict, bool]] = []
    with worker(url) as one, worker(url) as two:
        threads = [
            threading.Thread(target=lambda who=who, by=by: found.append(verdict_of(who, by, calls)))
            for who, by in ((one, "one"), (two, "two"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(calls) == 1
    assert [verdict for verdict, _ in found] == [
        Verdict(Knobs.build({"decode_threads": 3}), *calls)
    ] * 2
    assert sorted(here for _, here in found) == [False, True]
    with worker(url) as later:
        assert verdict_of(later, "later")[0].by == "later", "a study that goes on is judged anew"


def test_the_verdict_waits_for_those_that_still_search(url: str) -> None:
    order: list[str] = []
    with worker(url) as slow, worker(url) as quick:
        thread = threading.Thread(target=lambda: verdict_of(quick, "quick", order))
        thread.start()
        order.append("slow searched")
        verdict_of(slow, "slow", order)
        thread.join()
    assert order[0] == "slow searched"
    assert len(order) == 2


def test_a_judge_that_is_gone_is_followed_by_the_next(url: str) -> None:
    class Killed(BaseException):
        pass

    def die() -> Verdict:
        raise Killed

    with worker(url) as dead, worker(url, **GONE_SOON) as alive:
        alive._does = "waits"
        alive._tell()
        with pytest.raises(Killed):
            dead.one_verdict(die, Verdict, run_waiting=lambda: None)
        dead._end.set()  # a killed process raises no count any more, and takes nothing back
        found, here = verdict_of(alive, "alive")
    assert (found.by, here) == ("alive", True)


def test_a_trial_whose_worker_was_gone_before_its_first_heartbeat_is_run_again(url: str) -> None:
    with opened(url) as study, storage_errors(url):
        study.add_trial(
            optuna.create_trial(
                state=optuna.trial.TrialState.RUNNING,
                params={"decode_threads": 42},
                distributions={"decode_threads": optuna.distributions.IntDistribution(1, 64)},
            )
        )

        def one() -> None:
            study.optimize(lambda trial: trial.suggest_int("decode_threads", 1, 64), n_trials=1)

        with Workers(study, SystemClock(), **{**QUICK, "gone_s": 0.2}) as alive:
            alive.one_verdict(lambda: Verdict(Knobs(), "x"), Verdict, run_waiting=one)
        first, second = study.trials
    assert (first.state.name, second.state.name) == ("FAIL", "COMPLETE")
    assert second.params == first.params == {"decode_threads": 42}


def test_a_study_is_named_by_kin_and_shown_without() -> None:
    assert kin_study("mix@home", "9da7002b") == "mix@home@9da7002b"
    assert shown_study("mix@home@9da7002b") == "mix@home"


def test_measurements_of_one_host_take_turns(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    inside: list[str] = []

    def measure(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        inside.append("in")
        assert inside == ["in"]
        other = HostTurns(lambda *_, **__: pytest.fail("both measure"), ManualClock(), lock)

        class GivesUpError(Exception):
            pass

        def gives_up(progress: object, headroom: object) -> bool:
            raise GivesUpError

        with pytest.raises(GivesUpError):
            other(knobs, timeout_s=1, watch=gives_up)
        inside.clear()
        return TrialResult(Outcome.COMPLETE, samples_per_s=1.0)

    first = HostTurns(measure, ManualClock(), lock)
    for _ in range(2):
        first(Knobs(), timeout_s=1, watch=lambda progress, headroom: True)


def test_a_host_without_room_for_the_lock_measures_all_the_same(tmp_path: Path) -> None:
    def measure(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        return TrialResult(Outcome.COMPLETE, samples_per_s=5.0)

    alone = HostTurns(measure, ManualClock(), tmp_path / "no" / "lock")
    assert alone(Knobs(), timeout_s=1, watch=lambda p, h: True).samples_per_s == 5.0


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A PostgreSQL server of this machine's packages; its storage URL."""
    pytest.importorskip("psycopg", reason="no driver for PostgreSQL")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        try:
            running = postgres.server(Path(folder) / "pg")
            url = running.__enter__()
        except UsageError as error:
            pytest.skip(f"no PostgreSQL here: {error.what}")
        try:
            yield storage_url(url)
        finally:
            running.__exit__(None, None, None)


DIES = """
import signal, sys
import optuna, warnings
from autoloader.tune.storage import opened_storage
warnings.simplefilter("ignore")
def objective(trial):
    trial.suggest_int("decode_threads", 1, 64)
    print(trial.number, flush=True)
    signal.pause()
with opened_storage(sys.argv[1], grace_s=1) as storage:
    optuna.load_study(study_name="shared", storage=storage).optimize(objective, n_trials=1)
"""


def test_the_trial_of_a_killed_process_is_run_by_the_other(server: str) -> None:
    with storage_errors(server), opened(server, "shared") as study:
        _killed_while_a_trial_runs(study, server)


def _killed_while_a_trial_runs(study: optuna.Study, server: str) -> None:
    study.enqueue_trial({"decode_threads": 42})
    child = subprocess.Popen(
        [sys.executable, "-c", DIES, server],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "0\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()

    def one() -> None:
        study.optimize(lambda trial: trial.suggest_int("decode_threads", 1, 64), n_trials=1)

    with Workers(study, SystemClock(), **GONE_SOON) as alive:
        alive.one_verdict(lambda: Verdict(Knobs(), "x"), Verdict, run_waiting=one)
    values = [(trial.state.name, trial.value) for trial in study.trials]
    assert values == [("FAIL", None), ("COMPLETE", 42.0)]
    assert study.trials[1].system_attrs["failed_trial"] == 0


def test_a_server_that_cannot_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(postgres, "_PLACES", (str(tmp_path / "none"),))
    with pytest.raises(UsageError, match="there is no pg_ctl on this machine") as caught:
        postgres.server(tmp_path).__enter__()
    assert "apt install postgresql" in caught.value.remedy
