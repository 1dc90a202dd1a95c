"""A pipeline over the sidecar index: planned samples, read at random, decoded by fillers.

It has the face of ``runtime.pipeline.Pipeline``. There is no mixer and no cursor: the plan names
the sample of every position, so where a pipeline is, is one number, and no knob moves the order.
TensorFlow is not imported.

Theory of operation. Indexes are opened (and built where they are missing) on a thread of their own
after ``start``; the same thread then deals batches to the fillers (``sampling.dealing``) and gives
each batch a slot as slots become free. With ``decode_processes`` 1 there is one filler, in this
process; with more there are as many light processes. A change of their number applies from the
next round on: fillers that get no more rounds are closed when their last batch is handed out.

Not here: the plan and the index (``index``), filling a batch (``runtime.filler``).
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from autoloader.clock import Clock
from autoloader.errors import AutoloaderError, UsageError, as_fault
from autoloader.index.dataset import DatasetIndex
from autoloader.index.plan import SamplePlan
from autoloader.knobs import Knobs
from autoloader.runtime.activity import DatasetActivity, PipelineActivity
from autoloader.runtime.compiled import Compiled
from autoloader.runtime.filled import FilledBatch, PipelineStart
from autoloader.runtime.filler import Filler, FillerActivity, FillerKnobs
from autoloader.runtime.messages import FillStart
from autoloader.runtime.opened import Opened, open_planned
from autoloader.runtime.planned import run_samples, sample_bytes
from autoloader.runtime.quarantine import BadRecord, Quarantine
from autoloader.runtime.remote_filler import RemoteFiller
from autoloader.runtime.ring import RingMemory
from autoloader.runtime.slots import SlotBook
from autoloader.sampling.dealing import Deal, Rounds
from autoloader.sampling.episode import Place
from autoloader.sampling.order import MixtureOrder
from autoloader.sampling.resolve import ResolvedMixture
from autoloader.threads import LoaderThread

logger = logging.getLogger(__name__)

CLOSE_S = 1.5


class IndexedPipeline:
    """Runs one mixture from its index; see ``runtime.pipeline.Pipeline`` for the methods.

    Args:
        mixture: what to run.
        order: its order.
        knobs: values to begin with; checked by the caller.
        memory: the ring's memory.
        start: where to begin.
        held: slots that the consumer still has from an earlier pipeline.
        deal: which positions each batch takes.
        ranks_here: ranks whose pipelines share this process, and its memory.
        compiled: keeps the open indexes for the next pipeline.
        clock: for stalls.

    Raises:
        UsageError: ``start`` was saved under another reader.
    """

    def __init__(
        self,
        mixture: ResolvedMixture,
        order: MixtureOrder,
        knobs: Knobs,
        memory: RingMemory,
        *,
        start: PipelineStart,
        held: Sequence[int] = (),
        deal: Deal,
        ranks_here: int = 1,
        compiled: Compiled | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._mixture = mixture
        self._order = order
        self._knobs = knobs
        self._memory = memory
        _check_reader(start.mixer)
        self._number = deal.first_number
        self._rounds = Rounds(deal)
        self._ranks_here = ranks_here
        self._sample_bytes = 0.0
        self._clock = clock
        self._failure: BaseException | None = None
        self._closed = False
        self._parked = False
        self._lock = threading.Lock()
        self._dealt = threading.Condition(self._lock)
        self._quarantine = Quarantine(mixture)
        self._slots = SlotBook(memory, knobs.ring_slots, held=held)
        self._opened: Opened | None = None
        self._compiled = compiled
        self._plan: SamplePlan | None = None
        self._indexes: Sequence[DatasetIndex] = ()
        self._fillers: list[Filler | RemoteFiller] = []
        self._leaving: list[Filler | RemoteFiller] = []
        self._unslotted: collections.deque[Filler | RemoteFiller] = collections.deque()
        self._under_way: collections.deque[Filler | RemoteFiller] = collections.deque()
        self._round_batches = 0
        self._over = FillerActivity.none(len(mixture.datasets))
        self._feeding = LoaderThread(target=self._feed, name="autoloader-deal")

    def start(self) -> None:
        """Open the indexes, then read ahead and fill batches."""
        self._feeding.start()

    def _feed(self) -> None:
        try:
            self._open()
            while (slot := self._slots.acquire()) is not None:
                with self._dealt:
                    if self._closed:
                        return
                    self._deal()
                    filler = self._unslotted.popleft()
                    filler.give(slot)
                    self._under_way.append(filler)
                    self._dealt.notify_all()
        except Exception as error:  # noqa: BLE001 the one boundary of this thread: the trainer must hear of it
            self._fail(error)

    def _open(self) -> None:
        opened = open_planned(self._mixture, self._order)
        self._indexes = opened.indexes
        for dataset, index in zip(self._mixture.datasets, self._indexes, strict=True):
            for slice_, record, reason in index.damaged:
                self._quarantine.add(Place(dataset.index, 0, slice_, record), reason)
        self._plan = opened.plan
        self._sample_bytes = sample_bytes(self._mixture, self._indexes, self._order.shares)
        if self._compiled is not None:
            self._compiled.opened = opened
        with self._lock:
            if not self._closed:
                self._opened = opened
                self._deal()

    def _deal(self) -> None:
        """Keep ``read_ahead`` rounds dealt that have no slots yet; under the lock."""
        if len(self._fillers) != self._knobs.decode_processes:
            self._refill()
        samples = run_samples(self._knobs.decode_threads, self._ranks_here, self._sample_bytes)
        while len(self._unslotted) <= self._knobs.read_ahead * self._round_batches:
            runs = self._rounds.next(len(self._fillers), samples)
            for filler, spans in zip(self._fillers, runs, strict=True):
                filler.assign(spans)
            self._round_batches = sum(map(len, runs))
            self._unslotted += [self._fillers[k % len(runs)] for k in range(self._round_batches)]

    def _refill(self) -> None:
        """Have as many fillers as the knobs say; under the lock."""
        wanted = self._knobs.decode_processes
        local = [one for one in self._fillers if isinstance(one, Filler)]
        remote = [one for one in self._fillers if isinstance(one, RemoteFiller)]
        kept: list[Filler | RemoteFiller] = []
        if wanted == 1:
            kept += local or [self._local()]
        else:
            kept += remote[:wanted]
            kept += [self._remote() for _ in range(wanted - len(kept))]
        self._leaving += [one for one in self._fillers if one not in kept]
        self._fillers = kept
        self._share_knobs()

    def _local(self) -> Filler:
        assert self._plan is not None
        filler = Filler(
            self._mixture,
            self._plan,
            self._indexes,
            self._shares(1)[0],
            self._memory,
            self._quarantine,
            clock=self._clock,
        )
        filler.park(self._parked)
        return filler

    def _remote(self) -> RemoteFiller:
        filler = RemoteFiller(
            FillStart(
                0,
                spec=self._mixture.spec.model_dump(mode="json"),
                split=self._mixture.split,
                statistics=self._mixture.plain_statistics(),
                order=dataclasses.asdict(self._order),
                knobs=dataclasses.asdict(self._shares(self._knobs.decode_processes)[0]),
            ),
            self._memory.descriptor,
            datasets=len(self._mixture.datasets),
            bad=self._quarantine.add,
        )
        filler.park(self._parked)
        return filler

    def _shares(self, fillers: int) -> list[FillerKnobs]:
        """The threads of the knobs, spread over so many fillers, at least one each."""
        knobs = self._knobs
        return [
            FillerKnobs(
                decode_threads=max(1, (knobs.decode_threads + k) // fillers),
                io_threads=max(1, (knobs.io_threads + k) // fillers),
                read_ahead=knobs.read_ahead,
            )
            for k in range(fillers)
        ]

    def _share_knobs(self) -> None:
        shares = self._shares(len(self._fillers))
        for filler, share in zip(self._fillers, shares, strict=True):
            filler.retune(share)

    def next(self, timeout_s: float) -> FilledBatch | None:
        """See ``Pipeline.next``."""
        deadline = time.monotonic() + timeout_s
        with self._dealt:
            self._dealt.wait_for(lambda: self._under_way or self._failure, timeout_s)
            filler = self._under_way[0] if self._under_way else None
        if self._failure is None and filler is not None:
            try:
                batch = filler.next(max(0.0, deadline - time.monotonic()))
            except AutoloaderError as error:
                self._fail(error)
            else:
                if batch is not None:
                    self._slots.hand_out(batch.slot)
                    batch.number = self._number
                    self._number += 1
                    self._hand_out(filler)
                return batch
        if self._failure is not None:
            raise as_fault(self._failure, "read")
        return None

    def _hand_out(self, filler: Filler | RemoteFiller) -> None:
        """A filler's batch goes out; one that leaves and has no other is closed."""
        with self._lock:
            self._under_way.popleft()
            over = (
                filler in self._leaving
                and filler not in self._under_way
                and filler not in self._unslotted
            )
            if over:
                self._leaving.remove(filler)
                self._over = self._over.plus(filler.activity())
        if over:
            filler.close(CLOSE_S)

    def release(self, slot: int) -> None:
        """The consumer is done with a slot."""
        self._slots.release(slot)

    @property
    def knobs(self) -> Knobs:
        """The values in force."""
        return self._knobs

    def retune(self, knobs: Knobs) -> None:
        """Move to other knobs; none of them changes the order."""
        with self._lock:
            self._knobs = knobs
            if len(self._fillers) == knobs.decode_processes:
                self._share_knobs()
        self._slots.resize(knobs.ring_slots)

    def park(self, parked: bool) -> None:
        """Stop reading (True) or go on; the ring keeps what it has."""
        with self._lock:
            self._parked = parked
            for filler in self._all():
                filler.park(parked)

    @property
    def settled(self) -> bool:
        """Whether the fillers are as many as the knobs say."""
        return not self._leaving and len(self._fillers) in (0, self._knobs.decode_processes)

    @property
    def ready_batches(self) -> int:
        """Batches that are filled and not taken."""
        with self._lock:
            fillers = self._all()
        return sum(filler.filled for filler in fillers) + self._slots.untaken

    def drop(self) -> None:
        """Give back runs read ahead and the pages of free slots."""
        with self._lock:
            fillers = self._all()
        for filler in fillers:
            if isinstance(filler, Filler):
                filler.drop()
        self._slots.punch_free()

    def quarantined(self) -> tuple[BadRecord, ...]:
        """Bad records so far."""
        return self._quarantine.records()

    def activity(self) -> PipelineActivity:
        """What every part is doing; ``queue`` is a dataset's share of what is read ahead."""
        with self._lock:
            fillers = self._all()
            done = self._over
        for filler in fillers:
            done = done.plus(filler.activity())
        datasets = {
            dataset.name: DatasetActivity(
                queue=round(done.ahead * self._order.shares[dataset.index]),
                queue_bytes=0,
                taken=done.taken[dataset.index],
                stalls=done.stalls[dataset.index],
                quarantined=self._quarantine.count(dataset.index),
                generations=1,
                decode_s=done.decode_s[dataset.index],
                decoded=done.decoded[dataset.index],
                frames=done.frames[dataset.index],
                read_s=done.read_s * self._order.shares[dataset.index],
                episodes=0,
            )
            for dataset in self._mixture.datasets
        }
        return PipelineActivity(
            datasets=datasets,
            ring_slots=self._slots.slots,
            ring_out=self._slots.out,
            ring_filled=self.ready_batches,
            decode_waiting=done.waiting,
            mix_wait_s=done.wait_s,
            run_bytes=done.run_bytes,
            processes=[one.pid for one in fillers if isinstance(one, RemoteFiller) and one.pid],
        )

    def close(self) -> None:
        """End all threads; drops what is under way. May be called twice."""
        with self._dealt:
            if self._closed:
                return
            self._closed = True
            self._opened = None
            fillers = self._all()
            self._dealt.notify_all()
        self._slots.close()
        deadline = time.monotonic() + CLOSE_S
        for filler in fillers:
            if not filler.close(max(0.0, deadline - time.monotonic())):
                logger.warning("a reader thread is still waiting for its file")

    def _all(self) -> list[Filler | RemoteFiller]:
        return [*self._fillers, *self._leaving]

    def _fail(self, error: BaseException) -> None:
        with self._dealt:
            if self._failure is None and not self._closed:
                self._failure = error
            self._dealt.notify_all()


def _check_reader(mixer: dict[str, Any] | None) -> None:
    if mixer is not None and "position" not in mixer:
        raise UsageError(
            "the saved state is of the stream reader, this loader reads by index",
            remedy="resume with the reader that the state was saved with: reader: stream",
        )
