"""Judges if a silent process hangs, by the processor time it got and not by the wall clock.

Theory of operation. A process that lives shows it about twice a second or more (a heartbeat, a
message). One that does not may hang, or may merely get no processor on a busy machine: then it
must be left alone, for a new one would get none either. What each of its threads got is read from
``/proc``, and the time between two readings is put down to one of these:

- *stopped*: all its threads are stopped (SIGSTOP, a debugger).
- *computing*: some thread got a processor for a fair part of the time. A function that holds the
  interpreter's lock keeps a heartbeat waiting, and is no hang for that.
- *starved*: some thread wanted a processor and did not get it.
- *blocked*: some thread waits inside the kernel, for a disk mostly.
- *idle*: no thread wanted anything: whatever all of them wait for does not come.
- *unknown*: it cannot be seen, because it is in another container, say.

Time is counted in short pieces while somebody looks, so a watcher that was itself stopped or
asleep holds nothing against the process. Threads that wait for the interpreter's lock wake up a
thousand times a second for some microseconds each (0.6 % of a processor): short slices are no wish
to compute.

Invariants (test names echo them):
    1. Starved time counts towards no limit.
    2. Each piece of time counts as one kind, and for no more than ``LONGEST_PIECE_S``.

Not here: signs of life and what follows from a verdict (``supervisor``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

LONGEST_PIECE_S = 3.0
_COMPUTES_RATIO = 0.03
"""Of a processor, for one thread: less than a fair part beside sixty busy loops on two."""
_WAITS_RATIO = 0.2
_SLICE_S = 0.0002
"""Threads that only wake up to look at a lock run for some microseconds at a time."""


class Kind(str, Enum):
    """Use of a piece of silent time."""

    STOPPED = "stopped"
    COMPUTING = "computing"
    STARVED = "starved"
    BLOCKED = "blocked"
    IDLE = "idle"
    UNKNOWN = "unknown"


LIMITS_S: Mapping[Kind, float] = {
    Kind.STOPPED: 10.0,
    Kind.IDLE: 20.0,
    Kind.UNKNOWN: 60.0,
    Kind.BLOCKED: 120.0,
    Kind.COMPUTING: 120.0,
}
"""Seconds of silence of each kind after which a process is taken for hung; ``COMPUTING`` counts
what its busiest thread got of a processor. There is no limit for ``STARVED``."""

_REASONS: Mapping[Kind, str] = {
    Kind.STOPPED: "it has been stopped (SIGSTOP, or a debugger) for {:.0f} s",
    Kind.IDLE: "it hangs: no sign of life for {:.0f} s, and no thread of it wanted a processor",
    Kind.UNKNOWN: "it gave no sign of life for {:.0f} s, and what it does cannot be seen from here",
    Kind.BLOCKED: "it has waited inside the kernel for {:.0f} s (a disk that does not answer?)",
    Kind.COMPUTING: "it computed for {:.0f} s without a sign of life",
}


@dataclass(frozen=True, slots=True)
class ThreadVitals:
    """Counters of one thread so far.

    Attributes:
        state: the kernel's letter: R wants or has a processor, S sleeps, D waits in the kernel,
            T and t are stopped, Z has ended.
        cpu_s: seconds it had of a processor.
        delay_s: seconds it waited for one; counted when it gets it.
        slices: times it got one; ``None`` where this kernel does not count (then ``delay_s`` is 0).
    """

    state: str
    cpu_s: float
    delay_s: float = 0.0
    slices: int | None = None


@dataclass(frozen=True, slots=True)
class Vitals:
    """A process's threads by number at one time; none where it cannot be seen."""

    at_s: float
    threads: Mapping[int, ThreadVitals]


@dataclass(frozen=True, slots=True)
class Silence:
    """Seconds since the last sign of life.

    Attributes:
        spent_s: by what they were spent on; what computes counts with the processor time it got.
    """

    spent_s: Mapping[Kind, float] = field(default_factory=dict)

    @property
    def starved_s(self) -> float:
        """Of a process that wanted a processor."""
        return self.spent_s.get(Kind.STARVED, 0.0)

    def after(self, before: Vitals, now: Vitals) -> Silence:
        """This and the time between two readings."""
        kind = kind_of(before, now)
        passed_s = _busiest_s(before, now) if kind is Kind.COMPUTING else now.at_s - before.at_s
        counted_s = max(0.0, min(passed_s, LONGEST_PIECE_S))
        return Silence({**self.spent_s, kind: self.spent_s.get(kind, 0.0) + counted_s})

    @property
    def verdict(self) -> str:
        """Why the process is taken for hung; "" where it is not."""
        for kind, limit_s in LIMITS_S.items():
            if self.spent_s.get(kind, 0.0) >= limit_s:
                return _REASONS[kind].format(self.spent_s[kind])
        return ""


def kind_of(before: Vitals, now: Vitals) -> Kind:
    """Use of the time between two readings."""
    passed_s = now.at_s - before.at_s
    living = {tid: one for tid, one in now.threads.items() if one.state != "Z"}
    if not living:
        return Kind.UNKNOWN
    if all(one.state in "Tt" for one in living.values()):
        return Kind.STOPPED
    if _busiest_s(before, now) >= _COMPUTES_RATIO * passed_s:
        return Kind.COMPUTING
    if any(_wanted(before.threads.get(tid), one, passed_s) for tid, one in living.items()):
        return Kind.STARVED
    if any(one.state == "D" for one in living.values()):
        return Kind.BLOCKED
    return Kind.IDLE


def _busiest_s(before: Vitals, now: Vitals) -> float:
    """Processor seconds that the busiest thread got in between."""
    return max(
        (
            one.cpu_s - (before.threads[tid].cpu_s if tid in before.threads else 0.0)
            for tid, one in now.threads.items()
        ),
        default=0.0,
    )


def _wanted(before: ThreadVitals | None, now: ThreadVitals, passed_s: float) -> bool:
    """True if a thread that hardly ran wanted to."""
    if before is None or now.slices is None or before.slices is None:
        return now.state == "R"
    slices = now.slices - before.slices
    if slices == 0:
        return now.state == "R"
    waited_s, ran_s = now.delay_s - before.delay_s, now.cpu_s - before.cpu_s
    return waited_s >= _WAITS_RATIO * passed_s and ran_s / slices >= _SLICE_S


def read_vitals(pid: int, *, proc: Path = Path("/proc")) -> Vitals:
    """Counters of a process's threads so far, about 0.1 ms a thread."""
    threads: dict[int, ThreadVitals] = {}
    at_s = time.monotonic()
    with contextlib.suppress(OSError):  # gone, or not to be seen
        for task in (proc / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):  # the thread is gone
                threads[int(task.name)] = _read_thread(task)
    return Vitals(at_s, threads)


def waits_in_kernel(pid: int) -> bool:
    """True if all threads of a process have ended or wait inside the kernel."""
    states = [one.state for one in read_vitals(pid).threads.values()]
    return bool(states) and all(state in "DZX" for state in states)


def _read_thread(task: Path) -> ThreadVitals:
    words = (task / "stat").read_text().rpartition(")")[2].split()
    state = words[0]
    try:
        cpu_ns, delay_ns, slices = map(int, (task / "schedstat").read_text().split())
    except (OSError, ValueError):
        ticks = int(words[11]) + int(words[12])
        return ThreadVitals(state, ticks / _TICKS_PER_S)
    return ThreadVitals(state, cpu_ns / 1e9, delay_ns / 1e9, slices)


_TICKS_PER_S = 100.0
"""USER_HZ, which is fixed where user space is concerned."""
