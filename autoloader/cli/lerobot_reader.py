"""Reads single episodes of LeRobot datasets plainly: the reference of ``autoloader verify`` there.

It uses nothing of what the loader uses beside the list of episodes, and what it says of where they
lie in videos: rows are looked for by their episode, and PyAV decodes a video to the frame that is
wanted.

Not here: TFDS (``cli.tfds_reader``), what a sample should hold (``cli.witness``).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SourceError
from autoloader.formats.features import TASKS, VIDEO
from autoloader.formats.lerobot.episodes import Episode
from autoloader.formats.lerobot.metadata import EPISODE, metadata_of, task_column
from autoloader.formats.metadata import ShardSlice, VersionDirectory
from autoloader.host.extras import needs

Step = Mapping[str, Any]
"""One step: its features by their names; pictures are decoded when they are asked for."""
_SEEK_BACK_S = 5.0
"""How far before a frame decoding begins: some show frames before their keyframe."""


class LeRobotReader:
    """Reads episodes of one dataset.

    Args:
        directory: which.
        by_row: whether frames are taken by the numbers of rows (``timestamps: ignore``).
    """

    def __init__(self, directory: VersionDirectory, *, by_row: bool = False) -> None:
        self._directory = directory
        self._by_row = by_row
        self._times: dict[str, Sequence[int]] = {}
        self._known = metadata_of(directory)
        self.fps: float | None = self._known.fps

    def episode(self, piece: ShardSlice, record: int) -> list[Step]:
        """The steps of an episode of a Parquet file.

        Raises:
            SourceError: it cannot be read.
            MissingExtraError: pyarrow or PyAV is not installed.
        """
        one = self._known.episodes.at(piece.path, record)
        with needs("a LeRobot dataset", extra="lerobot"):
            import av  # noqa: F401  (asked for at once, not at the first picture)
            import pyarrow.parquet as parquet
        try:
            table = parquet.read_table(piece.path, filters=[("episode_index", "=", one.index)])
            ordered = "frame_index" in table.column_names
            rows = (table.sort_by("frame_index") if ordered else table).to_pylist()
        except (OSError, ValueError, KeyError) as error:
            raise SourceError(
                f"pyarrow cannot read episode {one.index} of {piece.path}: {error}",
                remedy="restore the file from where the dataset came",
                dataset=self._directory.dataset,
            ) from error
        return [self._step(row, number, one) for number, row in enumerate(rows)]

    def _frame_of(self, camera: str, one: Episode, number: int) -> Callable[[], NDArray[np.uint8]]:
        """Decodes what a camera shows at a step of an episode."""
        path, known = one.videos[camera].path, self._known
        if path not in self._times:
            self._times[path] = _times_of(path)
        times = self._times[path]
        placed = known.episodes.placed(camera, path, len(times), known.fps, by_row=self._by_row)
        return _frame_at(path, times, placed.first.get(one.index, 0) + number)

    def _step(self, row: Mapping[str, Any], number: int, one: Episode) -> Step:
        step: dict[str, Any] = {EPISODE: np.asarray(one.index)}
        for path, feature in self._known.features.items():
            if feature.encoding == TASKS:
                if (told := self._known.tasks_if_listed) is not None:
                    step[path] = told.get(row[task_column(path)], b"")
            elif feature.kind == "text":
                step[path] = str(row[path] or "").encode()
            elif feature.kind == "tensor" and feature.per_step:
                shape = tuple(size or 1 for size in feature.shape)
                step[path] = np.asarray(row[path], feature.dtype).reshape(shape)
            elif feature.kind == "image" and feature.encoding == VIDEO and path in one.videos:
                step[path] = _Lazy(self._frame_of(path, one, number))
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


def _times_of(path: str) -> Sequence[int]:
    """When the frames of a video are shown, in ticks of its track."""
    import av

    with av.open(path) as container:
        packets = container.demux(container.streams.video[0])
        return sorted(one.pts for one in packets if one.size and one.pts is not None)


def _frame_at(path: str, times: Sequence[int], number: int) -> Callable[[], NDArray[np.uint8]]:
    """Decodes a frame of a video, whose frames are shown at these times."""

    def decode() -> NDArray[np.uint8]:
        import av

        with av.open(path) as container:
            stream = container.streams.video[0]
            base = stream.time_base
            assert base is not None
            back = int(_SEEK_BACK_S / base)
            container.seek(max(times[0], times[number] - back), stream=stream)
            for frame in container.decode(stream):
                if frame.pts == times[number]:
                    return np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
        return np.zeros((1, 1, 3), np.uint8)  # it differs from whatever is shown

    return decode


def _picture_of(stored: Mapping[str, Any]) -> Callable[[], NDArray[np.uint8]]:
    def decode() -> NDArray[np.uint8]:
        from PIL import Image

        with Image.open(io.BytesIO(stored["bytes"])) as picture:
            return np.asarray(picture.convert("RGB"), np.uint8)

    return decode
