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

from bench.mixture import read_mixture
from bench.peers import settled

SETTINGS: Mapping[str, int] = {"threads": 2}

POOL, SLOTS = 8, 4
"""Batches copied from and to; a batch of 48 samples of two 256×256 frames is 19 MB."""


class CopyAlone:
    """The contender; settings: ``threads``."""

    def __init__(self, spec: Path, settings: Mapping[str, int]) -> None:
        self._threads = settled("copy_alone", SETTINGS, settings)["threads"]
        mixture = read_mixture(spec)
        self.datasets = len(mixture.datasets)
        self._batch = mixture.batch
        shape = (mixture.batch, len(mixture.frame_offsets), *mixture.size, 3)
        rng = np.random.default_rng(mixture.seed)
        self._pool = [rng.integers(0, 256, shape, np.uint8) for _ in range(POOL)]
        self._slots = [np.zeros(shape, np.uint8) for _ in range(SLOTS)]
        self._rows_done = 0
        self._changed = threading.Condition()
        self._closed = False

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        numbers = itertools.count()
        for _ in range(self._threads):
            threading.Thread(target=self._work, args=(numbers,), daemon=True).start()
        for number in itertools.count():
            with self._changed:
                while self._rows_done < (number + 1) * self._batch:
                    self._changed.wait()
            index = np.arange(self._batch, dtype=np.int64) % self.datasets
            yield {"images": self._slots[number % SLOTS], "dataset_index": index}

    def close(self) -> None:
        """Ends the threads."""
        self._closed = True

    def _work(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            if self._closed:
                return
            batch, row = divmod(number, self._batch)
            np.copyto(self._slots[batch % SLOTS][row], self._pool[batch % POOL][row])
            with self._changed:
                self._rows_done += 1
                if self._rows_done % self._batch == 0:
                    self._changed.notify()
