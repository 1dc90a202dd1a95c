"""A silent process is judged by what it got: a table of readings, and real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from autoloader.host.supervision import (
    LIMITS_S,
    Kind,
    Supervisor,
    ThreadVitals,
    Vitals,
    kind_of,
    last_lines,
    read_vitals,
    waits_in_kernel,
)

SLEEPS = ThreadVitals("S", 1.0, 1.0, 100)


def kind(*threads: tuple[ThreadVitals, ThreadVitals]) -> Kind:
    """What a second is put down to, in which threads went from the one to the other."""
    before = Vitals(100.0, {tid: first for tid, (first, _) in enumerate(threads)})
    now = Vitals(101.0, {tid: second for tid, (_, second) in enumerate(threads)})
    return kind_of(before, now)


@pytest.mark.parametrize(
    ("state", "cpu_s", "delay_s", "slices", "expected"),
    [
        ("S", 0.0, 0.0, 0, Kind.IDLE),
        ("S", 0.002, 0.001, 10, Kind.IDLE),  # a timer that goes off ten times
        ("S", 0.006, 0.04, 1000, Kind.IDLE),  # waits for the interpreter's lock
        ("R", 0.006, 0.9, 1000, Kind.IDLE),  # the same on a busy machine
        ("T", 0.0, 0.0, 0, Kind.STOPPED),
        ("T", 0.4, 0.0, 5, Kind.STOPPED),  # it ran before it was stopped
        ("t", 0.0, 0.0, 0, Kind.STOPPED),
        ("D", 0.0, 0.0, 0, Kind.BLOCKED),
        ("D", 0.01, 0.3, 20, Kind.STARVED),
        ("R", 0.0, 0.0, 0, Kind.STARVED),  # runnable for the whole second, and never ran
        ("S", 0.02, 0.5, 6, Kind.STARVED),
        ("R", 0.15, 0.8, 40, Kind.COMPUTING),  # a fair part beside twelve others
        ("R", 1.0, 0.0, 0, Kind.COMPUTING),  # alone on its processor: no new slice
        ("S", 0.05, 0.0, 3, Kind.COMPUTING),
        ("Z", 0.0, 0.0, 0, Kind.UNKNOWN),
    ],
)
def test_a_piece_of_silence_is_put_down_to_one_kind(
    state: str, cpu_s: float, delay_s: float, slices: int, expected: Kind
):
    now = ThreadVitals(state, 1.0 + cpu_s, 1.0 + delay_s, 100 + slices)
    assert kind((SLEEPS, now)) is expected


def test_what_cannot_be_seen_is_unknown():
    assert kind_of(Vitals(1.0, {}), Vitals(2.0, {})) is Kind.UNKNOWN


def verdict(state: str, cpu_ratio: float, seconds: int) -> str:
    """Verdict on a process of one thread after so many readings, a second apart."""
    at = (Vitals(float(n), {1: ThreadVitals(state, cpu_ratio * n, 0.0, 10 * n if cpu_ratio else 0)})
          for n in range(seconds + 1))  # fmt: skip
    one = Supervisor("a process", "none.is.started", remedy="none", read=lambda _: next(at))
    one.close()
    return [one.hung() for _ in range(seconds + 1)][-1]


@pytest.mark.parametrize(
    ("state", "cpu_ratio", "least_s", "words"),
    [
        ("T", 0.0, LIMITS_S[Kind.STOPPED], "stopped"),
        ("S", 0.0, LIMITS_S[Kind.IDLE], "no thread of it wanted a processor"),
        ("D", 0.0, LIMITS_S[Kind.BLOCKED], "inside the kernel"),
        ("R", 0.5, 2 * LIMITS_S[Kind.COMPUTING], "computed for 120 s"),
    ],
)
def test_every_other_kind_ends_in_a_verdict(
    state: str, cpu_ratio: float, least_s: float, words: str
):
    assert verdict(state, cpu_ratio, int(least_s) - 1) == ""
    assert words in verdict(state, cpu_ratio, int(least_s))


def test_a_stop_and_a_dead_lock_are_found_in_thirty_seconds():
    assert LIMITS_S[Kind.STOPPED] <= 20
    assert LIMITS_S[Kind.IDLE] <= 25


# -- real processes ------------------------------------------------------------------------------

SPIN = "print(flush=True)\nwhile True: pass"


@contextmanager
def running(*codes: str) -> Iterator[list[int]]:
    """Process ids of programs that have begun; they end with the block."""
    with ExitStack() as started:
        every = []
        for code in codes:
            command = [sys.executable, "-S", "-c", code]
            process = started.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            started.callback(process.kill)
            every.append(process)
        for process in every:
            process.stdout.readline()
        yield [process.pid for process in every]


def kinds(*pids: int, pieces: int = 2) -> list[set[Kind]]:
    """What each process spends the next seconds on."""
    found: list[set[Kind]] = [set() for _ in pids]
    before = [read_vitals(pid) for pid in pids]
    for _ in range(pieces):
        time.sleep(1.0)
        now = [read_vitals(pid) for pid in pids]
        for own, *two in zip(found, before, now, strict=True):
            own.add(kind_of(*two))
        before = now
    return found


def test_a_real_process_that_is_stopped_and_goes_on():
    with running(SPIN) as (pid,):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.2)
        assert kinds(pid, pieces=1) == [{Kind.STOPPED}]
        os.kill(pid, signal.SIGCONT)
        (found,) = kinds(pid, pieces=1)
        assert found <= {Kind.COMPUTING, Kind.STARVED}


def test_a_process_that_has_ended_and_was_not_waited_for_does_not_wait_in_the_kernel():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert {one.state for one in read_vitals(process.pid).threads.values()} == {"Z"}
        assert not waits_in_kernel(process.pid)


def test_a_process_that_is_gone_cannot_be_seen():
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    assert read_vitals(process.pid).threads == {}


def test_of_what_a_process_prints_for_days_the_end_alone_takes_memory():
    one = Supervisor("one", "nothing.is.started", remedy="none")
    for number in range(3):
        os.write(one._log, b"x" * 2**20 + b"\nline %d\n" % number)
        one.progress()
        assert os.fstat(one._log).st_blocks * 512 < 2**16
    os.write(one._log, b"the last one\n")
    assert last_lines(one._log, 2) == "line 2\nthe last one"
    one.close()
