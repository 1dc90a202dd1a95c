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

The child tells its progress over a connection, one JSON object a message; the parent never writes.

Two tuners of one host would each measure the other's load. So a measurement holds the lock of a
file of this user on this host. The next one waits until its study's time is up, and says for whom.

Not here: which knobs (``search_space``), what a trial's rate means to the study (``study``).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
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
from autoloader.host.clock import Clock
from autoloader.host.files import Waiting, locked, own_folder, runtime_folder
from autoloader.host.frozen import frozen
from autoloader.host.processes import ProcessorProbe
from autoloader.host.supervision import describe_end, last_lines
from autoloader.host.threads import end_with
from autoloader.host.units import format_bytes
from autoloader.spec.knobs import Knobs

logger = logging.getLogger(__name__)

PERIOD_S = 0.1
"""Seconds between two readings of headroom: fresh pages come at 0.4 GiB/s."""

_LAST_LINES = 6
_OOM_SCORE_ADJ = "500"
"""If the kernel must kill something, it is the trial."""


class Outcome(str, Enum):
    """End of a trial; the four counts of ``tune --json``."""

    COMPLETE = "complete"
    PRUNED = "pruned"
    INFEASIBLE = "infeasible"
    FAILED = "failed"


@frozen
class TrialResult:
    """Result of one trial.

    Attributes:
        outcome: end of the trial, such as complete.
        duration_s: wall seconds from start to end of the child.
        samples_per_s: measured rate; ``None`` unless complete.
        peak_rss_bytes: bytes that the loader added at its peak; ``None``: not known.
        min_headroom_bytes: lowest headroom seen by parent or child; ``None`` if never read.
        reason: reason why the trial did not complete, for people.
        exit_code: the child's, negative for a signal; ``None`` when the parent ended it.
        measurement: the child's whole JSON document.
        busy: other processes took so much of the processors that the rate says little.
    """

    outcome: Outcome
    duration_s: float = 0.0
    samples_per_s: float | None = None
    peak_rss_bytes: int | None = None
    min_headroom_bytes: int | None = None
    reason: str = ""
    exit_code: int | None = None
    measurement: Mapping[str, Any] | None = None
    busy: bool = False

    @property
    def others_cpus(self) -> float | None:
        """Processors that other processes used while it was measured; ``None``: not known."""
        return ((self.measurement or {}).get("trace") or {}).get("others_cpus")


@frozen
class TrialProgress:
    """Progress of a measurement.

    Attributes:
        batches: measured batches so far, warm-up not counted.
        samples_per_s: rate since the warm-up ended.
    """

    batches: int
    samples_per_s: float


TrialWatch = Callable[[TrialProgress | None, int | None], bool]
"""Called with progress, if any, and headroom in bytes; false stops the trial as pruned."""


class Measurer(Protocol):
    """Measures one knob set; ``TrialRunner`` in earnest, a fake in tests."""

    def __call__(self, knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult: ...


def knob_arguments(knobs: Knobs) -> list[str]:
    """``--set`` arguments that give exactly ``knobs``, whatever profile they lie over."""
    return [word for name, value in knobs.flat().items() for word in ("--set", f"{name}={value}")]


def start_error(first: TrialResult) -> AutoloaderError:
    """Why a study cannot begin, from what became of its start."""
    if first.outcome is Outcome.INFEASIBLE:
        return BudgetInfeasibleError(
            f"the knobs to start from would leave less than the RAM floor free: {first.reason}",
            remedy="free memory, lower --ram-floor, or start from a profile that takes less memory",
        )
    what = f"the start could not be measured: {first.reason}"
    remedy = "`autoloader measure` with the same --spec and profile shows the whole error"
    if first.reason.startswith("--budget ran out"):
        remedy = "wait until that process ends, end it, or give a longer --budget"
    for kind in (UsageError, SourceError):
        if first.exit_code == kind.exit_code:
            return kind(what, remedy=remedy)
    return PipelineError(what, remedy=remedy, stage="measure")


@dataclass(eq=False)
class TrialRunner:
    """Runs measuring children, one at a time, each under the floor.

    Attributes:
        command: the child's command line, without knobs.
        floor_bytes: headroom that must remain.
        headroom: reads headroom in bytes; ``None`` when it cannot be read.
        clock: time source of timeouts and durations.
        period_s: seconds between two readings.
    """

    command: Sequence[str]
    floor_bytes: int
    headroom: Callable[[], int | None]
    clock: Clock = field(default_factory=Clock)
    period_s: float = PERIOD_S

    def __call__(self, knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        """Measure ``knobs`` in a child.

        Args:
            knobs: knob set to measure; legal for the pipeline.
            timeout_s: a child that takes longer has failed.
            watch: told of progress and headroom; may stop the trial.
        """
        room = _Room(self.headroom, self.floor_bytes)
        if room.least_bytes is not None and room.least_bytes < self.floor_bytes:
            return TrialResult(
                Outcome.INFEASIBLE,
                min_headroom_bytes=room.least_bytes,
                reason=f"headroom was {format_bytes(room.least_bytes)} before the trial began",
            )
        began_s = self.clock.now_s()
        ours, theirs = Pipe()
        with ours, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with theirs:
                progress = ["--progress-fd", str(theirs.fileno())]
                child = subprocess.Popen(
                    [*self.command, *knob_arguments(knobs), *progress],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env=_child_environment(),
                )
            try:
                _pass_on_priority(child.pid)
                stopped = self._follow(child, ours, room, watch, began_s + timeout_s)
            finally:
                _end_group(child)
            code, document = child.returncode, None
            if stopped is None:
                outcome, reason, document = _read_exit(code, out, err)
            else:
                (outcome, reason), code = stopped, None
        told = document or {}
        seen = (room.least_bytes, told.get("min_headroom_bytes"))
        return TrialResult(
            outcome=outcome,
            duration_s=self.clock.now_s() - began_s,
            samples_per_s=told.get("samples_per_s"),
            peak_rss_bytes=told.get("peak_rss_bytes"),
            min_headroom_bytes=min((one for one in seen if one is not None), default=None),
            reason=reason,
            exit_code=code,
            measurement=document,
        )

    def _follow(
        self,
        child: subprocess.Popen[bytes],
        link: Connection,
        room: _Room,
        watch: TrialWatch,
        deadline_s: float,
    ) -> tuple[Outcome, str] | None:
        """Watch the child until it ends (``None``) or has to be ended (outcome and reason)."""
        began_s = next_reading_s = self.clock.now_s()
        while True:
            progress = self._heard(child, link)
            if progress is not None and not watch(progress, room.last_bytes):
                return Outcome.PRUNED, f"stopped at batch {progress.batches}: too slow"
            now_s = self.clock.now_s()
            if now_s >= next_reading_s:
                next_reading_s = now_s + self.period_s
                if breach := room.read():
                    return Outcome.INFEASIBLE, breach
                if not watch(None, room.last_bytes):
                    return Outcome.PRUNED, "stopped by the study"
            if progress is None and child.poll() is not None:
                return None
            if now_s > deadline_s:
                return Outcome.FAILED, f"no result within {max(0.0, deadline_s - began_s):.0f} s"

    def _heard(self, child: subprocess.Popen[bytes], link: Connection) -> TrialProgress | None:
        """Progress that the child tells within a period; ``None`` for silence."""
        try:
            if not link.poll(self.period_s):
                return None
            return TrialProgress(**json.loads(link.recv_bytes()))
        except (EOFError, OSError):  # closed: the child is about to end; wait without spinning
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=self.period_s)
            return None


class _Room:
    """Headroom while a trial runs."""

    def __init__(self, headroom: Callable[[], int | None], floor_bytes: int) -> None:
        self._headroom = headroom
        self._floor_bytes = floor_bytes
        self.least_bytes = self.last_bytes = headroom()

    def read(self) -> str:
        """Take a reading; the reason to stop where the next would lie below the floor, else ""."""
        now_bytes = self._headroom()
        if now_bytes is None:
            return ""
        falls = max(0, (self.last_bytes or now_bytes) - now_bytes)
        self.last_bytes = now_bytes
        self.least_bytes = min(now_bytes, self.least_bytes or now_bytes)
        if now_bytes - falls >= self._floor_bytes:
            return ""
        return (
            f"headroom {format_bytes(now_bytes)}, falling {format_bytes(falls)} a reading, "
            f"floor {format_bytes(self._floor_bytes)}"
        )


def _read_exit(
    code: int, out: IO[bytes], err: IO[bytes]
) -> tuple[Outcome, str, Mapping[str, Any] | None]:
    """(outcome, reason, measurement) of a measuring child that has ended."""
    out.seek(0)
    document: Any = None
    with contextlib.suppress(ValueError):
        document = json.loads(out.read())
    told: dict[str, Any] = document if isinstance(document, dict) else {}
    if code == 0 and isinstance(told.get("samples_per_s"), (int, float)):
        return Outcome.COMPLETE, "", told
    if code == 0:
        return Outcome.FAILED, "the child ended well but left no measurement", None
    said = told.get("error", {}).get("what") or last_lines(err.fileno(), _LAST_LINES)
    if code == BudgetInfeasibleError.exit_code:
        return Outcome.INFEASIBLE, said or "the floor cannot be met with these knobs", None
    if code < 0:
        why = "by the kernel for memory?" if code == -signal.SIGKILL else said
        return Outcome.FAILED, f"the child ended: {describe_end(code)}: {why}", None
    return Outcome.FAILED, said or f"the child ended with exit code {code}", None


def _child_environment() -> dict[str, str]:
    """The worker's environment: no GPU, few malloc arenas, no TensorFlow chatter.

    Nor records where nobody asks for them: a study's would push those of runs out of the ring.
    """
    return {
        **supervision.environment(),
        "CUDA_VISIBLE_DEVICES": "",
        "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", "2"),
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
        "AUTOLOADER_RUN_DIR": os.environ.get("AUTOLOADER_RUN_DIR", "off"),
    }


def _pass_on_priority(pid: int) -> None:
    """Give a child this session's priority: the kernel schedules its session at no priority."""
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


@contextlib.contextmanager
def progress_to(descriptor: int) -> Iterator[Callable[[TrialProgress], None]]:
    """The child's end: gives what tells the study of progress; this process ends with the study's.

    Args:
        descriptor: descriptor of the inherited connection; closed here.
    """
    with Connection(descriptor) as link:
        end_with(os.getppid())
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_ADJ)
        if link.poll():  # the study never writes, so it has ended
            os._exit(70)

        def tell(progress: TrialProgress) -> None:
            with contextlib.suppress(OSError):  # the study is gone, and this process about to be
                link.send_bytes(json.dumps(asdict(progress)).encode())

        yield tell


def others_cpus(clock: Clock) -> float | None:
    """Processors that other processes use, over a second or two; ``None``: not known."""
    probe = ProcessorProbe()
    for _ in range(2):  # what is this process's children's is known from the second reading on
        clock.sleep(1.0)
        used = probe.read()
        if used is not None and used.others is not None:
            return used.others
    return None


def by_turns(
    measure: Measurer, clock: Clock, deadline_s: float, lock: Path | None = None
) -> Measurer:
    """Measures with ``measure``, when no other tuner of this host does.

    A timeout begins with the turn, and ends with the study.

    Args:
        measure: measures one knob set.
        clock: time source that waits are measured by.
        deadline_s: second of the clock at which the study ends.
        lock: a file of the host; default: one in the user's runtime folder.
    """

    def measured(knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        def pause(seconds: float) -> None:
            watch(None, None)  # whoever looks on sees that time passes
            clock.sleep(seconds)

        waits = Waiting(
            "a measurement (a host runs one at a time)",
            deadline_s - clock.now_s(),
            say=logger.warning,
            now_s=clock.now_s,
            sleep=pause,
        )
        with contextlib.ExitStack() as turn:
            try:
                path = lock or own_folder(runtime_folder()) / "tune.lock"
                turn.enter_context(locked(path, waits))
            except UsageError as late:
                reason = f"--budget ran out: {late.what}"
                return TrialResult(Outcome.FAILED, reason=reason, exit_code=late.exit_code)
            except OSError as error:  # another user's, or no room: better measured than not
                logger.warning("tuners of this host do not take turns: %s", error)
            left_s = max(deadline_s - clock.now_s(), 0.0)
            return measure(knobs, timeout_s=min(timeout_s, left_s), watch=watch)

    return measured
