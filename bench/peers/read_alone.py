"""A limit: reading the mixture's files from disk, cold, in threads; nothing is parsed or decoded.

A sample's part of its dataset's files is their bytes divided by their steps (told from the first
shard): what a pass that uses every record once must read. Threads read pieces of ``PIECE_BYTES``,
datasets in the mixture's shares of bytes, each one's files in order, over and over; before a file
is read, the kernel is asked to drop its pages (``posix_fadvise``, DONTNEED), so that it comes from
the disk every time. A batch says of which datasets so many bytes were; it has no frames.

``close`` reads everything once more, so that the next contender finds the page cache warm.

Not here: how fast memory is (``bench.peers.copy_alone``). What lies between kernel and disk (a
hypervisor's or a controller's cache) is not asked, so the figure may be of that.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.mixture import MixedDataset, read_mixture
from bench.peers import settled
from bench.records import parse_example, read_records

SETTINGS: Mapping[str, int] = {"threads": 2}

PIECE_BYTES = 4 * 2**20


class ReadAlone:
    """The contender; settings: ``threads``."""

    def __init__(self, spec: Path, settings: Mapping[str, int]) -> None:
        self._threads = settled("read_alone", SETTINGS, settings)["threads"]
        mixture = read_mixture(spec)
        self.datasets = len(mixture.datasets)
        self._batch = mixture.batch
        self._files = [[Path(path) for path, _ in one.files] for one in mixture.datasets]
        self._sample_bytes = [sample_bytes(one) for one in mixture.datasets]
        shares = np.array([one.weight for one in mixture.datasets]) * self._sample_bytes
        self._shares = shares / shares.sum()
        self._rng = np.random.default_rng(mixture.seed)
        self._pieces = [_pieces(files) for files in self._files]
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._read = np.zeros(self.datasets)
        self._closed = False

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for _ in range(self._threads):
            threading.Thread(target=self._work, daemon=True).start()
        while True:
            with self._changed:
                while int(np.floor(self._read).sum()) < self._batch:
                    self._changed.wait()
                whole = np.floor(self._read).astype(np.int64)
                index = np.repeat(np.arange(self.datasets), whole)[: self._batch]
                self._read -= np.bincount(index, minlength=self.datasets)
            yield {"dataset_index": index}

    def close(self) -> None:
        """Ends the threads, and reads everything again."""
        self._closed = True
        for path in itertools.chain.from_iterable(self._files):
            with path.open("rb", buffering=0) as file:
                while file.read(PIECE_BYTES):
                    pass

    def _work(self) -> None:
        while not self._closed:
            with self._turn:
                dataset = int(self._rng.choice(self.datasets, p=self._shares))
                path, offset = next(self._pieces[dataset])
            with path.open("rb", buffering=0) as file:
                file.seek(offset)
                got = len(file.read(PIECE_BYTES))
            with self._changed:
                self._read[dataset] += got / self._sample_bytes[dataset]
                self._changed.notify()


def sample_bytes(dataset: MixedDataset) -> float:
    """Bytes of the files for a step, from the first shard."""
    path = Path(dataset.files[0][0])
    frames = (parse_example(record, (dataset.image,)) for record in read_records(path))
    return path.stat().st_size / sum(len(one[dataset.image]) for one in frames)


def _pieces(files: Sequence[Path]) -> Iterator[tuple[Path, int]]:
    """Where to read next, without end; a file's pages are dropped before its first piece."""
    for path in itertools.cycle(files):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for offset in range(0, path.stat().st_size, PIECE_BYTES):
            yield path, offset
