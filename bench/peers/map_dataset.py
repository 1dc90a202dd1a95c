"""A map-style dataset as LeRobot lays robot data out, over Hugging Face ``datasets``.

A table for each dataset, a row for each frame. A sample asks its table for the rows at its offsets,
kept inside the episode by the episode's bounds; torch's ``DataLoader`` draws samples by weight
(``WeightedRandomSampler``) and collates them in worker processes. The mixture is converted
(``bench.peers.episodes``) into Arrow files, which are mapped into memory, so that all workers share
their pages.

In its favour: frames are stored encoded and decoded with the loader's own decoding
(``bench.peers.pictures``) rather than Pillow; rows come as Arrow, not as Python objects; a frame
needed twice is decoded once.

Not here: LeRobot itself, whose package brings video codecs, simulators' interfaces and a version of
torchvision of its own; what it does for a data set of images is what is written here. It mixes
several data sets by their sizes; weights are the sampler's.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset as Table
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from bench.mixture import Mixture, read_mixture
from bench.peers import settled
from bench.peers.episodes import Layout, Row, Windows, conversion, write_rows
from bench.peers.pictures import decode_frames

SETTINGS: Mapping[str, int] = {"workers": 2, "prefetch_factor": 2}

ROWS_TOGETHER = 100
"""Rows of a record batch, as ``datasets`` writes tables of images."""

EPOCH_BATCHES = 2000
"""Batches drawn at a time; the workers outlive an epoch."""


class MapDataset:
    """The peer; settings: ``workers``, ``prefetch_factor`` (batches each)."""

    def __init__(self, spec: Path, settings: Mapping[str, int]) -> None:
        chosen = settled("map_dataset", SETTINGS, settings)
        mixture = read_mixture(spec)
        self.datasets = len(mixture.datasets)
        frames = _Frames(self.prepare(spec), mixture)
        weights = [
            one.weight / size
            for one, size in zip(mixture.datasets, frames.sizes, strict=True)
            for _ in range(size)
        ]
        self._loader: DataLoader[Any] = DataLoader(
            frames,
            batch_size=mixture.batch,
            sampler=WeightedRandomSampler(
                weights,
                EPOCH_BATCHES * mixture.batch,
                generator=torch.Generator().manual_seed(mixture.seed),
            ),
            num_workers=chosen["workers"],
            prefetch_factor=chosen["prefetch_factor"],
            persistent_workers=True,
            drop_last=True,
        )

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        while True:
            for batch in self._loader:
                yield {
                    name: value.numpy() if isinstance(value, torch.Tensor) else value
                    for name, value in batch.items()
                }

    def close(self) -> None:
        """The workers end with the loader."""
        del self._loader

    @staticmethod
    def prepare(spec: Path) -> Path:
        """The folder of the converted mixture."""
        return conversion(spec, "arrow", _convert)


class _Frames(Dataset[dict[str, Any]]):
    """All samples of the mixture, dataset after dataset."""

    def __init__(self, place: Path, mixture: Mixture) -> None:
        layout = Layout.read(place)
        numbers = range(len(mixture.datasets))
        self._size = mixture.size
        self._tables = [
            Table.from_file(str(place / f"{number}.arrow")).with_format("arrow")
            for number in numbers
        ]
        self._windows = [Windows(layout, number, mixture.frame_offsets) for number in numbers]
        self.sizes = [len(one) for one in self._windows]
        self._ends = list(itertools.accumulate(self.sizes))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = bisect.bisect_right(self._ends, index)
        windows, row = self._windows[number], index - self._ends[number] + self.sizes[number]
        rows = windows.rows(row)
        asked = sorted({row, *rows})
        table = self._tables[number][asked]
        pictures = dict(zip(asked, table["image"].to_pylist(), strict=True))
        own = table.slice(asked.index(row), 1)
        out = np.empty((len(rows), *self._size, 3), np.uint8)
        return {
            **windows.told(row),
            "action": np.array(own["action"].to_pylist(), np.float32),
            "state": np.array(own["state"].to_pylist(), np.float32),
            "language": own["task"][0].as_py(),
            "images": decode_frames([pictures[one] for one in rows], out),
        }


def _convert(mixture: Mixture, place: Path) -> Layout:
    def write(number: int, rows: Iterator[Row]) -> None:
        with pa.OSFile(str(place / f"{number}.arrow"), "wb") as file:
            writer: Any = None
            while kept := [one._asdict() for one in itertools.islice(rows, ROWS_TOGETHER)]:
                table = pa.RecordBatch.from_pylist(kept, _schema(kept[0]))
                writer = writer or pa.ipc.new_stream(file, table.schema)
                writer.write_batch(table)
            writer.close()

    return write_rows(mixture, write)


def _schema(row: Mapping[str, Any]) -> pa.Schema:
    numbers = {name: pa.list_(pa.float32(), len(row[name])) for name in ("action", "state")}
    places = dict.fromkeys(("episode_index", "frame_index"), pa.int64())
    return pa.schema({"image": pa.binary(), **numbers, "task": pa.string(), **places})
