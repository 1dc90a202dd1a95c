"""Loaders that are open while another one opens: the memory that they reserved, and preemption.

Theory of operation. Train and validation loaders of a trainer have rings of their own and one
child, under one RAM floor. When another loader opens, headroom does not show yet what the open ones
reserved (a ring that is not filled, libraries that are being imported): that is taken off. Where
even the smallest new loader would not leave floor + margin free, the open ones are preempted: each
shrinks to its minimum knobs and begins again behind its last batch. What it had read ahead is read
again; nothing is lost and nothing comes twice. The controller lets it grow again later.

A loader without a controller is never preempted, because its knobs are to stay. Neither is one that
runs in the trainer's own threads, because it cannot begin again behind the trainer's back.

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
from autoloader.knobs import Knobs
from autoloader.probes.process_memory import tree_pss_bytes
from autoloader.process.child import Child
from autoloader.process.client import ChildPipeline
from autoloader.ring.memory import Lender, RingMemory
from autoloader.units import format_bytes

logger = logging.getLogger(__name__)

_WAIT_S = 2.0
_POLL_S = 0.01


class Preemptible(Protocol):
    """A loader that is open, as one that opens sees it."""

    @property
    def reader(self) -> str:
        """The reader whose libraries its child has imported."""
        ...

    def reserved_bytes(self) -> int:
        """Memory that it was admitted with and does not hold yet."""
        ...

    def spare_bytes(self) -> int:
        """What ``shrink_to_minimum`` would free of its ring, filled or yet to be."""
        ...

    def shrink_to_minimum(self) -> None:
        """Begin again with the minimum knobs, behind the last batch handed out."""
        ...

    def has_shrunk(self) -> bool:
        """Whether the kernel has the pages back."""
        ...


class LoaderInChild:
    """A loader whose pipeline runs in the child; it counts for others while it is alive.

    Args:
        child: where it runs.
        memory, lender: its ring, and what of it the consumer has.
        pipeline: the loader's only one.
        minimum: the minimum knobs that given ones may shrink to.
        price: of given knobs.
        preemptible: whether it has a controller, which lets it grow again.
    """

    def __init__(
        self,
        child: Child,
        memory: RingMemory,
        lender: Lender,
        *,
        pipeline: ChildPipeline,
        minimum: Callable[[Knobs], Knobs],
        price: Callable[[Knobs], StartPrice],
        preemptible: bool,
    ) -> None:
        self._child = child
        self._memory = memory
        self._lender = lender
        self._pipeline = pipeline
        self._minimum = minimum
        self._price = price
        self._preemptible = preemptible
        self._was_full = False
        _open.add(self)

    @property
    def open(self) -> bool:
        """Whether it is open in this process; what a fork has is a copy."""
        return self._child.usable and self._memory.descriptor >= 0

    @property
    def reader(self) -> str:
        """See ``Preemptible``."""
        return self._pipeline.knobs.reader

    def reserved_bytes(self) -> int:
        """See ``Preemptible``: the ring, and until that was full once everything else too."""
        if not self._pipeline.begun:
            return 0  # admission reads headroom when it begins
        allocated, price = self._memory.allocated_bytes(), self._price(self._pipeline.knobs)
        ring = max(0, price.ring_bytes - allocated)
        self._was_full = self._was_full or ring == 0
        if self._was_full:
            return ring
        held = tree_pss_bytes(self._child.pid, shared_memory=False) if self._child.pid else 0
        return ring + max(0, price.total_bytes - price.ring_bytes - held)

    def spare_bytes(self) -> int:
        """See ``Preemptible``."""
        if not self._preemptible or not self._pipeline.begun:
            return 0
        ring = max(self._price(self._pipeline.knobs).ring_bytes, self._memory.allocated_bytes())
        return max(0, ring - self._minimum_bytes())

    def shrink_to_minimum(self) -> None:
        """See ``Preemptible``."""
        self._pipeline.begin_again(self._minimum(self._pipeline.knobs))

    def has_shrunk(self) -> bool:
        """See ``Preemptible``."""
        return self._memory.allocated_bytes() <= self._minimum_bytes()

    def _minimum_bytes(self) -> int:
        """Its smallest ring, and the batches that the consumer holds."""
        slots = self._minimum(self._pipeline.knobs).ring_slots
        return (slots + len(self._lender.lent)) * self._memory.slot_bytes


_open: weakref.WeakSet[LoaderInChild] = weakref.WeakSet()


class OpenLoaders:
    """The loaders that are open while another one opens.

    Args:
        loaders: of this process, in the same child.
        clock: to wait by.
    """

    def __init__(self, loaders: Sequence[Preemptible] = (), clock: Clock | None = None) -> None:
        self._loaders = loaders
        self._clock = clock or SystemClock()

    @classmethod
    def of_this_process(cls) -> OpenLoaders:
        """Those whose pipelines run in this process's child."""
        return cls([one for one in _open if one.open])

    def have_libraries_of(self, reader: str) -> bool:
        """Whether the child has what such a reader imports."""
        return any(reader in ("indexed", one.reader) for one in self._loaders)

    def reserved_bytes(self) -> int:
        """Memory that they were admitted with and do not hold yet."""
        return sum(one.reserved_bytes() for one in self._loaders)

    def preempt(self, missing_bytes: int) -> None:
        """Shrink the largest ones, until ``missing_bytes`` are free or all have shrunk."""
        shrinking: list[Preemptible] = []
        for one in sorted(self._loaders, key=lambda one: -one.spare_bytes()):
            spare = one.spare_bytes()
            if missing_bytes <= 0 or spare <= 0:
                break
            logger.info(
                "an open loader shrinks to its minimum knobs, since another one opens: it frees %s",
                format_bytes(spare),
            )
            one.shrink_to_minimum()
            shrinking.append(one)
            missing_bytes -= spare
        deadline = self._clock.now_s() + _WAIT_S
        while not all(one.has_shrunk() for one in shrinking) and self._clock.now_s() < deadline:
            self._clock.sleep(_POLL_S)
