"""Loaders that are open beside one that is to open: what they are still owed, and who gives way.

Theory of operation. Train and validation loaders of a trainer have rings of their own and one
child, under one RAM floor. When another one opens, headroom does not show yet what the others were
promised (a ring that is not filled, libraries that are being imported): that is taken off. Where
even the smallest new loader would not leave floor + margin free, the others give way: each begins
again behind its last batch with the least knobs. What they had read ahead is read again; nothing is
lost and nothing comes twice. The controller lets them grow again later.

A loader without a controller has knobs that are to stay, and one that runs in the trainer's own
threads cannot begin again behind the trainer's back: neither gives way.

Used by the thread that opens loaders and iterates them.

Not here: what the pipelines of one child may take while they run (``controller.budget``).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

from autoloader.clock import Clock, SystemClock
from autoloader.controller.admission import StartPrice
from autoloader.controller.probes.process_memory import tree_pss_bytes
from autoloader.knobs import Knobs
from autoloader.process.child import Child
from autoloader.process.client import ChildPipeline
from autoloader.ring.memory import Lender, RingMemory
from autoloader.units import format_bytes

logger = logging.getLogger(__name__)

_WAIT_S = 2.0
_POLL_S = 0.01


class Neighbour(Protocol):
    """A loader that is open, as one that opens sees it."""

    @property
    def reader(self) -> str:
        """Whose libraries its child has."""
        ...

    def owed_bytes(self) -> int:
        """What it was admitted with and does not hold yet."""
        ...

    def spare_bytes(self) -> int:
        """What giving way would free of its ring, filled or yet to be."""
        ...

    def give_way(self) -> None:
        """Begin again with the least knobs, behind the last batch handed out."""
        ...

    def has_given_way(self) -> bool:
        """Whether the pages are back at the kernel."""
        ...


class OpenLoader:
    """A loader whose pipeline runs in the child; see ``Neighbour``. It counts while it is alive.

    Args:
        child: where it runs.
        memory, lender: its ring, and what of it the consumer has.
        pipeline: the loader's only one.
        least: the least knobs that given ones may go to.
        price: of given knobs.
        moves: whether it has a controller, so that it may give way.
    """

    def __init__(
        self,
        child: Child,
        memory: RingMemory,
        lender: Lender,
        *,
        pipeline: ChildPipeline,
        least: Callable[[Knobs], Knobs],
        price: Callable[[Knobs], StartPrice],
        moves: bool,
    ) -> None:
        self._child = child
        self._memory = memory
        self._lender = lender
        self._pipeline = pipeline
        self._least = least
        self._price = price
        self._moves = moves
        self._begun = False
        _open.add(self)

    @property
    def open(self) -> bool:
        """Whether it is, and in this process: not what a fork has a copy of."""
        return self._child.usable and self._memory.descriptor >= 0

    @property
    def reader(self) -> str:
        """See ``Neighbour``."""
        return self._pipeline.knobs.reader

    def owed_bytes(self) -> int:
        """See ``Neighbour``: pages of its ring, and before it is full for once all else too."""
        if not self._pipeline.begun:
            return 0  # it is held against a reading when it begins
        allocated, price = self._memory.allocated_bytes(), self._price(self._pipeline.knobs)
        ring = max(0, price.ring_bytes - allocated)
        self._begun = self._begun or ring == 0
        if self._begun:
            return ring
        held = tree_pss_bytes(self._child.pid, shared_memory=False) if self._child.pid else 0
        return ring + max(0, price.total_bytes - price.ring_bytes - held)

    def spare_bytes(self) -> int:
        """See ``Neighbour``."""
        if not self._moves or not self._pipeline.begun:
            return 0
        ring = max(self._price(self._pipeline.knobs).ring_bytes, self._memory.allocated_bytes())
        return max(0, ring - self._kept_bytes())

    def give_way(self) -> None:
        """See ``Neighbour``."""
        self._pipeline.begin_again(self._least(self._pipeline.knobs))

    def has_given_way(self) -> bool:
        """See ``Neighbour``."""
        return self._memory.allocated_bytes() <= self._kept_bytes()

    def _kept_bytes(self) -> int:
        """Its smallest ring, and batches that the consumer holds."""
        least = self._least(self._pipeline.knobs).ring_slots
        return (least + len(self._lender.lent)) * self._memory.slot_bytes


_open: weakref.WeakSet[OpenLoader] = weakref.WeakSet()


class Beside:
    """The loaders that are open.

    Args:
        loaders: of this process, in the same child.
        clock: to wait by.
    """

    def __init__(self, loaders: Sequence[Neighbour] = (), clock: Clock | None = None) -> None:
        self._loaders = loaders
        self._clock = clock or SystemClock()

    @classmethod
    def of_this_process(cls) -> Beside:
        """Those whose pipelines run in this process's child."""
        return cls([one for one in _open if one.open])

    def have_libraries_of(self, reader: str) -> bool:
        """Whether the child has what such a reader imports."""
        return any(reader in ("indexed", one.reader) for one in self._loaders)

    def owed_bytes(self) -> int:
        """What they were admitted with and do not hold yet."""
        return sum(one.owed_bytes() for one in self._loaders)

    def make_room(self, missing_bytes: int) -> None:
        """Have the largest ones give way until that much is to be had, or all have."""
        asked: list[Neighbour] = []
        for one in sorted(self._loaders, key=lambda one: -one.spare_bytes()):
            spare = one.spare_bytes()
            if missing_bytes <= 0 or spare <= 0:
                break
            logger.info("a loader gives way to one that opens: %s", format_bytes(spare))
            one.give_way()
            asked.append(one)
            missing_bytes -= spare
        deadline = self._clock.now_s() + _WAIT_S
        while not all(one.has_given_way() for one in asked) and self._clock.now_s() < deadline:
            self._clock.sleep(_POLL_S)
