"""Puts batches together: mixes samples into rows of a slot, and has their frames decoded there.

Theory of operation. One thread walks the mixer. For every row it takes a sample from the queue of
the dataset that is next, copies its numbers into the slot, and gives its frames to the decode pool.
A batch is filled when its last row is; batches leave in the order they were begun. Up to
``ring_slots`` batches are under way at a time.

A sample whose frame cannot be decoded is quarantined, and its row repeats another row of the
batch, provenance included; the ledger says what was meant to be there, so nothing is lost count of.

Not here: who reads (``runtime.readers``), who is next (``runtime.mixer``), decoding a row
(``runtime.row_jobs``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from autoloader.clock import Clock
from autoloader.errors import AutoloaderError, SourceError
from autoloader.runtime.filled import FilledBatch, languages
from autoloader.runtime.pool import DecodePool
from autoloader.runtime.quarantine import Quarantine
from autoloader.runtime.ring import RingMemory
from autoloader.runtime.row_jobs import Chains, Decoder, Filling, RowJob, Samples, fault_of
from autoloader.sampling.episode import Place
from autoloader.sampling.layout import BatchLayout

logger = logging.getLogger(__name__)

STALL_S = 5.0


class Turns(Protocol):
    """Who is next; see ``runtime.mixer.Mixer``."""

    @property
    def waiting_for(self) -> int | None:
        """The dataset that the mixture waits for, where one is known."""
        ...

    def next(self, ready: Callable[[int, int], bool]) -> int | None:
        """Dataset of the next sample, or ``None`` where the mixture has to wait."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Its place, as plain values."""
        ...


class Waiting(Protocol):
    """One dataset's samples that are ready; see ``runtime.queues.SampleQueue``."""

    @property
    def pending(self) -> int:
        """How many."""
        ...

    def take(self) -> tuple[Samples, int]:
        """The next one, as the samples it is among and its number in them."""
        ...

    def take_empties(self) -> list[Place]:
        """Records without samples noted since the last call."""
        ...


class Slots(Protocol):
    """Slots to fill; see ``runtime.slots.SlotBook``."""

    def acquire(self) -> int | None:
        """A free slot; waits for one. ``None`` once closed."""
        ...


class Assembler:
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
        chained: whether samples that share frames come one after the other.
        failed: told of the exception that ends the thread.
    """

    def __init__(
        self,
        layout: BatchLayout,
        *,
        queues: Sequence[Waiting],
        mixer: Turns,
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
        chained: bool = False,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._layout = layout
        self._queues = queues
        self._mixer = mixer
        self._chains = Chains(pool.submit) if chained else None
        self._submit: Callable[[RowJob], None] = pool.submit
        if self._chains is not None:
            self._submit = self._chains.add
        self._decoders = decoders
        self._memory = memory
        self._slots = slots
        self._quarantine = quarantine
        self._condition = condition
        self._names = names
        self._clock = clock
        self._min_ready = min_ready
        self._cut = cut
        self._failed = failed
        self._closed = False
        self._order: list[Filling] = []
        self._order_changed = threading.Condition()
        self._begun = first_number
        self.taken = [0] * len(names)
        self.stalls = [0] * len(names)
        self.wait_s = 0.0
        self._thread = threading.Thread(target=self._run, name="autoloader-mix", daemon=True)

    def start(self) -> None:
        """Begin to mix."""
        self._thread.start()

    @property
    def filled(self) -> int:
        """Batches ready for the consumer."""
        return sum(filling.done.is_set() for filling in list(self._order))

    def next(self, timeout_s: float) -> FilledBatch | None:
        """The next filled batch, in order; ``None`` where none is ready in time.

        Raises:
            SourceError: no row of a batch could be decoded, or too many records are bad.
        """
        with self._order_changed:
            if not self._order:
                self._order_changed.wait(timeout_s)
            if not self._order:
                return None
            filling = self._order[0]
        if not filling.done.wait(timeout_s):
            return None
        with self._order_changed:
            if self._closed or not self._order:
                return None
            self._order.pop(0)
        if filling.bad:
            try:
                self._repair(filling)
            except AutoloaderError as error:
                self._failed(error)
                raise
        return filling.batch

    def close(self) -> None:
        """Stop; what is under way is dropped."""
        self._closed = True
        with self._condition:
            self._condition.notify_all()
        with self._order_changed:
            self._order_changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; whether it has."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._wait_for_first()
            while not self._closed:
                slot = self._slots.acquire()
                if slot is None:
                    return
                self._fill(slot)
        except BaseException as error:  # noqa: BLE001 the one boundary of this thread: the trainer must hear of it
            if not self._closed:
                self._failed(
                    error if isinstance(error, AutoloaderError) else fault_of(error, "", "mix")
                )

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

    def _fill(self, slot: int) -> None:
        size = self._layout.batch_size
        rows = size if self._cut is None else self._cut(self._begun)
        batch = FilledBatch(slot, rows, self._begun)
        filling = Filling(batch, self._layout.views(self._memory.base(slot)))
        self._begun += 1
        with self._order_changed:
            self._order.append(filling)
            self._order_changed.notify_all()
        text_at = 0
        for row in range(rows):
            dataset = self._next_dataset()
            if dataset is None:
                return
            episode, number = self._queues[dataset].take()
            self.taken[dataset] += 1
            text_at = self._write_row(filling, row, episode, number, text_at)
            if row == rows - 1:
                batch.empties = [e for queue in self._queues for e in queue.take_empties()]
                batch.mixer = self._mixer.snapshot()
            name = self._names[dataset]
            self._submit(RowJob(dataset, row, filling, episode, number, self._decoders, name))
        if self._chains is not None:
            self._chains.flush()

    def _next_dataset(self) -> int | None:
        queues = self._queues

        def ready(dataset: int, samples: int) -> bool:
            return queues[dataset].pending >= samples

        dataset = self._mixer.next(ready)
        if dataset is not None:
            return dataset
        started = named = self._clock.now_s()
        with self._condition:
            while not self._closed:
                dataset = self._mixer.next(ready)
                if dataset is not None:
                    self.wait_s += self._clock.now_s() - started
                    return dataset
                self._condition.wait(0.5)
                late = self._mixer.waiting_for
                if late is not None and self._clock.now_s() - named >= STALL_S:
                    named = self._clock.now_s()
                    self.stalls[late] += 1
                    logger.warning(
                        "dataset %s has given nothing for %.0f s; the mixture waits for it",
                        self._names[late],
                        named - started,
                    )
        return None

    def _write_row(
        self, filling: Filling, row: int, episode: Samples, number: int, text_at: int
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
        ledger = (*place.numbers(), t, episode.total_at(number))
        views["dataset_index"][row] = place.dataset
        views["provenance"][row] = ledger[:5]
        views["ledger"][row] = ledger
        text = episode.text(number)
        if text_at + len(text) <= len(views["language_text"]):
            views["language_text"][text_at : text_at + len(text)] = np.frombuffer(text, np.uint8)
            text_at += len(text)
        else:
            filling.batch.texts[row] = text
        views["language_end"][row] = text_at
        return text_at

    def _repair(self, filling: Filling) -> None:
        """Have rows that could not be decoded repeat one that could, best of their dataset."""
        bad = {row for row, _, _ in filling.bad}
        for _, place, reason in filling.bad:
            self._quarantine.add(place, f"a frame cannot be decoded: {reason}")
        rows = [row for row in range(filling.batch.rows) if row not in bad]
        if not rows:
            raise SourceError(
                f"no sample of a batch of {filling.batch.rows} could be decoded: "
                f"{filling.bad[0][2]}",
                remedy="check the image features that the spec names",
                dataset=self._names[filling.bad[0][1].dataset],
            )
        texts = languages(filling.views, filling.batch)
        datasets = filling.views["dataset_index"]
        for row in bad:
            same = [other for other in rows if datasets[other] == datasets[row]]
            good = (same or rows)[0]
            for name, view in filling.views.items():
                if name not in ("ledger", "language_end", "language_text"):
                    view[row] = view[good]
            filling.batch.texts[row] = texts[good]
        filling.batch.replaced = len(bad)
