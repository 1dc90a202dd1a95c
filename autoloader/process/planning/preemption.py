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
from collections.abc import Sequence

from autoloader.host.clock import Clock, SystemClock
from autoloader.host.units import format_bytes
from autoloader.process.child import Child, ChildPipeline

logger = logging.getLogger(__name__)

_WAIT_S = 2.0
_POLL_S = 0.01


class OpenLoaders:
    """The loaders that are open while another one opens.

    Args:
        loaders: of this process, in the same child.
        clock: time source that waits are measured by.
    """

    def __init__(self, loaders: Sequence[ChildPipeline] = (), clock: Clock | None = None) -> None:
        self._loaders = loaders
        self._clock = clock or SystemClock()

    @classmethod
    def of_this_process(cls) -> OpenLoaders:
        """Those whose pipelines run in this process's child."""
        return cls(Child.open_clients())

    def have_libraries_of(self, reader: str) -> bool:
        """True if the child has the libraries that such a reader imports."""
        return any(reader in ("indexed", one.reader) for one in self._loaders)

    def reserved_bytes(self) -> int:
        """Memory that they were admitted with and do not hold yet."""
        return sum(one.reserved_bytes() for one in self._loaders)

    def preempt(self, missing_bytes: int) -> None:
        """Shrink the largest ones, until ``missing_bytes`` are free or all have shrunk."""
        shrinking: list[ChildPipeline] = []
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
