"""The batch's layout: names, shapes and types of every array, and their places in one slot.

A slot is one block of memory that holds a whole batch; every array starts on a 64-byte boundary.
The same layout serves the ring, the decode pool and the trainer's side. ``ledger`` is internal: the
sample that each row stands for (a provenance, and the samples of its episode), also where the row
repeats another because its own frame could not be decoded.

Not here: the memory itself (``decode.ring``), torch tensors (``batch``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.samples.features import FeatureForm, text_places

ALIGNMENT = 64
PROVENANCE = ("dataset", "pass", "shard", "episode", "t")
CALLED = "called/"
"""Before the names of arrays that ``batch.call`` fills."""
LANGUAGE_BYTES_PER_SAMPLE = 1024
"""Room for text in a slot; longer text travels beside the slot."""
FEATURE_TEXT_BYTES = 256
"""The same for each text of ``features``."""


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """One array of a batch: its dtype, shape and byte offset in the slot."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(np.dtype(self.dtype).itemsize * math.prod(self.shape))


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Shapes of a mixture's batches.

    Attributes:
        batch_size: samples of a batch (B).
        cameras: camera → (height, width).
        frames: frames of a sample (F).
        action_rows, action_width: H and A of ``action`` [B, H, A].
        action_steps: W, where it is [B, W, H, A]: a chunk for each step of the window; else 0.
        state_rows, state_width: Fs and S of ``state`` [B, Fs, S].
        features: what else samples hold.
        called: name → (dtype, shape of a sample) of what ``batch.call`` gives.
        depth: camera → type of its frames, of depth cameras, whose frames have one channel.
    """

    batch_size: int
    cameras: Mapping[str, tuple[int, int]]
    frames: int
    action_rows: int
    action_width: int
    state_rows: int
    state_width: int
    features: Mapping[str, FeatureForm] = field(default_factory=dict)
    action_steps: int = 0
    called: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    depth: Mapping[str, str] = field(default_factory=dict)
    arrays: Mapping[str, ArrayLayout] = field(init=False)
    slot_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        b, f = self.batch_size, self.frames
        chunks = (self.action_steps,) if self.action_steps else ()
        action = (b, *chunks, self.action_rows, self.action_width)
        wanted: list[tuple[str, str, tuple[int, ...]]] = []
        for camera, (height, width) in self.cameras.items():
            dtype, channels = (self.depth[camera], 1) if camera in self.depth else ("uint8", 3)
            wanted.append((f"images/{camera}", dtype, (b, f, height, width, channels)))
        wanted += [(f"frame_mask/{camera}", "bool", (b, f)) for camera in self.cameras]
        wanted += [
            ("frame_offset", "int32", (b, f)),
            ("action", "float32", action),
            ("action_mask", "bool", action),
            ("state", "float32", (b, self.state_rows, self.state_width)),
            ("state_mask", "bool", (b, self.state_rows, self.state_width)),
            *self._features(),
            *(
                (f"{CALLED}{name}", kind, (b, *shape))
                for name, (kind, shape) in self.called.items()
            ),
            ("dataset_index", "int64", (b,)),
            ("provenance", "int64", (b, len(PROVENANCE))),
            ("ledger", "int64", (b, len(PROVENANCE) + 1)),
            ("language_end", "int32", (b,)),
            ("language_text", "uint8", (b * self._text_bytes,)),
        ]
        arrays: dict[str, ArrayLayout] = {}
        offset = 0
        for name, dtype, shape in wanted:
            arrays[name] = ArrayLayout(dtype, shape, offset)
            offset += -(-arrays[name].nbytes // ALIGNMENT) * ALIGNMENT
        object.__setattr__(self, "arrays", arrays)
        object.__setattr__(self, "slot_bytes", -(-offset // 4096) * 4096)

    @property
    def frame_bytes(self) -> dict[str, int]:
        """Camera → bytes of a decoded frame."""
        shown = self.batch_size * self.frames
        return {one: self.arrays[f"images/{one}"].nbytes // shown for one in self.cameras}

    @property
    def colour_bytes(self) -> frozenset[int]:
        """Sizes of decoded frames, of cameras that are not of depth."""
        return frozenset(size for one, size in self.frame_bytes.items() if one not in self.depth)

    @property
    def _texts(self) -> int:
        """Texts that a sample has beside its language."""
        places = text_places(self.features, self.state_rows)
        return max((place.stop for place in places.values()), default=1) - 1

    @property
    def _text_bytes(self) -> int:
        return LANGUAGE_BYTES_PER_SAMPLE + self._texts * FEATURE_TEXT_BYTES

    def _features(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        for name, form in self.features.items():
            rows = (self.batch_size, self.state_rows)[: 1 + form.per_step]
            if form.kind != "text":
                yield f"features/{name}", form.kind, (*rows, *form.shape)
            yield f"feature_mask/{name}", "bool", rows
        if self._texts:
            yield "text_length", "int32", (self.batch_size, 1 + self._texts)

    def views(self, memory: memoryview | np.ndarray) -> dict[str, np.ndarray]:
        """NumPy arrays over one slot's ``memory`` (``slot_bytes`` long), by name."""
        return {
            name: np.ndarray(array.shape, array.dtype, memory, array.offset)
            for name, array in self.arrays.items()
        }


def empty_columns(layout: BatchLayout, samples: int) -> dict[str, NDArray[Any]]:
    """Room for what a batch's rows hold beside pictures, text and copies of the ledger; zero."""
    left_out = ("images/", "language_", "provenance", "dataset_index")
    return {
        name: np.zeros((samples, *array.shape[1:]), array.dtype)
        for name, array in layout.arrays.items()
        if not name.startswith(left_out)
    }
