"""What a running loader says of itself, seen from outside."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from moments import Look
from rlds_files import Written
from streams import spec_of, until

from autoloader import AutoLoader
from autoloader.spec.knobs import STAGES
from autoloader.telemetry.run_record import living_runs, read_pipeline

TRAINER = """
import sys
from autoloader import AutoLoader
for _ in AutoLoader(sys.argv[1], ram_floor="64MiB", output="numpy"):
    print(flush=True)
"""


def test_a_running_loader_says_how_fast_it_is_and_why(running: AutoLoader, look: Look):
    moment = look(lambda one: one.limited_by != "" and one.samples_per_s is not None)
    assert moment.phase == "running"
    assert moment.batches > 0
    assert (moment.trainer_pid, moment.worker_pid) == (
        os.getpid(),
        running.statistics().worker_pids[0],
    )
    assert moment.knobs == running.knobs.flat()
    assert moment.floor_bytes == 64 * 2**20
    assert moment.datasets["a"].share == moment.datasets["a"].weight == 1.0
    assert moment.datasets["a"].samples == moment.samples > 0
    assert {stage.name for stage in moment.stages} == set(STAGES)
    assert moment.state
    assert moment.why
    assert moment.controller is not None


def test_a_loader_without_a_controller_is_seen_as_well_and_leaves_nothing(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AUTOLOADER_RUNTIME_DIR", str(tmp_path / "runs"))
    spec = spec_of(written, mixing={"epoch": "forever"}, reader="indexed")
    own = {"ram_floor": "64MiB", "output": "numpy", "isolation": "thread", "controller": False}
    with AutoLoader(spec, **own) as loader:
        stream, deadline = iter(loader), time.monotonic() + 60
        while not (found := living_runs()) and time.monotonic() < deadline:
            next(stream)
        (moment,) = found
        assert (moment.state, moment.controller, moment.worker_pid) == (None, None, os.getpid())
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_loader_whose_child_was_killed_says_that_it_was_started_again(look: Look):
    before = look(lambda one: one.phase == "running")
    os.kill(before.worker_pid, signal.SIGKILL)
    after = look(lambda one: one.phase == "running" and one.worker_pid != before.worker_pid)
    assert (before.restarts, after.restarts) == (0, 1)
    assert after.run == before.run


def test_the_child_of_a_killed_trainer_ends_the_record_and_removes_what_only_a_run_has(
    written: Written, tmp_path: Path
):
    spec = spec_of(written, mixing={"epoch": "forever"}, reader="indexed")
    mix, runs, record = tmp_path / "mix.json", tmp_path / "runs", tmp_path / "record"
    mix.write_text(json.dumps(spec.model_dump(mode="json")))
    metrics = tmp_path / "metrics.prom"
    places = {
        "AUTOLOADER_RUNTIME_DIR": str(runs),
        "AUTOLOADER_RUN_DIR": str(record),
        "AUTOLOADER_METRICS_FILE": str(metrics),
    }
    with subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(mix)],
        stdout=subprocess.PIPE,
        env={**os.environ, **places},
    ) as trainer:
        assert trainer.stdout is not None
        until(lambda: metrics.exists() and bool(trainer.stdout.readline()))
        trainer.kill()
    until(lambda: not metrics.exists() and not list(runs.glob("*.json")))
    (file,) = record.rglob("train-*.jsonl")
    until(lambda: read_pipeline(file).ended)
