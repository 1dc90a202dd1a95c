"""A run leaves a record of itself: small, whole to the last second, none where it is not wanted."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from record_moments import BEGAN_S, a_moment

from autoloader.errors import UsageError
from autoloader.host.units import GIB
from autoloader.telemetry.run_record import RING_AFTER_S, RunLog, files_of, prune, read_pipeline
from autoloader.telemetry.statistics import Move


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "host-1" / "train-0.jsonl"


@pytest.fixture
def log(path: Path) -> Callable[..., RunLog]:
    def make(bad: list[dict[str, Any]] | None = None, **own: Any) -> RunLog:
        return RunLog(path, lambda: {"batch": 48}, lambda: bad or [], **own)

    return make


def test_what_was_kept_is_what_is_read(path: Path, log: Callable[..., RunLog]):
    moments = [a_moment(float(second)) for second in range(1, 6)]
    kept = log()
    for moment in moments:
        kept.write(moment)
    kept.close()
    found = read_pipeline(path)
    assert found.moments == tuple(moments)
    assert found.facts == {"batch": 48}
    assert found.ended


def test_lines_come_further_apart_as_a_run_gets_older_but_what_happens_is_kept(
    path: Path, log: Callable[..., RunLog]
):
    kept = log()
    day_s = 86_400
    short = {"headroom_bytes": 4 * GIB, "floor_bytes": 5 * GIB}
    for second in range(1, day_s, 10):
        kept.write(a_moment(float(second), **(short if second == 80_001 else {})))
    moved = Move(BEGAN_S + day_s, "person", "retune", {"ring_slots": (8, 4)})
    kept.write(a_moment(day_s + 1.0, moves=(moved,)))
    kept.close()
    found = read_pipeline(path)
    assert 500 < len(found.moments) < 4000
    assert path.stat().st_size < 2**20
    assert [one.at_s - BEGAN_S for one in found.moments if one.headroom_bytes == 4 * GIB] == [
        80_001.0
    ]
    assert found.moves == (moved,)


def test_a_run_that_was_killed_is_read_up_to_its_last_whole_line(
    path: Path, log: Callable[..., RunLog]
):
    kept = log()
    for second in range(1, 6):
        kept.write(a_moment(float(second)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    found = read_pipeline(path)
    assert len(found.moments) == 4
    assert not found.ended
    again = log()  # its child is started again and goes on in the same file
    again.write(a_moment(9.0, restarts=1))
    again.close()
    assert [one.restarts for one in read_pipeline(path).moments] == [0, 0, 0, 0, 1]
    kept.close()


def test_a_short_run_leaves_nothing_in_the_ring(path: Path, log: Callable[..., RunLog]):
    kept = log(in_ring=True)
    for second in range(1, int(RING_AFTER_S)):
        kept.write(a_moment(float(second)))
    assert not path.exists()
    kept.write(a_moment(RING_AFTER_S))
    kept.close()
    assert len(read_pipeline(path).moments) == int(RING_AFTER_S)


def test_the_oldest_records_leave_the_ring(tmp_path: Path):
    for number in range(5):
        file = tmp_path / f"run-{number}" / "train-0.jsonl"
        file.parent.mkdir()
        file.write_bytes(b"x" * 100)
        os.utime(file, (number, number))
    prune(tmp_path, runs=4, most_bytes=1000)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run-2", "run-3", "run-4"]
    prune(tmp_path, runs=4, most_bytes=250)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run-3", "run-4"]
    prune(tmp_path / "not there")


def test_a_folder_that_cannot_be_written_costs_a_warning_and_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").touch()
    kept = RunLog(tmp_path / "file" / "train-0.jsonl", dict, list)
    kept.write(a_moment(1.0))
    kept.write(a_moment(2.0))
    kept.close()
    assert len(caplog.records) == 1
    assert "no record of this run" in caplog.text


@pytest.mark.parametrize("text", ["", "[]\n", "{}\n", '{"kind": "start", "schema_version": 1}\n'])
def test_what_is_no_record_is_refused_in_words(tmp_path: Path, text: str):
    file = tmp_path / "train-0.jsonl"
    file.write_text(text)
    with pytest.raises(UsageError, match="record"):
        read_pipeline(file)


def test_a_record_of_another_version_and_one_that_is_not_there_are_refused(tmp_path: Path):
    file = tmp_path / "train-0.jsonl"
    file.write_text('{"kind": "start", "schema_version": 99}\n')
    with pytest.raises(UsageError, match="schema version 99"):
        read_pipeline(file)
    with pytest.raises(UsageError, match="does not exist"):
        files_of(tmp_path / "nothing")
    with pytest.raises(UsageError, match="holds no record"):
        files_of(_empty(tmp_path))


def _empty(folder: Path) -> Path:
    made = folder / "empty"
    made.mkdir()
    return made


def test_a_clock_that_is_set_back_leaves_no_hole(path: Path, log: Callable[..., RunLog]):
    kept = log()
    for second in (86_000.0, 82_400.0, 82_401.0, 82_600.0):
        kept.write(a_moment(second))
    kept.close()
    found = [one.at_s - BEGAN_S for one in read_pipeline(path).moments]
    assert found == [86_000.0, 82_400.0, 82_600.0]
