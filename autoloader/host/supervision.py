"""Processes of the library: how one is started, whether it lives, how it ended, and its restarts.

Start. No fork, no main guard, and an import path of its own. ``python -m module`` would import from
the working directory first, and so does a ``PYTHONPATH`` with an empty entry. A file ``types.py``
or ``sitecustomize.py`` there would run. So ``boot`` starts a process with ``-P`` and gets its
import path: the standard library, then the import path of the starting process. The working
directory and the script's folder come at the very end, if that process has them. Installed packages
are found as in any Python, and other folders of the user's ``PYTHONPATH`` stay (``-I`` would drop
both). The C library copies data as large as a frame past the processor's caches there
(``docs/adr/0027-copies-past-the-caches.md``).

Hangs. A process that lives shows it about twice a second or more (a heartbeat, a message). A silent
process may hang, or may get no processor on a busy machine. In the second case it must be left
alone, since a new one would get none either. What each of its threads got is read from ``/proc``,
and the time between two readings is put down to one of these:

- *stopped*: all its threads are stopped (SIGSTOP, a debugger).
- *computing*: some thread got a processor for a fair part of the time. A function that holds the
  interpreter's lock keeps a heartbeat waiting, and is no hang for that.
- *starved*: some thread wanted a processor and did not get it.
- *blocked*: some thread waits inside the kernel, for a disk mostly.
- *idle*: no thread wanted anything: whatever all of them wait for does not come.
- *unknown*: it cannot be seen, because it is in another container, say.

Time is counted in short pieces while somebody looks, so a watcher that was itself stopped or asleep
holds nothing against the process. Threads that wait for the interpreter's lock wake up a thousand
times a second for some microseconds each (0.6 % of a processor). So short slices do not count as a
wish to compute.

Restarts. The supervisor holds no thread: its caller asks ``hung`` when nothing came for a moment,
and calls ``saw_life`` when something did. A process that hangs is killed (SIGKILL ends a stopped
process as well). An owner starts one that ended again, and asks ``try_again`` first. After
``MAX_RESTARTS`` in a row without ``progress`` that raises, with the last lines that the process
printed: its stdout and stderr go to a memory file. A crash, or an exit with a status, is past only
when ``PAST_BATCHES`` batches came behind it: its cause may lie behind batches that come again each
time.

Invariants (test names echo them):
    1. Starved time counts towards no limit.
    2. Each piece of time counts as one kind, and for no more than ``LONGEST_PIECE_S``.

Not here: messages to the process, and where it begins again (``process.child``,
``pipeline.messages``, ``formats.tensorflow_process``).
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from autoloader.errors import WorkerError, many
from autoloader.host.files import memory_file
from autoloader.host.frozen import frozen
from autoloader.host.threads import MORE_THREADS

logger = logging.getLogger(__name__)

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
    Kind.UNKNOWN: "it gave no sign of life for {:.0f} s, and its state cannot be read in /proc",
    Kind.BLOCKED: "it has waited inside the kernel for {:.0f} s (a disk that does not answer?)",
    Kind.COMPUTING: "it computed for {:.0f} s without a sign of life",
}


@frozen
class ThreadVitals:
    """Counters of one thread so far.

    Attributes:
        state: the kernel's letter: R wants or has a processor, S sleeps, D waits in the kernel,
            T and t are stopped, Z has ended.
        cpu_s: seconds it had of a processor.
        delay_s: seconds it waited for one; counted when it gets it.
        slices: times it got one; ``None`` where this kernel does not count (then ``delay_s`` is 0).
        name: its name, 15 bytes at most.
    """

    state: str
    cpu_s: float
    delay_s: float = 0.0
    slices: int | None = None
    name: str = ""


@frozen
class Vitals:
    """A process's threads by number at one time; none where it cannot be seen."""

    at_s: float
    threads: Mapping[int, ThreadVitals]


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


def read_vitals(pid: int) -> Vitals:
    """Counters of a process's threads so far, about 0.1 ms a thread."""
    threads: dict[int, ThreadVitals] = {}
    at_s = time.monotonic()
    with contextlib.suppress(OSError):  # gone, or not to be seen
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread is gone
                threads[int(task.name)] = _read_thread(task)
    return Vitals(at_s, threads)


def is_stopped(pid: int) -> bool:
    """True if all threads of a process are stopped now."""
    now = read_vitals(pid)
    return kind_of(now, now) is Kind.STOPPED


def waits_in_kernel(pid: int) -> bool:
    """True if a thread of a process waits inside the kernel, and all others do or have ended."""
    states = {one.state for one in read_vitals(pid).threads.values()}
    return "D" in states and states <= {*"DZX"}


def _read_thread(task: Path) -> ThreadVitals:
    """Name and state of a thread, and its times in s; of some kernels the processor time alone."""
    front, _, rest = (task / "stat").read_text().rpartition(")")
    name, words = front.partition("(")[2], rest.split()
    state = words[0]
    try:
        cpu_ns, delay_ns, slices = map(int, (task / "schedstat").read_text().split())
    except (OSError, ValueError):
        ticks = int(words[11]) + int(words[12])
        return ThreadVitals(state, ticks / _TICKS_PER_S, name=name)
    return ThreadVitals(state, cpu_ns / 1e9, delay_ns / 1e9, slices, name)


_TICKS_PER_S = 100.0
"""USER_HZ, which is fixed where user space is concerned."""


_BOOT = str(Path(__file__).with_name("boot.py"))
_PAST_CACHES = "glibc.cpu.x86_non_temporal_threshold"
"""From so many bytes on a copy goes past the caches; where it is not known it is ignored."""
_FRAME_BYTES = 128 * 2**10
"""Frames from 224×224 on are larger. What TensorFlow copies and then reads mostly is not."""
_SAFE_PATH = ["-P"] if sys.version_info >= (3, 11) else []


def import_path() -> list[str]:
    """The import path of this process, in the order in which another one is to look."""
    return ordered_path(sys.path, standard_library=str(Path(os.__file__).parent), last=_last())


def ordered_path(
    entries: Sequence[str], *, standard_library: str, last: Sequence[str]
) -> list[str]:
    """``entries`` with the standard library first and the folders ``last`` at the end, each once.

    Args:
        entries: an import path; "" is the working directory.
        standard_library: folder of the standard library.
        last: folders that must not shadow what is installed; the first of them is the working
            directory.
    """
    archive = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    found: dict[str, int] = {}
    for entry in entries:
        place = entry or (last[0] if last else "")
        if not place:
            continue
        with contextlib.suppress(OSError):  # the working directory is gone
            place = str(Path(place).absolute())
            if place == standard_library or Path(place).name in (archive, "lib-dynload"):
                found[place] = 0
            else:
                found[place] = 2 if place in last else 1
    return sorted(found, key=found.__getitem__)


def extend_import_path(entries: Sequence[str]) -> None:
    """Look in another process's import path too, behind our own."""
    sys.path.extend(entry for entry in entries if entry not in sys.path)


def command(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command line that runs a module of this package; it needs ``environment``."""
    return [sys.executable, *_SAFE_PATH, _BOOT, module, *arguments]


def options() -> dict[str, int]:
    """Numbers by name of this process's command line ``--name=value …``; texts are for people."""
    given = (one.removeprefix("--").split("=", 1) for one in sys.argv[1:])
    return {name: int(value) for name, value in given if value.isdecimal()}


def environment(**changes: str) -> dict[str, str]:
    """This process's environment for ``command``, with ``changes``."""
    last = _last()
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    named = [str(Path(entry).absolute()) for entry in paths if entry and last]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(entry for entry in named if entry not in last),
        "AUTOLOADER_IMPORT_PATH": json.dumps(import_path()),
        # It looks for plugins in every installed package: hundreds of files on a shared disk.
        "PYDANTIC_DISABLE_PLUGINS": os.environ.get("PYDANTIC_DISABLE_PLUGINS", "__all__"),
        "GLIBC_TUNABLES": tunables(os.environ.get("GLIBC_TUNABLES", "")),
        **changes,
    }


def start(
    module: str,
    arguments: Sequence[str] = (),
    *,
    changes: Mapping[str, str] | None = None,
    **popen: Any,
) -> subprocess.Popen[Any]:
    """Start a module of this package as a process.

    Args:
        module: full name of the module to run.
        arguments: arguments of the process's command line.
        changes: changes of the environment variables.
        popen: further arguments of ``subprocess.Popen``.

    Raises:
        WorkerError: the kernel starts no further process.
    """
    try:
        return subprocess.Popen(
            command(module, arguments), env=environment(**(changes or {})), **popen
        )
    except (OSError, MemoryError) as error:
        number = getattr(error, "errno", None)
        short = isinstance(error, (BlockingIOError, MemoryError)) or number == errno.ENOMEM
        raise WorkerError(
            f"no process can be started for {module}: {error}",
            remedy=MORE_THREADS
            if short
            else "close files, or raise the limit of open files (ulimit -n)"
            if number in (errno.EMFILE, errno.ENFILE)
            else f"check whether this user can run {sys.executable!r} (sys.executable)",
        ) from error


def tunables(own: str) -> str:
    """The user's settings of the C library, and ours, but for one that the user has set."""
    if _PAST_CACHES in own:
        return own
    return ":".join(filter(None, (own, f"{_PAST_CACHES}={_FRAME_BYTES}")))


def _last() -> list[str]:
    """The working directory and the folder of the script, where there are any."""
    folders = []
    with contextlib.suppress(OSError):
        folders.append(str(Path.cwd()))
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script and folders:
        folders.append(str(Path(folders[0], script).parent))
    return folders


MAX_RESTARTS = 5
PAST_BATCHES = 1000
"""More than a pipeline has under way: a process that delivers so many is beyond what crashed it."""
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_LOOK_EVERY_S = 0.5
_SAY_EVERY_S = 30.0
_LAST_BYTES, _LAST_LINES = 8192, 20
_MOST_LOG_BYTES = 2**20
_KILL_S = 30.0
_GONE_S = 2.0
"""A killed process that is still there then mostly waits inside the kernel."""
_REAP_S = 0.1
_left: list[subprocess.Popen[bytes]] = []
"""Processes that serve others, or were killed and wait inside the kernel: kept to be waited for."""


@dataclass(eq=False)
class Supervisor:
    """Starts a process again when it ends or hangs, until it has failed too often.

    It tells a process that hangs from one that is only slow.

    Attributes:
        what: the process, in messages, as in "the loader's child".
        module: full name of the module that it runs.
        remedy: what the user can do where it cannot be kept alive, for a reason other than memory.
        process: the process; ``None`` before the first, and where somebody else has started it.
        pid: process id; 0 where it is not known yet.
        read: function that reads a process's vitals.
    """

    what: str
    module: str
    remedy: str
    process: subprocess.Popen[bytes] | None = None
    pid: int = 0
    read: Callable[[int], Vitals] = read_vitals
    _in_a_row: int = 0
    _crashes: int = 0
    _since_crash: int = 0
    _log: int = field(default_factory=lambda: memory_file("autoloader-log"))

    def __post_init__(self) -> None:
        self.saw_life()

    def saw_life(self) -> None:
        """Note a sign of life of the process: its silence begins anew."""
        self._spent_s = dict.fromkeys(Kind, 0.0)
        self._before: Vitals | None = None
        self._said_s = 0.0

    def hung(self) -> str:
        """Reason for which the process is taken for hung; "" while it is not.

        To be called while no message comes from the process.
        """
        before = self._before
        if before is None or time.monotonic() - before.at_s >= _LOOK_EVERY_S:
            self._before = now = self.read(self.pid)
            if before is not None:
                self._count(before, now)
        for kind, limit_s in LIMITS_S.items():
            if self._spent_s[kind] >= limit_s:
                return _REASONS[kind].format(self._spent_s[kind])
        return ""

    def _count(self, before: Vitals, now: Vitals) -> None:
        """Put the time between two readings down to one kind."""
        kind = kind_of(before, now)
        passed_s = _busiest_s(before, now) if kind is Kind.COMPUTING else now.at_s - before.at_s
        self._spent_s[kind] += max(0.0, min(passed_s, LONGEST_PIECE_S))
        if (starved_s := self._spent_s[Kind.STARVED]) >= self._said_s + _SAY_EVERY_S:
            self._said_s = starved_s
            logger.warning(
                "%s has waited for a processor for %.0f s: this machine is busy with other work",
                self.what,
                starved_s,
            )

    def start(
        self,
        descriptors: Mapping[str, int],
        arguments: Sequence[str] = (),
        *,
        changes: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process.

        Args:
            descriptors: descriptors that it inherits, by the name of its option for each.
            arguments: further arguments of its command line.
            changes: changes of the environment variables.
        """
        os.ftruncate(self._log, 0)
        os.lseek(self._log, 0, os.SEEK_SET)
        named = {**descriptors, "parent": os.getpid()}
        self.process = start(
            self.module,
            [*(f"--{name}={value}" for name, value in named.items()), *arguments],
            changes=changes,
            pass_fds=tuple(descriptors.values()),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        self.pid = self.process.pid
        self.saw_life()

    def adopt(self, pid: int = 0) -> None:
        """Watch a process that somebody else has started; 0: its number is not known yet."""
        self.process, self.pid = None, pid
        self.saw_life()

    def progress(self) -> None:
        """The process delivered a batch: earlier restarts no longer count, but for late crashes."""
        self.trim_log()
        self._in_a_row = 0
        if self._crashes:
            self._since_crash += 1
            if self._since_crash >= PAST_BATCHES:
                self._crashes = 0

    def how_it_ended(self, within_s: float) -> str:
        """Describe how it ended by itself; "" where it is not ours, or has not ended in time."""
        if self.process is None or not waited(self.process, within_s):
            return ""
        return describe_end(self.process.returncode)

    def kill(self) -> None:
        """Kill it where it still runs."""
        if self.process is not None:
            self.process.kill()
        elif runs(self.pid, self.module):  # not another process that has got its number since
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it where it still runs; one of ours is waited for until it can write no more.

        It can write no more when it is gone, or when all its threads wait inside the kernel, mostly
        for a disk. A killed thread runs no instruction of its program after such a wait.

        Raises:
            WorkerError: it can still write after a long time.
        """
        self.kill()
        process, deadline = self.process, time.monotonic() + _KILL_S
        while process is not None and not waited(process, _GONE_S):
            if waits_in_kernel(process.pid):
                logger.warning(
                    "%s (process %d) was killed and waits inside the kernel, mostly for a disk: "
                    "check whether the data's file system answers",
                    self.what,
                    process.pid,
                )
                _left.append(process)
                break
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"{self.what} (process {process.pid}) was killed and has not ended for "
                    f"{_KILL_S:.0f} s",
                    remedy=f"check what it waits for (cat /proc/{process.pid}/task/*/stack), then "
                    "start the run again",
                )
        _left[:] = [one for one in _left if one.poll() is None]

    def leave(self) -> None:
        """Leave it to the others that it serves."""
        if self.process is not None and not waited(self.process, _REAP_S):
            _left.append(self.process)
        _left[:] = [one for one in _left if one.poll() is None]

    def try_again(self, reason: str, *, out_of_memory: bool = False, counts: bool = True) -> None:
        """Count an end of the process, for this reason; returns where it may be started again.

        One that ended for the next one to begin ``counts`` for nothing.

        Raises:
            WorkerError: the process has failed too often in a row.
        """
        self._in_a_row += counts
        if counts and self._crashed:
            self._crashes, self._since_crash = self._crashes + 1, 0
        if max(self._in_a_row, self._crashes) <= MAX_RESTARTS:
            logger.warning("%s is started again: %s", self.what, reason)
            return
        lines = last_lines(self._log, _LAST_LINES)
        printed = f"; it printed last:\n{lines}" if lines else ""
        remedy = self.remedy
        smaller = "set smaller knobs, such as decode_threads"
        if out_of_memory:
            remedy = f"free memory, or {smaller}: the kernel ended it for want of memory"
        elif "SIGKILL" in reason:
            remedy = (
                "find out who killed it: the kernel for want of memory (dmesg says so; then "
                f"{smaller}), a job scheduler, or a person"
            )
        often = f"{many(self._in_a_row, 'time')} in a row without a batch"
        if self._in_a_row <= MAX_RESTARTS:
            apart = f"less than {PAST_BATCHES} batches after the one before"
            often = f"{self._crashes} times by a crash or an error of its own, each {apart}"
        raise WorkerError(f"{self.what} ended {often}; last: {reason}{printed}", remedy=remedy)

    @property
    def _crashed(self) -> bool:
        """True if it ended by its own fault."""
        code = None if self.process is None else self.process.poll()
        return code is not None and (code > 0 or -code in _CRASHES)

    def trim_log(self) -> None:
        """Keep the end alone of what it wrote, which lies in memory; it writes on at its offset."""
        if self._log >= 0 and os.fstat(self._log).st_blocks * 512 > _MOST_LOG_BYTES:
            size, end = _end_of(self._log)
            os.ftruncate(self._log, 0)
            os.pwrite(self._log, end, size - len(end))

    def close(self) -> None:
        """Forget what it printed; the process is ended before."""
        if self._log >= 0:
            os.close(self._log)
            self._log = -1


def runs(pid: int, module: str) -> bool:
    """True if a process runs this module of the package."""
    with contextlib.suppress(OSError):
        return module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def describe_end(code: int) -> str:
    """Describe a process's end by its return code (negative: a signal)."""
    if code >= 0:
        return f"it exited with status {code}"
    with contextlib.suppress(ValueError):
        return f"it was killed by {signal.Signals(-code).name}"
    return f"it was killed by signal {-code}"


def waited(process: subprocess.Popen[bytes], within_s: float) -> bool:
    """True if a process of ours ends in time."""
    try:
        process.wait(max(0.0, within_s))
    except subprocess.TimeoutExpired:
        return False
    return True


def last_lines(descriptor: int, count: int) -> str:
    """The last lines of a file that a process writes, without empty ones."""
    text = _end_of(descriptor)[1].strip(b"\0").decode("utf-8", "replace")
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join([line for line in lines if line][-count:])


def _end_of(descriptor: int) -> tuple[int, bytes]:
    """Size of a file, and its end."""
    size = os.fstat(descriptor).st_size
    return size, os.pread(descriptor, _LAST_BYTES, max(0, size - _LAST_BYTES))
