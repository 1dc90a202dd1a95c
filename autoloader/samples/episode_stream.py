"""The seam between a dataset's reader and its queue: what a reader is asked, and what it answers.

Not here: the readers (``graph.reader``), who asks (``read.stream_reader``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from autoloader.knobs import ResolvedDatasetKnobs
from autoloader.samples.block import Place, SampleBlock


@dataclass(frozen=True, slots=True)
class ReaderStart:
    """Where a reader opens: a pass, and the records of each shard already done in it.

    Attributes:
        pass_: the pass, from 0.
        skip: records done at the front of each slice.
    """

    pass_: int
    skip: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EmptyEpisode:
    """A record that gives no sample.

    Attributes:
        place: where it lies.
        reason: why it was quarantined; ``None`` where no window fits it.
    """

    place: Place
    reason: str | None


class SourceInterruptedError(Exception):
    """A source does not answer now: it is to be opened again at the cursor. Internal."""


class EpisodeStream(Protocol):
    """A reader of one dataset. ``open`` may be called again at any time, from any thread."""

    def open(
        self, start: ReaderStart, knobs: ResolvedDatasetKnobs
    ) -> Iterator[SampleBlock | EmptyEpisode]:
        """Episodes from ``start`` on, pass after pass, without end; every record exactly once.

        Raises:
            SourceError: while iterating, when the source cannot be read at all.
            SourceInterruptedError: while iterating, when it may be read again later.
        """
        ...
