"""Hands filled slots to the training loop as batches, and takes them back; measures its waits.

Theory of operation. Behind a training step nothing of ours is in the processor's caches any more,
and making tensors of a filled slot takes up to a millisecond. So while the step runs a thread gives
slots back and makes the next batch, if that has been filled; little is left to do when it is asked
for. The thread works between two calls of the loader only: whatever is asked of the loader waits
for it first. A batch that it made before the pipeline began anew is dropped, and comes again.

Used by the thread that iterates the loader, but for ``_prepare``.

Not here: filling a slot (``decode``), which samples were handed out (``pipeline.progress``).
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from autoloader.batch import AugmentableBatch, Batch, assemble, wrapper
from autoloader.decode.activity import HelperActivity
from autoloader.extras import needs
from autoloader.host.background import Background
from autoloader.order.dealing import Ranks
from autoloader.order.mixture import MixtureOrder
from autoloader.pipeline.progress import DeliveryProgress
from autoloader.process.client import ChildPipeline
from autoloader.process.control_page import ControlPage
from autoloader.ring.memory import Lender, RingMemory
from autoloader.ring.message import BatchMessage, texts_of
from autoloader.samples.resolve import ResolvedMixture
from autoloader.telemetry.batch_times import BatchTimes
from autoloader.telemetry.lines import run_name
from autoloader.telemetry.meter import ConsumerMeter
from autoloader.telemetry.progress import Patience, doing
from autoloader.telemetry.statistics import (
    CacheStatistics,
    ControllerStatistics,
    DatasetStatistics,
    HelperStatistics,
    RingStatistics,
    Statistics,
)

if TYPE_CHECKING:
    from autoloader.actuation.in_thread import ThreadPipeline
    from autoloader.device.transfer import Transfer


def _helpers(seen: HelperActivity, slots: int) -> HelperStatistics | None:
    if not (slots or seen.batches):
        return None
    return HelperStatistics(**dataclasses.asdict(seen))


def _repeated(tree: Any) -> Any:
    """The same tensors in dicts of their own: a trainer may take things out of what it is given."""
    if not isinstance(tree, dict):
        return tree
    made = copy.copy(tree)
    made.update({key: _repeated(value) for key, value in tree.items()})
    return made


_SHORT_STEP_S = 0.001
"""A training loop that is back sooner gains nothing by a batch that is made meanwhile."""


@dataclasses.dataclass(slots=True)
class _Prepared:
    """A batch in the training loop's form that has not been handed out.

    Attributes:
        filled: what the child told of it.
        batch: over its slot.
        ledger: which samples it stands for, row by row.
        copied: whether it is a copy of the slot.
        generation: of the pipeline that it came from.
    """

    filled: BatchMessage
    batch: Batch
    ledger: list[list[int]]
    copied: bool
    generation: int = 0


class Delivery:
    """The way of one loader's batches to its training loop.

    Args:
        mixture: whose batches they are, over all ranks.
        order: its order.
        ranks, planned: see ``DeliveryProgress``.
        output: "torch" tensors or "numpy" arrays.
        page: where the loader's child reads how long the training loop waits; ``None``: it has no
            child.
        number: of the loader in the batch log.
        replays: whether the first batch is handed out again and again.
    """

    def __init__(
        self,
        mixture: ResolvedMixture,
        order: MixtureOrder,
        ranks: Ranks,
        output: Literal["torch", "numpy"],
        page: ControlPage | None,
        number: int,
        *,
        planned: bool,
        replays: bool = False,
    ) -> None:
        self.progress = DeliveryProgress(mixture, order, ranks, planned=planned)
        self._mixture = mixture
        doing(f"importing {output}")
        self._wrap = wrapper(output)
        doing("")
        self._own_page = page is None
        self.page = page or ControlPage()
        self._replays = replays
        self._kept: Batch | None = None
        self._transfer: Transfer | None = None
        self._background = None if page is None or replays else Background("autoloader-hand")
        self._prepared: _Prepared | None = None
        self._asked_s = self._step_s = 0.0
        self._got_s = math.inf
        self._patience = Patience()
        self.copied = False
        """Whether the last batch is a copy, and its slot to be taken back at once."""
        self.meter = ConsumerMeter()
        self.memory = RingMemory(mixture.layout)
        self.lender = Lender(self.memory)
        self._log = BatchTimes.wanted(number)
        if self._log is not None:
            self._log.start(mixture.split, mixture.names, order.shares)

    def ask(self) -> None:
        """The training loop asks for a batch, and has waited since ``settle``."""
        self._step_s = self._asked_s - self._got_s
        self._patience.begin()
        self.page.waiting(time.monotonic_ns())

    def still_waits(self, pipeline: int) -> None:
        """The training loop still waits for its batch: every five seconds it is said what for.

        Args:
            pipeline: number of the pipeline that fills it.
        """
        self._patience.look(lambda: self._awaited(pipeline))

    def _awaited(self, pipeline: int) -> str:
        from autoloader.telemetry.runtime import said_last  # most batches come in time
        from autoloader.telemetry.verdict import wait_words

        why = wait_words(said_last(run_name(), pipeline), time.time())
        return f"waiting for {'a' if self.meter.batches else 'the first'} batch" + (
            f": {why}" if why else ""
        )

    def hand_over(self, filled: BatchMessage, ring_slots: int) -> Batch:
        """The batch in a filled slot, noted in ``progress``; the training loop waits no more."""
        made = self._made(filled, ring_slots)
        self.copied = made.copied
        return self._handed_over(made)

    def prepared(self, pipeline: ChildPipeline | ThreadPipeline) -> Batch | None:
        """As ``hand_over``: the batch that was made during the training step, if there is one."""
        if self._transfer is not None:
            self._transfer.collect(pipeline.knobs.ring_slots)
        made, self._prepared = self._prepared, None
        if made is None or made.generation != cast("ChildPipeline", pipeline).generation:
            return None
        if self._transfer is not None and not self._transfer.active:
            self.memory.make_pageable(made.filled.slot)
        return self._handed_over(made)

    def prepare_next(self, pipeline: ChildPipeline | ThreadPipeline) -> None:
        """Make the next batch while the training loop does its step, which takes long enough."""
        if self._background is not None and self._step_s >= _SHORT_STEP_S:
            self._background.run(lambda: self._prepare(cast("ChildPipeline", pipeline)))

    def _prepare(self, pipeline: ChildPipeline) -> None:
        """The thread's part. Under the lock nothing begins anew, with other slots lent.

        It is not waited for: whoever has it may be closing this loader, and waits for the thread.
        """
        if not pipeline.lock.acquire(blocking=False):
            return
        try:
            for slot in self.lender.collect():
                pipeline.release(slot)
            slots = pipeline.knobs.ring_slots
            filled = pipeline.next_now() if self.lender.may_lend(slots) else None
            if filled is not None:
                self._prepared = self._made(filled, slots)
                self._prepared.generation = pipeline.generation
        finally:
            pipeline.lock.release()

    def settle(self) -> None:
        """Wait for the thread that makes the next batch; raises what it met with."""
        self._asked_s = time.perf_counter()
        if self._background is not None:
            self._background.settle()

    def drop_prepared(self) -> None:
        """Let go of the next batch; the pipeline must begin anew, and fills it again."""
        self._prepared = None

    def _made(self, filled: BatchMessage, ring_slots: int) -> _Prepared:
        pinned = self._transfer is not None and self._transfer.active
        views, copied = self.lender.lend(filled.slot, ring_slots, pinned=pinned)
        spec = self._mixture.spec
        texts, features = texts_of(self._mixture.layout, views, filled)
        batch = assemble(
            views,
            texts,
            rows=filled.rows,
            metadata=spec.metadata,
            wrap=self._wrap,
            features=features,
        )
        cast("dict[str, Any]", batch).update(filled.called)
        if spec.augment:
            batch = cast("Batch", AugmentableBatch(batch, spec, self._mixture.split))
        return _Prepared(filled, batch, views["ledger"][: filled.rows].tolist(), copied)

    def _handed_over(self, made: _Prepared) -> Batch:
        filled, batch = made.filled, made.batch
        self.progress.deliver(filled, made.ledger)
        if self._replays:
            self._kept, batch = batch, _repeated(batch)
        got_s = self._got_s = time.perf_counter()
        if self._log is not None:
            self._log.note(self._asked_s, got_s, np.array(made.ledger)[:, 0])
        self.meter.note(self._asked_s, got_s, filled.rows)
        self.page.delivered(int((got_s - self._asked_s) * 1e9))
        return batch

    def again(self) -> Batch | None:
        """The first batch once more, where it is repeated and there is one."""
        if self._kept is None:
            return None
        self.ask()
        self.progress.repeat()
        got_s = time.perf_counter()
        self.meter.note(self._asked_s, got_s, len(self._kept["action"]))
        self.page.delivered(int((got_s - self._asked_s) * 1e9))
        return cast("Batch", _repeated(self._kept))

    def take_back(self, ring_slots: int, release: Callable[[int], object]) -> None:
        """Release the slots whose batches nobody holds any more."""
        if self._transfer is not None:
            self._transfer.collect(ring_slots)
        for slot in self.lender.collect():
            release(slot)

    def transfer(self, device: Any) -> Transfer:
        """See ``AutoLoader.transfer``."""
        with needs("transfer"):
            from autoloader.device.transfer import Transfer, open_device

        if self._transfer is None:
            port = device if hasattr(device, "register") else open_device(device)
            self._transfer = Transfer(port, self.memory)
            self.memory.unpin = self._transfer.unpin
        return self._transfer

    def stop(self) -> None:
        """End the thread, and unpin the slots: the device reads from them no more."""
        if self._background is not None:
            self._background.close()
        self._prepared = None
        if self._transfer is not None:
            self._transfer.close()

    def statistics(
        self,
        pipeline: ChildPipeline | ThreadPipeline,
        *,
        headroom_bytes: int | None,
        shares: Sequence[float],
        controlled: bool,
        starts: int,
        closed: bool,
    ) -> Statistics:
        """A snapshot of the loader whose batches these are; see ``telemetry.Statistics``."""
        activity, meter, progress = pipeline.activity(), self.meter, self.progress
        datasets = {
            name: DatasetStatistics(
                weight=shares[index],
                share=progress.share(index),
                non_finite=progress.non_finite[index],
                **(own.as_statistics() if own else {}),
            )
            for index, name in enumerate(self._mixture.names)
            for own in [activity.datasets.get(name)]
        }
        return Statistics(
            samples=meter.samples,
            batches=meter.batches,
            samples_per_s=meter.samples_per_s,
            wait_ratio=meter.wait_ratio,
            batch_latency_s=meter.latency_s(),
            headroom_bytes=headroom_bytes,
            loader_bytes=0 if closed else pipeline.held_bytes(),
            decodes_per_sample=activity.decodes_per_sample,
            batch_call_s=activity.call_s / activity.calls if activity.calls else None,
            ring=RingStatistics(
                slots=activity.ring_slots,
                filled=activity.ring_filled,
                occupancy_ratio=activity.ring_filled / activity.ring_slots,
                copies=self.lender.copies,
                allocated_bytes=self.memory.allocated_bytes(),
                stuck=activity.ring_stuck,
            ),
            cache=CacheStatistics(**activity.cache.as_statistics()),
            helpers=_helpers(activity.helpers, pipeline.knobs.helper_slots),
            datasets=datasets,
            knobs=pipeline.knobs.flat(),
            state=pipeline.state if controlled else None,
            controller=ControllerStatistics(**pipeline.control) if controlled else None,
            repeats=progress.repeats,
            starts=starts,
            restarts=pipeline.restarts,
            worker_pids=() if closed else (*pipeline.pids, *activity.processes),
        )

    def close(self) -> None:
        """Let go of the ring but for what live batches hold; end the log."""
        if self._log is not None:
            self._log.close()
        self._kept = None
        self.lender.close()
        self.memory.close()
        if self._own_page:
            self.page.close()
