"""Puts batches together: copies samples into a slot's rows, and has their frames decoded there.

Theory of operation. One thread takes a slot, begins a batch in it, takes samples from the source,
copies their numbers column by column and gives their frames to the decode pool. It goes on to the
next batch while the pool still decodes. A batch is filled when its last row is; batches leave in
the order in which they were begun. Up to ``ring_slots`` batches are under way at a time.

A sample that cannot be used, because a frame of it cannot be decoded or by the spec's
``errors.non_finite``, is quarantined, and its row repeats another row of the batch, provenance
included; the ledger says what was meant to be there, so nothing is lost count of.

Rows whose frames the frame cache holds are copied in a few jobs instead (``decode.gather``). When a
batch is filled its runs' leases are told.

Not here: which samples come (``decode.source``), decoding a row (``decode.row_jobs``).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from autoloader.decode.gather import GatherJob, held_rows, stretches
from autoloader.decode.message import BatchMessage, languages
from autoloader.decode.pool import DecodePool
from autoloader.decode.quarantine import Quarantine
from autoloader.decode.ring import RingMemory
from autoloader.decode.row_jobs import Chains, Decoder, PendingBatch, RowJob
from autoloader.decode.source import SampleSource
from autoloader.errors import AutoloaderError, SourceError, as_fault
from autoloader.host.clock import Clock
from autoloader.host.threads import LoaderThread, all_ended
from autoloader.samples.block import Place, SampleBlock
from autoloader.samples.layout import BatchLayout

STALL_S = 5.0


class Assembler:
    """The thread that begins batches, and the line of those it has begun.

    Args:
        layout: layout of the batches in a slot.
        source: gives the samples.
        rows: rows of the batch that is next; called once for each.
        pool: decodes.
        decoders: of each dataset, by camera.
        memory: the ring.
        slots: those to be filled, in order.
        quarantine: told of undecodable frames.
        condition: told when samples are there, shared with the source.
        names: dataset names.
        clock: time source for the detection of stalls.
        failed: told of the exception that ends the thread.
    """

    def __init__(
        self,
        layout: BatchLayout,
        *,
        source: SampleSource,
        rows: Callable[[], int],
        pool: DecodePool,
        decoders: Sequence[Mapping[str, Decoder]],
        memory: RingMemory,
        slots: queue.SimpleQueue[int | None],
        quarantine: Quarantine,
        condition: threading.Condition,
        names: Sequence[str],
        clock: Clock,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._layout = layout
        self._source = source
        self._next_rows = rows
        self._decoders = decoders
        self._pool = pool
        self._memory = memory
        self._slots = slots
        self._quarantine = quarantine
        self._condition = condition
        self._names = names
        self._clock = clock
        self._failed = failed
        self._closed = False
        self._chains = Chains(pool.submit) if source.chained else None
        self._submit: Callable[[RowJob], None] = pool.submit
        if self._chains is not None:
            self._submit = self._chains.add
        self._line: list[PendingBatch] = []
        self._line_changed = threading.Condition()
        self._handing = threading.RLock()
        self._begun = 0
        self._decoded = [0] * len(names)
        self._gathered = np.zeros(len(names), np.int64)
        self.stalls = [0] * len(names)
        self._thread = LoaderThread(target=self._run, name="autoloader-mix")

    def start(self) -> None:
        """Begin to mix."""
        self._thread.start()

    @property
    def taken(self) -> list[int]:
        """[D] samples of each dataset that batches have taken."""
        return [a + b for a, b in zip(self._decoded, self._gathered.tolist(), strict=True)]

    @property
    def filled(self) -> int:
        """Batches ready for the consumer."""
        return sum(pending.done.is_set() for pending in list(self._line))

    def next(self, timeout_s: float) -> BatchMessage | None:
        """The next filled batch, in order; ``None`` where none is ready in time.

        Raises:
            SourceError: no row of a batch can be used, or too many records are bad.
        """
        with self._line_changed:
            if not self._line:
                self._line_changed.wait(timeout_s)
            if not self._line:
                return None
            pending = self._line[0]
        if not pending.done.wait(timeout_s):
            return None
        with self._line_changed:
            if self._closed or not self._line:
                return None
            self._line.pop(0)
        with self._handing:
            if self._closed:
                return None
            if pending.bad:
                try:
                    self._repair(pending)
                except AutoloaderError as error:
                    self._failed(error)
                    raise
        batch, views = pending.batch, pending.views
        shown, meant = views["provenance"][: batch.rows], views["ledger"][: batch.rows]
        differ = shown != meant[:, : shown.shape[1]]
        batch.replaced = int(differ.any(axis=1).sum()) if differ.any() else 0
        return batch

    def close(self) -> None:
        """Stop; what is under way is dropped, and whoever waits for it wakes up."""
        self._closed = True
        for pending in list(self._line):
            pending.done.set()
        with self._handing:  # a batch that is being repaired is
            pass
        self._slots.put(None)
        with self._condition:
            self._condition.notify_all()
        with self._line_changed:
            self._line_changed.notify_all()

    def join(self, within_s: float | None) -> bool:
        """Wait for the thread to end; whether it has."""
        return all_ended([self._thread], within_s)

    @property
    def slots(self) -> frozenset[int]:
        """The slot that the thread fills; none once it has ended."""
        pending = self._line[-1:] if self._thread.is_alive() else ()
        return frozenset(one.batch.slot for one in pending)

    def _run(self) -> None:
        try:
            while (slot := self._slots.get()) is not None and not self._closed:
                batch = BatchMessage(slot, self._next_rows(), self._begun)
                pending = PendingBatch(batch, self._layout.views(self._memory.base(slot)))
                self._begun += 1
                with self._line_changed:
                    self._line.append(pending)
                    self._line_changed.notify_all()
                self._fill(pending)
        except BaseException as error:  # noqa: BLE001 the one boundary of this thread: the trainer must hear of it
            if not self._closed:
                self._failed(as_fault(error, "mix"))

    def _fill(self, pending: PendingBatch) -> None:
        """Have all rows filled; returns early once closed."""
        rows, row, texts = pending.batch.rows, 0, list[bytes]()
        while row < rows:
            found = self._source.take(rows - row) or self._wait(rows - row)
            if found is None:
                return
            block, first, count = found
            for name, column in block.columns.items():
                pending.views[name][row : row + count] = column[first : first + count]
            texts += block.texts_of(first, count)
            if row + count == rows:
                # The batch may be filled, and taken, as soon as its last row is submitted.
                self._write_texts(pending, texts)
                self._note_non_finite(pending)
                self._source.finish(pending.batch)
            self._decode(pending, row, block, first, count)
            row += count
        if self._chains is not None:
            self._chains.flush()

    def _decode(
        self, pending: PendingBatch, row: int, block: SampleBlock, first: int, count: int
    ) -> None:
        rows: Iterable[int] = range(count)
        seen: dict[str, dict[int, np.ndarray]] = {camera: {} for camera in self._layout.cameras}
        if block.lease is not None:
            pending.leases.append((block.lease, count))
            rows = self._gather(pending, row, block, first, count)
        for k in rows:
            dataset = block.datasets[first + k]
            self._decoded[dataset] += 1
            name = self._names[dataset]
            decoders = self._decoders[dataset]
            self._submit(RowJob(dataset, row + k, pending, block, first + k, decoders, name, seen))

    def _gather(
        self, pending: PendingBatch, row: int, block: SampleBlock, first: int, count: int
    ) -> list[int]:
        """Have the rows copied whose frames are all held; the others, counted from ``first``."""
        assert block.lease is not None
        whole, slots = held_rows(block.lease, block, self._layout.cameras, first, count)
        of = block.columns["dataset_index"][first : first + count][whole]
        self._gathered += np.bincount(of, minlength=len(self._gathered))
        for start, stop in stretches(whole):
            mine = {camera: every[start:stop] for camera, every in slots.items()}
            self._pool.submit(GatherJob(len(self._names), row + start, pending, block.lease, mine))
        rest: list[int] = np.flatnonzero(~whole).tolist()
        return rest

    def _wait(self, count: int) -> tuple[SampleBlock, int, int] | None:
        """What the source gives as soon as it gives anything; ``None`` once closed."""
        started = named = self._clock.now_s()
        with self._condition:
            while not self._closed:
                found = self._source.take(count)
                if found is not None:
                    return found
                self._condition.wait(0.5)
                now = self._clock.now_s()
                if now - named < STALL_S:
                    continue
                late = self._source.stalled(now - started)
                if late is not None:
                    named = now
                    for dataset in late:
                        self.stalls[dataset] += 1
        return None

    @staticmethod
    def _write_texts(pending: PendingBatch, texts: Sequence[bytes]) -> None:
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        ends = np.cumsum(lengths)
        room = len(pending.views["language_text"])
        if ends[-1] > room:
            # The rows from the first that does not fit on carry their texts beside the slot.
            fits = int(np.searchsorted(ends, room, side="right"))
            pending.batch.texts.update(enumerate(texts[fits:], start=fits))
            texts, ends = texts[:fits], np.minimum(ends, ends[fits - 1] if fits else 0)
        joined = np.frombuffer(b"".join(texts), np.uint8)
        pending.views["language_text"][: len(joined)] = joined
        pending.views["language_end"][: len(ends)] = ends

    def _repair(self, pending: PendingBatch) -> None:
        """Have rows that cannot be used repeat one that can, best of their dataset."""
        bad = {row for row, _, _ in pending.bad}
        for _, place, reason in pending.bad:
            self._quarantine.add(place, reason)
        rows = [row for row in range(pending.batch.rows) if row not in bad]
        if not rows:
            _, place, reason = pending.bad[0]
            name = self._names[place.dataset]
            raise SourceError(
                f"no sample of a batch of {pending.batch.rows} can be used; dataset {name!r}, "
                f"record {place.record} of shard {place.shard}: {reason}",
                remedy="check the features that the spec names, or take the dataset out",
                dataset=name,
            )
        texts = languages(pending.views, pending.batch)
        datasets = pending.views["dataset_index"]
        for row in bad:
            same = [other for other in rows if datasets[other] == datasets[row]]
            good = (same or rows)[0]
            for name, view in pending.views.items():
                if name not in ("ledger", "language_end", "language_text"):
                    view[row] = view[good]
            pending.batch.texts[row] = texts[good]

    def _note_non_finite(self, pending: PendingBatch) -> None:
        """Look at the numbers of all rows; called before the last one is given to the pool.

        Raises:
            SourceError: the spec bears no value that is not finite.
        """
        shown = slice(pending.batch.rows)
        finite = {name: np.isfinite(pending.views[name][shown]) for name in ("action", "state")}
        if all(every.all() for every in finite.values()):
            return
        odd = {name: ~every.all(axis=tuple(range(1, every.ndim))) for name, every in finite.items()}
        rows = np.flatnonzero(odd["action"] | odd["state"]).tolist()
        pending.batch.non_finite = rows
        how = self._quarantine.non_finite
        for row in rows if how != "keep" else ():
            *numbers, t = pending.views["provenance"][row].tolist()
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
            pending.bad.append((row, place, reason))
