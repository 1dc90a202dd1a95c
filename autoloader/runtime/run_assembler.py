"""Puts batches of planned samples together: a batch is a stretch of a run, copied column by column.

Theory of operation. The reader gives runs in the order of their batches, with the numbers of all
their samples in columns. One thread copies a batch's stretch of every column into the slot (a few
copies a batch, however many datasets it mixes) and gives its frames to the decode pool.

Not here: the line of batches under way (``runtime.batch_line``), reading (``runtime.planned``),
decoding a row (``runtime.row_jobs``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from autoloader.clock import Clock
from autoloader.runtime.batch_line import BatchLine, Slots
from autoloader.runtime.planned import PlannedReader
from autoloader.runtime.pool import DecodePool
from autoloader.runtime.quarantine import Quarantine
from autoloader.runtime.ring import RingMemory
from autoloader.runtime.row_jobs import Chains, Decoder, Filling, RowJob
from autoloader.sampling.layout import BatchLayout

logger = logging.getLogger(__name__)


class RunAssembler(BatchLine):
    """The thread that fills batches of planned runs.

    Args:
        layout: of the batches.
        reader: gives the runs.
        rows: rows of the batch that is next; called once for each.
        pool: decodes.
        decoders: by camera.
        memory, slots: the ring.
        quarantine: told of undecodable frames.
        condition: shared with the reader.
        names: dataset names.
        clock: for stalls.
        chained: whether samples that share frames come one after the other.
        failed: told of the exception that ends the thread.
    """

    def __init__(
        self,
        layout: BatchLayout,
        *,
        reader: PlannedReader,
        rows: Callable[[], int],
        pool: DecodePool,
        decoders: Mapping[str, Decoder],
        memory: RingMemory,
        slots: Slots,
        quarantine: Quarantine,
        condition: threading.Condition,
        names: Sequence[str],
        clock: Clock,
        chained: bool,
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(
            layout,
            memory=memory,
            slots=slots,
            quarantine=quarantine,
            condition=condition,
            names=names,
            clock=clock,
            first_number=0,
            failed=failed,
        )
        self._reader = reader
        self._next_rows = rows
        self._chains = Chains(pool.submit) if chained else None
        self._submit: Callable[[RowJob], None] = pool.submit
        if self._chains is not None:
            self._submit = self._chains.add
        self._decoders = decoders

    def _begin(self) -> None:
        """A batch waits for its own run; nothing else must be there."""

    def _rows(self) -> int:
        return self._next_rows()

    def _fill(self, filling: Filling) -> None:
        rows = filling.batch.rows
        taken = self._wait_for(lambda: self._reader.take(rows), self._stalled)
        if taken is None:
            return
        run, first = taken
        stretch = slice(first, first + rows)
        for name, column in run.columns.items():
            filling.views[name][:rows] = column[stretch]
        self._note_non_finite(filling)
        self._write_texts(filling, run.texts[stretch])
        filling.batch.mixer = {"position": int(run.positions[first + rows - 1]) + 1}
        for row, dataset in enumerate(run.datasets[stretch]):
            self.taken[dataset] += 1
            name = self._names[dataset]
            self._submit(RowJob(dataset, row, filling, run, first + row, self._decoders, name))
        if self._chains is not None:
            self._chains.flush()

    @staticmethod
    def _stalled(waited_s: float) -> bool:
        logger.warning("the files have given nothing for %.0f s", waited_s)
        return True

    @staticmethod
    def _write_texts(filling: Filling, texts: Sequence[bytes]) -> None:
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        ends = np.cumsum(lengths)
        room = len(filling.views["language_text"])
        if len(ends) and ends[-1] > room:
            # The rows from the first that does not fit on carry their texts beside the slot.
            fits = int(np.searchsorted(ends, room, side="right"))
            filling.batch.texts.update(enumerate(texts[fits:], start=fits))
            texts, ends = texts[:fits], np.minimum(ends, ends[fits - 1] if fits else 0)
        joined = np.frombuffer(b"".join(texts), np.uint8)
        filling.views["language_text"][: len(joined)] = joined
        filling.views["language_end"][: len(ends)] = ends
