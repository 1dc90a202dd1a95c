"""The seam between what gives samples and what puts them into batches.

Two sources exist: the streams of all datasets with the mixer behind them
(``pipeline.read.streams``), and planned runs over the index (``pipeline.read.planned``). A batch
builder asks neither which one it has.

Not here: the sources, putting batches together (``decode.assembler``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from autoloader.decode.activity import DatasetActivity
from autoloader.decode.message import BatchMessage
from autoloader.decode.quarantine import Quarantine
from autoloader.samples.block import SampleBlock
from autoloader.spec.knobs import Knobs

Spans = Sequence[tuple[int, int]]
"""Positions [start, stop) of the mixture's sequence, one pair for each batch of a run."""


class SampleSource(Protocol):
    """Gives the samples of one mixture, in order; ``take`` is called by one thread."""

    chained: bool
    """Whether samples that share frames come one after the other."""

    def start(self) -> None:
        """Begin to read; must not wait for it."""
        ...

    def assign(self, spans: Spans) -> None:
        """Which positions the batches after those assigned before have."""
        ...

    def take(self, count: int) -> tuple[SampleBlock, int, int] | None:
        """The next samples: a block, the number of the first one in it, and how many.

        Args:
            count: at most so many; the batch under way wants no more.

        Returns:
            ``None`` where the next sample is not there yet.
        """
        ...

    def finish(self, batch: BatchMessage) -> None:
        """The last sample of a batch was taken: note what its consumer must know to resume."""
        ...

    def stalled(self, waited_s: float) -> Sequence[int] | None:
        """Log what ``take`` waits for; the datasets that are late, where that is known.

        Returns:
            ``None`` where there is nothing to say yet.
        """
        ...

    def retune(self, knobs: Knobs) -> None:
        """Move to other knobs."""
        ...

    def park(self, parked: bool) -> None:
        """Stop reading (True) or go on."""
        ...

    def drop(self) -> None:
        """Give back what was read ahead and can be read again; must not wait."""
        ...

    @property
    def settled(self) -> bool:
        """Whether it reads with the knobs that it was given last."""
        ...

    @property
    def run_bytes(self) -> int:
        """Bytes of the memory that the last planned run was read into; 0 where there is none."""
        ...

    @property
    def read_bytes(self) -> int:
        """Bytes read for planned runs."""
        ...

    @property
    def reading_s(self) -> float:
        """Seconds that reading them took."""
        ...

    def activity(self) -> list[DatasetActivity]:
        """What it has done so far, by dataset; what its builder counts is left at 0."""
        ...

    def close(self) -> None:
        """Stop; does not wait."""
        ...

    def join(self, within_s: float | None) -> bool:
        """Wait for its threads; whether all have ended. Asked when nobody shows its samples.

        Once it is so, frames of the frame cache that its samples pinned are given up.
        """
        ...

    @property
    def leased_frames(self) -> int:
        """Frames of the frame cache that its samples have pinned."""
        ...


MakeSource = Callable[
    [Knobs, Quarantine, threading.Condition, Callable[[BaseException], None]], SampleSource
]
"""Makes a source from its knobs, what is told of bad records, the condition that it notifies when
samples are there, and what it calls with the exception that ends it."""
