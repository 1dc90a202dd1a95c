"""Grain over ArrayRecord files: random access by sample, shuffled globally, mixed by weight.

The mixture is converted (``bench.peers.episodes``) into one ArrayRecord file a dataset, one record
a frame, in groups of one as Grain's guides ask, uncompressed, since frames are: so a sample reads
its two frames and nothing else. ``MapDataset.source.shuffle.repeat`` of each dataset, ``mix``,
``map`` to decode, ``batch``, then threads (``ReadOptions``) or worker processes (``mp_prefetch``),
which hand batches over in shared memory.

In its favour: the loader's own decoding (``bench.peers.pictures``) rather than Pillow; batching in
the workers; reader indices in memory; a frame needed twice is read and decoded once.

Not here: the conversion's rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from bench.mixture import Mixture, read_mixture
from bench.peers import settled
from bench.peers.episodes import Layout, Row, Windows, conversion, write_rows
from bench.peers.pictures import decode_frames

SETTINGS: Mapping[str, int] = {"threads": 2, "workers": 0, "buffer": 2}

_WORDS = struct.Struct("<H")


class GrainRecords:
    """The peer.

    Settings: ``threads`` that make batches, in each worker; ``workers`` processes (0: threads of
    this one); ``buffer``, batches each of them holds.
    """

    def __init__(self, spec: Path, settings: Mapping[str, int]) -> None:
        chosen = settled("grain", SETTINGS, settings)
        mixture = read_mixture(spec)
        self.datasets = len(mixture.datasets)
        place = self.prepare(spec)
        layout = Layout.read(place)
        streams = [
            grain.MapDataset.source(_Samples(place, layout, number, mixture.frame_offsets))
            .seed(mixture.seed + number)
            .shuffle()
            .repeat()
            for number in range(self.datasets)
        ]
        weights = [one.weight for one in mixture.datasets]
        batches = (
            grain.MapDataset.mix(streams, weights)
            .map(_Decode(mixture.size))
            .batch(mixture.batch, drop_remainder=True)
            .to_iter_dataset(grain.ReadOptions(chosen["threads"], chosen["buffer"]))
        )
        if chosen["workers"]:
            batches = batches.mp_prefetch(
                grain.MultiprocessingOptions(chosen["workers"], chosen["buffer"])
            )
        self._batches = iter(batches)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        yield from self._batches

    def close(self) -> None:
        """Ends its threads or workers."""
        self._batches.close()

    @staticmethod
    def prepare(spec: Path) -> Path:
        """The folder of the converted mixture."""
        return conversion(spec, "arrayrecord", _convert)


class _Samples:
    """A dataset's samples by number, frames still encoded; Grain's ``RandomAccessDataSource``."""

    def __init__(self, place: Path, layout: Layout, number: int, offsets: tuple[int, ...]) -> None:
        self._windows = Windows(layout, number, offsets)
        self._records = grain.sources.ArrayRecordDataSource(
            str(place / f"{number}.arrayrecord"), {"index_storage_option": "in_memory"}
        )

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: Any) -> dict[str, Any]:
        index = int(index)
        rows = self._windows.rows(index)
        read = {row: self._records[row] for row in {index, *rows}}
        action, state = self._windows.widths
        own, at = read[index], 4 * (action + state)
        numbers = np.frombuffer(own, np.float32, action + state)
        (length,) = _WORDS.unpack_from(own, at)
        start = at + _WORDS.size
        frames = {row: _frame(record, at) for row, record in read.items()}
        return {
            **self._windows.told(index),
            "action": numbers[None, :action],
            "state": numbers[None, action:],
            "language": own[start : start + length].decode(),
            "encoded": [frames[row] for row in rows],
        }


def _frame(record: bytes, at: int) -> bytes:
    (length,) = _WORDS.unpack_from(record, at)
    return record[at + _WORDS.size + length :]


class _Decode:
    def __init__(self, size: tuple[int, int]) -> None:
        self._size = size

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        encoded = sample.pop("encoded")
        out = np.empty((len(encoded), *self._size, 3), np.uint8)
        return {**sample, "images": decode_frames(encoded, out)}


def _convert(mixture: Mixture, place: Path) -> Layout:
    def write(number: int, rows: Iterator[Row]) -> None:
        name = str(place / f"{number}.arrayrecord")
        writer = ArrayRecordWriter(name, "group_size:1,uncompressed")
        for one in rows:
            words, numbers = one.task.encode(), one.action.tobytes() + one.state.tobytes()
            writer.write(numbers + _WORDS.pack(len(words)) + words + one.image)
        writer.close()

    return write_rows(mixture, write)
