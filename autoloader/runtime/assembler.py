"""Puts batches together: mixes samples into rows of a slot, and has their frames decoded there.

Theory of operation. One thread walks the mixer. For every row it takes a sample from the queue of
the dataset that is next, copies its numbers into the slot, and gives its frames to the decode pool.

Not here: the line of batches under way (``runtime.batch_line``), who reads (``runtime.readers``),
who is next (``runtime.mixer``), decoding a row (``runtime.row_jobs``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from autoloader.clock import Clock
from autoloader.runtime.batch_line import STALL_S, BatchLine, Slots
from autoloader.runtime.mixer import Mixer
from autoloader.runtime.pool import DecodePool
from autoloader.runtime.quarantine import Quarantine
from autoloader.runtime.queues import SampleQueue
from autoloader.runtime.ring import RingMemory
from autoloader.runtime.row_jobs import Decoder, Filling, RowJob
from autoloader.sampling.episode import EpisodeSamples
from autoloader.sampling.layout import BatchLayout

logger = logging.getLogger(__name__)


class Assembler(BatchLine):
    """The mixing thread.

    Args:
        layout: of the batches.
        queues: by dataset index.
        mixer: who is next.
        pool: decodes.
        decoders: by camera.
        memory, slots: the ring.
        quarantine: told of undecodable frames.
        condition: shared with the queues.
        names: dataset names.
        clock: for stalls.
        min_ready: datasets that must have a sample before the first batch is begun.
        cut: samples after which a batch is cut short (an epoch's end), or ``None``.
        first_number: number of the first batch.
        failed: told of the exception that ends the thread.
    """

    def __init__(
        self,
        layout: BatchLayout,
        *,
        queues: Sequence[SampleQueue],
        mixer: Mixer,
        pool: DecodePool,
        decoders: Mapping[str, Decoder],
        memory: RingMemory,
        slots: Slots,
        quarantine: Quarantine,
        condition: threading.Condition,
        names: Sequence[str],
        clock: Clock,
        min_ready: int,
        cut: Callable[[int], int] | None,
        first_number: int = 0,
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
            first_number=first_number,
            failed=failed,
        )
        self._queues = queues
        self._mixer = mixer
        self._submit = pool.submit
        self._decoders = decoders
        self._min_ready = min_ready
        self._cut = cut

    def _wait_for_first(self) -> None:
        named = self._clock.now_s()
        with self._condition:
            while not self._closed:
                late = [
                    name
                    for name, queue in zip(self._names, self._queues, strict=True)
                    if queue.pending == 0
                ]
                ready = len(self._names) - len(late)
                if ready >= self._min_ready:
                    return
                self._condition.wait(1.0)
                if self._clock.now_s() - named >= STALL_S:
                    named = self._clock.now_s()
                    logger.warning(
                        "%d/%d datasets ready, %d wanted to begin; waiting for %s",
                        ready,
                        len(self._names),
                        self._min_ready,
                        ", ".join(late[:5]) + (" …" if len(late) > 5 else ""),
                    )

    def _begin(self) -> None:
        self._wait_for_first()

    def _rows(self) -> int:
        return self._layout.batch_size if self._cut is None else self._cut(self._begun)

    def _fill(self, filling: Filling) -> None:
        rows, text_at = filling.batch.rows, 0
        for row in range(rows):
            dataset = self._next_dataset()
            if dataset is None:
                return
            episode, number = self._queues[dataset].take()
            self.taken[dataset] += 1
            text_at = self._write_row(filling, row, episode, number, text_at)
            if row == rows - 1:
                empties = [place for queue in self._queues for place in queue.take_empties()]
                filling.batch.empties = empties
                filling.batch.mixer = self._mixer.snapshot()
                self._note_non_finite(filling)
            name = self._names[dataset]
            self._submit(RowJob(dataset, row, filling, episode, number, self._decoders, name))

    def _next_dataset(self) -> int | None:
        queues = self._queues

        def ready(dataset: int, samples: int) -> bool:
            return queues[dataset].pending >= samples

        dataset = self._mixer.next(ready)
        if dataset is not None:
            return dataset
        return self._wait_for(lambda: self._mixer.next(ready), self._stalled)

    def _stalled(self, waited_s: float) -> bool:
        late = self._mixer.waiting_for
        if late is None:
            return False
        self.stalls[late] += 1
        logger.warning(
            "dataset %s has given nothing for %.0f s; the mixture waits for it",
            self._names[late],
            waited_s,
        )
        return True

    def _write_row(
        self, filling: Filling, row: int, episode: EpisodeSamples, number: int, text_at: int
    ) -> int:
        views, place = filling.views, episode.place_at(number)
        views["action"][row] = episode.action[number]
        views["action_mask"][row] = episode.action_mask[number]
        views["state"][row] = episode.state[number]
        views["state_mask"][row] = episode.state_mask[number]
        views["frame_offset"][row] = episode.frame_offset[number]
        for camera in self._decoders:
            mask = views[f"frame_mask/{camera}"]
            mask[row] = episode.frame_mask[number] if camera in episode.frames else False
        t = int(episode.t[number])
        source = episode.source_at(number)
        views["dataset_index"][row] = place.dataset
        views["provenance"][row] = (*source.numbers(), t)
        views["ledger"][row] = (*place.numbers(), t, len(episode))
        filling.batch.replaced += source != place
        text = episode.text(number)
        if text_at + len(text) <= len(views["language_text"]):
            views["language_text"][text_at : text_at + len(text)] = np.frombuffer(text, np.uint8)
            text_at += len(text)
        else:
            filling.batch.texts[row] = text
        views["language_end"][row] = text_at
        return text_at
