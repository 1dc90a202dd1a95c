"""Retries of a source that does not answer: growing pauses, then a ``SourceError``.

A remote file system fails for moments and comes back. Its own client has retried before an error
arrives here, so these pauses span outages of minutes: 1, 2, 4, … up to 60 s, about ten minutes in
all without a single episode.

Not here: which failures may pass (``pipeline.graph.files``), where to go on (``sampling.cursor``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from autoloader.errors import SourceError

PAUSES_S: Sequence[float] = (1, 2, 4, 8, 16, 32, *(60,) * 9)

logger = logging.getLogger(__name__)


class RetryPolicy:
    """Counts the failures of one source in a row, and waits after each.

    Args:
        what: the source, in messages.
        dataset: its name, or "".
        wait: waits so many seconds, or less where the pipeline is closed.

    Attributes:
        interruptions: failures so far.
    """

    def __init__(self, what: str, dataset: str, wait: Callable[[float], object]) -> None:
        self._what = what
        self._dataset = dataset
        self._wait = wait
        self._in_a_row = 0
        self.interruptions = 0

    def failed(self, error: BaseException) -> None:
        """The source failed: wait before the next try.

        Raises:
            SourceError: there were too many in a row.
        """
        self.interruptions += 1
        if self._in_a_row == len(PAUSES_S):
            raise SourceError(
                f"{self._what} has given nothing in {len(PAUSES_S) + 1} tries: {error}",
                remedy="check the network and the file system, then resume from the last state",
                dataset=self._dataset,
            ) from error
        pause_s = PAUSES_S[self._in_a_row]
        self._in_a_row += 1
        logger.warning(
            "%s is interrupted, and opened again where it stopped in %g s: %s",
            self._what, pause_s, error,
        )  # fmt: skip
        self._wait(pause_s)

    def succeeded(self) -> None:
        """The source gave something: earlier failures no longer count."""
        self._in_a_row = 0
