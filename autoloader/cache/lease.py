"""What one planned run may use of the frame cache, until its batches are filled.

Not here: who decides it (``cache.table``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autoloader.cache.slab import BLACK, FrameSlab

Ints = NDArray[np.int64]

FILE_BITS = 42
"""Room for a place in a file: 4 TiB. What lies beyond is not held."""


@dataclass(frozen=True, slots=True)
class CameraFrames:
    """The frames of one camera that a run shows.

    Attributes:
        key: [m] int64, where the encoded frame lies: the number of its file among those that the
            run reads, above ``FILE_BITS`` bits of its place there; −1 where there is none.
        next_use: [m] int64, the position after the run at which it is shown again, or ``NEVER``.
        dataset: [m] int64, whose costs count.
        uses: [m] int64, how often the run shows it.
    """

    key: Ints
    next_use: Ints
    dataset: Ints
    uses: Ints


class FrameBudget(Protocol):
    """Who says what may be held."""

    @property
    def budget_bytes(self) -> int:
        """What it may hold; with 0 there is nothing to ask."""
        ...


@dataclass(eq=False)
class Lease:
    """See ``samples.block.FrameLease``; what it holds is pinned until ``over``.

    Attributes:
        slab: where the slots are.
        rows: samples of the run that are in no filled batch yet.
        settle: called once, when they all are, or the run is dropped.
        owner: says what may be held; with nothing no frame is put into a slot any more.
        slots: see ``samples.block.FrameLease``.
        held: camera → [m] bool, which frames lay in their slots from the beginning: they need not
            be read.
        over: whether it has been settled.
    """

    slab: FrameSlab
    rows: int
    settle: Callable[[Lease], None]
    owner: FrameBudget
    slots: dict[str, Ints] = field(default_factory=dict)
    held: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    over: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def written(self) -> Mapping[str, NDArray[np.bool_]]:
        """See ``samples.block.FrameLease``."""
        return self.slab.written

    def gather(self, camera: str, slots: Ints, out: NDArray[Any]) -> None:
        """See ``FrameLease.gather``."""
        self.slab.gather(camera, slots, out)

    def put(self, camera: str, slot: int, picture: NDArray[Any]) -> None:
        """See ``FrameLease.put``."""
        if self.owner.budget_bytes:
            self.slab.put(camera, slot, picture)

    @property
    def pinned_bytes(self) -> int:
        """See ``FrameLease.pinned_bytes``."""
        return sum(
            self.slab.frame_bytes[camera] * int((slots > BLACK).sum())
            for camera, slots in self.slots.items()
        )

    @property
    def pinned_frames(self) -> int:
        """See ``FrameLease.pinned_frames``."""
        return sum(int((slots > BLACK).sum()) for slots in self.slots.values())

    def filled(self, rows: int) -> None:
        """See ``FrameLease.filled``."""
        with self._lock:
            self.rows -= rows
            left = self.rows
        if left <= 0:
            self.settle(self)

    def give_up(self) -> None:
        """See ``FrameLease.give_up``; what was put into slots by then stays."""
        self.settle(self)


class FrameCache(FrameBudget, Protocol):
    """Whom the readers of planned runs ask, here or in another process."""

    def ask(
        self, files: Sequence[str], frames: Mapping[str, CameraFrames], now: int, rows: int
    ) -> Lease:
        """What a run of so many samples from position ``now`` on may use; it reads ``files``."""
        ...

    def forget(self) -> None:
        """What is held is of files that are not there any more."""
        ...
