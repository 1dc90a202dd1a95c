"""The decision log, its replay, and the command that replays."""

import os
from pathlib import Path

import pytest
from command_lines import Cli
from simulated import SCENARIOS, simulate
from simulated.scenarios import FLOOR_BYTES
from situations import growing, limits, seen

from autoloader.cli.app import main
from autoloader.controller.decisions import DecisionLog, replay
from autoloader.controller.policy import decide
from autoloader.errors import UsageError
from autoloader.telemetry.lines import log_path, run_name


def log_of(path: Path, name: str, reader: str, seconds: float = 130.0) -> int:
    scenario = SCENARIOS[name]
    plant = scenario.plant(reader)
    log = DecisionLog(path)
    held = plant.limits(FLOOR_BYTES)
    trace = simulate(plant, seconds, limits=held, disturb=scenario.disturb, log=log)
    log.close()
    return len(trace.decisions)


def test_the_command_says_whether_and_where_answers_differ(tmp_path: Path, cli: Cli):
    path = tmp_path / "log"
    log = DecisionLog(path)
    log.start(limits())
    log.decision(growing(), seen(), decide(growing(), seen(), limits()))
    log.event("reflex", 1.0, action="drop", headroom_bytes=5)
    log.close()
    assert "1 decisions, 1 of them changes: all the same" in cli("replay", path).out
    text = path.read_text()
    path.write_text(text.replace('"decode is the bottleneck"', '"because"'))
    found = cli.json("replay", path, code=1)
    assert [one["field"] for one in found["differences"]] == ["rule"]
    assert "line 2: rule" in cli("replay", path, code=1).out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no json\n", "line 1"),
        ("[]\n", "not a JSON object"),
        ('{"kind": "start", "schema_version": 99}\n', "schema version 99"),
        ('{"kind": "decision"}\n', "line 1"),
    ],
)
def test_a_log_that_is_none_is_refused_with_its_line(text: str, says: str, tmp_path: Path):
    path = tmp_path / "log"
    path.write_text(text)
    with path.open() as lines, pytest.raises(UsageError, match=says):
        replay(lines)
    assert main(["replay", str(path)]) == 2
    assert main(["replay", str(tmp_path / "nowhere")]) == 2


def test_a_line_that_a_killed_writer_cut_off_is_left_out_and_the_next_one_begins_anew(
    tmp_path: Path,
):
    path = tmp_path / "log"
    log_of(path, "steady", "indexed", 10.0)
    whole = path.read_text()
    path.write_text(whole[:-40])
    log_of(path, "steady", "indexed", 10.0)
    with path.open() as lines:
        found = replay(lines)
    assert found.decisions == 2 * 10 - 1
    assert found.differences == ()


def test_a_directory_has_a_file_for_each_run_and_a_file_is_that_file(tmp_path: Path):
    assert log_path(str(tmp_path), "own.jsonl") == str(tmp_path / "own.jsonl")
    assert log_path(f"{tmp_path}/new/", "own.jsonl") == str(tmp_path / "new" / "own.jsonl")
    assert log_path(str(tmp_path / "mine.jsonl"), "own.jsonl") == str(tmp_path / "mine.jsonl")
    assert log_path("", "own.jsonl") == ""
    assert run_name() == run_name()
    assert f"-{os.getpid()}-" in run_name()


def test_the_command_replays_all_logs_below_a_directory(tmp_path: Path, cli: Cli):
    (tmp_path / "runs" / "b").mkdir(parents=True)
    log_of(tmp_path / "runs" / "a.jsonl", "steady", "indexed", 5.0)
    log_of(tmp_path / "runs" / "b" / "b.jsonl", "steady", "stream", 5.0)
    found = cli.json("replay", tmp_path / "runs")
    assert (found["logs"], found["decisions"]) == (2, 10)
    assert "a.jsonl: 5 decisions" in cli("replay", tmp_path / "runs").out
    (tmp_path / "none").mkdir()
    assert main(["replay", str(tmp_path / "none")]) == 2
