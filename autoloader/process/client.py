"""A pipeline that runs in the child, with the face of ``pipeline.pipeline.Pipeline``.

Not here: the child itself (``process.child``), its side of this (``worker``).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from autoloader.decode.activity import DatasetActivity, PipelineActivity
from autoloader.decode.quarantine import BadRecord
from autoloader.errors import AutoloaderError
from autoloader.host.interrupts import Interrupts
from autoloader.knobs import Knobs
from autoloader.order.dealing import Ranks
from autoloader.order.mixture import MixtureOrder
from autoloader.probes.process_memory import tree_pss_bytes
from autoloader.process.child import Child
from autoloader.process.messages import (
    Activity,
    AskActivity,
    BatchReady,
    Failed,
    Message,
    Park,
    Release,
    Retune,
    Retuned,
    Start,
    Stop,
)
from autoloader.ring.memory import MAX_SLOTS, Lender, RingMemory
from autoloader.ring.message import BatchMessage, PipelineStart
from autoloader.samples.resolve import ResolvedMixture
from autoloader.supervision.start import import_path

_ANSWER_S = 5.0


class ChildPipeline:
    """One mixture in the child.

    Args:
        mixture, order, knobs, memory: as for ``Pipeline``.
        child: where it runs.
        control: what the controller in the child is asked, as plain values.
        ranks: whose part of the mixture.
        position: says where to begin, whenever a child begins.
        lender: knows which slots are under live arrays.
        smaller: knobs for after an OOM kill.
    """

    def __init__(
        self,
        mixture: ResolvedMixture,
        order: MixtureOrder,
        knobs: Knobs,
        memory: RingMemory,
        child: Child,
        *,
        control: dict[str, Any],
        ranks: Ranks,
        position: Callable[[], PipelineStart],
        lender: Lender,
        smaller: Callable[[Knobs], Knobs],
    ) -> None:
        self._mixture = mixture
        self._order = order
        self._knobs = knobs
        self._memory = memory
        self._child = child
        self._control = control
        self._ranks = ranks
        self._position = position
        self._lender = lender
        self._smaller = smaller
        self._generation = 0
        self._requests = itertools.count()
        self._failure: AutoloaderError | None = None
        self._parked = False
        self._begun = False
        self._prepares = False
        self._closed = False
        self._last = PipelineActivity({}, knobs.ring_slots, 0, 0, 0, 0.0)
        self._quarantined: tuple[BadRecord, ...] = ()
        self.state = "WARMUP"
        self.control: dict[str, int] = {}
        self._number = child.join(self)

    def start(self) -> None:
        """Begin at ``position()``; also called to begin elsewhere."""
        with self._child.lock:
            self._begun = True
            self._failure = None
            self.begin(self._child)

    def go_to(self, order: MixtureOrder) -> None:
        """Begin at ``position()`` of ``order`` with the next ``start``."""
        self._order = order

    @property
    def restarts(self) -> int:
        """Times its child was started again."""
        return self._child.restarts

    @property
    def pids(self) -> tuple[int, ...]:
        """Process id of the child."""
        return (self._child.pid,) if self._child.pid else ()

    def held_bytes(self) -> int:
        """What the child and its decode processes hold, shared memory left out."""
        return tree_pss_bytes(self._child.pid, shared_memory=False) if self._child.pid else 0

    @property
    def begun(self) -> bool:
        """Whether it runs, and was not suspended since."""
        return self._begun

    def begin_again(self, knobs: Knobs) -> None:
        """Begin at ``position()`` with other knobs; what was read ahead is dropped."""
        with self._child.lock:
            self._knobs = knobs
            self._make_pageable(self._lender.lent)
            self.begin(self._child)

    def begin(self, child: Child) -> None:
        """See ``child.Client``."""
        if not self._begun:
            return
        self._generation += 1
        child.send(
            Start(
                self._number,
                generation=self._generation,
                spec=self._mixture.spec.model_dump(mode="json"),
                split=self._mixture.split,
                statistics=self._mixture.plain_statistics(),
                knobs=self._knobs.flat(),
                order=asdict(self._order),
                place=self._position().plain(),
                rank=self._ranks.rank,
                world_size=self._ranks.world_size,
                ranks_here=child.ranks_here,
                held_slots=sorted(self._lender.lent),
                control=self._control,
                import_path=import_path(),
            ),
            (self._memory.descriptor, child.page.descriptor),
        )
        if self._parked:
            child.send(Park(self._number, True))

    def lost(self, reason: str, out_of_memory: bool) -> None:
        """See ``child.Client``."""
        del reason
        if out_of_memory:
            self._knobs = self._smaller(self._knobs)
        lent = self._lender.lent
        for slot in range(MAX_SLOTS):
            if slot not in lent:
                self._memory.punch(slot)

    def next(self, timeout_s: float) -> BatchMessage | None:
        """See ``Pipeline.next``."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._failure is not None:
                raise self._failure
            message = self._child.receive(self._number, max(0.0, deadline - time.monotonic()))
            if message is None:
                return None
            if isinstance(message, BatchReady) and message.generation == self._generation:
                self._child.note_progress()
                return BatchMessage.from_plain(message.batch)
            self.note(message)

    def note(self, message: Message) -> None:
        """See ``child.Client``."""
        if isinstance(message, Failed):
            self._failure = message.to_error()
        elif isinstance(message, Activity):
            self._quarantined = tuple(BadRecord(**bad) for bad in message.quarantined)
            self.control = message.control
        elif isinstance(message, Retuned):
            self._knobs = Knobs.build(message.knobs)
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
                lent = self._lender.lent
                self._make_pageable(lent)
                self._child.send(Stop(self._number, sorted(lent)))

    def _make_pageable(self, lent: frozenset[int]) -> None:
        """Unregister all other slots from a device, so that the child may give their pages back."""
        for slot in range(MAX_SLOTS):
            if slot not in lent:
                self._memory.make_pageable(slot)

    def release(self, slot: int) -> None:
        """See ``Pipeline.release``."""
        self._child.send(Release(self._number, [slot]))

    @property
    def knobs(self) -> Knobs:
        """The values in force."""
        return self._knobs

    def retune(self, knobs: Knobs) -> None:
        """See ``Pipeline.retune``."""
        self._knobs = knobs
        self._child.send(Retune(self._number, knobs.flat()))

    def park(self, parked: bool) -> None:
        """See ``Pipeline.park``."""
        if parked != self._parked:
            self._parked = parked
            if self._begun:
                self._child.send(Park(self._number, parked))

    def activity(self) -> PipelineActivity:
        """See ``Pipeline.activity``; once it is closed, what the child told last.

        Raises:
            WorkerError: the child does not answer.
        """
        if self._closed:
            return self._last
        if not self._begun:
            return PipelineActivity({}, self._knobs.ring_slots, 0, 0, 0, 0.0)
        with Interrupts():
            return self._ask()

    def _ask(self) -> PipelineActivity:
        request = next(self._requests)
        kept: list[Message] = []
        with self._child.lock:
            restarts = self._child.restarts
            self._child.send(AskActivity(self._number, request))
            deadline = time.monotonic() + _ANSWER_S
            answer = None
            while answer is None and time.monotonic() < deadline:
                message = self._child.receive(self._number, 0.5)
                if self._child.restarts != restarts:
                    kept.clear()
                    restarts = self._child.restarts
                    self._child.send(AskActivity(self._number, request))
                    deadline = time.monotonic() + _ANSWER_S
                if isinstance(message, Activity) and message.request == request:
                    answer = message
                elif isinstance(message, Retuned):
                    self.note(message)
                elif message is not None:
                    kept.append(message)
            self._child.put_back(self._number, kept)
        if answer is None:
            return PipelineActivity({}, self._knobs.ring_slots, 0, 0, 0, 0.0)
        self.note(answer)
        plain = dict(answer.activity)
        datasets = {name: DatasetActivity(**own) for name, own in plain.pop("datasets").items()}
        self._last = PipelineActivity(datasets=datasets, **plain)
        return self._last

    def quarantined(self) -> tuple[BadRecord, ...]:
        """See ``Pipeline.quarantined``."""
        self.activity()
        return self._quarantined

    def close(self) -> None:
        """See ``Pipeline.close``."""
        if not self._closed:
            self._closed = True
            self._child.leave(self._number, self._lender.lent)
