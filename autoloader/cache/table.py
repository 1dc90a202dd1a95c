"""Decides which decoded frames stay in memory: the one decider of a mixture's frame cache.

Theory of operation. The reader that plans a run asks about its frames (``ask``). Cached frames are
neither read nor decoded. Other frames that are worth a slot get one, which the first thread that
decodes the frame fills. All these slots are pinned until the run's batches are filled, as its
``Lease`` tells. A frame that a run shows more than once always gets a slot. Runs of this process
may share a slot that is not filled yet. Another process cannot see that it is filled, so it gets
none.

One score decides which frames are worth a slot. A frame that is shown now and again q − p positions
later takes ``bytes`` for so long, to save the seconds of one decode. Its score is (q − p) × bytes
÷ seconds. While there is room every frame that is shown again is cached. Then the frames with the
largest scores are evicted, cached or new. (This is Belady's rule, which is optimal, with sizes and
costs.) The score at the last eviction is the threshold: a new frame above it is not
taken, so that no frame is copied that would soon be evicted. The threshold rises while slots are
empty. Runs that are read far ahead have slots that are not filled yet. Once these take half of the
bytes, no cached frame is evicted for more of them.

A frame's key says what made its pixels: the file, the place in it, and what the dataset's decoder
was told (``made``).

Invariants:
    1. No slot is written or given back while somebody may read it: pinned slots stay.
    2. The pages of all slots never exceed the budget, except pinned slots, slots that are being
       filled, and one black frame a camera.
    3. Nothing here decides which samples come: a frame that is not cached is decoded.

Not here: when a frame is shown next (``sampling``), the memory and leases (``cache.slab``), the
budget's size (``controller``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autoloader.cache.slab import (
    BLACK,
    FILE_BITS,
    CameraFrames,
    FrameSlab,
    Ints,
    Lease,
    machine_bytes,
)
from autoloader.errors import PipelineError
from autoloader.host.threads import LoaderThread
from autoloader.sampling.schedule import NEVER
from autoloader.telemetry.statistics import CacheStatistics

logger = logging.getLogger(__name__)

SLACK = 64
"""An eviction frees this part of the budget more than it must, so that evictions are rare."""
_STALE = 65_536
"""Positions after which a frame whose use did not come counts as never shown again."""
_EMPTY = 0.5
"""Part of the budget that is unused when there is no threshold."""
_LATELY = 0.1
"""Weight of the last run in ``lately_cached``."""
_COSTS_EVERY_S = 1.0
_MOST_FILES = 1 << (63 - FILE_BITS)
"""Frames of files beyond are not cached: their keys would be those of others."""
NOWHERE = -1
_GROWN = 1024

FrameCosts = Callable[[], NDArray[np.float64]]
"""Gives [D] seconds that decoding a frame of each dataset takes; NaN where not known."""


class CameraSlots:
    """The slots of one camera: which hold a frame, and when each frame is shown next.

    All methods work on arrays: a planned run is looked up, inserted and evicted in a few calls.
    The table's lock guards all of them.

    Args:
        frame_bytes: bytes of each slot.
        written: [slots] bool, slots in which frames lie (``FrameSlab.written``); as many slots as
            there may be.

    Attributes:
        next_use: [S] int64, position at which the frame in a slot is shown next.
        dataset: [S] int32, dataset of the frame: it says what a hit saves.
        free: slots that have pages and hold nothing.
    """

    def __init__(self, frame_bytes: int, written: NDArray[np.bool_]) -> None:
        self.frame_bytes = frame_bytes
        self._written = written
        self._slot_of: dict[int, int] = {}
        self._key = np.empty(0, np.int64)
        self._pins = np.empty(0, np.int32)
        self.next_use = np.empty(0, np.int64)
        self.dataset = np.empty(0, np.int32)
        self.free: list[int] = []
        self._without_pages: list[int] = []
        self._top = BLACK + 1

    @property
    def used(self) -> int:
        """Number of slots that hold a frame, or will."""
        return len(self._slot_of)

    @property
    def pending(self) -> int:
        """Number of these slots that are not filled yet; looks at each."""
        return self.used - int(np.count_nonzero(self._written[BLACK + 1 : self._top]))

    @property
    def addable(self) -> int:
        """Number of slots that can be taken, with pages or without."""
        return len(self.free) + len(self._without_pages) + len(self._written) - self._top

    def find(self, keys: Ints) -> Ints:
        """[n] the slot that each frame has or will have; ``NOWHERE`` where it has none."""
        known = self._slot_of.get
        return np.asarray([known(key, NOWHERE) for key in keys.tolist()], np.int64)

    def is_cached(self, slots: Ints) -> NDArray[np.bool_]:
        """[n] true where there is a slot, and its frame lies in it."""
        cached: NDArray[np.bool_] = (slots >= 0) & self._written[slots]
        return cached

    def pin(self, slots: Ints, by: int) -> None:
        """Count ``by`` more users of each of these slots [n]; a slot may come twice."""
        np.add.at(self._pins, slots, np.int32(by))  # another type takes sixty times as long

    def take(self, keys: Ints, next_use: Ints, dataset: Ints) -> Ints:
        """[n] slots for new frames, which are pending; at most ``addable``."""
        count = len(keys)
        slots = [self.free.pop() for _ in range(min(count, len(self.free)))]
        again = min(count - len(slots), len(self._without_pages))
        slots += [self._without_pages.pop() for _ in range(again)]
        fresh = count - len(slots)
        slots += range(self._top, self._top + fresh)
        self._top += fresh
        if self._top > len(self._key):
            self._grow()
        found = np.asarray(slots, np.int64)
        self._key[found], self._pins[found] = keys, 0
        self.next_use[found], self.dataset[found] = next_use, dataset
        self._slot_of.update(zip(keys.tolist(), slots, strict=True))
        return found

    def idle(self) -> Ints:
        """Slots whose frames are cached, and that nobody has pinned."""
        cached = self._written[BLACK + 1 : len(self._key)] & (self._pins[BLACK + 1 :] == 0)
        return np.flatnonzero(cached) + BLACK + 1

    def unpin(self, slots: Ints) -> None:
        """Count one user less of each of these slots [n]; a slot may come twice.

        Slots that nobody has pinned any more are evicted where they are not written, or not shown
        again.
        """
        self.pin(slots, -1)
        slots = np.sort(slots)
        slots = slots[np.diff(slots, prepend=NOWHERE) > 0]
        over = ~self._written[slots] | (self.next_use[slots] >= NEVER)
        self.evict(slots[over & (self._pins[slots] == 0)])

    def evict(self, slots: Ints) -> None:
        """Empty these slots; their pages stay until ``take_free`` takes the slots.

        None of them may be pinned, or twice among them.
        """
        self._written[slots] = False
        for key in self._key[slots].tolist():
            del self._slot_of[key]
        self.free += slots.tolist()

    def take_free(self, most: int) -> Ints:
        """Up to so many free slots, ascending, whose pages go; ``pages_gone`` brings them back.

        If that leaves nothing, slots without pages come too: one call for slots that lie side by
        side takes half as long.
        """
        taken = self.free[:most]
        del self.free[:most]
        if taken and not self.used and not self.free:
            taken += self._without_pages
            self._without_pages.clear()
        return np.asarray(sorted(taken), np.int64)

    def pages_gone(self, slots: Ints) -> None:
        """Take back slots of ``take_free``, now without pages."""
        self._without_pages += slots.tolist()

    def _grow(self) -> None:
        size = min(len(self._written), max(_GROWN, 2 * len(self._key), self._top))
        for name in ("_key", "_pins", "next_use", "dataset"):
            old = getattr(self, name)
            new = np.zeros(size, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)


class FrameTable:
    """The frames in memory, and who may use them; any thread.

    Args:
        frame_bytes: camera → bytes of a decoded frame.
        datasets: number of datasets of the mixture.
        made: camera → [datasets] a number for how the dataset's frames are decoded: datasets with
            equal numbers share frames. Default: all do.
        room_bytes: most bytes of one camera's frames; default: all of the machine's memory.

    Attributes:
        lately_cached: share of the frames of the last runs that were cached.
        budget_bytes: bytes that decoded frames may take.
    """

    def __init__(
        self,
        frame_bytes: Mapping[str, int],
        datasets: int,
        *,
        made: Mapping[str, Sequence[int]] | None = None,
        room_bytes: int | None = None,
    ) -> None:
        self.lately_cached = 0.0
        self._frame_bytes = frame_bytes
        self._made = {
            camera: np.asarray(made[camera] if made else [0] * datasets, np.int64)
            for camera in frame_bytes
        }
        self._room = room_bytes or machine_bytes()
        self._slab: FrameSlab | None = None
        self._slots: dict[str, CameraSlots] = {}
        self._lock = threading.Lock()
        self.budget_bytes = 0
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
        if self._slab is None:
            slab = FrameSlab(self._frame_bytes, room_bytes=self._room)
            sizes = self._frame_bytes.items()
            self._slots = {name: CameraSlots(size, slab.written[name]) for name, size in sizes}
            self._slab = slab
        return self._slab

    def ask(
        self,
        files: Sequence[str],
        frames: Mapping[str, CameraFrames],
        now: int,
        rows: int,
        *,
        elsewhere: bool = False,
    ) -> Lease:
        """Lease of a run of ``rows`` samples from position ``now`` on, which reads ``files``.

        Args:
            files: paths of the files that the run's frames lie in.
            frames: camera → keys, next uses, datasets and uses of its frames.
            now: position of the run's first sample.
            rows: number of samples of the run.
            elsewhere: whether another process shows and fills the slots.
        """
        self._refresh_costs()
        wanted = dict[str, Ints]()
        with self._lock:
            lease = Lease(self.slab, rows, self._settle, self)
            self._now = max(self._now, now)
            frames = {c: self._numbered(files, one, self._made[c]) for c, one in frames.items()}
            for camera, one in frames.items():
                own = self._slots[camera]
                slots = own.find(one.key)
                found, cached = slots >= 0, own.is_cached(slots)
                np.maximum.at(own.next_use, slots[found], one.next_use[found])
                lease.cached[camera] = cached
                lease.slots[camera] = np.where(cached | (not elsewhere), slots, NOWHERE)
                own.pin(lease.slots[camera][lease.slots[camera] >= 0], 1)
                again = (one.next_use < NEVER) | (one.uses > 1)
                new = np.flatnonzero(~found & (one.key >= 0) & again)
                wanted[camera] = new[np.unique(one.key[new], return_index=True)[1]]
            lent = {camera: slots >= 0 for camera, slots in lease.slots.items()}
            self._admit(frames, wanted, lease)
            self._count(frames, lent, lease)
        self._give_back()
        return lease

    def _count(
        self,
        frames: Mapping[str, CameraFrames],
        lent: Mapping[str, NDArray[np.bool_]],
        lease: Lease,
    ) -> None:
        """Count hits and misses: the first use of a frame with a new slot is decoded."""
        uses = decoded = 0
        for camera, one in frames.items():
            own = np.where(one.key >= 0, one.uses, 0)
            uses += int(own.sum())
            own[lent[camera]] = 0
            decoded += int(np.where(lease.slots[camera] >= 0, own > 0, own).sum())
        self._hits += uses - decoded
        self._misses += decoded
        self.lately_cached += (1 - decoded / max(1, uses) - self.lately_cached) * _LATELY

    def _settle(self, lease: Lease) -> None:
        """Unpin the slots of a run whose batches are all filled, or given up."""
        with self._lock:
            for camera, slots in lease.slots.items():
                self._slots[camera].unpin(slots[slots > BLACK])
            self._keep_budget()
        self._give_back()

    def claim(self, owner: object, budget_bytes: int, costs: FrameCosts | None = None) -> None:
        """Set the budget of one of the pipelines that share the table; the budgets add up.

        Args:
            owner: the pipeline that claims it.
            budget_bytes: bytes that its frames may take; 0 ends its claim.
            costs: gives its decode costs; asked once a second at most, without a lock held, as
                long as it has a claim. A frame's cost is the mean of its owners' costs.
        """
        with self._lock:
            if not self._claims:
                self._now = 0  # who comes next may begin anywhere
            self._claims.pop(owner, None)
            if budget_bytes:
                self._claims[owner] = budget_bytes, costs
            total = sum(nbytes for nbytes, _ in self._claims.values())
        if total != self.budget_bytes:
            self.resize(total)

    def leave(self, owner: object) -> None:
        """Note that a pipeline ends; its frames stay for one that may follow, until ``give_up``."""
        if len(self._claims) > 1:
            self.claim(owner, 0)
        else:
            self._claims.pop(owner, None)

    def give_up(self) -> None:
        """Give all memory back soon, unless a pipeline is left: none follows."""
        if not self._claims and self.budget_bytes:
            LoaderThread(target=self.resize, args=(0,), name="autoloader-give-back").start()

    def resize(self, budget_bytes: int) -> None:
        """Set the budget; frames beyond it are evicted at once, farthest next use first.

        Where the kernel refuses the memory nothing is cached, and the log says so.
        """
        with self._lock:
            if budget_bytes and self._shared() is None:
                return
            if not budget_bytes:
                self.lately_cached = 0.0
            if budget_bytes > self.budget_bytes:
                self._limit = float("inf")
            self.budget_bytes = budget_bytes
            self._keep_budget()
        self._give_back()

    def close(self) -> None:
        """Give the kernel all pages back; nobody asks any more, and no lease is in use."""
        with self._lock:
            self.budget_bytes = 0
            if self._slab is not None:
                self._slab.close()

    def counts(self) -> CacheStatistics:
        """Counts of the frame cache since it was made."""
        with self._lock:
            every = self._slots.values()
            return CacheStatistics(
                self.budget_bytes,
                self._used(),
                sum(own.used for own in every),
                self._hits,
                self._misses,
                None if self._limit == float("inf") else self._limit,
                allocated_bytes=0 if self._slab is None else self._slab.allocated_bytes(),
            )

    def shared_slab(self) -> FrameSlab | None:
        """The memory, for a process that shares it; ``None`` where the kernel refuses it."""
        with self._lock:
            return self._shared()

    def _shared(self) -> FrameSlab | None:
        """The same, under the lock."""
        try:
            return self.slab
        except PipelineError as error:
            logger.warning("decoded frames are not cached: %s", error)
            return None

    def _numbered(self, files: Sequence[str], one: CameraFrames, made: Ints) -> CameraFrames:
        """The same frames with keys that are valid for all readers; under the lock."""
        known = self._files
        numbers = np.asarray(
            [known.setdefault(path, len(known)) for path in files] or [0], np.int64
        )
        file = numbers[one.key >> FILE_BITS] * (1 + made.max()) + made[one.dataset]
        key = (file << FILE_BITS) + (one.key & ((1 << FILE_BITS) - 1))
        return replace(one, key=np.where((one.key >= 0) & (file < _MOST_FILES), key, -1))

    def _refresh_costs(self) -> None:
        """Read the decode costs, once a second; without the lock."""
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

    def _admit(
        self, frames: Mapping[str, CameraFrames], wanted: dict[str, Ints], lease: Lease
    ) -> None:
        """Give slots to the wanted frames that are worth one; under the lock."""
        empty = 1 - self._used() / max(1, self.budget_bytes)
        if empty > 2 / SLACK:
            self._limit = self._limit * (1 + 1 / SLACK) if empty < _EMPTY else float("inf")
        scores = {
            camera: self._scores(frames[camera], camera, rows) for camera, rows in wanted.items()
        }
        limit = self._limit
        for _ in range(2):
            for camera, rows in list(wanted.items()):
                keep = scores[camera] < limit
                wanted[camera], scores[camera] = rows[keep], scores[camera][keep]
            asked = sum(len(rows) * self._frame_bytes[c] for c, rows in wanted.items())
            if self._used() + asked <= self.budget_bytes:
                break
            pending = sum(own.pending * own.frame_bytes for own in self._slots.values())
            if 2 * pending > self.budget_bytes and self._used() > pending:
                break
            limit = self._evict(scores)
        for camera, rows in wanted.items():
            own, one = self._slots[camera], frames[camera]
            most = max(0, self.budget_bytes - self._used()) // own.frame_bytes
            few = rows[: min(most, own.addable)]
            if len(few):
                slots = own.take(one.key[few], one.next_use[few], one.dataset[few])
                own.pin(slots, 1)
                lease.slots[camera][few] = slots

    def _scores(self, one: CameraFrames, camera: str, rows: Ints) -> NDArray[np.float64]:
        """Eviction scores of new frames; 0 of frames that their own run shows again."""
        left = np.where(one.uses[rows] > 1, 0, one.next_use[rows] - self._now)
        return left * (self._frame_bytes[camera] / self._saved_s[one.dataset[rows]])

    def _keep_budget(self) -> None:
        """Evict frames if they take more than the budget; under the lock."""
        if self._used() > self.budget_bytes:
            self._evict({})

    def _evict(self, new: Mapping[str, NDArray[np.float64]]) -> float:
        """Evict the frames with the largest scores until all fit, with some slack.

        Args:
            new: camera → scores of new frames that count too.

        Returns:
            The least score that was evicted, of cached and new frames.
        """
        idle, scores, sizes = {}, [], []
        for camera, own in self._slots.items():
            slots = idle[camera] = own.idle()
            left = (own.next_use[slots] - self._now).astype(np.float64)
            left[left < -_STALE] = NEVER
            cached = left * (own.frame_bytes / self._saved_s[own.dataset[slots]])
            scores += [cached, new.get(camera, cached[:0])]
            sizes.append(np.full(len(scores[-2]) + len(scores[-1]), own.frame_bytes))
        every, size = np.concatenate(scores), np.concatenate(sizes)
        if not len(every):
            return 0.0
        asked = sum(len(one) * self._frame_bytes[camera] for camera, one in new.items())
        order = np.argsort(-every)
        gone = np.cumsum(size[order])
        surplus = self._used() + asked - self.budget_bytes * (1 - 1 / SLACK)
        last = int(np.searchsorted(gone, surplus))
        self._limit = float(every[order[min(last, len(order) - 1)]])
        for (camera, slots), cached in zip(idle.items(), scores[::2], strict=True):
            self._slots[camera].evict(slots[cached >= self._limit])
        return self._limit

    def _used(self) -> int:
        return sum(own.used * own.frame_bytes for own in self._slots.values())

    def _give_back(self) -> None:
        """Have the kernel take the pages of free slots beyond the budget; not locked."""
        with self._lock:
            slab, taken = self._slab, []
            for camera, own in self._slots.items():
                idle = sum(len(one.free) * one.frame_bytes for one in self._slots.values())
                surplus = self._used() + idle - self.budget_bytes
                slots = own.take_free(max(0, -(-surplus // own.frame_bytes)))
                if len(slots):
                    taken.append((camera, own, slots))
        if slab is None:
            return
        for camera, _, slots in taken:
            slab.punch(camera, slots)
        with self._lock:
            for _, own, slots in taken:
                own.pages_gone(slots)
