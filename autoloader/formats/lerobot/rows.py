"""The rows of a Parquet file of a LeRobot dataset: its columns, checked by the list of episodes.

A transform, and the ops that see whole episodes, take a record of RLDS. So an episode can also be
had as such a record: its numbers and texts under the names of its features, and for each picture a
mark that says which camera's and which step's it is.

Not here: which episodes there are (``episodes``), where pictures lie (``parquet``), videos
(``videos``), what is done with records (``samples.transforms``).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.formats.features import PARQUET, TASKS
from autoloader.formats.lerobot.metadata import EPISODE, Episode, LeRobotMetadata, task_column
from autoloader.formats.lerobot.parquet import UnreadableParquetError, read_columns
from autoloader.formats.lerobot.videos import LARGEST_DRIFT_FRAMES
from autoloader.formats.records import write_example

MARK = struct.Struct("<II")
"""Stand-in for a picture: the camera's place in ``LeRobotMetadata.cameras``, and the step."""
_EPISODE, _FRAME, _TIME = "episode_index", "frame_index", "timestamp"
_LARGEST_OFFSET_FRAMES = 1.1
"""Times of some writers begin at one frame, not at 0; with what float32 makes of it."""
_STEADY_FRAMES = 0.1
"""Largest distance of times from an offset that all rows have."""


class DamagedEpisodeError(Exception):
    """An episode cannot be used; the message says why. Internal: a quarantine."""


class EpisodeRows:
    """The rows of a Parquet file.

    A row without a value that is wanted costs its episode, and no other.

    Args:
        path: path of the Parquet file.
        known: the dataset that the file belongs to.
        numbers: feature → NumPy type in which its numbers are wanted.
        texts: features whose texts are wanted; some are columns of numbers of tasks.
        pictures: features that must be columns of the file; they are not read.
        by_row: whether times are ignored (``timestamps: ignore``).

    Attributes:
        count: number of the file's rows.
        notes: facts about the file that a person should know, as keys.

    Raises:
        DamagedEpisodeError: the file is missing or damaged, or lacks a column.
        SourceError: tasks are wanted, and their list is missing or broken.
        OSError: the file cannot be read.
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(
        self,
        path: str,
        known: LeRobotMetadata,
        numbers: Mapping[str, Any],
        texts: Collection[str],
        pictures: Collection[str] = (),
        *,
        by_row: bool = False,
    ) -> None:
        self._known = known
        self._by_row = by_row
        self.notes: dict[str, None] = {}
        features = known.features
        of_tasks = {
            one: task_column(one)
            for one in sorted(texts)
            if one in features and features[one].encoding == TASKS
        }
        self._tasks = known.tasks if of_tasks else {}
        strings = [one for one in texts if one not in of_tasks]
        wanted = [_EPISODE, *numbers, *strings, *of_tasks.values()]

        def there(columns: Sequence[str]) -> list[str]:
            lost = [name for name in (*wanted, *pictures) if name not in columns]
            if lost:
                raise DamagedEpisodeError(f"its Parquet file has no column {lost[0]!r}")
            return [one for one in dict.fromkeys([*wanted, _FRAME, _TIME]) if one in columns]

        try:
            table = read_columns(path, there)
        except UnreadableParquetError as error:
            raise DamagedEpisodeError(f"its Parquet file cannot be read: {error}") from error
        except FileNotFoundError as error:
            name = "/".join(path.split("/")[-2:])
            raise DamagedEpisodeError(f"its Parquet file {name} is missing") from error
        self.count: int = table.num_rows

        def single(name: str, dtype: Any, nothing: Any) -> NDArray[Any] | None:
            if name not in table.column_names:
                return None
            values, bad = _flat(table.column(name), 1, np.dtype(dtype))
            return np.where(bad, nothing, values[:, 0])

        self._numbers = {
            key: _flat(table.column(key), features[key].step_numbers, np.dtype(dtype))
            for key, dtype in numbers.items()
        }
        self._strings = {key: table.column(key).to_pylist() for key in strings}
        self._of_tasks = {one: single(name, np.int64, -1) for one, name in of_tasks.items()}
        self._frame = single(_FRAME, np.int64, -1)
        self._time_s = single(_TIME, np.float64, np.nan)
        episode = single(_EPISODE, np.int64, -1)
        assert episode is not None, "it was asked for"
        self._order = np.argsort(episode, kind="stable")
        self._sorted = episode[self._order]

    @classmethod
    def whole(cls, path: str, known: LeRobotMetadata, *, by_row: bool = False) -> EpisodeRows:
        """The rows with every feature; without the tasks if no list says what they are."""
        every = [one for one in known.features.values() if one.per_step]
        texts = [one for one in every if one.kind == "text"]
        if any(one.encoding == TASKS for one in texts) and known.tasks_if_listed is None:
            texts = [one for one in texts if one.encoding != TASKS]
        return cls(
            path,
            known,
            {
                one.path: np.float32 if "float" in one.dtype else np.int64
                for one in every
                if one.kind == "tensor"
            },
            [one.path for one in texts],
            [one for one in known.cameras if known.features[one].encoding == PARQUET],
            by_row=by_row,
        )

    def record(self, one: Episode) -> tuple[slice, bytes]:
        """(rows of an episode, the episode as a ``tf.train.Example``); Raises as ``rows_of``."""
        own = self.rows_of(one)
        texts = (*self._strings, *self._of_tasks)
        values: dict[str, Any] = {key: self.column(key, own).reshape(-1) for key in self._numbers}
        values.update({key: self.texts(key, own) for key in self._known.features if key in texts})
        values[EPISODE] = np.asarray([one.index], np.int64)
        for number, camera in enumerate(self._known.cameras):
            values[camera] = [MARK.pack(number, step) for step in range(one.length)]
        return own, write_example(values)

    def rows_of(self, one: Episode) -> slice:
        """Rows of an episode, checked by the list of episodes and the frame rate.

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
            self._check_times(self._time_s[rows] * self._known.fps, one)
        for key, (_, bad) in self._numbers.items():
            if bad[rows].any():
                raise DamagedEpisodeError(
                    f"{key}: row {int(np.argmax(bad[rows]))} of episode {one.index} has not as "
                    "many numbers as the metadata says"
                )
        for feature, column in self._of_tasks.items():
            assert column is not None, "it was asked for"
            lost = set(column[rows].tolist()) - set(self._tasks)
            if lost:
                raise DamagedEpisodeError(
                    f"a row of episode {one.index} has no number of {feature}"
                    if min(lost) < 0
                    else f"{feature} {min(lost)} of episode {one.index} is not in the task list"
                )
        return rows

    def _check_times(self, frames: NDArray[np.float64], one: Episode) -> None:
        """Compare the times of an episode's rows, in frames, with the numbers of the rows."""
        fps = self._known.fps
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
        column = self._of_tasks.get(key)
        if column is not None:
            return [self._tasks[task] for task in column[rows].tolist()]
        stored = self._strings[key][rows]
        said = (one[0] if isinstance(one, list) and one else one for one in stored)
        return [b"" if text is None else str(text).encode() for text in said]

    def column(self, key: str, rows: slice) -> NDArray[Any]:
        """[n, width] of a column of numbers at rows that ``rows_of`` gave."""
        return self._numbers[key][0][rows]


def _flat(column: Any, width: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """([rows, width] of a column, [rows] whether a row lacks a number or has too many)."""
    import pyarrow

    rows, values = len(column), column.combine_chunks()
    of = np.arange(rows)  # a row that loses a value has too few
    found = np.zeros((rows, width), dtype)
    while True:
        if values.null_count:
            of = of[values.is_valid().to_numpy(zero_copy_only=False)]
            values = values.drop_null()
        if not pyarrow.types.is_nested(values.type):
            break
        if not hasattr(values, "flatten") or pyarrow.types.is_struct(values.type):
            return found, np.ones(rows, np.bool_)
        lengths: Any = getattr(values.type, "list_size", None)
        if lengths is None:
            lengths = values.value_lengths().to_numpy(zero_copy_only=False)
        values, of = values.flatten(), np.repeat(of, lengths)
    bad = np.zeros(rows, np.bool_)
    try:
        flat = values.to_numpy(zero_copy_only=False)
        if dtype.kind in "iu" and flat.dtype.kind == "f":
            bad[of[~np.isfinite(flat)]] = True
            flat = np.nan_to_num(flat, posinf=0, neginf=0)
        flat = flat.astype(dtype)
    except (ValueError, TypeError):
        return found, np.ones(rows, np.bool_)
    bad |= np.bincount(of, minlength=rows) != width
    found[~bad] = (flat[~bad[of]] if bad.any() else flat).reshape(-1, width)
    return found, bad
