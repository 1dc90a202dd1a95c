"""The seam between an in-graph mixture and the runtime: what it is asked, and what it answers.

Samples leave an in-graph mixture one by one, already in the mixture's order and with their numbers
computed; they travel in groups, so that a call costs little for each.

Not here: the graph (``graph.mixture``), who asks (``runtime.arrivals``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autoloader.knobs import Knobs
from autoloader.sampling.episode import Place
from autoloader.sampling.source import ReaderStart


@dataclass(frozen=True, slots=True)
class Span:
    """A whole record of a damaged shard.

    Attributes:
        shard: slice of the dataset.
        record: its number in the shard's file.
        offset, length: bytes of its payload.
        file_bytes: size of the file.
    """

    shard: int
    record: int
    offset: int
    length: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class RowStart:
    """Where one dataset of an in-graph mixture opens.

    Attributes:
        start: its pass, and the records done at the front of each slice.
        taken: samples already taken of records that are not at the front.
        spans: whole records of the shards known to be damaged.
    """

    start: ReaderStart
    taken: Mapping[Place, int]
    spans: Sequence[Span]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """G samples in the mixture's order.

    Attributes:
        ledger: [G, 6] int64: dataset, pass, shard, record, t, samples of the episode.
        frames: [G, C, F] encoded bytes, cameras in the layout's order; b"" where there is none.
        frame_row: [G, F] int64; equal numbers are equal frames.
        frame_mask, frame_zeroed: [G, F] bool.
        frame_offset: [G, F] int32.
        action, action_mask: [G, H, A] float32, bool.
        state, state_mask: [G, Fs, S] float32, bool.
        language: UTF-8 texts.
        empties: for each sample, the records without samples passed over before it.
        images: camera → [G, F, H, W, 3] uint8 where the graph decodes, else empty.
        decoded: [G] bool, whether ``images`` holds the sample; its frames are then b"".
    """

    ledger: NDArray[np.int64]
    frames: NDArray[Any]
    frame_row: NDArray[np.int64]
    frame_mask: NDArray[np.bool_]
    frame_zeroed: NDArray[np.bool_]
    frame_offset: NDArray[np.int32]
    action: NDArray[np.float32]
    action_mask: NDArray[np.bool_]
    state: NDArray[np.float32]
    state_mask: NDArray[np.bool_]
    language: Sequence[bytes]
    empties: Sequence[Sequence[Place]]
    images: Mapping[str, NDArray[np.uint8]]
    decoded: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ledger)


class BrokenGraphError(Exception):
    """A graph stopped with an error that names no record. Internal: the runtime opens it anew."""


class RowSource(Protocol):
    """An in-graph mixture. ``open`` may be called again at any time, from any thread."""

    def open(
        self, starts: Sequence[RowStart], position: int, knobs: Knobs, *, decode: bool
    ) -> Iterator[RowGroup]:
        """Samples from ``position`` of the mixture's order on; ends after many passes.

        A record that cannot be read does not come, and no error says so: whoever asks counts.

        Args:
            starts: for each dataset.
            position: samples of the order that are gone.
            knobs: stream knobs, and ``decode_threads``.
            decode: whether TensorFlow's kernels decode.

        Raises:
            BrokenGraphError: while iterating; samples may be lost with it.
        """
        ...

    def due(self, position: int, count: int) -> Sequence[int]:
        """Datasets of the ``count`` samples of the order from ``position`` on."""
        ...

    def unreadable(self, dataset: int) -> str | None:
        """A file of a dataset that is not there any more, or ``None``."""
        ...
