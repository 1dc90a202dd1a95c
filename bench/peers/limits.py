"""What no loader could exceed: copying alone, decoding alone, reading alone, each in threads.

- ``CopyAlone``: what a loader could give if decoding cost nothing and every batch were copied once,
  from a pool larger than what caches hold.
- ``DecodeAlone``: decode and resize with the loader's binding and threads, samples drawn by weight,
  their encoded frames in memory. No reading, no mixing, no ring, no waiting for a consumer.
- ``ReadAlone``: the mixture's files from disk, cold; nothing is parsed or decoded. A sample's part
  of its dataset's files is their bytes divided by their steps (told from the first shard): what a
  pass that uses every record once must read. Threads read pieces, datasets in the mixture's shares
  of bytes, each one's files in order, over and over; before a file is read, the kernel is asked to
  drop its pages (``posix_fadvise``, DONTNEED), so that it comes from the disk every time. A batch
  says of which datasets so many bytes were; it has no frames. ``close`` reads everything once more,
  so that the next contender finds the page cache warm. What lies between kernel and disk (a
  hypervisor's or a controller's cache) is not asked, so the figure may be of that.

Not here: decoding a frame (``bench.peers.pictures``).
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.mixture import MixedDataset, Mixture, read_mixture
from bench.peers import settled
from bench.peers.pictures import decode_frames
from bench.records import parse_example, read_records

THREADS: Mapping[str, int] = {"threads": 2}
Frames = NDArray[np.uint8]
POOL, SLOTS = 8, 4
"""Batches copied from and to; a batch of 48 samples of two 256×256 frames is 19 MB."""
POOL_SAMPLES = 3000
"""Samples held encoded: several times what caches hold."""
PIECE_BYTES = 4 * 2**20


class CopyAlone:
    """Threads copy rows into batches that are used over and over; settings: ``threads``."""

    def __init__(self, spec: Path, settings: Mapping[str, int]) -> None:
        mixture = read_mixture(spec)
        self._begin(mixture, settled("copy_alone", THREADS, settings)["threads"])
        rng = np.random.default_rng(mixture.seed)
        shape = self._slots[0].shape
        self._pool = [rng.integers(0, 256, shape, np.uint8) for _ in range(POOL)]

    def _begin(self, mixture: Mixture, threads: int) -> None:
        shape = (mixture.batch, len(mixture.frame_offsets), *mixture.size, 3)
        self.datasets = len(mixture.datasets)
        self._threads, self._batch = threads, mixture.batch
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
        for number in numbers:
            if self._closed:
                return
            batch, row = divmod(number, self._batch)
            self._fill(self._slots[batch % SLOTS][row], number)
            with self._changed:
                self._done += 1
                if self._done % self._batch == 0:
                    self._changed.notify()

    def _fill(self, out: Frames, number: int) -> None:
        """Fill one row."""
        batch, row = divmod(number, self._batch)
        np.copyto(out, self._pool[batch % POOL][row])

    def _datasets_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The dataset of each row."""
        return rows % self.datasets


class DecodeAlone(CopyAlone):
    """Threads decode rows instead; settings: ``threads``, ``frame_offsets`` (the mixture's)."""

    def __init__(self, spec: Path, settings: Mapping[str, Any]) -> None:
        mixture = read_mixture(spec)
        mixture = replace(
            mixture, frame_offsets=settings.get("frame_offsets", mixture.frame_offsets)
        )
        self._begin(mixture, settings.get("threads", 2))
        self._index, self._encoded = _encoded(mixture)

    def _fill(self, out: Frames, number: int) -> None:
        decode_frames(self._encoded[number % len(self._encoded)], out)

    def _datasets_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._index[rows % len(self._encoded)]


def _encoded(mixture: Mixture) -> tuple[NDArray[np.int64], list[list[bytes]]]:
    """Samples in the mixture's shares, and the dataset of each, in an order drawn once."""
    weights = np.array([one.weight for one in mixture.datasets])
    counts = np.maximum(1, np.round(POOL_SAMPLES * weights / weights.sum())).astype(int)
    rng = np.random.default_rng(mixture.seed)
    index: list[int] = []
    pairs: list[list[bytes]] = []
    for number, dataset in enumerate(mixture.datasets):
        own: list[list[bytes]] = []
        for path, records in dataset.files:
            for record in itertools.islice(read_records(Path(path)), records):
                frames = parse_example(record, (dataset.image,))[dataset.image]
                assert isinstance(frames, list)
                last = len(frames) - 1
                own += [
                    [frames[min(max(t + offset, 0), last)] for offset in mixture.frame_offsets]
                    for t in range(last + 1)
                ]
            if len(own) >= 4 * counts[number]:
                break
        chosen = rng.choice(len(own), counts[number], replace=len(own) < counts[number])
        index += [number] * len(chosen)
        pairs += [own[at] for at in chosen]
    order = rng.permutation(len(pairs))
    return np.array(index, np.int64)[order], [pairs[at] for at in order]


class ReadAlone:
    """Threads read files; settings: ``threads``."""

    def __init__(self, spec: Path, settings: Mapping[str, int]) -> None:
        self._threads = settled("read_alone", THREADS, settings)["threads"]
        mixture = read_mixture(spec)
        self.datasets = len(mixture.datasets)
        self._batch = mixture.batch
        self._files = [[Path(path) for path, _ in one.files] for one in mixture.datasets]
        self._sample_bytes = [_sample_bytes(one) for one in mixture.datasets]
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


def _sample_bytes(dataset: MixedDataset) -> float:
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
