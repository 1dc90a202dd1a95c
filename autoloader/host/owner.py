"""Which process something belongs to: the one that made it.

A fork has a copy of everything that its parent had, and shares the parent's sockets, shared memory
and children. A fork that used its copy would take messages that the parent waits for. So an object
that holds one of these checks first that it is used in the process that made it.

Not here: what a fork sees of batches that it got (``decode.ring.forks``).
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

from autoloader.errors import UsageError


class Owner:
    """The process that made something.

    Args:
        what: what it is, for messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def here(self) -> bool:
        """Whether this is that process, and not a fork of it."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Refuse a fork.

        Raises:
            UsageError: this is another process than the one that made it.
        """
        if not self.here:
            raise UsageError(
                f"{self._what} belongs to process {self._pid}, which made it; process "
                f"{os.getpid()} is a fork of that one and may not use it",
                remedy="make an AutoLoader in the process that iterates it; do not wrap it in a "
                "torch DataLoader (it reads ahead by itself), or give that num_workers=0",
            )


class OfOneProcess:
    """Base of what is neither copied, pickled nor sent to another process."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        del protocol
        raise TypeError(
            "an AutoLoader cannot be copied, pickled or sent to another process\n"
            "  → send its spec, and make an AutoLoader in the process that iterates it"
        )
