"""The index of records that are episodes of one step: texts and pictures in place.

An index file has no row for each step: row k is record k. Texts are parsed when samples are
planned, at their places in the shard file, or from the index where it holds them (Parquet). Pages
of the index's map go back after each look: they would all stay resident.

Not here: what a record says (``formats.image_text``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SourceError
from autoloader.formats.files import UnreadableError
from autoloader.formats.frames import PackedPicture
from autoloader.formats.image_text import ImageTextDirectory
from autoloader.formats.image_text.records import Record
from autoloader.formats.tables import NO_FEATURE, Section
from autoloader.index.dataset import DatasetIndex, FramePlaces, GatheredEpisodes
from autoloader.index.shard import ShardIndex
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import RecordSchema

_NEVER_KEPT = 2**62
"""Key of a picture in a file of its own: the cache of frames would have to know its path."""
_PLACES = Section.RECORD_OFFSETS, NO_FEATURE
_FIRST = Section.PICTURE_FIRST, NO_FEATURE
_PACKED = Section.UNPACKED_BYTES, Section.PICTURE_STARTS, Section.PICTURE_BYTES


class StillIndex(DatasetIndex):
    """The index of a dataset whose records are episodes of one step.

    Args:
        dataset, schema, shards: as of ``DatasetIndex``.
    """

    record_type = np.int32  # there are many, and no step tells them apart

    def __init__(
        self, dataset: ResolvedDataset, schema: RecordSchema, shards: Sequence[ShardIndex]
    ) -> None:
        super().__init__(dataset, schema, shards)
        self.steps = np.broadcast_to(np.int32(1), self.steps.shape)

    def episodes_at(self, numbers: NDArray[np.int64]) -> GatheredEpisodes:
        """See ``DatasetIndex.episodes_at``."""
        return _GatheredRecords(self, numbers)


def _number(path: str) -> int:
    """Number of a picture in its record, by its feature."""
    return int(path.rpartition("_")[2])


class _GatheredRecords(GatheredEpisodes):
    """n records of one dataset, sorted by slice; see ``GatheredEpisodes``."""

    _parts: list[tuple[slice, Any]]

    def __init__(self, index: DatasetIndex, episodes: NDArray[np.int64]) -> None:
        super().__init__(index, episodes)
        assert isinstance(index.dataset.directory, ImageTextDirectory)
        self._directory = index.dataset.directory

    @cached_property
    def _told(self) -> list[Record]:
        """The parsed records; raises SourceError."""
        found: list[Record] = []
        for rows, shard in self._parts:
            own = self.record_of[rows]
            if shard.path in self._directory.packed:
                found += map(Record.parse, shard.texts(own.astype(np.int32)))
            else:
                places = (shard.take(_PLACES, own + k) for k in (0, 1))
                found += self._directory.texts(shard.path, *places)
        return found

    def _pictures(self, rows: slice, shard: ShardIndex, k: int) -> tuple[Any, Any]:
        """(which picture of the shard is each record's k-th, whether it has one)."""
        own = self.record_of[rows]
        begin, end = shard.take(_FIRST, own), shard.take(_FIRST, own + 1)
        return begin + k, end - begin > k

    def frames(
        self, feature_path: str, raw: NDArray[np.int64], files: dict[str, int]
    ) -> FramePlaces:
        """See ``GatheredEpisodes.frames``; 0 bytes of a record without this picture."""
        k, count = _number(feature_path), len(self.steps)
        file, offset, length = np.zeros((3, count), np.int64)
        key = np.full(count, _NEVER_KEPT)
        make = np.full(count, None)
        for rows, shard in self._parts:
            at, there = self._pictures(rows, shard, k)
            own = np.arange(rows.start, rows.stop)[there]
            at = at[there]
            if not len(own):
                continue
            for column, kind in (offset, Section.FRAME_OFFSETS), (length, Section.FRAME_LENGTHS):
                column[own] = shard.take((kind, NO_FEATURE), at)
            if shard.has(_PACKED[0], NO_FEATURE):
                codec = shard.text(len(shard.front.steps)).decode()
                columns = [shard.take((kind, NO_FEATURE), at).tolist() for kind in _PACKED]
                for row, *sizes in zip(own.tolist(), *columns, strict=True):
                    more = zip(("unpacked", "start", "size"), sizes, strict=True)
                    make[row] = partial(PackedPicture, codec=codec, **dict(more))
                key[own] = at
            if shard.path.endswith((".tar", ".parquet")):
                file[own] = files.setdefault(shard.path, len(files))
                if shard.path.endswith(".tar"):
                    key[own] = offset[own]
                continue
            for row in own.tolist():
                file[row] = files.setdefault(self._place_of(row, k), len(files))
        ones = np.broadcast_to(np.int64(1), raw.shape)
        return FramePlaces(
            (file[:, None] * ones).astype(np.int32), offset[:, None] * ones,
            (length[:, None] * ones).astype(np.int32), key[:, None] * ones,
            np.broadcast_to(make[:, None], raw.shape),
        )  # fmt: skip

    def _place_of(self, row: int, k: int) -> str:
        try:
            return self._directory.place_of(self._told[row].pictures[k])
        except (UnreadableError, IndexError) as error:
            raise SourceError(
                f"dataset {self._directory.dataset}: a record names other pictures than at the "
                "start of this run",
                remedy="put the files of the dataset back as they were, or start the run again",
            ) from error

    def several(
        self, features: Sequence[tuple[str, str]], raw: NDArray[np.int64]
    ) -> list[list[NDArray[Any]]]:
        """See ``GatheredEpisodes.several``: whether each record has a picture."""
        return [
            [self._pictures(rows, shard, _number(path))[1][:, None, None].astype(np.int64)
             for rows, shard in self._parts]
            for _, path in features
        ]  # fmt: skip

    def language(self, feature_path: str, raw: NDArray[np.int64]) -> list[bytes]:
        """See ``GatheredEpisodes.language``."""
        return [getattr(one, feature_path).encode("utf-8", "replace") for one in self._told]
