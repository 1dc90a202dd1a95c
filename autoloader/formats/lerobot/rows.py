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

from autoloader.formats.lerobot.episodes import Episode
from autoloader.formats.lerobot.parquet import UnreadableParquetError, read_columns
from autoloader.formats.lerobot.placement import LARGEST_DRIFT_FRAMES

_EPISODE, _FRAME, _TIME = "episode_index", "frame_index", "timestamp"
_LARGEST_OFFSET_FRAMES = 1.1
"""Times of some writers begin at one frame, not at 0; with what float32 makes of it."""
_STEADY_FRAMES = 0.1
"""How far times may be from an offset that all rows have."""


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

    A row without a value that is wanted costs its episode, and no other.

    Args:
        path: the file.
        numbers: columns of numbers that are wanted.
        strings: columns of text.
        by_task: feature → column of integers that are numbers of tasks.
        tasks: text of every task, UTF-8.
        needed: columns that must be there beside; they are not read.
        by_row: whether times are not looked at (``timestamps: ignore``).

    Attributes:
        count: rows.
        notes: what a person should know of the file.

    Raises:
        DamagedEpisodeError: the file is missing or damaged, or lacks a column.
        OSError: it cannot be read.
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(
        self,
        path: str,
        numbers: Collection[NumberColumn],
        strings: Collection[str],
        by_task: Mapping[str, str],
        tasks: Mapping[int, bytes],
        needed: Collection[str] = (),
        *,
        by_row: bool = False,
    ) -> None:
        self._tasks = tasks
        self._by_row = by_row
        self.notes: dict[str, None] = {}
        wanted = [_EPISODE, *(one.key for one in numbers), *strings, *by_task.values()]
        names = list(dict.fromkeys([*wanted, _FRAME, _TIME]))

        def there(columns: Sequence[str]) -> list[str]:
            lost = [name for name in (*wanted, *needed) if name not in columns]
            if lost:
                raise DamagedEpisodeError(f"its Parquet file has no column {lost[0]!r}")
            return [name for name in names if name in columns]

        try:
            table = read_columns(path, there)
        except UnreadableParquetError as error:
            raise DamagedEpisodeError(f"its Parquet file cannot be read: {error}") from error
        except FileNotFoundError as error:
            name = "/".join(path.split("/")[-2:])
            raise DamagedEpisodeError(f"its Parquet file {name} is missing") from error
        self.count: int = table.num_rows

        def whole(name: str) -> NDArray[np.int64] | None:
            if name not in table.column_names:
                return None
            values, bad = _flat(table.column(name), NumberColumn(name, 1, np.dtype(np.int64)))
            return np.where(bad, -1, values[:, 0])

        self._numbers = {one.key: _flat(table.column(one.key), one) for one in numbers}
        self._strings: dict[str, list[Any]] = {
            key: table.column(key).to_pylist() for key in strings
        }
        self._by_task = {feature: whole(name) for feature, name in by_task.items()}
        self._frame = whole(_FRAME)
        self._time_s = None
        if _TIME in table.column_names:
            time = NumberColumn(_TIME, 1, np.dtype(np.float64))
            values, bad = _flat(table.column(_TIME), time)
            self._time_s = np.where(bad, np.nan, values[:, 0])
        episode = whole(_EPISODE)
        assert episode is not None, "it was asked for"
        self._order = np.argsort(episode, kind="stable")
        self._sorted = episode[self._order]

    def rows_of(self, one: Episode, fps: float) -> slice:
        """The rows of an episode, after they were held against the list and the frame rate.

        Raises:
            DamagedEpisodeError: they are not there, not in order, not at their times, or one lacks
                a value.
        """
        if one.damage:
            raise DamagedEpisodeError(one.damage)
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
        in_order = self._frame is None or np.array_equal(self._frame[rows], steps)
        if own[-1] != first + one.length - 1 or not in_order:
            raise DamagedEpisodeError(
                f"the rows of episode {one.index} are not its frames in order"
            )
        if self._time_s is not None and not self._by_row:
            self._check_times(self._time_s[rows] * fps, one, fps)
        for key, (_, bad) in self._numbers.items():
            if bad[rows].any():
                raise DamagedEpisodeError(
                    f"{key}: row {int(np.argmax(bad[rows]))} of episode {one.index} has not as "
                    "many numbers as the metadata says"
                )
        for feature, column in self._by_task.items():
            assert column is not None, "it was asked for"
            lost = set(column[rows].tolist()) - set(self._tasks)
            if lost:
                raise DamagedEpisodeError(
                    f"a row of episode {one.index} has no number of {feature}"
                    if min(lost) < 0
                    else f"{feature} {min(lost)} of episode {one.index} is not in the task list"
                )
        return rows

    def _check_times(self, frames: NDArray[np.float64], one: Episode, fps: float) -> None:
        """Hold the times of an episode's rows, in frames, against the numbers of the rows."""
        off = frames - np.arange(one.length)
        if np.abs(off).max() <= LARGEST_DRIFT_FRAMES:  # false of NaN
            return
        offset = float(np.median(off))
        if abs(offset) <= _LARGEST_OFFSET_FRAMES and np.abs(off - offset).max() <= _STEADY_FRAMES:
            self.notes[
                f"the times of its rows begin at {offset / fps:.3f} s and not at 0; that is taken "
                "off"
            ] = None
            return
        worst = int(np.argmax(np.abs(off)))
        raise DamagedEpisodeError(
            f"row {worst} of episode {one.index} has the time {frames[worst] / fps:.3f} s; at "
            f"{fps:g} frames a second it is {worst / fps:.3f} s; write timestamp = frame_index / "
            "fps, or set timestamps: ignore, which takes frames by the numbers of the rows"
        )

    def texts(self, key: str, rows: slice) -> list[bytes]:
        """A text of some rows, or the integer that stands for one, UTF-8; "" of a null."""
        column = self._by_task.get(key)
        if column is not None:
            return [self._tasks[task] for task in column[rows].tolist()]
        stored = self._strings[key][rows]
        said = (one[0] if isinstance(one, list) and one else one for one in stored)
        return [b"" if text is None else str(text).encode() for text in said]

    def column(self, key: str, rows: slice) -> NDArray[Any]:
        """[n, width] of a column of numbers at rows that ``rows_of`` gave."""
        return self._numbers[key][0][rows]


def _flat(column: Any, wanted: NumberColumn) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """([rows, width] of a column, [rows] which rows have not that many numbers)."""
    import pyarrow

    rows, values = len(column), column.combine_chunks()
    of = np.arange(rows)
    bad = np.zeros(rows, np.bool_)
    found = np.zeros((rows, wanted.width), wanted.dtype)

    def without_nulls(values: Any, of: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64]]:
        if not values.null_count:
            return values, of
        there = values.is_valid().to_numpy(zero_copy_only=False)
        bad[of[~there]] = True
        return values.drop_null(), of[there]

    while pyarrow.types.is_nested(values.type):
        if not hasattr(values, "flatten") or pyarrow.types.is_struct(values.type):
            return found, np.ones(rows, np.bool_)
        values, of = without_nulls(values, of)
        lengths: Any = getattr(values.type, "list_size", None)
        if lengths is None:
            lengths = values.value_lengths().to_numpy(zero_copy_only=False)
        values, of = values.flatten(), np.repeat(of, lengths)
    values, of = without_nulls(values, of)
    try:
        flat = values.to_numpy(zero_copy_only=False)
        if wanted.dtype.kind in "iu" and flat.dtype.kind == "f":
            bad[of[~np.isfinite(flat)]] = True
            flat = np.nan_to_num(flat, posinf=0, neginf=0)
        flat = flat.astype(wanted.dtype)
    except (ValueError, TypeError):
        return found, np.ones(rows, np.bool_)
    bad |= np.bincount(of, minlength=rows) != wanted.width
    found[~bad] = (flat[~bad[of]] if bad.any() else flat).reshape(-1, wanted.width)
    return found, bad
