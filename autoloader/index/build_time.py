"""How long building an index takes: foretold before it starts, and told while it goes on.

Theory of operation. Files are indexed at the rate at which their bytes are read, checked and
walked. That rate is measured on the first records of one file, which are read and thrown away, and
multiplied by the files that are indexed at a time. While the build goes on, what is left is told
from the bytes that are done. Several processes that build the same index share the work, so each
is done earlier than it foretold.

Not here: building (``index.opening``).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from autoloader.clock import Clock, SystemClock
from autoloader.telemetry.progress import doing, shard_words
from autoloader.units import MIB, format_bytes, format_seconds

logger = logging.getLogger(__name__)

PROBE_BYTES = 8 * MIB
"""What the rate is measured on, and at least one record."""
QUICK_BYTES = 64 * MIB
"""A smaller build is done before a probe would be worth its time."""
SAY_S = 5.0
"""A build that takes longer is told as a warning, and how far it is in such steps."""


@dataclass(frozen=True, slots=True)
class IndexWork:
    """What there is to index.

    Attributes:
        files: shard files without a usable index.
        nbytes: of these files.
        bytes_per_s: at which this process indexes them; ``None`` where it was not measured.
    """

    files: int
    nbytes: int
    bytes_per_s: float | None = None

    @property
    def seconds(self) -> float | None:
        """How long it takes, where one process does it alone."""
        return None if self.bytes_per_s is None else self.nbytes / self.bytes_per_s

    def __str__(self) -> str:
        """Bytes, rate and time, for people."""
        what = f"{self.files} shard {'file' if self.files == 1 else 'files'} of "
        what += format_bytes(self.nbytes)
        if self.bytes_per_s is None or self.seconds is None:
            return what
        rate = f"{format_bytes(self.bytes_per_s)}/s (measured on the first records)"
        return f"{what}; at {rate} this takes about {format_seconds(self.seconds)}"


class SaidProgress:
    """Logs what a build will take, and every few seconds how far it is.

    Args:
        work: foretold.
        who: the rank that waits, such as "rank 1 of 4"; "" where there is one.
        clock: to tell time by.
    """

    def __init__(self, work: IndexWork, who: str = "", clock: Clock | None = None) -> None:
        self._work, self._who = work, who
        self._clock = clock or SystemClock()
        self._begun_s = self._said_s = self._clock.now_s()
        self._files = self._bytes = 0
        self._now = ""
        long = (work.seconds or 0.0) >= SAY_S
        doing(f"indexing {work}")
        logger.log(
            logging.WARNING if long else logging.INFO,
            "%s: %s%s",
            f"{who} waits for the index" if who else "indexing",
            work,
            _ADVICE if long else "",
        )

    def begins(self, dataset: str, path: str) -> None:
        """A file is indexed from now on. Any thread."""
        self._now = f"{dataset}, {shard_words(path)}"
        self._doing()

    def _doing(self) -> None:
        doing(f"indexing {self._now} ({self._files} of {self._work.files} shard files are done)")

    def done(self, nbytes: int) -> None:
        """A file of so many bytes is indexed, here or by another builder."""
        self._files += 1
        self._bytes += nbytes
        now_s = self._clock.now_s()
        self._doing()
        if now_s - self._said_s < SAY_S:
            return
        self._said_s = now_s
        left = (now_s - self._begun_s) * (self._work.nbytes - self._bytes) / max(1, self._bytes)
        logger.warning(
            "%s: %d of %d shard files, about %s left",
            f"{self._who} waits for the index" if self._who else "building the index",
            self._files,
            self._work.files,
            format_seconds(left),
        )


_ADVICE = (
    ". Ranks and hosts that start meanwhile build it together; `autoloader index` builds it ahead, "
    "without a GPU"
)
