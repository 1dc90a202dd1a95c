"""Fetches remote shards into the cache before samples need them.

Theory of operation. *By plan*: the plan names the sample of every position, so the order in which
shards are needed is known. A thread looks ``HORIZON`` positions ahead of the run that was assigned
last. Shards that are needed sooner are fetched first; a run that needs a shard at once overtakes
them (``storage.shards``). The same look tells the cache which shards may make room for others, and
which shards this job leases. Of several processes that follow one plan, one fetches a shard, and
the others go on with the next. A shard that cannot be fetched ahead is left to the run that needs
it, which reports the failure.

*Beside a stream*: remote data without index files is streamed by TensorFlow. Meanwhile a thread
fetches its shards one after the other and indexes each. The next start finds all shards here, and
reads by index. Where the disk has no room, or the store fails, the rest stays remote: a stream
needs none of it.

Not here: the cache (``storage``), the order (``sampling.plan``), the stream
(``pipeline.graph.reader``).
"""

from __future__ import annotations

import errno
import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import AutoloaderError
from autoloader.host.threads import LoaderThread, all_ended
from autoloader.index.opening import open_indexes
from autoloader.samples.resolve import ResolvedDataset
from autoloader.sampling.dealing import NodePart
from autoloader.sampling.plan import SamplePlan
from autoloader.storage.faults import UnreachableError
from autoloader.storage.shards import RemoteShard, ShardCache, shard_cache

HORIZON = 65_536
"""Number of positions that the thread looks ahead."""
_LOOK_AGAIN = HORIZON // 8
_THREADS = 16
"""Shards that are fetched ahead at a time; the requests of those needed first go first."""
_PAUSE_S = 1.0

logger = logging.getLogger(__name__)


class ShardOrder:
    """Which remote shards the positions of a plan need, and in which order.

    Args:
        plan: gives the sample of each position.
        datasets: datasets of the plan.
        slice_of: for each dataset, [E] number of the slice that each episode lies in.
        node: node whose positions count, where there are several nodes.
    """

    def __init__(
        self,
        plan: SamplePlan,
        datasets: Sequence[ResolvedDataset],
        slice_of: Sequence[NDArray[np.int32]],
        node: NodePart | None = None,
    ) -> None:
        self._plan, self._node = plan, node
        numbers: dict[str, int] = {}
        self._shard_of: list[NDArray[np.int64] | None] = []
        for dataset, slices in zip(datasets, slice_of, strict=True):
            if not dataset.remote:
                self._shard_of.append(None)
                continue
            of_slice = [numbers.setdefault(one.path, len(numbers)) for one in dataset.slices]
            self._shard_of.append(np.asarray(of_slice, np.int64)[slices])
        self._paths = list(numbers)

    def ahead(self, position: int, count: int = HORIZON) -> dict[str, int]:
        """Path → the first of ``count`` positions from ``position`` on that needs it, in order."""
        planned = self._plan.samples(position, position + count)
        positions = np.arange(position, position + count)
        shard = np.full(count, -1, np.int64)
        for number, of_episode in enumerate(self._shard_of):
            if of_episode is not None:
                rows = np.flatnonzero(planned.dataset == number)
                shard[rows] = of_episode[planned.episode[rows]]
        needed = shard >= 0
        if self._node is not None:
            needed &= self._node.shows(positions)
        shard, positions = shard[needed], positions[needed]
        numbers, first = np.unique(shard, return_index=True)
        order = np.argsort(first)
        return {
            self._paths[number]: int(positions[at])
            for number, at in zip(numbers[order].tolist(), first[order].tolist(), strict=True)
        }


class ShardFeed:
    """Fetches shards ahead; ``follow`` and ``close`` from any thread.

    Args:
        order: gives the shards that come next.
        cache: cache of shards; default: this process's.
    """

    def __init__(self, order: ShardOrder, cache: ShardCache | None = None) -> None:
        self._order, self._cache = order, cache or shard_cache()
        self._changed = threading.Condition()
        self._position, self._looked_at = -1, -1
        self._queue: list[tuple[int, RemoteShard]] = []
        self._left_out: set[str] = set()
        self._threads: list[LoaderThread] = []
        self._closed = False
        self._again_s = 0.0

    def follow(self, position: int) -> None:
        """The run that begins at ``position`` is read next."""
        with self._changed:
            if self._closed:
                return
            self._position = position
            if not self._threads:
                self._threads = [
                    LoaderThread(target=self._work, name=f"autoloader-feed-{number}")
                    for number in range(_THREADS)
                ]
                for thread in self._threads:
                    thread.start()
            if self._is_due():
                self._changed.notify()

    def close(self) -> None:
        """Fetch nothing more, and let go of the leases."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
            self._cache.room.plan(self, {})

    def join(self, within_s: float | None) -> bool:
        """Wait for the threads, for so long in all; whether all have ended."""
        return all_ended(self._threads, within_s)

    def _work(self) -> None:
        while not self._closed:
            shard = None
            try:
                if (found := self._next()) is None:
                    return
                position, shard = found
                shard.fetch_ahead(position, lambda: not self._closed)
            except OSError as error:
                if not self._closed:
                    path = error.filename if shard is None else shard.path
                    logger.debug("%s is not fetched ahead: %s", path, error.strerror)
                full = error.errno == errno.ENOSPC  # there is room when the plan has moved on
                if shard is not None and not (full or isinstance(error, UnreachableError)):
                    self._left_out.add(shard.path)
                    continue
                with self._changed:
                    if not full:
                        self._looked_at = -1  # it may pass: one of all threads looks again
                        self._again_s = time.monotonic() + _PAUSE_S
                    elif not self._closed:
                        self._changed.wait(_PAUSE_S)

    def _next(self) -> tuple[int, RemoteShard] | None:
        """The shard to be fetched next; waits for one, ``None`` to end."""
        while True:
            with self._changed:
                if self._closed:
                    return None
                look = False
                if (left_s := self._again_s - time.monotonic()) > 0:
                    self._changed.wait(left_s)
                elif look := self._is_due():
                    self._looked_at = self._position
                elif self._queue:
                    return self._queue.pop(0)
                else:
                    self._changed.wait()
            if look:
                self._look(self._looked_at)

    def _is_due(self) -> bool:
        return self._looked_at < 0 or abs(self._position - self._looked_at) >= _LOOK_AGAIN

    def _look(self, position: int) -> None:
        """Find the shards that are needed from a position on."""
        ahead = self._order.ahead(position)
        shards = {path: self._cache.shard(path) for path in ahead}
        queue = [
            (at, shards[path])
            for path, at in ahead.items()
            if path not in self._left_out and shards[path].missing_bytes
        ]
        with self._changed:
            if not self._closed:
                self._cache.room.plan(self, {shards[path].key: at for path, at in ahead.items()})
                self._queue = queue
                self._changed.notify_all()


class ShardFill:
    """Fetches and indexes all shards beside a stream, so that the next start reads by index.

    No sample of this run waits for it; ``ShardFeed`` serves runs.

    Args:
        datasets: remote datasets whose files can be read in part.
    """

    def __init__(self, datasets: Sequence[ResolvedDataset]) -> None:
        self._datasets = datasets
        self._closed = threading.Event()
        self._thread = LoaderThread(target=self._work, name="autoloader-fill")

    def start(self) -> None:
        """Begin to fetch shards."""
        self._thread.start()

    def close(self) -> None:
        """Stop fetching after the request under way; does not wait."""
        self._closed.set()

    def _work(self) -> None:
        for dataset in self._datasets:
            for piece in dataset.slices:
                if self._closed.is_set():
                    return
                try:
                    shard = shard_cache().shard(piece.path)
                    shard.fetch_ahead(math.inf, lambda: not self._closed.is_set())
                    if shard.whole_path.exists() and not self._closed.is_set():
                        one = replace(dataset, slices=(piece,))
                        open_indexes([one], progress=lambda *_: None)
                except (OSError, AutoloaderError) as error:
                    if not self._closed.is_set():
                        logger.info("the cache is not filled any more: %s", error)
                    return
        logger.info("all shards are here, with index files: the next start reads by index")
