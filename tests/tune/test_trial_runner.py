"""A trial's child is watched, and never outlives its trial. Children here are small scripts."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from autoloader.spec.knobs import Knobs
from autoloader.tune.trial import Outcome, TrialProgress, TrialRunner, knob_arguments

GIB = 2**30

PRELUDE = """
import json, os, signal, subprocess, sys, time
from multiprocessing.connection import Connection
words = sys.argv[1:]
link = Connection(int(words[words.index("--progress-fd") + 1]))
def progress(batches, rate):
    link.send_bytes(json.dumps({"batches": batches, "samples_per_s": rate}).encode())
def answer(rate, **more):
    print(json.dumps({"samples_per_s": rate, "peak_rss_bytes": 7, **more}))
def hang():
    while True:
        time.sleep(60)
"""


def go_on(progress: TrialProgress | None, headroom_bytes: int | None) -> bool:
    return True


def runner(
    script: str, *, headroom: Callable[[], int | None] = lambda: 8 * GIB, floor_bytes: int = 5 * GIB
) -> TrialRunner:
    return TrialRunner(
        [sys.executable, "-c", PRELUDE + script],
        floor_bytes=floor_bytes,
        headroom=headroom,
        period_s=0.01,
    )


def pids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_measurement_completes_the_trial():
    result = runner("progress(160, 90.0); answer(91.5, min_headroom_bytes=6)")(
        Knobs(), timeout_s=60, watch=go_on
    )
    assert result.outcome is Outcome.COMPLETE
    assert result.samples_per_s == 91.5
    assert result.peak_rss_bytes == 7
    assert result.min_headroom_bytes == 6
    assert result.exit_code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may take a priority back")
def test_a_trial_runs_at_the_priority_of_the_study():
    own = Path("/proc/self/autogroup")
    if not own.exists() or not own.read_text():  # a session outside any group reads as empty
        pytest.skip("this process is in no autogroup")
    before = own.read_text().split()[-1]
    own.write_text("7")
    try:
        result = runner(
            "while open('/proc/self/autogroup').read().split()[-1] != '7': time.sleep(0.01)\n"
            "answer(1.0)"
        )(Knobs(), timeout_s=60, watch=go_on)
    finally:
        own.write_text(before)
    assert result.outcome is Outcome.COMPLETE


def test_every_knob_reaches_the_child_as_it_is():
    knobs = Knobs.build({"decode_threads": 3, "a.cycle_length": 2})
    result = runner("answer(1.0, said=words)")(knobs, timeout_s=60, watch=go_on)
    said = result.measurement["said"]
    sets = [said[at + 1] for at, word in enumerate(said) if word == "--set"]
    assert Knobs.build(dict(word.split("=") for word in sets)) == knobs
    assert [*knob_arguments(knobs)] == said[: len(knob_arguments(knobs))]


def test_a_child_killed_like_by_the_kernel_is_a_failed_trial():
    result = runner("os.kill(os.getpid(), signal.SIGKILL)")(Knobs(), timeout_s=60, watch=go_on)
    assert result.outcome is Outcome.FAILED
    assert "SIGKILL" in result.reason
    assert result.exit_code == -9
    assert result.samples_per_s is None


def test_a_child_that_cannot_meet_the_floor_is_infeasible():
    result = runner('print(json.dumps({"error": {"what": "no room"}})); sys.exit(3)')(
        Knobs(), timeout_s=60, watch=go_on
    )
    assert (result.outcome, result.reason) == (Outcome.INFEASIBLE, "no room")


def test_a_crash_is_failed_with_its_last_words():
    result = runner('sys.exit("the shard is torn")')(Knobs(), timeout_s=60, watch=go_on)
    assert result.outcome is Outcome.FAILED
    assert "the shard is torn" in result.reason
    assert result.exit_code == 1


@pytest.mark.parametrize("said", ["", "no json", "{}", "[1]", '{"samples_per_s": null}'])
def test_a_child_without_a_measurement_never_completes_a_trial(said: str):
    result = runner(f"print({said!r})")(Knobs(), timeout_s=60, watch=go_on)
    assert result.outcome is Outcome.FAILED
    assert result.measurement is None


def test_headroom_below_the_floor_stops_the_child(tmp_path: Path):
    readings = iter([8 * GIB, 7 * GIB, 7 * GIB, 4 * GIB])
    here = tmp_path / "pid"
    result = runner(
        f"open({str(here)!r}, 'w').write(str(os.getpid())); progress(1, 1.0); hang()",
        headroom=lambda: next(readings) if here.exists() and here.read_text() else 8 * GIB,
    )(Knobs(), timeout_s=60, watch=go_on)
    assert result.outcome is Outcome.INFEASIBLE
    assert result.min_headroom_bytes == 4 * GIB
    assert result.exit_code is None
    assert not alive(pids_in(here)[0])


def test_headroom_that_falls_towards_the_floor_stops_the_child_before_it_is_crossed():
    readings = iter([12 * GIB, 9 * GIB, 6 * GIB])
    result = runner("hang()", headroom=lambda: next(readings))(Knobs(), timeout_s=60, watch=go_on)
    assert result.outcome is Outcome.INFEASIBLE
    assert result.min_headroom_bytes == 6 * GIB, "it stops while still above the floor of 5"


def test_nothing_is_started_below_the_floor(tmp_path: Path):
    mark = tmp_path / "started"
    result = runner(f"open({str(mark)!r}, 'w')", headroom=lambda: 4 * GIB)(
        Knobs(), timeout_s=60, watch=go_on
    )
    assert result.outcome is Outcome.INFEASIBLE
    assert not mark.exists()


def test_unreadable_headroom_does_not_stop_a_trial():
    result = runner("answer(2.0)", headroom=lambda: None)(Knobs(), timeout_s=60, watch=go_on)
    assert result.outcome is Outcome.COMPLETE
    assert result.min_headroom_bytes is None


def test_a_watcher_that_says_stop_prunes_the_trial_and_ends_its_whole_group(tmp_path: Path):
    here = tmp_path / "pids"
    seen: list[TrialProgress] = []

    def watch(progress: TrialProgress | None, headroom_bytes: int | None) -> bool:
        if progress is not None:
            seen.append(progress)
        return progress is None or progress.batches < 40

    result = runner(
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(here)!r}, 'w').write(f'{{os.getpid()}} {{other.pid}}')\n"
        "progress(20, 5.0); progress(40, 6.0); hang()"
    )(Knobs(), timeout_s=60, watch=watch)
    assert result.outcome is Outcome.PRUNED
    assert [p.batches for p in seen] == [20, 40]
    assert [p.samples_per_s for p in seen] == [5.0, 6.0]
    psutil.wait_procs(
        [psutil.Process(pid) for pid in pids_in(here) if psutil.pid_exists(pid)], timeout=10
    )
    assert not any(alive(pid) for pid in pids_in(here))


def test_a_child_that_hangs_is_ended_and_failed():
    result = runner("hang()")(Knobs(), timeout_s=0.2, watch=go_on)
    assert result.outcome is Outcome.FAILED
    assert "no result within" in result.reason


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_abort_of_the_study_ends_the_child(tmp_path: Path, error: type[BaseException]):
    here = tmp_path / "pid"

    def watch(progress: TrialProgress | None, headroom_bytes: int | None) -> bool:
        if progress is not None:
            raise error
        return True

    with pytest.raises(error):
        runner(f"open({str(here)!r}, 'w').write(str(os.getpid())); progress(1, 1.0); hang()")(
            Knobs(), timeout_s=60, watch=watch
        )
    assert not alive(pids_in(here)[0])
