"""Hands filled slots to the training loop as batches, and takes them back; measures its waits.

Theory of operation. The training loop's thread may be interrupted between any two instructions, by
Ctrl-C or by whatever a signal's handler raises. So it takes a batch by one step: it deletes
``InHand.batch`` of the batch that it returns. Beside that it notes times alone. All else runs in
the loader's own thread (``host.threads``), each task as a whole. A batch in hand that was not
returned is returned by the next call; ``progress`` counts a batch when the loop has asked for
something else. A batch that the loop waited for is counted beside the ring as soon as it is in
hand: that measures waiting, and decides nothing.

Behind a training step the loader's code and data have left the processor's caches. Making tensors
of a filled slot takes up to a millisecond. So while the step runs the loader's thread gives slots
back and makes the next batch, if that has been filled; little is left to do when it is asked for.

Invariants:
    1. A batch counts as delivered if and only if ``next`` returned it. In ``x = next(it)`` Python
       itself may raise between the return and the store; then the batch is lost.
    2. A pipeline that begins anew begins behind the batches in hand.

Not here: filling a slot (``decode``), which samples were handed out (``pipeline.progress``).
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from autoloader.decode.message import BatchMessage, PipelineStart, assemble
from autoloader.decode.ring import Lender, RingMemory
from autoloader.host.extras import needs
from autoloader.host.frozen import frozen
from autoloader.pipeline.progress import DeliveryProgress
from autoloader.process.child import ChildPipeline
from autoloader.process.planning import LoaderPlan
from autoloader.samples.layout import AugmentableBatch, Batch, wrapper
from autoloader.sampling.dealing import Ranks
from autoloader.telemetry.lines import run_name
from autoloader.telemetry.progress import Patience, doing
from autoloader.telemetry.statistics import (
    ConsumerMeter,
    ControllerStatistics,
    DatasetStatistics,
    Statistics,
)

if TYPE_CHECKING:
    from autoloader.process.transfer import Transfer


def _repeated(tree: Any) -> Any:
    """The same tensors in dicts of their own: a trainer may take things out of what it is given."""
    if not isinstance(tree, dict):
        return tree
    made = copy.copy(tree)
    made.update({key: _repeated(value) for key, value in tree.items()})
    return made


_SHORT_STEP_S = 0.001
"""A training loop that is back sooner gains nothing by a batch that is made meanwhile."""


@dataclasses.dataclass(slots=True, eq=False)
class InHand:
    """A batch that waits for the training loop, or the end of the epoch.

    Attributes:
        number: number of the batch, counted from the start.
        batch: the batch; the loop, or ``drop``, deletes this attribute to take it. ``None`` at the
            end of the epoch.
        filled: message of the child about the batch; ``None`` of a batch that comes again
            (``replay_one_batch``), and at the end of the epoch.
        ledger: samples that the batch stands for, row by row.
        ends: whether it is the end of the epoch.
        copied: whether it is a copy of the slot.
        pinned: whether its slot may be pinned for a device.
        shown: whether the training loop has it, and does not yet count it as its own.
        noted: whether it is counted beside the ring.
        asked_s, got_s: times at which it was asked for, and at which it was there.
    """

    number: int
    batch: Batch | None
    filled: BatchMessage | None = None
    ledger: list[list[int]] = dataclasses.field(default_factory=list)
    ends: bool = False
    copied: bool = False
    pinned: bool = False
    shown: bool = False
    noted: bool = False
    asked_s: float = 0.0
    got_s: float = 0.0

    @property
    def taken(self) -> bool:
        """True if the training loop has it (a dropped batch is in hand no more)."""
        return not hasattr(self, "batch")


def as_it_is(batch: Batch) -> Any:
    """The batch."""
    return batch


@frozen
class Way:
    """The course of an iteration.

    Attributes:
        left: number of its batches, over ends of epochs; ``math.inf``: it has no end. ``None``: the
            end of the epoch ends it.
        holds: whether a batch stays in hand until the trainer says that the training step has it.
        change: makes of a batch what the loop wants; where it raises, the batch stays in hand.
    """

    left: float | None = None
    holds: bool = False
    change: Callable[[Batch], Any] = as_it_is


class Iteration(Iterator[Any]):
    """One iteration of a loader, by the training loop's thread.

    Args:
        awaited: waits for the first batch in hand behind a number; see ``AutoLoader.awaited``.
        begin: called before the first batch; says how the iteration goes.
    """

    def __init__(self, awaited: Callable[[int], InHand], begin: Callable[[], Way] = Way) -> None:
        self._awaited = awaited
        self._begin = begin
        self._way: Way | None = None
        self._left: float | None = None
        self._after = -1

    def __next__(self) -> Any:
        if (way := self._way) is None:
            way = self._begin()
            self._left, self._way = way.left, way
        while self._left != 0:
            one = self._awaited(self._after)
            batch, left, after = getattr(one, "batch", _GONE), self._left, self._after
            if batch is _GONE:
                continue
            given = None if one.ends else way.change(cast("Batch", batch))
            try:
                if one.ends:
                    self._left = 0 if left is None else left
                    del one.batch
                    continue
                self._left = None if left is None else left - 1
                if way.holds:
                    self._after = one.number
                    one.shown = True
                else:
                    del one.batch
                return given  # noqa: TRY300 nothing may lie between this and the line above
            except AttributeError:  # a handler has dropped what was in hand
                self._left = left
            except BaseException:  # it was not returned
                one.batch, self._left, self._after = cast("Batch", batch), left, after
                raise
        raise StopIteration


_GONE = object()


class Delivery:
    """The way of one loader's batches to its training loop.

    Args:
        plan: plan of the loader.
        ranks: rank of the loader's trainer, and the number of trainers.
        output: "torch" tensors or "numpy" arrays.
        replays: whether the first batch is handed out again and again.
    """

    def __init__(
        self,
        plan: LoaderPlan,
        ranks: Ranks,
        output: Literal["torch", "numpy"],
        *,
        replays: bool = False,
    ) -> None:
        mixture = self._mixture = plan.mixture
        planned = plan.knobs.reader == "indexed"
        self.progress = DeliveryProgress(mixture, plan.order, ranks, planned=planned)
        doing(f"importing {output}")
        self._wrap = wrapper(output)
        doing("")
        self._replays = replays
        self._kept: Batch | None = None
        self._transfer: Transfer | None = None
        self._in_hand: collections.deque[InHand] = collections.deque()
        self._arrived: BatchMessage | None = None
        self._lent: tuple[dict[str, Any], bool] | None = None
        """Arrays over the slot of the batch that has arrived: while they live, nobody fills it."""
        self._made = 0
        self.asked_s = 0.0
        self.got_s = math.inf
        """When the training loop asked last, and when it got what it asked for."""
        self.patience = Patience()
        self.meter = ConsumerMeter()
        self.memory = RingMemory(mixture.layout)
        self.lender = Lender(self.memory)

    def in_hand(self, after: int) -> InHand | None:
        """First batch in hand behind number ``after``, or ``None``; any thread may ask."""
        return next((one for one in self._untaken if one.number > after), None)

    def shown(self) -> InHand | None:
        """First batch that the loop was shown and does not count as its own, or ``None``."""
        return next((one for one in self._untaken if one.shown), None)

    @property
    def _untaken(self) -> Iterator[InHand]:
        """Batches in hand that the loop does not count as its own; any thread may ask."""
        return (one for one in tuple(self._in_hand) if not one.taken)

    @property
    def uncounted(self) -> bool:
        """True if the loop has batches that ``progress`` does not know of; any thread."""
        return any(one.taken for one in tuple(self._in_hand))

    def count(self, before: float = math.inf) -> None:
        """Note in ``progress`` the batches that the training loop has taken.

        Args:
            before: only batches before this number: the loop may put the last one back.
        """
        self._note_waits()
        while self._in_hand and self._in_hand[0].taken and self._in_hand[0].number < before:
            self._count(self._in_hand.popleft(), self.progress)

    def _count(self, one: InHand, progress: DeliveryProgress) -> None:
        if one.ends:
            progress.next_epoch()
            return
        if one.filled is None:
            progress.repeat()
        else:
            progress.deliver(one.filled, one.ledger)
        rows = one.filled.rows if one.filled is not None else len(one.ledger)
        self.meter.note(one.asked_s, one.got_s, rows)

    def _note_waits(self) -> None:
        """Count batches beside the ring that were taken since."""
        for one in self._in_hand:
            if one.taken and not (one.noted or one.ends):
                one.noted = True
                self.memory.note_batch(one.got_s - one.asked_s)

    def position(self) -> PipelineStart:
        """Where a pipeline begins: behind what is in hand."""
        self._arrived = self._lent = None
        self.count()
        return self._behind().start()

    def _behind(self) -> DeliveryProgress:
        """``progress`` as it will be once all batches in hand are taken; not to be changed."""
        if not self._in_hand:
            return self.progress
        behind = self.progress.copy()
        for one in self._in_hand:
            if one.ends:
                behind.next_epoch()
            elif one.filled is not None:
                behind.deliver(one.filled, one.ledger)
        return behind

    def _steps_left(self) -> int | None:
        """Steps of the epoch behind what is in hand."""
        if any(one.ends for one in self._in_hand):
            return self._behind().steps_left
        left = self.progress.steps_left
        return None if left is None else left - len(self._in_hand)

    def drop(self, *, shown: bool = False) -> None:
        """Drop the batches in hand: the pipeline must begin anew, and fills them again.

        Args:
            shown: whether to drop also batches that the training loop was shown.
        """
        self._arrived = self._lent = None
        self.count()
        before, self._in_hand = self._in_hand, collections.deque()
        for one in before:
            if one.shown and not shown:
                self._in_hand.append(one)
                continue
            try:
                del one.batch
            except AttributeError:  # the loop took it at this moment
                self._count(one, self.progress)

    @property
    def ahead(self) -> int:
        """Batches that the training loop was shown and does not count as its own."""
        return sum(one.shown for one in self._untaken)

    def await_next(self, pipeline: ChildPipeline, timeout_s: float) -> None:
        """Put the next batch in hand, if it comes in time; under the child's lock.

        The way of a batch that is late; ``make_ahead`` is the usual one.
        """
        if self._steps_left() == 0:
            self._put(InHand(self._made, None, ends=True))
            return
        self.memory.note_wait(self.asked_s)
        try:
            if self._kept is not None:
                again = cast("Batch", _repeated(self._kept))
                self._put(InHand(self._made, again, None, [[]] * len(again["action"])))
                return
            if self._arrived is None:
                self._arrived = pipeline.next(timeout_s)
            if self._arrived is None:
                self.patience.look(self.asked_s, lambda: self._awaits(pipeline.number))
                return
            one = self._make(self._arrived, pipeline.knobs.ring_slots)
            if one.copied:
                self.take_back(pipeline.knobs.ring_slots, pipeline.release)
            one.noted = True
            self.memory.note_batch(time.monotonic() - self.asked_s)
        finally:
            self.memory.note_wait(0.0)

    def _awaits(self, pipeline: int) -> str:
        from autoloader.telemetry.run_record import said_last  # most batches come in time
        from autoloader.telemetry.verdict import wait_words

        why = wait_words(said_last(run_name(), pipeline), time.time())
        return f"waiting for {'a' if self.meter.batches else 'the first'} batch" + (
            f": {why}" if why else ""
        )

    def makes_ahead(self, step_s: float) -> bool:
        """True if ``make_ahead`` should run during the next step, after one of ``step_s``."""
        return not self._replays and step_s >= _SHORT_STEP_S

    def make_ahead(self, pipeline: ChildPipeline, after: int) -> None:
        """During the training step: give slots back, and put the next batch in hand.

        Only a batch that has come already is taken, and only where its slot may be lent. The
        child's lock keeps the pipeline from beginning anew meanwhile. The lock is not waited for,
        since its holder may wait for this thread.

        Args:
            pipeline: pipeline of the loader.
            after: number of the batch that the loop has got last.
        """
        if not pipeline.child.lock.acquire(blocking=False):
            return
        try:
            self.count(after)
            pipeline.child.activate(pipeline.number)
            slots = pipeline.knobs.ring_slots
            self.take_back(slots, pipeline.release)
            if self.in_hand(after) is None and self.lender.may_lend(slots):
                if self._steps_left() == 0:
                    self._put(InHand(self._made, None, ends=True))
                if self._arrived is None:
                    self._arrived = pipeline.next_now()
                if self._arrived is not None:
                    self._make(self._arrived, slots)
        finally:
            pipeline.child.lock.release()

    def _make(self, filled: BatchMessage, ring_slots: int) -> InHand:
        """Make tensors over a filled slot, and put them in hand."""
        pinned = self._transfer is not None and self._transfer.active
        if self._lent is None:  # else making failed before, and is tried again
            self._lent = self.lender.lend(filled.slot, ring_slots, pinned=pinned)
        views, copied = self._lent
        batch, spec = assemble(self._mixture, views, filled, self._wrap), self._mixture.spec
        if spec.augment:
            batch = cast("Batch", AugmentableBatch(batch, spec, self._mixture.split))
        if self._replays:
            self._kept, batch = batch, cast("Batch", _repeated(batch))
        one = InHand(
            self._made,
            batch,
            filled,
            views["ledger"][: filled.rows].tolist(),
            copied=copied,
            pinned=pinned,
        )
        self._arrived = self._lent = None
        self._put(one)
        return one

    def _put(self, one: InHand) -> None:
        self._made += 1
        self._in_hand.append(one)

    def fits(self, one: InHand) -> bool:
        """True if the batch's slot is pageable, where its receiver needs that."""
        return not one.pinned or (self._transfer is not None and self._transfer.active)

    def unpin(self, one: InHand) -> None:
        """Make the batch's slot pageable: the transfer no longer takes the batches."""
        if one.filled is not None:
            self.memory.make_pageable(one.filled.slot)
        one.pinned = False

    def take_back(self, ring_slots: int, release: Callable[[int], object]) -> None:
        """Give slots back whose batches nobody holds any more.

        Args:
            ring_slots: number of slots in the ring now.
            release: gives a slot back: ``ChildPipeline.release``, or ``RingMemory.punch``.
        """
        if self._transfer is not None:
            self._transfer.drop_copied(ring_slots)
        for slot in self.lender.collect():
            release(slot)

    def transfer(self, device: Any) -> Transfer:
        """The loader's ``Transfer`` to a device, made at the first call; see ``AutoLoader``."""
        with needs("transfer"):
            from autoloader.process.transfer import Transfer, open_device

        if self._transfer is None:
            port = device if hasattr(device, "register") else open_device(device)
            transfer = Transfer(port, self.memory)
            self.memory.unpin = transfer.unpin
            self._transfer = transfer
        return self._transfer

    def stop(self) -> None:
        """Drop the batches in hand, and unpin the slots once the device has read them."""
        self.drop(shown=True)
        if self._transfer is not None:
            self._transfer.close()

    def statistics(
        self, pipeline: ChildPipeline, headroom_bytes: int | None, shares: Sequence[float]
    ) -> Statistics:
        """Statistics of the loader whose batches these are: the child's, and the counts of here."""
        told, meter, progress = pipeline.activity(), self.meter, self.progress
        datasets = {
            name: dataclasses.replace(
                told.datasets.get(name, DatasetStatistics()),
                weight=shares[index],
                share=progress.share(index),
                samples=progress.taken[index],
                non_finite=progress.non_finite[index],
            )
            for index, name in enumerate(self._mixture.names)
        }
        closed, controlled = pipeline.closed, pipeline.setup.control.moves
        helped = pipeline.knobs.helper_slots or (told.helpers and told.helpers.batches)
        return dataclasses.replace(
            told,
            samples=meter.samples,
            batches=meter.batches,
            samples_per_s=meter.samples_per_s,
            wait_ratio=meter.wait_ratio,
            batch_latency_s=meter.latency_s(),
            headroom_bytes=headroom_bytes,
            loader_bytes=0 if closed else pipeline.child.held_bytes(),
            ring=dataclasses.replace(
                told.ring, copies=self.lender.copies, allocated_bytes=self.memory.allocated_bytes()
            ),
            helpers=told.helpers if helped else None,
            datasets=datasets,
            knobs=pipeline.knobs.flat(),
            state=(told.state or "WARMUP") if controlled else None,
            controller=(told.controller or ControllerStatistics()) if controlled else None,
            repeats=progress.repeats,
            starts=pipeline.starts,
            restarts=pipeline.child.restarts,
            worker_pid=0 if closed else pipeline.child.pid,
            processes=() if closed else told.processes,
        )

    def close(self) -> None:
        """Close the ring; memory of live batches stays until they are gone."""
        self._kept = None
        self.lender.close()
        self.memory.close()
