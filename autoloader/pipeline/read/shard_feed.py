"""Fetches remote shards ahead of the samples that need them, in the order of the plan.

Theory of operation. The plan says which sample every position is, so which shard is needed next is
known before anybody asks. A thread looks ``HORIZON`` positions ahead of the run that was assigned
last. Shards that are first needed sooner are fetched first; what a run needs at once overtakes them
(``storage.shard``). The same look tells the cache which shards may make room for others, and which
ones this job leases. Of several processes that follow one plan, one fetches a shard, and the others
go on with the next.

A shard that cannot be fetched ahead is left to the run that needs it, which tells why.

Not here: the cache (``storage``), the order (``sampling.plan``).
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.decode.batch_builder import Spans
from autoloader.host.threads import LoaderThread, all_ended
from autoloader.pipeline.read.planned import PlannedSource
from autoloader.samples.resolve import ResolvedDataset
from autoloader.sampling.dealing import NodePart
from autoloader.sampling.plan import SamplePlan
from autoloader.storage.shard import RemoteShard
from autoloader.storage.shards import ShardCache, shard_cache

HORIZON = 65_536
"""Positions that are looked ahead."""
_LOOK_AGAIN = HORIZON // 8
_THREADS = 16
"""Shards that are fetched ahead at a time; the requests of those needed first go first."""
_PAUSE_S = 1.0

logger = logging.getLogger(__name__)


class ShardOrder:
    """Which remote shards the positions of a plan need, and in which order.

    Args:
        plan: which sample each position names.
        datasets: of the plan.
        slice_of: for each dataset, [E] the slice that each of its episodes lies in.
        node: whose positions count, where there are several nodes.
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
        order: which shards are needed when.
        cache: where they arrive; default: this process's.
    """

    def __init__(self, order: ShardOrder, cache: ShardCache | None = None) -> None:
        self._order, self._cache = order, cache or shard_cache()
        self._changed = threading.Condition()
        self._position, self._looked_at = -1, -1
        self._queue: list[tuple[int, RemoteShard]] = []
        self._left_out: set[str] = set()
        self._threads: list[LoaderThread] = []
        self._closed = False

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
        while (found := self._next()) is not None:
            position, shard = found
            try:
                shard.fetch_ahead(position, lambda: not self._closed)
            except OSError as error:
                if not self._closed:
                    logger.debug("%s is not fetched ahead: %s", shard.path, error.strerror)
                if error.errno == errno.ENOSPC:
                    with self._changed:  # there is room when the plan has moved on
                        self._changed.wait(_PAUSE_S)
                        continue
                self._left_out.add(shard.path)

    def _next(self) -> tuple[int, RemoteShard] | None:
        """The shard to be fetched next; waits for one, ``None`` to end."""
        while True:
            with self._changed:
                if self._closed:
                    return None
                if look := self._is_due():
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
        """Find what is needed when, from a position on."""
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


class FedSource(PlannedSource):
    """Planned runs whose remote shards are fetched ahead.

    Args:
        feed: fetches them.
        arguments: of ``PlannedSource``.
        named: of ``PlannedSource``.
    """

    def __init__(self, feed: ShardFeed, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._feed = feed

    def assign(self, spans: Spans) -> None:
        """See ``PlannedSource.assign``; what comes behind it is fetched ahead."""
        self._feed.follow(spans[0][0])
        super().assign(spans)

    def close(self) -> None:
        """See ``PlannedSource.close``."""
        self._feed.close()
        super().close()

    def join(self, within_s: float | None) -> bool:
        """See ``PlannedSource.join``."""
        ended = super().join(within_s)
        return self._feed.join(within_s if ended else 0.0) and ended
