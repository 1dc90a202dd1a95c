"""``autoloader top`` on a loader that runs, and on what is not there."""

from __future__ import annotations

import json
import os

import pytest
from moments import Look

from autoloader import AutoLoader
from autoloader.cli.app import main
from autoloader.telemetry.snapshot import Snapshot


def test_top_shows_a_running_loader_once(
    running: AutoLoader, look: Look, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = look(lambda one: one.limited_by != "")
    assert main(["top", "--once"]) == 0
    shown = capsys.readouterr().out
    assert moment.run in shown
    assert "limits this run" in shown
    assert "the loader costs you" in shown


def test_top_tells_scripts_what_a_snapshot_holds(
    look: Look, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = look(lambda one: one.phase == "running")
    for name in (moment.run, moment.run[:-3], str(moment.worker_pid), str(os.getpid())):
        assert main(["top", name, "--json"]) == 0
        (told,) = json.loads(capsys.readouterr().out)["runs"]
        assert Snapshot.from_dict(told).run == moment.run


def test_a_run_that_is_not_there_is_refused_with_those_that_are(
    look: Look, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = look(lambda one: True)
    assert main(["top", "another", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert "no loader that runs is 'another'" in error["what"]
    assert moment.run in error["what"]


def test_where_nothing_runs_top_says_so(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOLOADER_RUNTIME_DIR", f"{tmp_path}/none")
    assert main(["top"]) == 0
    assert capsys.readouterr().out == "no loader of yours runs on this machine\n"
    assert main(["top", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"runs": []}


@pytest.mark.parametrize("every", ["soon", "-1s"])
def test_a_pause_that_is_none_is_refused(every: str) -> None:
    assert main(["top", "--every", every]) == 2
