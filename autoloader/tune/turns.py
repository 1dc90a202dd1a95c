"""Measurements of one host take turns, so that tuners beside each other do not slow each other.

Theory of operation. Two tuners of one host would each measure the other's load. So a measurement
holds a lock on a file of the host; the next one waits. The kernel drops the lock when its holder is
gone, however it ended.

Not here: measuring (``tune.trial``).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from autoloader.clock import Clock
from autoloader.knobs import Knobs
from autoloader.tune.trial import Measurer, TrialResult, TrialWatch

logger = logging.getLogger(__name__)

_LOOK_S = 0.2


class HostTurns:
    """Measures with ``measure``, when no other tuner of this host does.

    Args:
        measure: measures one knob set.
        clock: for waiting.
        lock: the host's file; by default one for each user in the temporary folder.
    """

    def __init__(self, measure: Measurer, clock: Clock, lock: Path | None = None) -> None:
        self._measure = measure
        self._clock = clock
        self._lock = lock or Path(tempfile.gettempdir()) / f"autoloader-tune-{os.getuid()}.lock"

    def __call__(self, knobs: Knobs, *, timeout_s: float, watch: TrialWatch) -> TrialResult:
        """Measure ``knobs``; the timeout begins with the turn."""
        with self._turn(watch):
            return self._measure(knobs, timeout_s=timeout_s, watch=watch)

    @contextlib.contextmanager
    def _turn(self, watch: TrialWatch) -> Iterator[None]:
        try:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:  # another user's, or no room: better measured than not
            logger.warning("tuners of this host do not take turns: %s: %s", self._lock, error)
            yield
            return
        try:
            waits = False
            while not _locked(descriptor):
                if not waits:
                    logger.info("another tuner of this host measures; waiting for its end")
                waits = True
                watch(None, None)  # whoever looks on sees that time passes
                self._clock.sleep(_LOOK_S)
            yield
        finally:
            os.close(descriptor)  # and with it the lock


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
