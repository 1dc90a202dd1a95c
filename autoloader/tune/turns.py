"""Measurements of one host take turns, so that tuners beside each other do not slow each other.

Theory of operation. Two tuners of one host would each measure the other's load. So a measurement
holds the lock of a file of this user on this host; the next one waits, and says for whom.

Not here: measuring (``tune.trial``), the lock (``host.private``).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from autoloader.clock import Clock
from autoloader.host.private import Waiting, locked, own_folder, runtime_folder
from autoloader.knobs import Knobs
from autoloader.tune.trial import Measurer, TrialResult, TrialWatch

logger = logging.getLogger(__name__)

_LONGEST_S = 3600.0
"""Of one measurement of another tuner, or twice of one of ours."""


class HostTurns:
    """Measures with ``measure``, when no other tuner of this host does.

    Args:
        measure: measures one knob set.
        clock: for waiting.
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
