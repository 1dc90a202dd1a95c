"""The rows of a Parquet file of a LeRobot dataset: its columns, held against the list of episodes.

Not here: which episodes there are (``episodes``), where pictures lie (``pictures``), videos
(``packets``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.catalog.lerobot.episodes import Episode
from autoloader.catalog.lerobot.parquet import UnreadableParquetError, read_columns

LARGEST_DRIFT_FRAMES = 0.5
"""A time that is off by more than this many frames belongs to another frame."""
_ALWAYS = ("episode_index", "frame_index", "timestamp")
_TASK_INDEX = "task_index"


class DamagedEpisodeError(Exception):
    """An episode cannot be used; the message says why. Internal: a quarantine."""


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """A column of numbers: its name, numbers of a row, and the type that they are wanted in."""

    key: str
    width: int
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, key: str, shape: Sequence[int | None], dtype: Any) -> NumberColumn:
        """Of a feature of this shape."""
        return cls(key, math.prod(size or 1 for size in shape), np.dtype(dtype))


class EpisodeRows:
    """The rows of a Parquet file.

    Args:
        path: the file.
        numbers: columns of numbers that are wanted.
        strings: columns of text.
        tasks: text of every task where the tasks of the rows are wanted; else ``None``.
        needed: columns that must be there beside; they are not read.

    Attributes:
        numbers: column → [rows, width]; ``None`` where a row has not that many numbers.
        strings: column → text of every row.
        count: rows.

    Raises:
        DamagedEpisodeError: the file is damaged, or lacks a column.
        OSError: it cannot be opened.
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(
        self,
        path: str,
        numbers: Collection[NumberColumn],
        strings: Collection[str],
        tasks: Mapping[int, bytes] | None,
        needed: Collection[str] = (),
    ) -> None:
        self._tasks = tasks
        wanted = [*_ALWAYS, *([_TASK_INDEX] if tasks is not None else [])]
        names = list(dict.fromkeys([*wanted, *(one.key for one in numbers), *strings]))

        def there(columns: Sequence[str]) -> list[str]:
            asked = (name for name in (*names, *needed) if name != "timestamp")
            lost = [name for name in asked if name not in columns]
            if lost:
                raise DamagedEpisodeError(f"its Parquet file has no column {lost[0]!r}")
            return [name for name in names if name in columns]

        try:
            table = read_columns(path, there)
        except UnreadableParquetError as error:
            raise DamagedEpisodeError(f"its Parquet file cannot be read: {error}") from error
        self.count: int = table.num_rows
        self.numbers = {one.key: _flat(table.column(one.key), one) for one in numbers}
        self.strings: dict[str, list[Any]] = {key: table.column(key).to_pylist() for key in strings}
        self._frame = _whole(table.column("frame_index"))
        self._task = _whole(table.column(_TASK_INDEX)) if tasks is not None else None
        self._time_s = None
        if "timestamp" in table.column_names:
            self._time_s = table.column("timestamp").to_numpy().astype(np.float64)
        episode = _whole(table.column("episode_index"))
        self._order = np.argsort(episode, kind="stable")
        self._sorted = episode[self._order]

    def rows_of(self, one: Episode, fps: float) -> slice:
        """The rows of an episode, after they were held against the list and the frame rate.

        Raises:
            DamagedEpisodeError: they are not there, not in order, or not at their times.
        """
        left, right = np.searchsorted(self._sorted, [one.index, one.index + 1]).tolist()
        own = self._order[left:right]
        if one.length and not len(own):
            name = "/".join(one.path.split("/")[-2:])
            raise DamagedEpisodeError(
                f"{name} has no row of episode {one.index}, which has {one.length} frames in it by "
                "the list of episodes: look at its chunk_index and file_index there"
            )
        if len(own) != one.length or not one.length:
            raise DamagedEpisodeError(
                f"episode {one.index} has {len(own)} rows in its Parquet file, and {one.length} "
                "frames by the list of episodes"
            )
        first = int(own[0])
        rows = slice(first, first + one.length)
        steps = np.arange(one.length)
        if own[-1] != first + one.length - 1 or not np.array_equal(self._frame[rows], steps):
            raise DamagedEpisodeError(
                f"the rows of episode {one.index} are not its frames in order"
            )
        if self._time_s is not None:
            off = np.abs(self._time_s[rows] * fps - steps)
            worst = int(np.argmax(off))
            if not off[worst] <= LARGEST_DRIFT_FRAMES:
                raise DamagedEpisodeError(
                    f"row {worst} of episode {one.index} has the time "
                    f"{self._time_s[rows][worst]:.3f} s; at {fps:g} frames a second it is "
                    f"{worst / fps:.3f} s"
                )
        for key, values in self.numbers.items():
            if values is None:
                raise DamagedEpisodeError(
                    f"{key}: a row has not as many numbers as the metadata says"
                )
        if self._task is not None and self._tasks is not None:
            lost = set(self._task[rows].tolist()) - set(self._tasks)
            if lost:
                raise DamagedEpisodeError(
                    f"task {min(lost)} of episode {one.index} is not in the task list"
                )
        return rows

    def tasks(self, rows: slice) -> list[bytes]:
        """The task of every one of some rows, UTF-8."""
        assert self._task is not None, "they were asked for"
        assert self._tasks is not None, "they were asked for"
        return [self._tasks[task] for task in self._task[rows].tolist()]

    def texts(self, key: str, rows: slice) -> list[bytes]:
        """A column of text at some rows, UTF-8."""
        return [str(text or "").encode() for text in self.strings[key][rows]]

    def column(self, key: str, rows: slice) -> NDArray[Any]:
        """[n, width] of a column of numbers at rows that ``rows_of`` gave."""
        values = self.numbers[key]
        assert values is not None, "rows_of has looked"
        return values[rows]


def _flat(column: Any, wanted: NumberColumn) -> NDArray[Any] | None:
    """[rows, width] of a column; ``None`` where a row has not that many numbers."""
    import pyarrow

    rows, values = len(column), column.combine_chunks()
    if values.null_count:
        return None
    while pyarrow.types.is_nested(values.type):
        if not hasattr(values, "flatten"):
            return None
        lengths = values.value_lengths() if hasattr(values, "value_lengths") else None
        if lengths is not None and len(lengths.unique()) > 1:
            return None
        values = values.flatten()
        if not isinstance(values, pyarrow.Array) or values.null_count:
            return None
    try:
        flat = values.to_numpy(zero_copy_only=False).astype(wanted.dtype)
    except (ValueError, TypeError):
        return None
    return flat.reshape(rows, wanted.width) if len(flat) == rows * wanted.width else None


def _whole(column: Any) -> NDArray[np.int64]:
    """[rows] int64; -1 where a row has none."""
    try:
        return np.asarray(column.fill_null(-1).to_numpy()).astype(np.int64)
    except (ValueError, TypeError) as error:
        raise DamagedEpisodeError(f"a column of numbers cannot be read: {error}"[:200]) from error
