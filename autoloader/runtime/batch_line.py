"""The line of batches under way: begun in order, filled by many threads, handed out in order.

Theory of operation. One thread takes a slot, begins a batch in it and has its rows filled; it goes
on to the next batch while the pool still decodes. A batch is filled when its last row is; batches
leave in the order they were begun. Up to ``ring_slots`` batches are under way at a time.

A sample that cannot be used, because a frame of it cannot be decoded or by the spec's
``errors.non_finite``, is quarantined, and its row repeats another row of the batch, provenance
included; the ledger says what was meant to be there, so nothing is lost count of.

Not here: which samples fill a batch (``runtime.assembler``, ``runtime.run_assembler``).
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from autoloader.clock import Clock
from autoloader.errors import AutoloaderError, SourceError
from autoloader.runtime.filled import FilledBatch, languages
from autoloader.runtime.quarantine import Quarantine
from autoloader.runtime.ring import RingMemory
from autoloader.runtime.row_jobs import Filling, fault_of
from autoloader.sampling.episode import Place
from autoloader.sampling.layout import BatchLayout
from autoloader.threads import LoaderThread

STALL_S = 5.0
_Found = TypeVar("_Found")


class Slots(Protocol):
    """Slots to fill; see ``runtime.slots.SlotBook``."""

    def acquire(self) -> int | None:
        """A free slot; waits for one. ``None`` once closed."""
        ...


class BatchLine(abc.ABC):
    """The thread that begins batches, and the line of those it has begun.

    Args:
        layout: of the batches.
        memory, slots: the ring.
        quarantine: told of undecodable frames.
        condition: told when samples are there, shared with whoever brings them.
        names: dataset names.
        clock: for stalls.
        first_number: number of the first batch.
        failed: told of the exception that ends the thread.
    """

    def __init__(
        self,
        layout: BatchLayout,
        *,
        memory: RingMemory,
        slots: Slots,
        quarantine: Quarantine,
        condition: threading.Condition,
        names: Sequence[str],
        clock: Clock,
        first_number: int,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._layout = layout
        self._memory = memory
        self._slots = slots
        self._quarantine = quarantine
        self._condition = condition
        self._names = names
        self._clock = clock
        self._failed = failed
        self._closed = False
        self._order: list[Filling] = []
        self._order_changed = threading.Condition()
        self._begun = first_number
        self.taken = [0] * len(names)
        self.stalls = [0] * len(names)
        self.wait_s = 0.0
        self._thread = LoaderThread(target=self._run, name="autoloader-mix")

    @abc.abstractmethod
    def _begin(self) -> None:
        """Wait for what must be there before the first batch."""

    @abc.abstractmethod
    def _rows(self) -> int:
        """Rows of the batch that is next."""

    @abc.abstractmethod
    def _fill(self, filling: Filling) -> None:
        """Have all rows filled; returns early once closed."""

    def _wait_for(
        self, attempt: Callable[[], _Found | None], stalled: Callable[[float], bool]
    ) -> _Found | None:
        """What ``attempt`` gives as soon as it gives anything; ``None`` once closed.

        Args:
            attempt: tried again whenever the condition is told.
            stalled: called every ``STALL_S`` with the seconds waited; whether it had a word to say.
        """
        started = named = self._clock.now_s()
        with self._condition:
            while not self._closed:
                found = attempt()
                if found is not None:
                    self.wait_s += self._clock.now_s() - started
                    return found
                self._condition.wait(0.5)
                now = self._clock.now_s()
                if now - named >= STALL_S and stalled(now - started):
                    named = now
        return None

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
            SourceError: no row of a batch can be used, or too many records are bad.
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
            self._begin()
            while not self._closed:
                slot = self._slots.acquire()
                if slot is None:
                    return
                batch = FilledBatch(slot, self._rows(), self._begun)
                filling = Filling(batch, self._layout.views(self._memory.base(slot)))
                self._begun += 1
                with self._order_changed:
                    self._order.append(filling)
                    self._order_changed.notify_all()
                self._fill(filling)
        except BaseException as error:  # noqa: BLE001 the one boundary of this thread: the trainer must hear of it
            if not self._closed:
                self._failed(
                    error if isinstance(error, AutoloaderError) else fault_of(error, "", "mix")
                )

    def _repair(self, filling: Filling) -> None:
        """Have rows that cannot be used repeat one that can, best of their dataset."""
        bad = {row for row, _, _ in filling.bad}
        for _, place, reason in filling.bad:
            self._quarantine.add(place, reason)
        rows = [row for row in range(filling.batch.rows) if row not in bad]
        if not rows:
            _, place, reason = filling.bad[0]
            name = self._names[place.dataset]
            raise SourceError(
                f"no sample of a batch of {filling.batch.rows} can be used; dataset {name!r}, "
                f"record {place.record} of shard {place.shard}: {reason}",
                remedy="check the features that the spec names, or take the dataset out",
                dataset=name,
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
        ledger, provenance = filling.views["ledger"], filling.views["provenance"]
        shown = slice(filling.batch.rows)
        moved = (ledger[shown, : provenance.shape[1]] != provenance[shown]).any(axis=1)
        filling.batch.replaced = int(moved.sum())

    def _note_non_finite(self, filling: Filling) -> None:
        """Look at the numbers of all rows; called before the last one is given to the pool.

        Raises:
            SourceError: the spec bears no value that is not finite.
        """
        shown = slice(filling.batch.rows)
        odd = {
            name: ~np.isfinite(filling.views[name][shown]).all(axis=(1, 2))
            for name in ("action", "state")
        }
        rows = np.flatnonzero(odd["action"] | odd["state"]).tolist()
        filling.batch.non_finite = rows
        how = self._quarantine.non_finite
        for row in rows if how != "keep" else ():
            *numbers, t = filling.views["provenance"][row].tolist()
            place = Place(*numbers)
            names = " and ".join(name for name in odd if odd[name][row])
            reason = f"{names} at t = {t} holds NaN or an infinite value"
            if how == "error":
                name = self._names[place.dataset]
                raise SourceError(
                    f"dataset {name!r}, record {place.record} of shard {place.shard}: {reason}",
                    remedy="mend the record, or set errors.non_finite: drop (or keep)",
                    dataset=name,
                )
            filling.bad.append((row, place, reason))
