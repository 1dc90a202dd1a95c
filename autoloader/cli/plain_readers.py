"""Reads single episodes plainly: the reference of ``autoloader verify``.

Of RLDS data no code of this library is between the files and the values: TFDS finds the record,
parses and decodes it. Of LeRobot data nothing of the loader is used beside the list of episodes and
where they lie in videos: rows are looked for by their episode, and PyAV decodes a video up to the
wanted frame.

Not here: what a sample should hold (``cli.witness``).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SourceError
from autoloader.formats.dataset import DatasetFormat, ShardSlice
from autoloader.formats.features import TASKS, VIDEO
from autoloader.formats.lerobot import LeRobotDirectory
from autoloader.formats.lerobot.metadata import EPISODE, Episode, task_column
from autoloader.host.extras import needs
from autoloader.host.records import dataclass

Step = Mapping[str, Any]
"""One step, with what the episode has once beside it. TFDS nests features at a slash; of LeRobot
data features have their names, and pictures are decoded when they are asked for."""
_SEEK_BACK_S = 5.0
"""How far before a frame decoding begins: some show frames before their keyframe."""


def reader_of(directory: DatasetFormat, *, by_row: bool = False) -> TfdsReader | LeRobotReader:
    """Give the plain reader of a dataset's episodes.

    Args:
        directory: the dataset's version directory.
        by_row: whether frames are taken by the numbers of rows (``timestamps: ignore``).
    """
    if isinstance(directory, LeRobotDirectory):
        return LeRobotReader(directory, by_row=by_row)
    return TfdsReader(directory)


class TfdsReader:
    """Reads episodes of one version directory with TFDS.

    Args:
        directory: which; its name is for messages.
    """

    fps: float | None = None
    """Frames a second; RLDS datasets do not say them."""

    def __init__(self, directory: DatasetFormat) -> None:
        self._directory = directory
        self._builder: Any = None

    def episode(self, piece: ShardSlice, record: int) -> list[Step]:
        """The steps of a record of a shard file.

        Raises:
            SourceError: TFDS cannot be imported, or cannot read it.
        """
        shards = self._directory.splits[piece.split]
        number = sum(shard.records for shard in shards[: piece.index]) + record
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self._read(f"{piece.split}[{number}:{number + 1}]")
        except Exception as error:  # TFDS and TensorFlow raise errors of any kind
            raise SourceError(
                f"plain TFDS cannot read episode {number} of {piece.split} in "
                f"{self._directory.path}: {type(error).__name__}: {error}",
                remedy="check that tensorflow_datasets is installed and reads this directory",
                dataset=self._directory.dataset,
            ) from error

    def _read(self, split: str) -> list[Step]:
        import tensorflow_datasets as tfds

        if self._builder is None:
            self._builder = tfds.builder_from_directory(self._directory.path)
        config = tfds.ReadConfig(try_autocache=False, interleave_cycle_length=1)
        (episode,) = self._builder.as_dataset(split=split, read_config=config)
        above = {key: _plain(value) for key, value in episode.items() if key != "steps"}
        return [{**above, **step} for step in tfds.as_numpy(episode["steps"])]


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


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return value.numpy() if hasattr(value, "numpy") else value


class LeRobotReader:
    """Reads episodes of one dataset.

    Args:
        directory: version directory of the dataset.
        by_row: whether frames are taken by the numbers of rows (``timestamps: ignore``).
    """

    def __init__(self, directory: LeRobotDirectory, *, by_row: bool = False) -> None:
        self._directory = directory
        self._by_row = by_row
        self._times: dict[str, Sequence[int]] = {}
        self.fps: float | None = directory.fps

    def episode(self, piece: ShardSlice, record: int) -> list[Step]:
        """The steps of an episode of a Parquet file.

        Raises:
            SourceError: it cannot be read.
            MissingExtraError: pyarrow or PyAV is not installed.
        """
        one = self._directory.episodes.at(piece.path, record)
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

    def _frame_of(self, camera: str, one: Episode, number: int) -> NDArray[np.uint8]:
        """The frame that a camera shows at a step of an episode."""
        path, known = one.videos[camera].path, self._directory
        if path not in self._times:
            self._times[path] = _times_of(path)
        times = self._times[path]
        placed = known.episodes.placed(camera, path, len(times), known.fps, by_row=self._by_row)
        return _frame_at(path, times, placed.first.get(one.index, 0) + number)

    def _step(self, row: Mapping[str, Any], number: int, one: Episode) -> Step:
        step: dict[str, Any] = {EPISODE: np.asarray(one.index)}
        for path, feature in self._directory.features.items():
            if feature.encoding == TASKS:
                if (told := self._directory.tasks_if_listed) is not None:
                    step[path] = told.get(row[task_column(path)], b"")
            elif feature.kind == "text":
                step[path] = str(row[path] or "").encode()
            elif feature.kind == "tensor" and feature.per_step:
                shape = tuple(size or 1 for size in feature.shape)
                step[path] = np.asarray(row[path], feature.dtype).reshape(shape)
            elif feature.kind == "image" and feature.encoding == VIDEO and path in one.videos:
                step[path] = _Lazy(partial(self._frame_of, path, one, number))
            elif feature.kind == "image" and path in row:
                step[path] = _Lazy(partial(_picture_of, row[path]))
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


def _frame_at(path: str, times: Sequence[int], number: int) -> NDArray[np.uint8]:
    """A frame of a video, whose frames are shown at these times."""
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
    return np.zeros((1, 1, 3), np.uint8)  # it differs from every picture


def _picture_of(stored: Mapping[str, Any]) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(io.BytesIO(stored["bytes"])) as picture:
        return np.asarray(picture.convert("RGB"), np.uint8)
