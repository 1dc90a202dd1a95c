"""A limit: copying decoded batches in memory, once each, in threads.

What a loader could give if decoding cost nothing and every batch were copied once. Threads copy
batches of a pool, larger than what caches hold, into batches that are used over and over.

Not here: decoding (``bench.peers.decode_alone``), reading (``bench.peers.read_alone``).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.mixture import read_mixture
from bench.peers import settled

SETTINGS: Mapping[str, int] = {"threads": 2}

Frames = NDArray[np.uint8]
POOL, SLOTS = 8, 4
"""Batches copied from and to; a batch of 48 samples of two 256×256 frames is 19 MB."""


class RowsInThreads:
    """Threads fill the rows of batches, which are used over and over.

    Args:
        threads: how many.
        shape: of a batch's frames, [B, F, H, W, 3].
        datasets: of the mixture.
    """

    def __init__(self, threads: int, shape: tuple[int, ...], datasets: int) -> None:
        self.datasets = datasets
        self._threads, self._batch = threads, shape[0]
        self._slots = [np.zeros(shape, np.uint8) for _ in range(SLOTS)]
        self._done = 0
        self._changed = threading.Condition()
        self._closed = False

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        numbers = itertools.count()
        for _ in range(self._threads):
            threading.Thread(target=self._work, args=(numbers,), daemon=True).start()
        for number in itertools.count():
            with self._changed:
                while self._done < (number + 1) * self._batch:
                    self._changed.wait()
            rows = np.arange(number * self._batch, (number + 1) * self._batch, dtype=np.int64)
            yield {"images": self._slots[number % SLOTS], "dataset_index": self._datasets_of(rows)}

    def close(self) -> None:
        """Ends the threads."""
        self._closed = True

    def _work(self, numbers: Iterator[int]) -> None:
        scratch = np.empty(0, np.uint8)
        for number in numbers:
            if self._closed:
                return
            batch, row = divmod(number, self._batch)
            scratch = self._fill(self._slots[batch % SLOTS][row], number, scratch)
            with self._changed:
                self._done += 1
                if self._done % self._batch == 0:
                    self._changed.notify()

    def _fill(self, out: Frames, number: int, scratch: Frames) -> Frames:
        """Fill one row; gives the thread's own memory back, or larger one."""
        raise NotImplementedError

    def _datasets_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The dataset of each row."""
        raise NotImplementedError


class CopyAlone(RowsInThreads):
    """The contender; settings: ``threads``."""

    def __init__(self, spec: Path, settings: Mapping[str, int]) -> None:
        mixture = read_mixture(spec)
        shape = (mixture.batch, len(mixture.frame_offsets), *mixture.size, 3)
        threads = settled("copy_alone", SETTINGS, settings)["threads"]
        super().__init__(threads, shape, len(mixture.datasets))
        rng = np.random.default_rng(mixture.seed)
        self._pool = [rng.integers(0, 256, shape, np.uint8) for _ in range(POOL)]

    def _fill(self, out: Frames, number: int, scratch: Frames) -> Frames:
        batch, row = divmod(number, self._batch)
        np.copyto(out, self._pool[batch % POOL][row])
        return scratch

    def _datasets_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows % self.datasets
