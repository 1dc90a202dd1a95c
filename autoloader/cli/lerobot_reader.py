"""Reads single episodes of LeRobot datasets plainly: the reference of ``autoloader verify`` there.

It uses nothing of what the loader uses beside the list of episodes: rows are looked for by their
episode, a picture is decoded by PyAV after a seek to its time, as lerobot does it.

Not here: TFDS (``cli.tfds_reader``), what a sample should hold (``cli.reference_values``).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.catalog.lerobot.episodes import Episode
from autoloader.catalog.lerobot.metadata import EPISODE, TASK, VIDEO, metadata_of
from autoloader.catalog.metadata import ShardSlice, VersionDirectory
from autoloader.errors import SourceError
from autoloader.extras import needs

Step = Mapping[str, Any]
"""One step: its features by their names; pictures are decoded when they are asked for."""
_SEEK_BACK_S = 5.0
"""How far before a frame decoding begins: some show frames before their keyframe."""


class LeRobotReader:
    """Reads episodes of one dataset.

    Args:
        directory: which.
    """

    def __init__(self, directory: VersionDirectory) -> None:
        self._directory = directory
        self._known = metadata_of(directory)

    def episode(self, piece: ShardSlice, record: int) -> list[Step]:
        """The steps of an episode of a Parquet file.

        Raises:
            SourceError: it cannot be read.
            MissingExtraError: pyarrow or PyAV is not installed.
        """
        one = self._known.episodes.by_file[piece.path][record]
        with needs("a LeRobot dataset", extra="lerobot"):
            import av  # noqa: F401  (asked for at once, not at the first picture)
            import pyarrow.parquet as parquet
        try:
            table = parquet.read_table(piece.path, filters=[("episode_index", "=", one.index)])
            rows = table.sort_by("frame_index").to_pylist()
        except (OSError, ValueError, KeyError) as error:
            raise SourceError(
                f"pyarrow cannot read episode {one.index} of {piece.path}: {error}",
                remedy="restore the file from where the dataset came",
                dataset=self._directory.dataset,
            ) from error
        return [self._step(row, number, one) for number, row in enumerate(rows)]

    def _step(self, row: Mapping[str, Any], number: int, one: Episode) -> Step:
        step: dict[str, Any] = {EPISODE: np.asarray(one.index)}
        for path, feature in self._known.features.items():
            if path == TASK and path not in row:
                step[path] = self._known.tasks.get(row["task_index"], b"")
            elif feature.kind == "text":
                step[path] = str(row[path] or "").encode()
            elif feature.kind == "tensor" and feature.per_step:
                shape = tuple(size or 1 for size in feature.shape)
                step[path] = np.asarray(row[path], feature.dtype).reshape(shape)
            elif feature.kind == "image" and feature.encoding == VIDEO and path in one.videos:
                place = one.videos[path]
                time_s = place.from_s + number / self._known.fps
                step[path] = _Lazy(_frame_of(place.path, time_s, self._known.fps))
            elif feature.kind == "image" and path in row:
                step[path] = _Lazy(_picture_of(row[path]))
        return step


@dataclass(frozen=True, slots=True)
class _Lazy:
    """A picture, decoded when NumPy asks for it."""

    decode: Callable[[], NDArray[np.uint8]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        del copy
        picture = self.decode()
        return picture if dtype is None else picture.astype(dtype)


def _frame_of(path: str, time_s: float, fps: float) -> Callable[[], NDArray[np.uint8]]:
    def decode() -> NDArray[np.uint8]:
        import av

        with av.open(path) as container:
            stream = container.streams.video[0]
            base = stream.time_base
            assert base is not None
            begin = float((stream.start_time or 0) * base)
            back_s = max(0.0, begin + time_s - _SEEK_BACK_S)
            container.seek(int(back_s / base), stream=stream)
            for frame in container.decode(stream):
                if abs(float((frame.pts or 0) * base) - begin - time_s) * fps < 0.5:
                    return np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
        return np.zeros((1, 1, 3), np.uint8)  # it differs from whatever is shown

    return decode


def _picture_of(stored: Mapping[str, Any]) -> Callable[[], NDArray[np.uint8]]:
    def decode() -> NDArray[np.uint8]:
        from PIL import Image

        with Image.open(io.BytesIO(stored["bytes"])) as picture:
            return np.asarray(picture.convert("RGB"), np.uint8)

    return decode
