"""A pipeline that runs in the child, with the face of ``pipeline.pipeline.Pipeline``.

Not here: the child itself (``process.child``), its side of this (``worker``).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Collection
from dataclasses import asdict, replace

from autoloader.controller.admission import price_start
from autoloader.decode.activity import PipelineActivity
from autoloader.decode.quarantine import BadRecord
from autoloader.errors import AutoloaderError
from autoloader.knobs import Knobs
from autoloader.order.mixture import MixtureOrder
from autoloader.probes.process_memory import tree_pss_bytes
from autoloader.process import messages
from autoloader.process.child import Child
from autoloader.process.messages import Message
from autoloader.process.setup import PipelineSetup
from autoloader.ring.memory import MAX_SLOTS
from autoloader.ring.message import BatchMessage
from autoloader.supervision.start import import_path

_ANSWER_S = 5.0


class ChildPipeline:
    """One mixture in the child.

    Args:
        setup: what it is opened with; its knobs and order are those in force.
        child: where it runs.
    """

    def __init__(self, setup: PipelineSetup, child: Child) -> None:
        self._setup = setup
        self._child = child
        self._generation = 0
        self._requests = itertools.count()
        self._failure: AutoloaderError | None = None
        self._parked = False
        self._begun = False
        self._prepares = False
        self._closed = False
        self._was_full = False
        self._last = self._idle()
        self._quarantined: tuple[BadRecord, ...] = ()
        self.state = "WARMUP"
        self.control: dict[str, int] = {}
        self.number = self._number = child.join(self)

    def start(self) -> None:
        """Begin at ``position()``; also called to begin elsewhere."""
        with self._child.lock:
            self._begun = True
            self._failure = None
            self.begin(self._child)

    def go_to(self, order: MixtureOrder) -> None:
        """Begin at ``position()`` of ``order`` with the next ``start``."""
        self._setup = replace(self._setup, order=order)

    @property
    def lock(self) -> threading.RLock:
        """Held by whoever talks with the child, and where it is started again."""
        return self._child.lock

    @property
    def restarts(self) -> int:
        """Times its child was started again."""
        return self._child.restarts

    @property
    def pids(self) -> tuple[int, ...]:
        """Process id of the child."""
        return (self._child.pid,) if self._child.pid else ()

    def held_bytes(self) -> int:
        """What the child and its decode processes hold beside shared memory and frames."""
        if not self._child.pid:
            return 0
        held = tree_pss_bytes(self._child.pid, shared_memory=False)
        return max(0, held - self._child.page.frame_bytes)

    @property
    def reader(self) -> str:
        """See ``child.Preemptible``."""
        return self.knobs.reader

    def reserved_bytes(self) -> int:
        """See ``child.Preemptible``: the ring, and until it was full once everything else too."""
        if not self._begun:
            return 0  # admission reads headroom when it begins
        # The frame cache is surplus: it makes room for whoever needs it.
        working = Knobs.build({"cache_bytes": 0}, base=self.knobs)
        price = price_start(working, self._setup.mixture.sizes)
        ring = max(0, price.ring_bytes - self._setup.memory.allocated_bytes())
        self._was_full = self._was_full or ring == 0
        if self._was_full:
            return ring
        return ring + max(0, price.total_bytes - price.ring_bytes - self.held_bytes())

    def spare_bytes(self) -> int:
        """See ``child.Preemptible``: nothing without a controller, which lets it grow again."""
        if not self._setup.control.moves or not self._begun:
            return 0
        memory = self._setup.memory
        ring = max(self.knobs.ring_slots * memory.slot_bytes, memory.allocated_bytes())
        return max(0, ring - self._minimum_bytes())

    def shrink_to_minimum(self) -> None:
        """See ``child.Preemptible``; what was read ahead is dropped."""
        with self._child.lock:
            self._set_knobs(self._setup.control.limits.least(self.knobs))
            self._make_pageable(self._setup.lent())
            self.begin(self._child)

    def has_shrunk(self) -> bool:
        """See ``child.Preemptible``."""
        return self._setup.memory.allocated_bytes() <= self._minimum_bytes()

    def _minimum_bytes(self) -> int:
        """Its smallest ring, and the batches that the consumer holds."""
        slots = self._setup.control.limits.least(self.knobs).ring_slots
        return (slots + len(self._setup.lent())) * self._setup.memory.slot_bytes

    def begin(self, child: Child) -> None:
        """See ``child.Client``."""
        if not self._begun:
            return
        self._generation += 1
        setup = self._setup
        child.send(
            messages.Start(
                self._number,
                generation=self._generation,
                mixture=setup.mixture.plain(),
                knobs=setup.knobs.flat(),
                order=asdict(setup.order),
                place=setup.position().plain(),
                rank=setup.ranks.rank,
                world_size=setup.ranks.world_size,
                ranks_here=setup.ranks_here,
                held_slots=sorted(setup.lent()),
                control=setup.control.plain(),
                import_path=import_path(),
            ),
            (setup.memory.descriptor, setup.page.descriptor),
        )
        if self._parked:
            child.send(messages.Park(self._number, True))

    def lost(self, reason: str, out_of_memory: bool) -> None:
        """See ``child.Client``."""
        del reason
        if out_of_memory:
            self._set_knobs(self._setup.control.limits.smaller(self.knobs))
        self._setup.memory.punch_all_but(self._setup.lent())

    def next(self, timeout_s: float) -> BatchMessage | None:
        """See ``Pipeline.next``."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._failure is not None:
                raise self._failure
            message = self._child.receive(self._number, max(0.0, deadline - time.monotonic()))
            if message is None:
                return None
            if isinstance(message, messages.BatchReady):
                if (batch := self._of_now(message)) is not None:
                    return batch
            else:
                self.note(message)

    def next_now(self) -> BatchMessage | None:
        """A batch that has come already, and is the next thing that the child says."""
        while (message := self._child.receive_batch(self._number)) is not None:
            if (batch := self._of_now(message)) is not None:
                return batch
        return None

    def _of_now(self, message: messages.BatchReady) -> BatchMessage | None:
        """A batch, unless it was filled before the pipeline began anew."""
        if message.generation != self._generation:
            return None
        self._child.note_progress()
        return BatchMessage.from_plain(message.batch)

    def note(self, message: Message) -> None:
        """See ``child.Client``."""
        if isinstance(message, messages.Failed):
            self._failure = message.to_error()
        elif isinstance(message, messages.Activity):
            self._quarantined = tuple(BadRecord(**bad) for bad in message.quarantined)
            self.control = message.control
        elif isinstance(message, messages.Retuned):
            self._set_knobs(Knobs.build(message.knobs))
            self.state = message.state or self.state

    def activate(self) -> bool:
        """This is the loader in use; another one that shares the child is parked."""
        return self._child.activate(self._number)

    def use(self, used: bool) -> None:
        """See ``child.Client``."""
        if used:
            self._prepares = False
            self.park(False)
        elif not self._prepares:
            self.park(True)

    def prepare(self) -> None:
        """Fill the ring while another loader is in use; it stops by itself where that is full."""
        self._prepares = True
        self.park(False)

    def suspend(self) -> None:
        """Have the child let go of it all, the ring's pages too, until ``start``."""
        with self._child.lock:
            if self._begun:
                self._begun = self._prepares = False
                lent = self._setup.lent()
                self._make_pageable(lent)
                self._child.send(messages.Stop(self._number, sorted(lent)))

    def _make_pageable(self, lent: Collection[int]) -> None:
        """Unregister all other slots from a device, so that the child may give their pages back."""
        for slot in range(MAX_SLOTS):
            if slot not in lent:
                self._setup.memory.make_pageable(slot)

    def release(self, slot: int) -> None:
        """See ``Pipeline.release``."""
        self._child.send(messages.Release(self._number, [slot]))

    @property
    def knobs(self) -> Knobs:
        """The values in force."""
        return self._setup.knobs

    def _set_knobs(self, knobs: Knobs) -> None:
        self._setup = replace(self._setup, knobs=knobs)

    def retune(self, knobs: Knobs) -> None:
        """See ``Pipeline.retune``."""
        self._set_knobs(knobs)
        self._child.send(messages.Retune(self._number, knobs.flat()))

    def park(self, parked: bool) -> None:
        """See ``Pipeline.park``."""
        if parked != self._parked:
            self._parked = parked
            if self._begun:
                self._child.send(messages.Park(self._number, parked))

    def activity(self) -> PipelineActivity:
        """See ``Pipeline.activity``; once it is closed, what the child told last.

        Raises:
            WorkerError: the child does not answer.
        """
        if self._closed:
            return self._last
        if not self._begun:
            return self._idle()
        return self._ask()

    def _idle(self) -> PipelineActivity:
        return PipelineActivity({}, self.knobs.ring_slots, 0, 0)

    def _ask(self) -> PipelineActivity:
        request = next(self._requests)
        kept: list[Message] = []
        with self._child.lock:
            restarts = self._child.restarts
            self._child.send(messages.AskActivity(self._number, request))
            deadline = time.monotonic() + _ANSWER_S
            answer = None
            while answer is None and time.monotonic() < deadline:
                message = self._child.receive(self._number, 0.5)
                if self._child.restarts != restarts:
                    kept.clear()
                    restarts = self._child.restarts
                    self._child.send(messages.AskActivity(self._number, request))
                    deadline = time.monotonic() + _ANSWER_S
                if isinstance(message, messages.Activity) and message.request == request:
                    answer = message
                elif isinstance(message, messages.Retuned):
                    self.note(message)
                elif message is not None:
                    kept.append(message)
            self._child.put_back(self._number, kept)
        if answer is None:
            return self._idle()
        self.note(answer)
        self._last = PipelineActivity.from_plain(answer.activity)
        return self._last

    def quarantined(self) -> tuple[BadRecord, ...]:
        """See ``Pipeline.quarantined``."""
        self.activity()
        return self._quarantined

    def close(self) -> None:
        """See ``Pipeline.close``."""
        if not self._closed:
            self._closed = True
            self._child.leave(self._number, self._setup.lent())
