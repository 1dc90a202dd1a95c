"""Steps as plain readers give them, the slow reference of ``autoloader verify``.

A plain reader shares nothing with the loader, so that both do not err alike.

Not here: what a sample should hold (``cli.witness``), readers themselves (``PlainReader``).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.host.frozen import frozen

Step = Mapping[str, Any]
"""One step, with what the episode has once beside it. TFDS nests features at a slash; of other
formats features have their names, and pictures are decoded when they are asked for."""
_SEEK_BACK_S = 5.0
"""How far before a frame decoding begins: some show frames before their keyframe."""


def value_at(tree: Any, path: str) -> Any:
    """A feature of a step; TFDS nests at a slash, or keeps it in the name."""
    path = path.removeprefix("steps/")
    while path:
        if path in tree:
            return tree[path]
        head, _, path = path.partition("/")
        tree = tree[head]
    return tree


def text_at(step: Step, path: str) -> str:
    """The language of a step, from text or from code points."""
    value = value_at(step, path)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value
    return "".join(chr(point) for point in np.asarray(value).tolist() if point)


@frozen
class LazyPicture:
    """A picture, decoded when NumPy asks for it."""

    decode: Callable[[], NDArray[np.uint8]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        picture = self.decode()
        return picture if dtype is None else picture.astype(dtype)


def pixels_of(data: bytes, *, white: bool = False) -> NDArray[np.uint8]:
    """[H, W, 3] of a picture, by Pillow.

    Args:
        data: the encoded picture.
        white: whether it is white where it is transparent; else alpha is left out.
    """
    from PIL import Image

    with Image.open(io.BytesIO(data)) as file:
        if white and ("A" in file.getbands() or "transparency" in file.info):
            whole = file.convert("RGBA")
            under = Image.new("RGBA", whole.size, "white")
            return np.asarray(Image.alpha_composite(under, whole).convert("RGB"), np.uint8)
        if file.mode.startswith("I;16"):  # Pillow would take all above 255 for white
            grey = np.asarray(file) >> 8
            return np.repeat(grey[..., None], 3, axis=2).astype(np.uint8)
        return np.asarray(file.convert("RGB"), np.uint8)


@dataclass
class PlainVideos:
    """Frames of videos by PyAV, each after a seek to a keyframe before it."""

    _times: dict[str, Sequence[int]] = field(default_factory=dict)

    def times(self, path: str) -> Sequence[int]:
        """When the frames of a video are shown, in ticks of its track."""
        import av

        if path not in self._times:
            with av.open(path) as container:
                packets = container.demux(container.streams.video[0])
                told = [one.pts for one in packets if one.size and not one.is_discard]
                self._times[path] = sorted(pts for pts in told if pts is not None)
        return self._times[path]

    def frame(self, path: str, number: int) -> NDArray[np.uint8]:
        """[H, W, 3] frame of a video, in the order in which frames are shown."""
        import av

        times = self.times(path)
        with av.open(path) as container:
            stream = container.streams.video[0]
            base = stream.time_base
            assert base is not None
            container.seek(max(times[0], times[number] - int(_SEEK_BACK_S / base)), stream=stream)
            for frame in container.decode(stream):
                if frame.pts == times[number]:
                    return np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
        return np.zeros((1, 1, 3), np.uint8)  # it differs from every picture
