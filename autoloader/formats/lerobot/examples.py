"""Episodes of LeRobot datasets as ``tf.train.Example`` records, for what rewrites whole episodes.

A transform, and the ops that see whole episodes, take a record of RLDS. An episode of a Parquet
file is written as such a record: its numbers and texts under the names of its features, and for
each picture a mark that says which camera's and which step's it is.

Not here: what is done with records (``transforms``), where pictures lie (``index.lerobot``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autoloader.formats.example import write_example
from autoloader.formats.features import PARQUET, TASKS
from autoloader.formats.lerobot.episodes import Episode
from autoloader.formats.lerobot.metadata import (
    EPISODE,
    LeRobotMetadata,
    metadata_of,
    open_lerobot,
    task_column,
)
from autoloader.formats.lerobot.rows import DamagedEpisodeError, EpisodeRows, NumberColumn
from autoloader.formats.metadata import LEROBOT_INFO, ShardSlice

MARK = struct.Struct("<II")
"""What stands for a picture: the camera's place in ``LeRobotMetadata.cameras``, and the step."""


class EpisodeExamples:
    """The episodes of a Parquet file as records.

    Args:
        path: the file.
        known: the dataset.
        by_row: whether times are not looked at.

    Raises:
        DamagedEpisodeError: the file is damaged, or lacks a column.
        OSError: it cannot be opened.
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(self, path: str, known: LeRobotMetadata, *, by_row: bool = False) -> None:
        self._known = known
        of_steps = [one for one in known.features.values() if one.per_step]
        tensors = [one for one in of_steps if one.kind == "tensor"]
        texts = [one.path for one in of_steps if one.kind == "text"]
        numbers = [
            NumberColumn.of(one.path, one.shape, np.float32 if "float" in one.dtype else np.int64)
            for one in tensors
        ]
        self._numbers = [one.key for one in numbers]
        by_task = {one: task_column(one) for one in texts if known.features[one].encoding == TASKS}
        tasks = known.tasks_if_listed if by_task else {}
        if tasks is None:  # whoever names them has been told
            texts, by_task, tasks = [one for one in texts if one not in by_task], {}, {}
        self._texts = texts
        strings = [one for one in texts if one not in by_task]
        inside = [one for one in known.cameras if known.features[one].encoding == PARQUET]
        self._rows = EpisodeRows(path, numbers, strings, by_task, tasks, inside, by_row=by_row)

    @property
    def notes(self) -> Mapping[str, None]:
        """What a person should know of the file."""
        return self._rows.notes

    @property
    def count(self) -> int:
        """Rows of the file."""
        return self._rows.count

    def record(self, one: Episode) -> tuple[slice, bytes]:
        """(the rows of an episode, it as a record).

        Raises:
            DamagedEpisodeError: its rows are not what the list of episodes says.
        """
        own = self._rows.rows_of(one, self._known.fps)
        values: dict[str, Any] = {
            key: self._rows.column(key, own).reshape(-1) for key in self._numbers
        }
        values.update({key: self._rows.texts(key, own) for key in self._texts})
        values[EPISODE] = np.asarray([one.index], np.int64)
        for number, camera in enumerate(self._known.cameras):
            values[camera] = [MARK.pack(number, step) for step in range(one.length)]
        return own, write_example(values)


def records_of(piece: ShardSlice) -> Iterator[tuple[str, bytes]]:
    """(where it lies, record) of the whole episodes of a slice of a dataset.

    Raises:
        OSError: the file cannot be opened.
        SourceError: the dataset's metadata is broken.
        MissingExtraError: pyarrow is not installed.
    """
    root = next(folder for folder in Path(piece.path).parents if (folder / LEROBOT_INFO).is_file())
    known = metadata_of(open_lerobot(root, dataset=root.name))
    try:
        examples = EpisodeExamples(piece.path, known)
    except DamagedEpisodeError:
        return
    of = known.episodes.in_file(piece.path, piece.start, piece.stop)
    for record, one in enumerate(of, start=piece.start):
        try:
            yield f"{piece.path}, record {record}", examples.record(one)[1]
        except DamagedEpisodeError:
            continue
