"""Files in which runs say what they do: the latest snapshot, and the record that a run leaves.

Latest snapshot. The process of a pipeline writes its snapshot about once a second to a file of its
own in the user's runtime folder, by rename. So a reader never sees half of a snapshot, takes no
lock and wakes no process. A loader that closes removes its file. The file of a killed loader is
removed by the next reader, once the processes that it names are gone.

Record. Each pipeline of a run has a file of JSON lines in the run's folder. A ``start`` line holds
facts, a ``bad`` line one quarantined record. A ``moment`` line holds the fields of a snapshot that
differ from the line before. An ``end`` line is the last one of a run that was not killed. A child
that is started again writes another ``start``.

Lines come further apart as a run gets older: two weeks take 5,000 lines. A moment in which knobs
moved, the floor was crossed, or state or phase changed is always written.

Without a folder of the user's choice, records go to a small ring in the cache directory. A short
run leaves nothing there. The policy's thread writes both kinds of files.

Not here: the fields of a snapshot (``telemetry.statistics``), what is concluded from a record
(``cli.report``).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from autoloader.errors import AutoloaderError, UsageError
from autoloader.host.files import (
    check_own_folder,
    own_folder,
    remove_leftovers,
    runtime_folder,
    write_whole,
)
from autoloader.telemetry.lines import LineLog, read_lines
from autoloader.telemetry.statistics import SCHEMA_VERSION as SNAPSHOT_VERSION
from autoloader.telemetry.statistics import Move, Statistics, encoded

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 2
VARIABLE = "AUTOLOADER_RUN_DIR"
"""Environment variable: the folder that runs leave their records in; unset: the ring."""
RING_AFTER_S = 3.0
"""A run that is over before leaves nothing in the ring."""
RING_RUNS = 20
RING_BYTES = 64 * 2**20
_OLDER = 600
"""A line for every 600th part of a run's age, and no more than one a second."""
_DATASETS_EVERY = 10
"""Lines for one that says how each dataset stands: they are most of a snapshot's bytes."""
_FRESH_S = 5.0
"""A snapshot so young is of a running loader, whoever can see its process."""
_AGAIN_S = 60.0
"""So long a trainer may take to start its child again."""
_CLOCK_S = 5.0
"""What the clock may have been set by since a process began."""
_REMEDY = (
    "name a run that `autoloader report` lists, or a folder to which a run wrote its record "
    "(environment variable AUTOLOADER_RUN_DIR)"
)


@dataclass(eq=False)
class RunLog:
    """Writes the record of one pipeline; see ``process.observer.Sink``.

    Attributes:
        path: the file; appended to.
        facts: function that gives facts of the start; called with the first line.
        bad: plain values of the records that are quarantined now.
        in_ring: whether it is one of the ring's: nothing is written before the pipeline is
            ``RING_AFTER_S`` old, and then the oldest records go.
    """

    path: Path
    facts: Callable[[], Mapping[str, Any]]
    bad: Callable[[], Sequence[Mapping[str, Any]]]
    in_ring: bool = False
    _after_s: float = 0.0
    _lines: LineLog | None = None
    _failed: bool = False
    _held: list[Statistics] = field(default_factory=list)
    _said: dict[str, Any] = field(default_factory=dict)
    _last: Statistics | None = None
    _seen: Statistics | None = None
    _written: int = 0
    _bad_said: int = 0

    def __post_init__(self) -> None:
        # A child that was started again goes on with what the one before has begun.
        if self.in_ring and not os.path.exists(self.path):
            self._after_s = RING_AFTER_S

    def write(self, moment: Statistics) -> None:
        """Keep ``moment``, where it is time for one or something happened."""
        if self._failed:
            return
        self._seen = moment
        if self._last is not None and not is_due(self._last, moment):
            return
        self._last = moment
        self._held.append(moment)
        if self._lines is None and moment.at_s - moment.started_at_s >= self._after_s:
            self._begin()
        if self._lines is not None:
            for one in self._held:
                self._append(self._lines, one)
            self._held.clear()

    def close(self) -> None:
        """The pipeline has ended; may be called twice."""
        if self._lines is not None:
            if self._seen is not None:
                self._written = 0
                self._append(self._lines, self._seen)
            self._lines.write({"kind": "end", "at_s": round(time.time(), 3)})
            self._lines.close()
            self._lines = None
        self._failed = True

    def _begin(self) -> None:
        if self.in_ring:
            prune(self.path.parent.parent)
        try:
            self._lines = LineLog(self.path, {})
        except OSError as error:
            self._failed = True
            logger.warning("no record of this run: %s cannot be written: %s", self.path, error)
            return
        self._lines.write(
            {"kind": "start", "schema_version": SCHEMA_VERSION, "facts": dict(self.facts())}
        )

    def _append(self, lines: LineLog, moment: Statistics) -> None:
        bad = sum(one.quarantined for one in moment.datasets.values())
        if bad > self._bad_said:
            known = list(self.bad())
            for record in known[self._bad_said :]:
                lines.write({"kind": "bad", "at_s": round(moment.at_s, 3), "record": record})
            self._bad_said = len(known)
        left_out = ("datasets",) if self._written % _DATASETS_EVERY else ()
        self._written += 1
        told = {
            name: getattr(moment, name) for name in moment.__slots__ if name not in left_out
        } | {"schema_version": SNAPSHOT_VERSION}
        changed = {
            name: value for name, value in told.items() if self._said.get(name, self) != value
        }
        self._said.update(changed)
        lines.write_text(encoded({"kind": "moment", **changed}))
        if lines.failed is not None:
            logger.warning("the record of this run ends: %s: %s", self.path, lines.failed)
            self._failed = True


def is_due(before: Statistics, moment: Statistics) -> bool:
    """True if a moment is kept; ``before`` is the last one that was kept."""
    age_s = moment.at_s - moment.started_at_s
    # Half a second of grace: moments come about once a second, not exactly.
    # A clock that was set back is no reason to wait until it is there again.
    if not 0 <= moment.at_s - before.at_s < max(0.0, age_s / _OLDER - 0.5):
        return True
    return _marks(before) != _marks(moment)


def _marks(moment: Statistics) -> tuple[object, ...]:
    """Facts of a moment whose change makes the moment worth keeping."""
    above = moment.above_floor_bytes
    last = moment.moves[-1] if moment.moves else None
    return moment.phase, moment.state, above is not None and above < 0, last, moment.knobs


def prune(ring: Path, *, runs: int = RING_RUNS, most_bytes: int = RING_BYTES) -> None:
    """Take the oldest records away, so that there is room for one more.

    Args:
        ring: the folder with one folder for each run.
        runs: number of records that stay, with the one to come.
        most_bytes: most bytes of the records that stay.
    """
    found = []
    with contextlib.suppress(OSError):
        for folder in ring.iterdir():
            files = [file.stat() for file in folder.glob("*.jsonl")]
            if files:
                newest = max(one.st_mtime for one in files)
                found.append((newest, sum(one.st_size for one in files), folder))
    held = 0
    for number, (_, size, folder) in enumerate(sorted(found, reverse=True), start=1):
        held += size
        if number >= runs or held > most_bytes:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class PipelineRecord:
    """Record of one pipeline.

    Attributes:
        path: path of the record's file.
        facts: facts of the start, by name.
        moments: the oldest first; at least one.
        bad: quarantined records of datasets, each with ``at_s``, dataset, path, record and reason.
        ended: whether it was closed; a run that was killed was not.
    """

    path: Path
    facts: Mapping[str, Any]
    moments: tuple[Statistics, ...]
    bad: tuple[Mapping[str, Any], ...] = ()
    ended: bool = False

    @property
    def last(self) -> Statistics:
        """The last moment."""
        return self.moments[-1]

    @functools.cached_property
    def moves(self) -> tuple[Move, ...]:
        """Every time that knobs moved, the oldest first, each as it was known at last."""
        every = (move for moment in self.moments for move in moment.moves)
        found = {(move.at_s, move.by, move.why): move for move in every}
        return tuple(found[key] for key in sorted(found))


def read_pipeline(path: Path) -> PipelineRecord:
    """The record in one file.

    A line that its writer could not end is left out; so is what a later version added.

    Raises:
        UsageError: the file cannot be read, or is no record.
    """
    facts: dict[str, Any] = {}
    bad: list[dict[str, Any]] = []
    said: dict[str, Any] = {}
    moments: dict[float, Statistics] = {}  # the last one is told in full at the end
    ended = False
    try:
        with path.open(encoding="utf-8") as file:
            for _, line in read_lines(file, str(path), version=SCHEMA_VERSION, remedy=_REMEDY):
                kind = line.pop("kind", None)
                if kind == "start":
                    facts, ended, said = dict(line.get("facts") or {}), False, {}
                elif kind == "moment":
                    said.update(line)
                    moment = Statistics.from_dict(said)
                    moments[moment.at_s] = moment
                elif kind == "bad":
                    bad.append({"at_s": line.get("at_s"), **line.get("record", {})})
                elif kind == "end":
                    ended = True
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", remedy=_REMEDY) from error
    if not moments:
        raise UsageError(
            f"{path} is not the record of a run: it holds no measurements", remedy=_REMEDY
        )
    return PipelineRecord(path, facts, tuple(moments.values()), tuple(bad), ended)


def by_age(paths: Iterable[Path]) -> list[Path]:
    """Sort paths, the oldest first, without those that another process removes meanwhile."""
    written_s = {}
    for path in paths:
        with contextlib.suppress(OSError):
            written_s[path] = path.stat().st_mtime
    return sorted(written_s, key=written_s.__getitem__)


def files_of(run: Path) -> list[Path]:
    """The records' files of a run, or of several, the oldest first.

    Args:
        run: a record's file, or a folder with records at any depth.

    Raises:
        UsageError: there is no record.
    """
    if os.path.isfile(run):
        return [run]
    every = (Path(top, name) for top, _, names in os.walk(run) for name in names)
    found = by_age(one for one in every if one.suffix == ".jsonl" and one.name != "decisions.jsonl")
    if not found:
        what = "holds no record of a run" if os.path.isdir(run) else "does not exist"
        raise UsageError(f"{run} {what}", remedy=_REMEDY)
    return found


class RunFile:
    """The file of one running pipeline.

    Args:
        run: the trainer's process (``telemetry.lines.run_name``).
        pipeline: number of the loader in that run.
    """

    def __init__(self, run: str, pipeline: int) -> None:
        self.path = runtime_folder() / f"{run}-{pipeline}.json"
        self._closed = False
        self._failed = ""

    def write(self, moment: Statistics) -> None:
        """Write ``moment``; a failure is logged once for each reason."""
        if self._closed:
            return
        try:
            own_folder(self.path.parent)  # a log-out may have removed it
            write_whole(self.path, moment.to_json())
        except OSError as error:
            if str(error) != self._failed:
                self._failed = str(error)
                logger.info("`autoloader top` cannot see this run: %s", error)

    def close(self) -> None:
        """Remove the file: the pipeline has ended. May be called twice."""
        self._closed = True
        with contextlib.suppress(OSError):
            self.path.unlink()


def living_runs() -> list[Statistics]:
    """The latest snapshot of every loader that runs, by run and pipeline; files of others go."""
    found: list[Statistics] = []
    directory = runtime_folder()
    try:
        check_own_folder(directory)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            logger.warning("no run is shown: %s", error)
        return found
    remove_leftovers(directory, "*.json")
    for path in sorted(directory.glob("*.json")):
        try:
            moment = Statistics.from_json(path.read_bytes())
        except OSError:  # closed meanwhile, or another user's
            continue
        except AutoloaderError as error:
            logger.debug("%s is left alone: %s", path, error)
            continue
        if is_over(moment):
            with contextlib.suppress(OSError):
                path.unlink()
        else:
            found.append(moment)
    return found


def said_last(run: str, pipeline: int) -> Statistics | None:
    """Latest snapshot of a pipeline; ``None`` before the first.

    Args:
        run: name of the trainer's run.
        pipeline: number of the loader in that run.
    """
    with contextlib.suppress(OSError, AutoloaderError):
        return Statistics.from_json((runtime_folder() / f"{run}-{pipeline}.json").read_bytes())
    return None


def is_over(moment: Statistics, now_s: float | None = None) -> bool:
    """True if the loader whose latest snapshot is ``moment`` is gone.

    Args:
        moment: latest snapshot of the loader.
        now_s: present Unix time; ``None``: the system's clock.
    """
    age_s = (time.time() if now_s is None else now_s) - moment.at_s
    if age_s < _FRESH_S or _was_there(moment.worker_pid, moment.at_s):
        return False
    return age_s > _AGAIN_S or not _was_there(moment.trainer_pid, moment.at_s)


def _was_there(pid: int, at_s: float) -> bool:
    """True if a process is there and was then: not another one that got its number since."""
    with contextlib.suppress(psutil.Error, ValueError):
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() < at_s + _CLOCK_S
    return False
