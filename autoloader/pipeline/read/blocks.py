"""Blocks of an order with locality: each is read once, as a whole, before its first sample is due.

Theory of operation. One thread goes over the positions of the plan, ahead of the runs that are read
(``look ahead``). The first sample of an unknown block puts the block into a queue, if there is room
for it. Blocks are read one after the other in this order: a disk head goes to each once, and
network file systems read ahead within it. The frames of a block's samples, windows over its edges
included, are planned as for a run. Stretches that lie close together are one read, into memory of
the block's own. A run takes its frames from its blocks, waiting for those that are queued. The plan
read backwards names the last position that shows a block. When all runs under way are beyond it,
the block is dropped, and its memory is free with the last view of it.

Other frames are read one by one, as without locality: there is no room for their block, it was
dropped, or the plan knows none (an odd end of chained samples).

All pipelines over one mixture in a process share the blocks; so do the ranks of a node.

Invariants:
    1. What blocks and those under way take never exceeds the room, but for blocks that are let go
       of and still shown by runs.
    2. A run waits for no memory: only for reads that go on.
    3. No sample depends on what there is room for.

Not here: the order (``samples.draws``), what it costs (``samples.resolve``).
"""

from __future__ import annotations

import collections
import mmap
import threading
import weakref
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoloader.decode.batch_builder import Spans
from autoloader.formats.frames import Encoded
from autoloader.host.threads import LoaderThread
from autoloader.index.planned import PlannedReads, RunPlanner
from autoloader.pipeline.read.frame_reads import NowRead, Stretches, read_all
from autoloader.samples.resolve import ResolvedMixture
from autoloader.sampling.dealing import NodePart
from autoloader.sampling.mixture import MixtureOrder
from autoloader.sampling.plan import PlannedSamples, SamplePlan
from autoloader.sampling.schedule import NEVER, WINDOW

Ints = NDArray[np.int64]

MOST_AHEAD = 2**18
"""Positions that are looked at ahead of the runs at most."""
_PIECE = 2048
_GAP_RATIO = 16
"""Stretches of a block no further apart than this part of it are read together."""
_WAIT_S = 0.05
_GROWS = 16
"""After memory was short, room grows by this part of a block with each run."""


class BlockKey(NamedTuple):
    """A block of a dataset's pass, as ``SamplePlan.block`` takes it."""

    dataset: int
    pass_: int
    block: int


@dataclass(slots=True, eq=False)
class _Block:
    """A block that is known.

    Attributes:
        last: position that shows the block last.
        alone: whether there is no room for the block: then its frames are read one by one.
        data: bytes of the block; ``None`` until they are there.
        places: file → of each read the first byte, the byte behind the last, and its place in
            ``data``.
        failed: error of the read; ``None``: there was none.
    """

    last: int
    alone: bool = False
    data: memoryview | None = None
    places: dict[str, tuple[list[int], list[int], list[int]]] = field(default_factory=dict)
    failed: BaseException | None = None

    def frame(self, path: str, offset: int, length: int) -> memoryview | None:
        """A stretch of a file; ``None`` where it is not in the block."""
        if self.data is None or path not in self.places:
            return None
        starts, stops, at = self.places[path]
        k = bisect_right(starts, offset) - 1
        if k < 0 or offset + length > stops[k]:
            return None
        begin = at[k] + offset - starts[k]
        return self.data[begin : begin + length]


@dataclass(slots=True, eq=False)
class BlockUser:
    """A source that takes frames from blocks.

    Attributes:
        front: first position of the oldest of its runs that are under way, or of the last.
        runs: first positions of those under way.
        parked: whether it reads nothing for now.
    """

    front: int = -1
    runs: list[int] = field(default_factory=list)
    parked: bool = False


class LeftError(Exception):
    """A source was closed while it waited for a block."""


class Blocks:
    """The blocks of one mixture; any thread.

    Args:
        mixture: the resolved mixture that is read.
        order: the mixture's order, which has locality.
        plan: plan of the order.
        planner: works out where frames lie.

    Attributes:
        node: node whose positions are shown here; ``None``: all positions are.
        read_blocks, read_bytes: number of blocks that were read so far, and their bytes.
        single: frames that were read one by one so far.
        now: the file that is read.
    """

    def __init__(
        self, mixture: ResolvedMixture, order: MixtureOrder, plan: SamplePlan, planner: RunPlanner
    ) -> None:
        asked = mixture.spec.mixing.locality
        assert asked is not None
        assert order.locality is not None
        windows = zip(order.locality.blocks, order.shares, strict=True)
        longest = max(block * asked.window / share for block, share in windows if share)
        self._datasets, self._plan, self._planner = mixture.datasets, plan, planner
        self._block_bytes, self._most = asked.block, mixture.sizes.block_bytes
        self._ahead = min(MOST_AHEAD, int(longest) + _PIECE)
        # A drawn turn is told by when it is due.
        self._late = 0 if order.draw_key is None else order.block_length * WINDOW
        self.node: NodePart | None = None
        self.read_blocks = self.read_bytes = self.single = 0
        self.now = NowRead()
        self._changed = threading.Condition()
        self._users: list[BlockUser] = []
        self._known: dict[BlockKey, _Block] = {}
        self._queue: collections.deque[BlockKey] = collections.deque()
        self._room = self._most
        self._looked = self._wanted = 0
        self._memory = _BlockMemory()
        self._failed: BaseException | None = None
        self._thread: LoaderThread | None = None

    def enter(self) -> BlockUser:
        """Register a source that takes frames of blocks; the first starts the reading thread."""
        user = BlockUser()
        with self._changed:
            self._users.append(user)
            if self._thread is None:
                self._room, self._failed = self._most, None
                self._thread = LoaderThread(target=self._work, name="autoloader-blocks")
                self._thread.start()
        return user

    def leave(self, user: BlockUser) -> LoaderThread | None:
        """A source takes no more; with the last one all blocks go. May be called twice.

        Returns:
            The thread that ends with the last one.
        """
        ended = None
        with self._changed:
            if user in self._users:
                self._users.remove(user)
                if not self._users:
                    self._known.clear()
                    self._queue.clear()
                    ended, self._thread = self._thread, None
            self._changed.notify_all()
        return ended

    def park(self, user: BlockUser, parked: bool) -> None:
        """Read nothing while all sources are parked."""
        with self._changed:
            user.parked = parked
            self._changed.notify_all()

    def drop(self) -> None:
        """Let go of all blocks, and take half the memory from now on; it grows back run by run."""
        with self._changed:
            self._room = min(self._room, self._memory.lent_bytes) // 2
            self._known.clear()
            self._queue.clear()
            self._looked = self._lowest()
            self._changed.notify_all()

    def fill(
        self,
        user: BlockUser,
        frames: Sequence[list[Encoded | None]],
        reads: PlannedReads,
        planned: PlannedSamples,
        spans: Spans,
    ) -> list[Ints]:
        """Fill in the frames of a run that lie in blocks; waits for those that are queued.

        The run was begun (``begin``), and is over with this.

        Args:
            user: source that the run is for.
            frames: frames of ``reads``, by camera; filled in here.
            reads: frames that the run shows.
            planned: samples of the run.
            spans: positions of the samples.

        Returns:
            By camera, rows of frames that are left to be read one by one.

        Raises:
            SourceError: a file cannot be read.
            LeftError: the source has left meanwhile.
        """
        assert planned.block is not None
        columns = planned.dataset.astype(np.int64), planned.pass_, planned.block
        keys, of = np.unique(np.stack(columns), axis=1, return_inverse=True)
        of = of.reshape(-1)[reads.sample]
        wanted = [np.flatnonzero(ranges.file >= 0) for ranges in reads.ranges.values()]
        needed = np.unique(np.concatenate([of[rows] for rows in wanted])).tolist()
        first, behind = spans[0][0], spans[-1][1]
        try:
            found = {k: self._there(user, BlockKey(*keys[:, k].tolist()), behind) for k in needed}
        finally:
            self._end(user, first)
        left = []
        for into, ranges, rows in zip(frames, reads.ranges.values(), wanted, strict=True):
            alone = []
            places = (ranges.file[rows], ranges.offset[rows], ranges.length[rows], of[rows], rows)
            for file, offset, length, k, row in zip(*(p.tolist() for p in places), strict=True):
                block = found[k]
                data = None if block is None else block.frame(reads.files[file], offset, length)
                if data is None:
                    alone.append(row)
                else:
                    into[row] = data
            self.single += len(alone)
            left.append(np.asarray(alone, dtype=np.int64))
        return left

    def begin(self, user: BlockUser, spans: Spans) -> None:
        """A run over these positions is under way from now on; to be told in their order."""
        first, behind = spans[0][0], spans[-1][1]
        with self._changed:
            user.runs.append(first)
            if user.front < 0:  # a new one: look from its first position on, or from another's
                user.front = first
                self._looked = self._lowest()
                self._wanted = behind
            self._wanted = max(self._wanted, behind)
            self._room = min(self._most, self._room + self._block_bytes // _GROWS)
            self._changed.notify_all()

    def _end(self, user: BlockUser, first: int) -> None:
        with self._changed:
            user.runs.remove(first)
            user.front = max(user.front, min([*user.runs, first]))
            lowest = self._lowest()
            for key in [key for key, block in self._known.items() if block.last < lowest]:
                del self._known[key]
            self._changed.notify_all()

    def _lowest(self) -> int:
        return min((user.front for user in self._users if user.front >= 0), default=0)

    def _there(self, user: BlockUser, key: BlockKey, behind: int) -> _Block | None:
        """A block once it is there; ``None`` where its frames are to be read one by one."""
        with self._changed:
            while True:
                if user not in self._users:
                    raise LeftError
                if self._failed is not None:
                    raise self._failed
                block = self._known.get(key)
                if block is None:
                    if key.block < 0 or self._looked >= behind:
                        return None
                elif block.failed is not None:
                    raise block.failed
                elif block.data is not None:
                    return block
                elif block.alone and self._is_full():
                    return None
                elif block.alone:
                    block.alone = False
                    self._queue.appendleft(key)
                    self._changed.notify_all()
                self._changed.wait()

    def _work(self) -> None:
        try:
            while (job := self._job()) is not None:
                if isinstance(job, BlockKey):
                    self._read(job)
                else:
                    self._look(job)
        except BaseException as error:  # noqa: BLE001 the one boundary of this thread: runs must hear of it
            with self._changed:
                self._failed = error
                self._changed.notify_all()

    def _job(self) -> BlockKey | int | None:
        """A block to read, or the position to look from, when there is room; ``None`` to end."""
        me = threading.current_thread()
        with self._changed:
            while self._thread is me:
                begun = [user for user in self._users if user.front >= 0]
                full = False
                if begun and not all(user.parked for user in self._users):
                    if self._looked < self._wanted:
                        return self._looked
                    if self._queue:
                        return self._queue.popleft()
                    full = self._is_full()
                    if not full and self._looked < self._lowest() + self._ahead:
                        return self._looked
                # Memory comes back when a view dies, which nobody tells.
                self._changed.wait(_WAIT_S if full else None)
        return None

    def _is_full(self) -> bool:
        waiting = (len(self._queue) + 1) * self._block_bytes
        return self._memory.lent_bytes + waiting > self._room

    def _look(self, start: int) -> None:
        """Queue the blocks that samples from a position on are the first of."""
        planned = self._plan.samples(start, start + _PIECE)
        assert planned.block is not None
        here = planned.block >= 0
        if self.node is not None:
            here &= self.node.shows(np.arange(start, start + _PIECE))
        at = np.flatnonzero(here)
        columns = planned.dataset.astype(np.int64), planned.pass_, planned.block
        keys, first = np.unique(np.stack(columns)[:, at], axis=1, return_index=True)
        order = np.argsort(first)
        for key, place in zip(keys[:, order].T.tolist(), at[first[order]].tolist(), strict=True):
            own = BlockKey(*key)
            if own in self._known:
                continue
            last = self._last_shown(own)
            with self._changed:
                if self._looked != start or self._thread is not threading.current_thread():
                    return  # somebody begins elsewhere, or all have left
                full = self._is_full()
                if full and start + place >= self._wanted:
                    self._looked = start + place
                    self._changed.notify_all()
                    return
                self._known[own] = _Block(last, alone=full)
                if not full:
                    self._queue.append(own)
        with self._changed:
            if self._looked == start and self._thread is threading.current_thread():
                self._looked = start + _PIECE
            self._changed.notify_all()

    def _last_shown(self, key: BlockKey) -> int:
        samples = self._plan.block(*key)
        dataset = samples.dataset.astype(np.int64)
        number = self._plan.numbers(dataset, samples.pass_, samples.episode, samples.t)
        position = self._plan.positions(dataset, number)
        return int(position[position < NEVER].max(initial=0)) + self._late

    def _read(self, key: BlockKey) -> None:
        block = self._known.get(key)
        if block is None:
            return  # let go of meanwhile
        try:
            files, ranges = self._planner.places(self._plan.block(*key))
            file, offset, length = (
                np.concatenate([getattr(one, name) for one in ranges]).astype(np.int64)
                for name in ("file", "offset", "length")
            )
            there = (file >= 0) & (length > 0)
            gap = self._block_bytes // _GAP_RATIO
            reads = Stretches.of(file[there], offset[there], length[there], gap).reads()
            data = self._memory.take(int(reads[2].sum()))
            read_all(self._datasets, files, reads, data, lambda: bool(self._users), self.now)
        except Exception as error:  # noqa: BLE001 the runs that wait for it raise it
            block.failed = error
        else:
            at = np.cumsum(reads[2]) - reads[2]
            for number, path in enumerate(files):
                rows = np.flatnonzero(reads[0] == number)
                starts, sizes = reads[1][rows], reads[2][rows]
                block.places[path] = starts.tolist(), (starts + sizes).tolist(), at[rows].tolist()
            block.data = data
            self.read_blocks += 1
            self.read_bytes += len(data)
        with self._changed:
            self._changed.notify_all()


class _BlockMemory:
    """Memory of blocks: fresh pages, which the kernel has back with the last view of them."""

    def __init__(self) -> None:
        self._lent: dict[int, int] = {}

    @property
    def lent_bytes(self) -> int:
        """Bytes of the pieces of memory that views are left of."""
        return sum(list(self._lent.values()))

    def take(self, size: int) -> memoryview:
        """``size`` writable bytes; theirs until the last view of them is gone."""
        if not size:
            return memoryview(b"")
        whole = np.frombuffer(mmap.mmap(-1, size), np.uint8)
        self._lent[id(whole)] = size
        # Runs wherever the last view dies, maybe with a lock held: it takes none.
        weakref.finalize(whole, self._lent.pop, id(whole), None)
        return whole.data
