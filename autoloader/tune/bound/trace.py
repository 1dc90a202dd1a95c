"""Resources that a running loader uses for each sample: processor time, bytes, waits by stage.

Theory of operation. The kernel counts for every thread how long it ran and how long it stood ready
with no processor free (``/proc/PID/task/TID/schedstat``); what is left of the clock it waited for
something else. Threads of the loader have names (``host.threads``), so times add up by stage. Bytes
are those of ``/proc/PID/io``: asked of files, and come from a block device. A disk holds things up
while some thread sleeps in the kernel for it, which is looked at ten times a second: state D, or a
positional read that has not come back (a FUSE file system is waited for in state S). What other
processes took of the processors meanwhile comes from ``host.processes``.

A trace is the difference of two readings. Threads that ended in between are not in it, so knobs
must hold still.

Not here: what follows from a trace (``tune.bound.model``).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from autoloader.host.processes import ProcessorProbe

_PERIOD_S = 0.1
_REFRESH = 10
"""Looks at states between two looks at which threads there are, and at what others use."""

_POSITIONAL_READS = {
    "x86_64": (b"17", b"295", b"327"),
    "aarch64": (b"67", b"69", b"286"),
}.get(os.uname().machine, ())
"""Numbers of pread64, preadv and preadv2: what files are read with, and pipes are not."""

_STAGES = {
    "loader-decode": "decode",
    "loader-read": "read",
    "loader-mix": "mix",
    "loader-deal": "mix",
    "loader-deliver": "mix",
    "loader-fill": "mix",
}
_ONE_OF_A_KIND = ("loader-deal", "loader-deliver", "loader-mix")
"""Threads of which a loader's own child has one each, whatever the knobs say."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """One stage's seconds for each sample, all its threads together.

    Attributes:
        cpu_s: processor seconds of the stage.
        queued_s: ready to run, with no processor free.
        blocked_s: waiting for anything else: other stages, a lock, a disk.
        threads: number of threads of the stage.
    """

    cpu_s: float
    queued_s: float
    blocked_s: float
    threads: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Resources that one measurement used.

    Attributes:
        samples: delivered while it was taken.
        duration_s: seconds of wall time.
        stages: by name: read, decode, mix, consumer, other.
        one_thread_s: seconds a sample of the busiest thread that no knob gives a second of.
        read_bytes: asked of files, for each sample; ``None`` where the kernel does not say.
        disk_bytes: of these, come from a block device; those of a network's file system are not
            counted there.
        disk_busy_ratio: share of the time that some thread slept for a disk, 0 to 1.
        others_cpus: processors that other processes used meanwhile; ``None``: not known.
        datasets: processor seconds of decoding one of its samples, by dataset.
    """

    samples: int
    duration_s: float
    stages: Mapping[str, StageCost]
    one_thread_s: float
    read_bytes: float | None = None
    disk_bytes: float | None = None
    disk_busy_ratio: float = 0.0
    others_cpus: float | None = None
    datasets: Mapping[str, float] = field(default_factory=dict)

    @property
    def cpu_s(self) -> float:
        """Processor seconds for each sample, all stages."""
        return sum(stage.cpu_s for stage in self.stages.values())

    @property
    def disk_bytes_per_s(self) -> float | None:
        """Bytes/s of the disk while it was waited for; ``None`` where it never was."""
        if not self.stored_bytes or self.disk_busy_ratio <= 0:
            return None
        return self.stored_bytes * self.samples / (self.duration_s * self.disk_busy_ratio)

    @property
    def stored_bytes(self) -> float:
        """Bytes a sample that were waited for: a block device's, else all that files gave."""
        if self.disk_bytes:
            return self.disk_bytes
        return (self.read_bytes or 0.0) if self.disk_busy_ratio > 0 else 0.0

    def with_datasets(self, decoded: Mapping[str, tuple[float, int]]) -> Trace:
        """The same, with the processor time of decoding dealt to datasets.

        Args:
            decoded: seconds that decode threads worked on its samples, and such samples, by
                dataset. The seconds are of the clock, so only how they compare is used.
        """
        whole_s = sum(seconds for seconds, _ in decoded.values())
        stage = self.stages.get("decode")
        if stage is None or whole_s <= 0:
            return self
        ratio = stage.cpu_s * self.samples / whole_s
        costs = {name: seconds * ratio / n for name, (seconds, n) in decoded.items() if n}
        return replace(self, datasets=costs)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Trace:
        """From ``as_dict``."""
        stages = {name: StageCost(**stage) for name, stage in plain["stages"].items()}
        return cls(**{**plain, "stages": stages})


@dataclass(frozen=True, slots=True)
class _Thread:
    name: str
    stage: str
    alone: bool
    ran_s: float
    queued_s: float


class TraceRecorder:
    """Records the process that makes it and all its children, from ``begin`` to ``end``."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._done = threading.Event()
        self._looks = self._asleep = 0
        self._others: list[float] = []
        self._watch: threading.Thread | None = None

    def begin(self) -> None:
        """Take the first reading; from here on states are looked at."""
        self._processors = ProcessorProbe()
        self._began_s = time.perf_counter()
        self._threads, self._io = self._read()
        self._watch = threading.Thread(target=self._look, name="trace-states", daemon=True)
        self._watch.start()

    def end(self, samples: int) -> Trace:
        """Take the second reading; so many samples were delivered since ``begin``."""
        self.stop()
        threads, io = self._read()
        duration_s = time.perf_counter() - self._began_s
        self._note_others()
        return trace_of(
            (self._threads, threads),
            (self._io, io),
            samples=samples,
            duration_s=duration_s,
            disk_busy_ratio=self._asleep / self._looks if self._looks else 0.0,
            others_cpus=sum(self._others) / len(self._others) if self._others else None,
        )

    def stop(self) -> None:
        """Look at states no more; may be called twice."""
        self._done.set()
        if self._watch is not None:
            self._watch.join()

    def _note_others(self) -> None:
        used = self._processors.read()
        if used is not None and used.others is not None:
            self._others.append(used.others)

    def _pids(self) -> list[int]:
        with contextlib.suppress(psutil.Error):
            return [self._own.pid, *(one.pid for one in self._own.children(recursive=True))]
        return [self._own.pid]

    def _read(self) -> tuple[dict[int, _Thread], dict[int, tuple[int, int]]]:
        threads: dict[int, _Thread] = {}
        io = {}
        for pid in self._pids():
            if (counted := _io(pid)) is not None:
                io[pid] = counted
            for task in _tasks(pid):
                if (one := _thread(task, consumer=pid == self._own.pid)) is not None:
                    threads[int(task.name)] = one
        return threads, io

    def _look(self) -> None:
        tasks: list[Path] = []
        while not self._done.wait(_PERIOD_S):
            if self._looks % _REFRESH == 0:
                tasks = [task for pid in self._pids() for task in _tasks(pid)]
                self._note_others()
            self._looks += 1
            self._asleep += any(map(_sleeps_for_disk, tasks))


def trace_of(
    threads: tuple[Mapping[int, _Thread], Mapping[int, _Thread]],
    io: tuple[Mapping[int, tuple[int, int]], Mapping[int, tuple[int, int]]],
    *,
    samples: int,
    duration_s: float,
    disk_busy_ratio: float,
    others_cpus: float | None,
) -> Trace:
    """The trace between two readings; pure."""
    count = max(1, samples)
    before, after = threads
    by_stage: dict[str, list[tuple[float, float]]] = defaultdict(list)
    one_thread_s = 0.0
    for tid, now in after.items():
        then = before.get(tid)
        ran_s = now.ran_s - (then.ran_s if then else 0.0)
        queued_s = now.queued_s - (then.queued_s if then else 0.0)
        by_stage[now.stage].append((ran_s, queued_s))
        if now.alone:
            one_thread_s = max(one_thread_s, ran_s / count)
    stages = {}
    for stage, parts in sorted(by_stage.items()):
        ran_s, queued_s = sum(p[0] for p in parts), sum(p[1] for p in parts)
        blocked_s = max(0.0, duration_s * len(parts) - ran_s - queued_s)
        stages[stage] = StageCost(ran_s / count, queued_s / count, blocked_s / count, len(parts))
    return Trace(
        samples=samples,
        duration_s=duration_s,
        stages=stages,
        one_thread_s=one_thread_s,
        read_bytes=_bytes(io, 0, count),
        disk_bytes=_bytes(io, 1, count),
        disk_busy_ratio=disk_busy_ratio,
        others_cpus=others_cpus,
    )


def _bytes(
    io: tuple[Mapping[int, tuple[int, int]], Mapping[int, tuple[int, int]]], which: int, count: int
) -> float | None:
    before, after = io
    if not after:
        return None
    return sum(now[which] - before.get(pid, (0, 0))[which] for pid, now in after.items()) / count


def _tasks(pid: int) -> Iterable[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _thread(task: Path, *, consumer: bool) -> _Thread | None:
    try:
        name = (task / "comm").read_text().strip()
        ran, queued = (task / "schedstat").read_text().split()[:2]
    except (OSError, ValueError):
        return None
    kind = next((prefix for prefix in _STAGES if name.startswith(prefix)), None)
    main = consumer and task.name == str(os.getpid())
    stage = _STAGES[kind] if kind else "consumer" if consumer else "other"
    return _Thread(name, stage, main or kind in _ONE_OF_A_KIND, int(ran) / 1e9, int(queued) / 1e9)


def _io(pid: int) -> tuple[int, int] | None:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return None
    found = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
    return found.get("rchar", 0), found.get("read_bytes", 0)


def _sleeps_for_disk(task: Path) -> bool:
    try:
        stat = (task / "stat").read_bytes()
    except OSError:
        return False
    state = stat[stat.rindex(b")") + 2 : stat.rindex(b")") + 3]
    if state != b"S" or not _POSITIONAL_READS:
        return state == b"D"
    try:
        call = (task / "syscall").read_bytes().partition(b" ")[0]
    except OSError:
        return False
    return call in _POSITIONAL_READS
