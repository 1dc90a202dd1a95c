"""Chooses and makes the pipeline that a mixture, its knobs and its files ask for.

Called in the loader's child, and in the trainer's process with ``isolation="thread"``; the parts
(TensorFlow among them) are imported only when they are needed.

Not here: the pipelines themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from autoloader.errors import SourceError
from autoloader.knobs import Knobs
from autoloader.runtime.activity import PipelineActivity
from autoloader.runtime.compiled import Compiled
from autoloader.runtime.filled import FilledBatch, PipelineStart
from autoloader.runtime.quarantine import BadRecord
from autoloader.runtime.ring import RingMemory
from autoloader.sampling.dealing import Deal, Ranks
from autoloader.sampling.order import MixtureOrder
from autoloader.sampling.resolve import ResolvedDataset, ResolvedMixture
from autoloader.sampling.source import EpisodeSource


class RunningPipeline(Protocol):
    """What every pipeline does; documented in ``runtime.pipeline.Pipeline``."""

    @property
    def knobs(self) -> Knobs:
        """The values in force."""
        ...

    def start(self) -> None:
        """Begin."""
        ...

    def next(self, timeout_s: float) -> FilledBatch | None:
        """The next batch, in order, or ``None`` where none was ready in time."""
        ...

    def release(self, slot: int) -> None:
        """The consumer is done with a slot."""
        ...

    def retune(self, knobs: Knobs) -> None:
        """Move to other knobs."""
        ...

    def park(self, parked: bool) -> None:
        """Stop admitting reads (True) or go on."""
        ...

    def quarantined(self) -> tuple[BadRecord, ...]:
        """Bad records so far."""
        ...

    def activity(self) -> PipelineActivity:
        """What every part is doing."""
        ...

    def close(self) -> None:
        """End all threads."""
        ...


class LocalPipeline(RunningPipeline, Protocol):
    """A pipeline in this process: what its controller needs beside."""

    @property
    def settled(self) -> bool:
        """Whether no change of knobs is still on its way."""
        ...

    @property
    def ready_batches(self) -> int:
        """Batches that are filled and not taken, wherever they lie."""
        ...

    def drop(self) -> None:
        """Give back what can be read again, and the pages of free slots; must not wait."""
        ...


def open_pipeline(
    mixture: ResolvedMixture,
    order: MixtureOrder,
    knobs: Knobs,
    memory: RingMemory,
    *,
    start: PipelineStart,
    held: Sequence[int] = (),
    ranks: Ranks = Ranks(),  # noqa: B008 frozen
    ranks_here: int = 1,
    compiled: Compiled | None = None,
) -> LocalPipeline:
    """The pipeline for a rank's part of a mixture; not yet started.

    ``compiled`` holds what earlier pipelines over the same mixture were made of, and is added to.

    Raises:
        SourceError: TensorFlow is needed and cannot be imported.
    """
    deal = Deal.of(
        order,
        mixture.spec.batch,
        ranks,
        base=start.position,
        in_epoch=start.in_epoch,
        first_number=start.first_number,
    )
    compiled = compiled or Compiled()
    if knobs.reader == "indexed":
        from autoloader.runtime.indexed_pipeline import IndexedPipeline

        return IndexedPipeline(
            mixture,
            order,
            knobs,
            memory,
            start=start,
            held=held,
            deal=deal,
            ranks_here=ranks_here,
            compiled=compiled,
        )
    from autoloader.runtime.pipeline import Pipeline

    return Pipeline(
        mixture,
        order,
        knobs,
        memory,
        partial(_stream_reader, mixture, compiled),
        start=start,
        held=held,
        cut=deal.rows,
    )


_importing = threading.Lock()


def _stream_reader(
    mixture: ResolvedMixture, compiled: Compiled, dataset: ResolvedDataset
) -> EpisodeSource:
    if (kept := compiled.readers.get(dataset.name)) is not None:
        return kept
    with _importing:
        try:
            from autoloader.graph.reader import StreamReader
        except ImportError as error:
            raise SourceError(
                f"TensorFlow cannot be imported: {error}",
                remedy="install tensorflow; the stream reader needs it",
            ) from error
    # A mixture that waits promises an order that does not depend on timing.
    reader = StreamReader(dataset, mixture.layout, ordered=mixture.spec.mixing.waits)
    return compiled.readers.setdefault(dataset.name, reader)
