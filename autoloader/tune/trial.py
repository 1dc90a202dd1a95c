"""One trial: a measurement in a child process, watched under the RAM floor.

The child is ``autoloader measure --json`` in a session of its own. The parent reads
headroom ten times a second. When the next reading would lie below the floor, the whole group is
killed and the trial is *infeasible*. A child that the kernel or a crash ends is a *failed* trial,
never a dead study. Ctrl-C, a timeout or an error here end the group as well, at once: the child
keeps nothing that is worth a gentle end.

Invariants (test names echo them):
1. ``run`` never returns or raises while the child's group lives.
2. A child that did not report a measurement never completes a trial.
3. The child ends when this process does, whatever ended it.

The child tells of its progress over a socket: it writes one JSON object per line; the parent never
writes. So a read in the child returns
only when the parent is gone, and that ends the child: no trial outlives its study, whatever killed
it.

Two tuners of one host would each measure the other's load. So a measurement
holds the lock of a file of this user on this host; the next one waits, and says for whom.

Not here: which knobs (``search_space``), what a trial's rate means to the study (``study``).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any, Protocol

from autoloader.errors import (
    AutoloaderError,
    BudgetInfeasibleError,
    PipelineError,
    SourceError,
    UsageError,
)
from autoloader.host import supervision
from autoloader.host.clock import Clock, SystemClock
from autoloader.host.files import Waiting, locked, own_folder, runtime_folder
from autoloader.host.supervision import describe_end, last_lines
from autoloader.host.units import format_bytes
from autoloader.spec.knobs import Knobs

logger = logging.getLogger(__name__)

PERIOD_S = 0.1
"""Seconds between two readings of headroom; design §6 (fresh pages come at 0.4 GiB/s)."""

NEIGHBOUR_CPUS = 0.25
"""Processors of others above which a measurement is marked, and repeated where there is time."""

_LAST_LINES, _KEPT_LINES = 6, 40
_OOM_SCORE_ADJ = "500"


class Outcome(str, Enum):
    """End of a trial; the four counts of ``tune --json``."""

    COMPLETE = "complete"
    PRUNED = "pruned"
    INFEASIBLE = "infeasible"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Result of one trial.

    Attributes:
        outcome: end of the trial, such as complete.
        duration_s: wall seconds from start to end of the child.
        samples_per_s: measured rate; ``None`` unless complete.
        peak_rss_bytes: what the loader added at its peak, where the child could say.
        min_headroom_bytes: lowest headroom seen by parent or child; ``None`` if never read.
        cpu_s_per_sample: processor seconds per sample, where the child could say.
        reason: why it did not complete, for people.
        exit_code: the child's, negative for a signal; ``None`` when the parent ended it.
        measurement: the child's whole JSON document.
        repeats: a neighbour was busy, so this is the quieter of so many measurements more.
        stderr: the end of what the child wrote there; "" where it completed.
    """

    outcome: Outcome
    duration_s: float = 0.0
    samples_per_s: float | None = None
    peak_rss_bytes: int | None = None
    min_headroom_bytes: int | None = None
    cpu_s_per_sample: float | None = None
    reason: str = ""
    exit_code: int | None = None
    measurement: Mapping[str, Any] | None = None
    repeats: int = 0
    stderr: str = ""

    @property
    def others_cpus(self) -> float | None:
        """Processors that other processes used while it was measured; ``None``: not known."""
        trace = (self.measurement or {}).get("trace") or {}
        return trace.get("others_cpus")

    @property
    def busy(self) -> bool:
        """True if a neighbour was busy meanwhile."""
        return (self.others_cpus or 0.0) > NEIGHBOUR_CPUS


class TrialWatch(Protocol):
    """Callbacks of a study while a trial runs."""

    def __call__(self, progress: TrialProgress | None, headroom_bytes: int | None) -> bool:
        """Called on each progress (or ``None`` at a reading); false stops the trial as pruned."""
        ...


class Measurer(Protocol):
    """Measures one knob set; ``TrialRunner`` in earnest, a fake in tests."""

    def __call__(self, knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult: ...


def measure_command(
    spec_path: str | os.PathLike[str],
    *,
    profile: str | None,
    split: str,
    warmup: int,
    batches: int,
    floor_bytes: int,
    step_time_s: float = 0.0,
    settings: Sequence[str] = (),
) -> list[str]:
    """The command line of a measuring child, without its knobs."""
    command = supervision.command("autoloader", ["measure", "--json"])
    command += ["--spec", str(spec_path), "--split", split]
    command += ["--warmup", str(warmup), "--batches", str(batches), "--settle"]
    if step_time_s > 0:
        command += ["--step-time", f"{step_time_s:g}s"]
    command += ["--ram-floor", str(floor_bytes)]
    if profile is not None:
        command += ["--profile", profile]
    return [*command, *(word for setting in settings for word in ("--set", setting))]


def knob_arguments(knobs: Knobs) -> list[str]:
    """``--set`` arguments that give exactly ``knobs``, whatever profile they lie over."""
    arguments: list[str] = []
    for name, value in knobs.flat().items():
        arguments += ["--set", f"{name}={value}"]
    return arguments


def start_error(first: TrialResult) -> AutoloaderError:
    """Why a study cannot begin, from what became of its start."""
    if first.outcome is Outcome.INFEASIBLE:
        return BudgetInfeasibleError(
            f"the start itself does not keep the RAM floor: {first.reason}",
            remedy="free memory, lower --ram-floor, or start from a smaller profile",
        )
    what = f"the start could not be measured: {first.reason}"
    remedy = "`autoloader measure` with the same --spec and profile shows the whole error"
    if first.exit_code == UsageError.exit_code:
        return UsageError(what, remedy=remedy)
    if first.exit_code == SourceError.exit_code:
        return SourceError(what, remedy=remedy)
    if first.exit_code is None:  # it was ended here, since time was up
        remedy = "give a longer --budget, or fewer --batches; " + remedy
    return PipelineError(what, remedy=remedy, stage="measure")


class TrialRunner:
    """Runs measuring children, one at a time, each under the floor.

    Args:
        command: the child's command line, without knobs.
        floor_bytes: headroom that must remain.
        headroom: reads headroom in bytes; ``None`` when it cannot be read.
        clock: for timeouts and durations.
        period_s: seconds between two readings.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        floor_bytes: int,
        headroom: Callable[[], int | None],
        clock: Clock | None = None,
        period_s: float = PERIOD_S,
    ) -> None:
        self._command = list(command)
        self._floor_bytes = floor_bytes
        self._headroom = headroom
        self._clock = clock or SystemClock()
        self._period_s = period_s

    def __call__(self, knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        """Measure ``knobs`` in a child.

        Args:
            knobs: what to measure; legal for the pipeline.
            timeout_s: a child that takes longer has failed.
            watch: told of progress and headroom; may stop the trial.
        """
        before = self._headroom()
        if before is not None and before < self._floor_bytes:
            return TrialResult(
                Outcome.INFEASIBLE,
                min_headroom_bytes=before,
                reason=f"headroom was {format_bytes(before)} before the trial began",
            )
        ours, theirs = socket.socketpair()
        with (
            ours,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            with theirs:
                command = [*self._command, *knob_arguments(knobs)]
                command += ["--progress-fd", str(theirs.fileno())]
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env=_child_environment(),
                )
            run = _Run(child, ours, self._clock, self._floor_bytes, before)
            try:
                _prefer_for_oom_kill(child.pid)
                _pass_on_priority(child.pid)
                stopped = run.follow(self._headroom, watch, timeout_s, self._period_s)
            finally:
                _end_group(child)
            return run.result(stopped, out, err)


class _Run:
    """The life of one child: what was heard and read while it ran."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        link: socket.socket,
        clock: Clock,
        floor_bytes: int,
        headroom_bytes: int | None,
    ) -> None:
        self._child = child
        self._link = link
        self._clock = clock
        self._floor_bytes = floor_bytes
        self._started_s = clock.now_s()
        self._least_bytes = headroom_bytes
        self._last_bytes = headroom_bytes
        self._cost_cpu_s: float | None = None

    def follow(
        self,
        headroom: Callable[[], int | None],
        watch: TrialWatch,
        timeout_s: float,
        period_s: float,
    ) -> tuple[Outcome, str] | None:
        """TrialWatch until the child ends (``None``) or has to be ended (outcome and reason)."""
        lines = ProgressLines()
        self._link.settimeout(period_s)
        next_reading_s = self._clock.now_s()
        while True:
            data = self._receive(period_s)
            for progress in lines.feed(data or b""):
                if progress.cpu_s_per_sample is not None:
                    self._cost_cpu_s = progress.cpu_s_per_sample
                if not watch(progress, self._last_bytes):
                    return Outcome.PRUNED, f"stopped at batch {progress.batches}: too slow"
            now_s = self._clock.now_s()
            if now_s >= next_reading_s:
                next_reading_s = now_s + period_s
                breach = self._read(headroom())
                if breach:
                    return Outcome.INFEASIBLE, breach
                if not watch(None, self._last_bytes):
                    return Outcome.PRUNED, "stopped by the study"
            if not data and self._child.poll() is not None:
                return None
            if now_s - self._started_s > timeout_s:
                return Outcome.FAILED, f"no result within {timeout_s:.0f} s"

    def _receive(self, period_s: float) -> bytes | None:
        """Bytes from the child: ``b""`` when it has closed its end, ``None`` for silence."""
        try:
            data = self._link.recv(65_536)
        except TimeoutError:
            return None
        except OSError:
            data = b""
        if not data:  # closed: the child is about to end; wait for that without spinning
            try:
                self._child.wait(timeout=period_s)
            except subprocess.TimeoutExpired:
                return b""
        return data

    def _read(self, now_bytes: int | None) -> str:
        """Take one reading; a text when the next one would lie below the floor."""
        if now_bytes is None:
            return ""
        falls = max(0, (self._last_bytes or now_bytes) - now_bytes)
        self._last_bytes = now_bytes
        if self._least_bytes is None or now_bytes < self._least_bytes:
            self._least_bytes = now_bytes
        if now_bytes - falls >= self._floor_bytes:
            return ""
        return (
            f"headroom {format_bytes(now_bytes)}, falling {format_bytes(falls)} a reading, "
            f"floor {format_bytes(self._floor_bytes)}"
        )

    def result(
        self, stopped: tuple[Outcome, str] | None, out: IO[bytes], err: IO[bytes]
    ) -> TrialResult:
        """The trial's result, from how it stopped or what the ended child left."""
        code = None if stopped else self._child.returncode
        outcome, reason, document = (
            (*stopped, None) if stopped else _read_exit(self._child.returncode, out, err)
        )
        least = self._least_bytes
        if document is not None:
            theirs = document.get("min_headroom_bytes")
            least = min((b for b in (least, theirs) if b is not None), default=None)
        return TrialResult(
            outcome=outcome,
            duration_s=self._clock.now_s() - self._started_s,
            samples_per_s=document["samples_per_s"] if document else None,
            peak_rss_bytes=document.get("peak_rss_bytes") if document else None,
            min_headroom_bytes=least,
            cpu_s_per_sample=self._cost_cpu_s,
            reason=reason,
            exit_code=code,
            measurement=document,
            stderr="" if document else last_lines(err.fileno(), _KEPT_LINES),
        )


def _read_exit(
    code: int, out: IO[bytes], err: IO[bytes]
) -> tuple[Outcome, str, Mapping[str, Any] | None]:
    if code == 0:
        out.seek(0)
        try:
            document = json.loads(out.read())
            float(document["samples_per_s"])
        except (ValueError, KeyError, TypeError):
            return Outcome.FAILED, "the child ended well but left no measurement", None
        return Outcome.COMPLETE, "", document
    said = _told_error(out) or last_lines(err.fileno(), _LAST_LINES)
    if code == BudgetInfeasibleError.exit_code:
        return Outcome.INFEASIBLE, said or "the floor cannot be met with these knobs", None
    if code < 0:
        why = "by the kernel for memory?" if code == -signal.SIGKILL else said
        return Outcome.FAILED, f"the child ended: {describe_end(code)}: {why}", None
    return Outcome.FAILED, said or f"the child ended with exit code {code}", None


def _told_error(out: IO[bytes]) -> str:
    """Error in the child's JSON document; empty without one."""
    out.seek(0)
    try:
        return str(json.loads(out.read())["error"]["what"])
    except (ValueError, KeyError, TypeError):
        return ""


def _child_environment() -> dict[str, str]:
    """The worker's environment: no GPU, few malloc arenas (design §4), no TensorFlow chatter.

    Nor records where nobody asks for them: a study's would push those of runs out of the ring.
    """
    return {
        **supervision.environment(),
        "CUDA_VISIBLE_DEVICES": "",
        "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", "2"),
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
        "AUTOLOADER_RUN_DIR": os.environ.get("AUTOLOADER_RUN_DIR", "off"),
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }


def _prefer_for_oom_kill(pid: int) -> None:
    """If the kernel must kill something, it is the trial."""
    try:
        Path(f"/proc/{pid}/oom_score_adj").write_text(_OOM_SCORE_ADJ)
    except OSError as error:
        logger.debug("oom_score_adj of trial child %d not set: %s", pid, error)


def _pass_on_priority(pid: int) -> None:
    """A session of its own is scheduled as a group of its own, which begins at no priority."""
    try:
        mine = Path("/proc/self/autogroup").read_text().split()[-1]
        Path(f"/proc/{pid}/autogroup").write_text(mine)
    except (OSError, IndexError) as error:  # a kernel without them, or one that does not let us
        logger.debug("priority of trial child %d not set: %s", pid, error)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """End the child and all it started; returns when the child is reaped."""
    with contextlib.suppress(ProcessLookupError):  # the group is gone
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """Progress of a measurement.

    Attributes:
        batches: measured batches so far, warm-up not counted.
        samples_per_s: rate since the warm-up ended.
        cpu_s_per_sample: processor seconds spent per sample since then; ``None`` if not measured.
    """

    batches: int
    samples_per_s: float
    cpu_s_per_sample: float | None = None


def end_own_group() -> None:
    """End this process at once, with its group where it leads one."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(70)


class ProgressWriter:
    """The child's end, over an inherited socket.

    Args:
        descriptor: the socket's file descriptor; owned from here on.
        parent_gone: called once, in a thread of its own, when the other end has closed.
    """

    def __init__(self, descriptor: int, parent_gone: Callable[[], None] = end_own_group) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._parent_gone = parent_gone
        self._closed = False
        self._watch = threading.Thread(target=self._wait_for_end, name="parent-watch", daemon=True)
        self._watch.start()

    def send(self, progress: TrialProgress) -> None:
        """Tell the parent; a parent that is gone is the watching thread's business."""
        line = json.dumps(asdict(progress)) + "\n"
        try:
            self._socket.sendall(line.encode())
        except OSError:
            return

    def close(self) -> None:
        """Stop watching and close; the parent may go now."""
        self._closed = True
        with contextlib.suppress(OSError):  # the other end closed first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._watch.join()
        self._socket.close()

    def _wait_for_end(self) -> None:
        try:
            while self._socket.recv(4096):
                pass
        except OSError:
            pass  # a reset is an end too
        if not self._closed:
            self._parent_gone()


class ProgressLines:
    """The parent's end: turns received bytes into ``TrialProgress``; foreign lines are skipped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[TrialProgress]:
        """The messages that ``data`` completes, in order."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            try:
                raw = json.loads(line)
                cost = raw.get("cpu_s_per_sample")
                found.append(
                    TrialProgress(
                        batches=int(raw["batches"]),
                        samples_per_s=float(raw["samples_per_s"]),
                        cpu_s_per_sample=None if cost is None else float(cost),
                    )
                )
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
        return found


_LONGEST_S = 3600.0
"""Of one measurement of another tuner, or twice of one of ours."""


class HostTurns:
    """Measures with ``measure``, when no other tuner of this host does.

    Args:
        measure: measures one knob set.
        clock: time source that waits are measured by.
        lock: a file of the host; default: one in the user's runtime folder.
    """

    def __init__(self, measure: Measurer, clock: Clock, lock: Path | None = None) -> None:
        self._measure = measure
        self._clock = clock
        self._lock = lock

    def __call__(self, knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        """Measure ``knobs``; the timeout begins with the turn.

        Raises:
            UsageError: another tuner keeps the turn for too long.
        """
        with self._turn(timeout_s, watch):
            return self._measure(knobs, timeout_s=timeout_s, watch=watch)

    @contextlib.contextmanager
    def _turn(self, timeout_s: float, watch: TrialWatch) -> Iterator[None]:
        def pause(seconds: float) -> None:
            watch(None, None)  # whoever looks on sees that time passes
            self._clock.sleep(seconds)

        waits = Waiting(
            "a measurement",
            max(_LONGEST_S, 2 * timeout_s),
            say=lambda words: logger.warning("%s: one tuner of a host measures at a time", words),
            now_s=self._clock.now_s,
            sleep=pause,
        )
        with contextlib.ExitStack() as turn:
            try:
                lock = self._lock or own_folder(runtime_folder()) / "tune.lock"
                turn.enter_context(locked(lock, waits))
            except OSError as error:  # another user's, or no room: better measured than not
                logger.warning("tuners of this host do not take turns: %s", error)
            yield
