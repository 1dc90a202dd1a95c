"""Decides which decoded frames are held: the one decider of a mixture's frame cache.

Theory of operation. Who plans a run asks about its frames (``ask``): those that are held need be
neither read nor decoded; of the others it learns which are worth a slot, to be filled by whoever
decodes them first. All these slots are pinned until the run's batches are filled, as its ``Lease``
tells. A frame that a run shows more than once always gets one. Runs of this process may share a
slot that is not filled yet; another process cannot tell whether it is, so it gets none.

What is worth a slot follows from one rule. A frame that is shown now and again q − p positions
later holds ``bytes`` for so long, to save the seconds of one decode: its burden is (q − p) × bytes
÷ seconds. While there is room everything that is shown again is held. Where there is none, the
frames with the largest burden from now on go, be they held or new (Belady's rule, which is optimal,
with sizes and costs). The burden at which the last cut was made is the threshold: a new frame above
it is not taken, so that nothing is copied that would soon be dropped. It rises while slots are
empty. Where slots that are yet to be filled, for runs that are read far ahead, take half of the
bytes, nothing that is held goes for more of them.

A frame's key says what made its pixels: the file, the place in it, and what the dataset's decoder
was told (``made``).

Invariants:
    1. No slot is written or given back while somebody may read it: pinned slots stay.
    2. The pages of all slots never exceed the budget but for those that are pinned or being filled,
       and for one black frame a camera.
    3. Nothing here decides which samples come: a frame that is not held is decoded.

Not here: when a frame is shown next (``sampling``), the memory (``cache.slab``), the budget's size
(``controller``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from autoloader.cache.lease import FILE_BITS, CameraFrames, Ints, Lease
from autoloader.cache.shelf import NOWHERE, Shelf
from autoloader.cache.slab import BLACK, FrameSlab, machine_bytes
from autoloader.errors import PipelineError
from autoloader.host.threads import LoaderThread
from autoloader.sampling.schedule import NEVER
from autoloader.telemetry.statistics import CacheStatistics

logger = logging.getLogger(__name__)

SLACK = 64
"""A cut drops this part of the budget more than it must, so that it is made seldom."""
_STALE = 65_536
"""Positions after which a frame that was to be shown and was not is taken for never shown again."""
_LATE = 8192
"""Positions by which a use is late: runs are asked about out of order, and some uses estimated."""
_EMPTY = 0.5
"""With so much of the budget unused there is no threshold."""
_LATELY = 0.1
"""Weight of the last run in what was held lately."""
_COSTS_EVERY_S = 1.0
_MOST_FILES = 1 << (63 - FILE_BITS)
"""Frames of files beyond are not held: their keys would be those of others."""


FrameCosts = Callable[[], NDArray[np.float64]]
"""Tells [D] seconds that decoding a frame of each dataset takes; NaN where it is not known."""


class FrameTable:
    """Which frames a slab holds; any thread.

    Args:
        frame_bytes: camera → bytes of a decoded frame.
        datasets: how many.
        made: camera → [datasets] a number for all that is made of its frames beside their file and
            place: equal numbers share frames. Default: all do.
        room_bytes: what it will ever hold of one camera; default: all of the machine's memory.
        private: have the frames in this process's own memory until another process shares them.

    Attributes:
        lately_held: share of the frames of the last runs that were held.
    """

    def __init__(
        self,
        frame_bytes: Mapping[str, int],
        datasets: int,
        *,
        made: Mapping[str, Sequence[int]] | None = None,
        room_bytes: int | None = None,
        private: bool = False,
    ) -> None:
        self.lately_held = 0.0
        self._frame_bytes = frame_bytes
        self._made = {
            camera: np.asarray(made[camera] if made else [0] * datasets, np.int64)
            for camera in frame_bytes
        }
        self._room = room_bytes or machine_bytes()
        self._private = private
        self._slab: FrameSlab | None = None
        self._shelves: dict[str, Shelf] = {}
        self._lock = threading.Lock()
        self._budget = 0
        self._claims: dict[object, tuple[int, FrameCosts | None]] = {}
        self._files: dict[str, int] = {}
        self._saved_s = np.ones(datasets, np.float64)
        self._costs_at_s = float("-inf")
        self._limit = float("inf")
        self._now = 0
        self._hits = self._misses = 0

    @property
    def slab(self) -> FrameSlab:
        """The memory; made when it is first asked for.

        Raises:
            PipelineError: the kernel refuses it.
        """
        return self._slab or self._begin(private=self._private)

    def _begin(self, *, private: bool) -> FrameSlab:
        """Have memory in which no frame lies yet."""
        slab = FrameSlab(self._frame_bytes, room_bytes=self._room, private=private)
        self._slab, self._shelves = (
            slab,
            {
                camera: Shelf(size, slab.written[camera])
                for camera, size in self._frame_bytes.items()
            },
        )
        return slab

    def ask(
        self,
        files: Sequence[str],
        frames: Mapping[str, CameraFrames],
        now: int,
        rows: int,
        *,
        elsewhere: bool = False,
    ) -> Lease:
        """See ``FrameCache.ask``; ``elsewhere``: another process will show and fill them."""
        self._refresh_costs()
        wanted = dict[str, Ints]()
        with self._lock:
            lease = Lease(self.slab, rows, partial(self._settle, self._shelves), self)
            self._now = max(self._now, now)
            frames = {c: self._numbered(files, one, self._made[c]) for c, one in frames.items()}
            for camera, one in frames.items():
                shelf = self._shelves[camera]
                slots = shelf.find(one.key)
                found, held = slots >= 0, shelf.is_held(slots)
                shelf.shown_next(slots[found], one.next_use[found])
                lease.held[camera] = held
                lease.slots[camera] = np.where(held | (not elsewhere), slots, NOWHERE)
                shelf.pin(lease.slots[camera][lease.slots[camera] >= 0], 1)
                again = (one.next_use < NEVER) | (one.uses > 1)
                new = np.flatnonzero(~found & (one.key >= 0) & again)
                wanted[camera] = new[np.unique(one.key[new], return_index=True)[1]]
            lent = {camera: slots >= 0 for camera, slots in lease.slots.items()}
            self._hold(frames, wanted, lease)
            self._count(frames, lent, lease)
        self._give_back()
        return lease

    def _count(
        self,
        frames: Mapping[str, CameraFrames],
        lent: Mapping[str, NDArray[np.bool_]],
        lease: Lease,
    ) -> None:
        """Count what a run shows: the first use of a frame with a new slot is decoded."""
        uses = decoded = 0
        for camera, one in frames.items():
            own = np.where(one.key >= 0, one.uses, 0)
            uses += int(own.sum())
            own[lent[camera]] = 0
            decoded += int(np.where(lease.slots[camera] >= 0, own > 0, own).sum())
        self._hits += uses - decoded
        self._misses += decoded
        self.lately_held += (1 - decoded / max(1, uses) - self.lately_held) * _LATELY

    def _settle(self, shelves: Mapping[str, Shelf], lease: Lease) -> None:
        """All batches of a run are filled, or given up: what was put into slots can be shown."""
        with self._lock:
            if lease.over:
                return
            lease.over = True
            for camera, slots in lease.slots.items():
                shelves[camera].unpin(slots[slots > BLACK])
            if shelves is not self._shelves:
                _leave(lease.slab, shelves)
            if self._used() > self._budget:
                self._cut({})
        self._give_back()

    def claim(self, owner: object, budget_bytes: int, costs: FrameCosts | None = None) -> None:
        """Hold so much for one of the pipelines that share it; the claims add up.

        Args:
            owner: the pipeline.
            budget_bytes: with 0 it has no claim any more.
            costs: what decoding costs it; asked once a second at most, without a lock held, as
                long as it has a claim. What a frame saves is the mean of what its owners say.
        """
        with self._lock:
            if not self._claims:
                self._now = 0  # who comes next may begin anywhere
            self._claims.pop(owner, None)
            if budget_bytes:
                self._claims[owner] = budget_bytes, costs
            total = sum(nbytes for nbytes, _ in self._claims.values())
        if total != self._budget:
            self.resize(total)

    def leave(self, owner: object) -> None:
        """A pipeline ends. What it held stays for the one that may follow, until ``give_up``."""
        if len(self._claims) > 1:
            self.claim(owner, 0)
        else:
            self._claims.pop(owner, None)

    def give_up(self) -> None:
        """No pipeline follows: where none is left the kernel has all back, soon after this."""
        if not self._claims and self._budget:
            LoaderThread(target=self.resize, args=(0,), name="autoloader-give-back").start()

    def resize(self, budget_bytes: int) -> None:
        """Hold so much from now on; what is beyond goes at once, farthest next use first.

        Where the kernel refuses the memory nothing is held, and the log says so.
        """
        with self._lock:
            if budget_bytes and not self._has_memory(private=self._private):
                return
            if not budget_bytes:
                self.lately_held = 0.0
            if budget_bytes > self._budget:
                self._limit = float("inf")
            self._budget = budget_bytes
            if self._used() > budget_bytes:
                self._cut({})
        self._give_back()

    def forget(self) -> None:
        """See ``FrameCache.forget``."""
        with self._lock:
            for shelf in self._shelves.values():
                shelf.forget()

    @property
    def budget_bytes(self) -> int:
        """What it may hold."""
        return self._budget

    def close(self) -> None:
        """Nobody asks any more, and no lease is in use: the kernel has all pages back."""
        with self._lock:
            self._budget = 0
            if self._slab is not None:
                self._slab.close()

    def counts(self) -> CacheStatistics:
        """What it holds and did so far."""
        with self._lock:
            return CacheStatistics(
                self._budget,
                self._used(),
                sum(shelf.used for shelf in self._shelves.values()),
                self._hits,
                self._misses,
                None if self._limit == float("inf") else self._limit,
                late_bytes=sum(
                    shelf.frame_bytes * shelf.due(self._now - _LATE)
                    for shelf in self._shelves.values()
                ),
                allocated_bytes=0 if self._slab is None else self._slab.allocated_bytes(),
                private=self._slab is not None and self._slab.private,
            )

    def shared_slab(self) -> FrameSlab | None:
        """The memory, for a process that shares it; ``None`` where the kernel refuses it.

        Memory that was private is left behind, and what it held is decoded again. Leases that are
        under way keep what they need of it.
        """
        with self._lock:
            left, shelves = self._slab, self._shelves
            if not self._has_memory(private=False):
                return None
            if left is not None and left is not self._slab:
                _leave(left, shelves)
            return self._slab

    def _has_memory(self, *, private: bool) -> bool:
        """Whether there is memory, private or not; under the lock."""
        if self._slab is not None and (private or not self._slab.private):
            return True
        try:
            self._begin(private=private)
        except PipelineError as error:
            logger.warning("decoded frames are not held: %s", error)
            return False
        return True

    def _numbered(self, files: Sequence[str], one: CameraFrames, made: Ints) -> CameraFrames:
        """With keys that hold for all who ask; under the lock."""
        known = self._files
        numbers = np.asarray(
            [known.setdefault(path, len(known)) for path in files] or [0], np.int64
        )
        file = numbers[one.key >> FILE_BITS] * (1 + made.max()) + made[one.dataset]
        key = (file << FILE_BITS) + (one.key & ((1 << FILE_BITS) - 1))
        return replace(one, key=np.where((one.key >= 0) & (file < _MOST_FILES), key, -1))

    def _refresh_costs(self) -> None:
        """Read what a decode costs, now and then; without the lock."""
        now = time.monotonic()
        if now - self._costs_at_s < _COSTS_EVERY_S:
            return
        with self._lock:
            asked = [costs for _, costs in self._claims.values() if costs is not None]
        if not asked:
            return
        self._costs_at_s = now
        told = np.stack([costs() for costs in asked])
        known = np.isfinite(told) & (told > 0)
        if known.any():
            before, owners = self._saved_s.mean(), known.sum(axis=0)
            sums = np.where(known, told, 0).sum(axis=0)
            self._saved_s = np.where(owners, sums / np.maximum(1, owners), told[known].mean())
            self._limit *= before / self._saved_s.mean()

    def _hold(
        self, frames: Mapping[str, CameraFrames], wanted: dict[str, Ints], lease: Lease
    ) -> None:
        """Give slots to those of the wanted frames that are worth one; under the lock."""
        empty = 1 - self._used() / max(1, self._budget)
        if empty > 2 / SLACK:
            self._limit = self._limit * (1 + 1 / SLACK) if empty < _EMPTY else float("inf")
        later = {
            camera: self._later(frames[camera], camera, rows) for camera, rows in wanted.items()
        }
        limit = self._limit
        for _ in range(2):
            for camera, rows in list(wanted.items()):
                keep = later[camera] < limit
                wanted[camera], later[camera] = rows[keep], later[camera][keep]
            sizes = {c: len(rows) * self._shelves[c].frame_bytes for c, rows in wanted.items()}
            if self._used() + sum(sizes.values()) <= self._budget:
                break
            if 2 * self._pending() > self._budget and self._used() > self._pending():
                break
            limit = self._cut(later)
        for camera, rows in wanted.items():
            shelf, one = self._shelves[camera], frames[camera]
            most = max(0, self._budget - self._used()) // shelf.frame_bytes
            few = rows[: min(most, shelf.addable)]
            if len(few):
                slots = shelf.take(one.key[few], one.next_use[few], one.dataset[few])
                shelf.pin(slots, 1)
                lease.slots[camera][few] = slots

    def _later(self, one: CameraFrames, camera: str, rows: Ints) -> NDArray[np.float64]:
        """What it burdens to hold these frames until they are shown again."""
        size = self._shelves[camera].frame_bytes
        left = np.where(one.uses[rows] > 1, 0, one.next_use[rows] - self._now)
        return left * (size / self._saved_s[one.dataset[rows]])

    def _cut(self, new: Mapping[str, NDArray[np.float64]]) -> float:
        """Drop what burdens most until all fits, with some slack; new frames that would count too.

        Returns:
            The least burden that was dropped, of held and new frames.
        """
        idle, burdens, sizes = {}, [], []
        for camera, shelf in self._shelves.items():
            slots = idle[camera] = shelf.idle()
            left = (shelf.next_use[slots] - self._now).astype(np.float64)
            left[left < -_STALE] = NEVER
            held = left * (shelf.frame_bytes / self._saved_s[shelf.dataset[slots]])
            burdens += [held, new.get(camera, held[:0])]
            sizes.append(np.full(len(burdens[-2]) + len(burdens[-1]), shelf.frame_bytes))
        every, size = np.concatenate(burdens), np.concatenate(sizes)
        asked = sum(len(one) * self._shelves[camera].frame_bytes for camera, one in new.items())
        order = np.argsort(-every)
        gone = np.cumsum(size[order])
        last = int(np.searchsorted(gone, self._used() + asked - self._budget * (1 - 1 / SLACK)))
        if not len(every):
            return 0.0
        self._limit = float(every[order[min(last, len(order) - 1)]])
        for (camera, slots), held in zip(idle.items(), burdens[::2], strict=True):
            self._shelves[camera].let_go(slots[held >= self._limit])
        return self._limit

    def _used(self) -> int:
        return sum(shelf.used_bytes for shelf in self._shelves.values())

    def _resident(self) -> int:
        return sum(shelf.resident_bytes for shelf in self._shelves.values())

    def _pending(self) -> int:
        return sum(shelf.pending * shelf.frame_bytes for shelf in self._shelves.values())

    def _give_back(self) -> None:
        """Have the kernel take the pages of free slots that are beyond the budget; not locked."""
        with self._lock:
            slab, taken = self._slab, []
            for camera, shelf in self._shelves.items():
                surplus = self._resident() - self._budget
                slots = shelf.take_free(max(0, -(-surplus // shelf.frame_bytes)))
                if len(slots):
                    taken.append((camera, shelf, slots))
        if slab is None:
            return
        for camera, _, slots in taken:
            slab.punch(camera, slots)
        with self._lock:  # pages that neighbours shared go with the last of them
            for camera, shelf, slots in taken:
                shelf.punched(slots)
                if shelf.is_empty:
                    slab.punch(camera, shelf.ever_used)


def _leave(slab: FrameSlab, shelves: Mapping[str, Shelf]) -> None:
    """Give back what nobody needs of memory in which no frame is looked for any more."""
    for camera, shelf in shelves.items():
        slab.punch(camera, shelf.unused())
