"""Fills the cache with the shards of remote data that is streamed, and indexes them.

Theory of operation. Remote data without index files is streamed by TensorFlow. Meanwhile a thread
fetches its shards one after the other and indexes each. The next start finds all of it here, and
reads by index. Of several processes and ranks one fetches a shard. Where the disk has no room, or
the store fails, the rest is left as it is: a stream needs none of it.

Not here: the cache (``storage``), the stream (``pipeline.graph.reader``), fetching by plan
(``pipeline.read.shard_feed``).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import replace

from autoloader.errors import AutoloaderError
from autoloader.host.threads import LoaderThread
from autoloader.index.opening import open_indexes
from autoloader.samples.resolve import ResolvedDataset
from autoloader.storage.shards import shard_cache

logger = logging.getLogger(__name__)


class ShardFill:
    """Fetches and indexes the shards of datasets, one after the other.

    Args:
        datasets: remote ones, of which a client gives ranges.
    """

    def __init__(self, datasets: Sequence[ResolvedDataset]) -> None:
        self._datasets = datasets
        self._closed = threading.Event()
        self._thread = LoaderThread(target=self._work, name="autoloader-fill")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End after the request in hand."""
        self._closed.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread; whether it has ended."""
        return self._thread.ended(timeout_s)

    def _work(self) -> None:
        for dataset in self._datasets:
            for piece in dataset.slices:
                if self._closed.is_set():
                    return
                try:
                    shard = shard_cache().shard(piece.path)
                    shard.fetch_ahead(math.inf, lambda: not self._closed.is_set())
                    if shard.whole_path.exists() and not self._closed.is_set():
                        open_indexes([replace(dataset, slices=(piece,))], progress=_nobody)
                except (OSError, AutoloaderError) as error:
                    if not self._closed.is_set():
                        logger.info("the cache is not filled any more: %s", error)
                    return
        logger.info("all shards are here, with index files: the next start reads by index")


def _nobody(done: int, total: int) -> None:
    """Hears how far an index is."""
    del done, total
