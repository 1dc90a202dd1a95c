"""The limit: decode and resize alone, frames in memory, with the loader's binding and threads.

Threads take samples from a pool drawn by weight, decode each sample's frames with simplejpeg (fast
integer DCT) and resize with OpenCV into batches that are used over and over. No reading, no
mixing, no ring, no waiting for a consumer.

Not here: decoding a frame (``bench.peers.pictures``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.mixture import Mixture, read_mixture
from bench.peers.copy_alone import Frames, RowsInThreads
from bench.peers.pictures import decode_into
from bench.records import parse_example, read_records

POOL_SAMPLES = 3000
"""Samples held; their encoded frames are several times what caches hold."""


class DecodeAlone(RowsInThreads):
    """The contender; settings: ``threads`` (default 2), ``frame_offsets`` (the mixture's)."""

    def __init__(self, spec: Path, settings: Mapping[str, Any]) -> None:
        mixture = read_mixture(spec)
        offsets = tuple(settings.get("frame_offsets", mixture.frame_offsets))
        mixture = replace(mixture, frame_offsets=offsets)
        self._index, self._pairs = _pool(mixture)
        shape = (mixture.batch, len(offsets), *mixture.size, 3)
        super().__init__(settings.get("threads", 2), shape, len(mixture.datasets))

    def _fill(self, out: Frames, number: int, scratch: Frames) -> Frames:
        decoded: dict[int, int] = {}
        for f, frame in enumerate(self._pairs[number % len(self._pairs)]):
            if id(frame) in decoded:
                out[f] = out[decoded[id(frame)]]
                continue
            scratch = decode_into(frame, out[f], scratch)
            decoded[id(frame)] = f
        return scratch

    def _datasets_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._index[rows % len(self._pairs)]


def _pool(mixture: Mixture) -> tuple[NDArray[np.int64], list[list[bytes]]]:
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
