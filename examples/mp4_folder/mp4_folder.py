"""A dataset format: a folder of MP4 files, a CSV file of numbers beside each, and `recording.json`.

    pick_cube_1.mp4    one camera, as many frames as the CSV file has rows
    pick_cube_1.csv    columns state_x, state_y, …, action_x, …, and instruction
    recording.json     {"fps": 10}

Each CSV file is a shard with one episode. The names of columns up to "_" become features.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, ClassVar

from autoloader.errors import SourceError
from autoloader.formats import Feature, ShardSlice
from autoloader.formats.episodes import Episode, EpisodeFormat, numbers, text, video

CAMERA, TEXT = "camera", "instruction"


class Mp4Folder(EpisodeFormat):
    """A folder of MP4 and CSV files."""

    title: ClassVar[str] = "MP4 folder"
    marker: ClassVar[str] = "recording.json"

    @classmethod
    def open(cls, path: str | Path, *, dataset: str) -> Mp4Folder:
        folder = Path(path).absolute()
        files = sorted(folder.glob("*.csv"))
        if not files:
            raise SourceError(
                f"dataset {dataset}: {folder} has no CSV file",
                remedy="put a CSV file beside each MP4 file",
                dataset=dataset,
            )
        counts = {str(file): sum(1 for _ in rows_of(file)) for file in files}
        shards = [ShardSlice(file, k, 0, 1, "train") for k, file in enumerate(counts)]
        return cls(
            name=folder.name,
            version="1",
            path=str(folder),
            features=features_of(files[0]),
            splits={"train": tuple(shards)},
            dataset=dataset,
            steps={file: (count,) for file, count in counts.items()},
        )

    @property
    def fps(self) -> float | None:
        told = json.loads((Path(self.path) / self.marker).read_text()).get("fps")
        return None if told is None else float(told)

    def videos_of(self, path: str) -> Collection[str]:
        return [path.removesuffix(".csv") + ".mp4"]

    def episodes(self, path: str) -> Iterator[Episode]:
        rows = list(rows_of(Path(path)))
        (shown,) = self.videos_of(path)
        values: dict[str, Any] = {}
        try:
            for name, feature in self.features.items():
                if feature.kind == "text":
                    values[name] = [row[name] for row in rows]
                elif feature.kind == "tensor":
                    columns = columns_of(rows[0], name)
                    values[name] = [[float(row[column]) for column in columns] for row in rows]
        except (ValueError, LookupError) as error:
            yield Episode(0, damage=f"{Path(path).name}: {error}")
        else:
            yield Episode(len(rows), values, {CAMERA: (shown, 0)})


def rows_of(file: Path) -> Iterator[dict[str, str]]:
    with file.open(newline="") as lines:
        yield from csv.DictReader(lines)


def features_of(file: Path) -> dict[str, Feature]:
    """The camera, and a feature for each prefix of the columns in a CSV file."""
    with file.open(newline="") as lines:
        header = next(csv.reader(lines), [])
    features = {CAMERA: video(CAMERA)}
    for name in dict.fromkeys(column.partition("_")[0] for column in header):
        width = len(columns_of(header, name))
        features[name] = text(name) if name == TEXT else numbers(name, width)
    return features


def columns_of(header: Collection[str], name: str) -> list[str]:
    return [column for column in header if column.partition("_")[0] == name]
