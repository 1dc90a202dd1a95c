"""What the episodes of a LeRobot dataset really hold: the first one, and ranges over some.

Not here: the same of RLDS records (``cli.dataset_facts``), showing it (``cli.inspect``).
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.catalog import VersionDirectory
from autoloader.catalog.features import TASKS
from autoloader.catalog.lerobot.episodes import Episode
from autoloader.catalog.lerobot.metadata import EPISODE, metadata_of, task_column
from autoloader.catalog.lerobot.packets import UnreadableVideoError, read_packets
from autoloader.catalog.lerobot.parquet import UnreadableParquetError, read_columns
from autoloader.cli.dataset_facts import DatasetFacts, Picture, column_ranges, picture_of


def read_lerobot_facts(directory: VersionDirectory, split: str, episodes: int) -> DatasetFacts:
    """Facts over the first ``episodes`` episodes of a split of the metadata.

    Of pictures it tells the first one inside the Parquet file, and the first packet of a video.

    Raises:
        OSError: a file cannot be read.
    """
    found = DatasetFacts(split)
    known = metadata_of(directory)
    by_task = {
        one: task_column(one) for one, f in directory.features.items() if f.encoding == TASKS
    }
    told = (known.tasks_if_listed if by_task else None) or {}
    columns: dict[str, list[NDArray[Any]]] = {}
    texts: dict[str, set[str]] = {}
    for piece in directory.splits[split]:
        try:
            table = read_columns(piece.path, lambda names: names)
        except (UnreadableParquetError, FileNotFoundError):
            found.damaged += piece.records
            continue
        of = np.asarray(table.column("episode_index").to_numpy())
        for one in known.episodes.in_file(piece.path, piece.start, piece.stop):
            if found.episodes == episodes:
                break
            rows = np.flatnonzero(of == one.index)
            if len(rows) != one.length or not one.length:
                found.damaged += 1
                continue
            part = table.slice(int(rows[0]), one.length)
            values = {
                name: part.column(name).to_pylist()
                for name, feature in directory.features.items()
                if name in table.column_names
                and feature.kind in ("tensor", "text")
                and name not in by_task
            }
            for name, column in by_task.items():
                if told and column in table.column_names:
                    numbers = part.column(column).to_pylist()
                    values[name] = [told.get(k, b"").decode() for k in numbers]
            found.episodes += 1
            found.steps += one.length
            if found.episodes == 1:
                inside = {
                    name: part.column(name)[0].as_py()
                    for name, feature in directory.features.items()
                    if name in table.column_names and feature.kind == "image"
                }
                _first_episode(found, directory, one, values, inside)
            for name, rows_of in values.items():
                if directory.features[name].kind == "text":
                    texts.setdefault(name, set()).update(map(str, rows_of))
                    continue
                with contextlib.suppress(ValueError, TypeError):  # a row lacks a number
                    rows_in = np.asarray(rows_of, np.float64).reshape(one.length, -1)
                    columns.setdefault(name, []).append(rows_in)
    found.texts = {name: len(different) for name, different in texts.items()}
    found.ranges = {
        name: list(column_ranges(np.concatenate(parts))) for name, parts in columns.items()
    }
    return found


def _first_episode(
    found: DatasetFacts, directory: VersionDirectory, one: Episode, values: dict[str, list[Any]],
    inside: dict[str, Any],
) -> None:  # fmt: skip
    found.first_steps = one.length
    for name, feature in directory.features.items():
        if name == EPISODE:
            found.first[name] = [one.index]
        elif name in values:
            first = np.asarray(values[name][0]).reshape(-1).tolist()
            found.first[name] = first if feature.kind != "text" else [str(values[name][0])]
        elif (stored := inside.get(name)) and stored.get("bytes"):
            found.first[name] = picture_of(stored["bytes"])
        elif name in one.videos:
            height, width = (int(size or 0) for size in feature.shape[:2])
            try:
                video = read_packets(one.videos[name].path)
            except (UnreadableVideoError, OSError):
                found.absent.append(name)
            else:
                found.first[name] = Picture(video.codec, height, width, "RGB", int(video.size[0]))
        else:
            found.absent.append(name)
