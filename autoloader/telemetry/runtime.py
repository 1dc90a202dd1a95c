"""Files in which running loaders say what they do: one for each, which ``autoloader top`` reads.

Theory of operation. The process of a pipeline writes its latest snapshot about once a second to a
file of its own, by rename. So a reader never sees half of a snapshot, takes no lock and wakes no
process. A loader that closes removes its file. One that was killed cannot: the next reader does,
once the processes that the file names are gone.

The files lie in the user's runtime folder (``host.files``).

Not here: what a snapshot says (``telemetry.statistics``), taking one (``process.observer``),
showing it (``cli.top``).
"""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

import psutil

from autoloader.errors import AutoloaderError
from autoloader.host.files import check_own_folder, own_folder, runtime_folder, write_whole
from autoloader.telemetry.statistics import Snapshot

logger = logging.getLogger(__name__)

_FRESH_S = 5.0
"""A snapshot so young is of a running loader, whoever can see its process."""
_AGAIN_S = 60.0
"""So long a trainer may take to start its child again."""
_CLOCK_S = 5.0
"""What the clock may have been set by since a process began."""


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

    def write(self, moment: Snapshot) -> None:
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


def living_runs(directory: Path | None = None) -> list[Snapshot]:
    """The latest snapshot of every loader that runs, by run and pipeline; files of others go.

    Args:
        directory: folder of the files; ``None``: ``runtime_folder()``.
    """
    found: list[Snapshot] = []
    directory = directory or runtime_folder()
    try:
        check_own_folder(directory)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            logger.warning("no run is shown: %s", error)
        return found
    for path in sorted(directory.glob("*.json")):
        try:
            moment = Snapshot.from_json(path.read_bytes())
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


def said_last(run: str, pipeline: int) -> Snapshot | None:
    """Latest snapshot of a pipeline; ``None`` before the first.

    Args:
        run: name of the trainer's run.
        pipeline: number of the loader in that run.
    """
    with contextlib.suppress(OSError, AutoloaderError):
        return Snapshot.from_json((runtime_folder() / f"{run}-{pipeline}.json").read_bytes())
    return None


def is_over(moment: Snapshot, now_s: float | None = None) -> bool:
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
