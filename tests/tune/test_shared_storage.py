"""A study that several processes share: one is killed, and no trial is lost."""

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
import sqlalchemy

from autoloader.tune.ledger import (
    opened_storage,
    queue_lost_trials,
    sqlite_url,
    storage_errors,
    storage_url,
)


@contextlib.contextmanager
def opened(url: str, name: str = "s@1") -> Iterator[optuna.Study]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with opened_storage(url, grace_s=1) as storage:
        yield optuna.create_study(study_name=name, storage=storage, load_if_exists=True)


def test_processes_that_begin_a_study_together_all_get_it(tmp_path: Path):
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


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The storage URL of a PostgreSQL server from the system's packages, as its own user."""
    pytest.importorskip("psycopg", reason="no driver for PostgreSQL")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if not found:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chown(folder, user.pw_uid, user.pw_gid)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]

        def control(*words: str) -> None:
            subprocess.run(
                [found[-1], "-D", f"{folder}/data", "-w", *words],
                user=user.pw_uid,
                group=user.pw_gid,
                extra_groups=[],
                cwd=folder,
                stdout=subprocess.DEVNULL,
                check=True,
            )

        control("init", "-o", "-A trust -U autoloader --no-sync")
        control("start", "-l", f"{folder}/log", "-o", f"-p {port} -h 127.0.0.1 -k ''")
        try:
            yield storage_url(f"postgresql://autoloader@127.0.0.1:{port}/postgres")
        finally:
            control("stop", "-m", "immediate")


def test_a_queued_trial_that_begins_has_a_heartbeat_before_its_process_can_be_killed(
    tmp_path: Path,
):
    with opened_storage(sqlite_url(tmp_path / "s.db"), grace_s=1) as storage:
        study = optuna.create_study(study_name="s", storage=storage)
        study.enqueue_trial({"decode_threads": 42})
        with pytest.warns(UserWarning, match="supposed to be used with Study.optimize"):
            study.ask()  # what optimize does before its thread of heartbeats starts
        with storage.engine.connect() as connection:
            beats = connection.execute(sqlalchemy.text("SELECT trial_id FROM trial_heartbeats"))
            assert len(beats.all()) == 1


DIES = """
import signal, sys
import optuna, warnings
from autoloader.tune.ledger import opened_storage
warnings.simplefilter("ignore")
def objective(trial):
    trial.suggest_int("decode_threads", 1, 64)
    print(trial.number, flush=True)
    signal.pause()
with opened_storage(sys.argv[1], grace_s=1) as storage:
    optuna.load_study(study_name="shared", storage=storage).optimize(objective, n_trials=1)
"""


def test_the_trial_of_a_killed_process_is_run_by_the_other(server: str):
    with storage_errors(server), opened(server, "shared") as study:
        study.enqueue_trial({"decode_threads": 42})
        child = subprocess.Popen(
            [sys.executable, "-c", DIES, server],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert child.stdout.readline() == "0\n"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        while study.trials[0].state.name == "RUNNING":  # until its heartbeat is too old
            queue_lost_trials(study)
            time.sleep(0.05)
        study.optimize(lambda trial: trial.suggest_int("decode_threads", 1, 64), n_trials=1)
        values = [(trial.state.name, trial.value) for trial in study.trials]
        assert values == [("FAIL", None), ("COMPLETE", 42.0)]
        assert study.trials[1].system_attrs["failed_trial"] == 0
