"""A dataset's index: every readable episode of its slices, and the records that cannot be read.

Not here: opening and building index files (``index.opening``), one shard's tables (``index.build``,
``index.shard``), which t are valid (``index.valid``), the order of samples (``sampling.plan``).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoloader.formats.features import PARQUET
from autoloader.index.episodes import FeatureNumbers, GatheredEpisodes
from autoloader.index.format import (
    REST_OF_FILE,
    Front,
    Section,
)
from autoloader.index.shard import ShardIndex
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import RecordSchema
from autoloader.samples.transforms.transform import VALID_KEY


class DamagedRecord(NamedTuple):
    """A quarantined record: its slice, its number in the slice's file, why."""

    slice: int
    record: int
    reason: str


class DatasetIndex:
    """Every readable episode of a dataset's slices, ordered by slice and record; thread-safe.

    Args:
        dataset: dataset that the episodes belong to.
        schema: features that are indexed of each episode.
        shards: the open index of each slice's file.

    Attributes:
        dataset, schema: those that it was made with.
        steps: [E] int32 raw (unstrided) steps; 0 is possible.
        slice_of: [E] int32 number of the slice, which is a provenance's shard.
        record_of: [E] int64 record in the slice's file, which is a provenance's episode.
        damaged: quarantined records of the slices.
    """

    def __init__(
        self, dataset: ResolvedDataset, schema: RecordSchema, shards: Sequence[ShardIndex]
    ) -> None:
        self.dataset = dataset
        self.schema = schema
        self._shards = tuple(shards)
        self._by_path = {shard.path: shard for shard in self._shards}
        self._numbers = FeatureNumbers(schema)
        steps: list[NDArray[np.int32]] = []
        records: list[NDArray[np.int64]] = []
        damaged: list[DamagedRecord] = []
        for number, (piece, shard) in enumerate(zip(dataset.slices, self._shards, strict=True)):
            there = shard.steps[piece.start : piece.stop]
            whole = np.flatnonzero(there >= 0)
            steps.append(there[whole])
            records.append(whole + piece.start)
            if len(whole) < piece.records:
                every = _damaged(number, piece.start, piece.stop, shard.front)
                damaged += [one for one in every if not _excluded(dataset, piece.path, one.record)]
        counts = [len(part) for part in records]
        self._first = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.steps = np.concatenate(steps)
        self.slice_of = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        self.record_of = np.concatenate(records)
        self.damaged = tuple(damaged)

    def of(self, dataset: ResolvedDataset) -> DatasetIndex:
        """The same episodes, of a dataset that differs in what follows from them alone."""
        other = copy.copy(self)
        other.dataset = dataset
        return other

    @property
    def episodes(self) -> int:
        """E, the readable episodes."""
        return len(self.steps)

    @property
    def strided(self) -> NDArray[np.int64]:
        """[E] int64 steps of each episode after the stride."""
        return np.asarray(-(-self.steps.astype(np.int64) // self.dataset.stride))

    def text_ids(
        self, feature_path: str
    ) -> Iterator[tuple[slice, NDArray[np.int32], Callable[[int], bytes]]]:
        """By slice: its episodes, ids of a text of them, and what tells the text of an id.

        The ids are those of every step, one episode's behind another's, or of every episode.

        Raises:
            KeyError: no such text is indexed.
        """
        number = self._numbers["language", feature_path]
        for slice_, shard in enumerate(self._shards):
            mine = slice(*self._first[slice_ : slice_ + 2].tolist())
            ids, records = shard.section(Section.TEXT_IDS, number), self.record_of[mine]
            if self._numbers.per_step[number]:
                begin = int(shard.section(Section.FIRST_ROWS)[records[0]]) if len(records) else 0
                ids = ids[begin : begin + int(self.steps[mine].sum(dtype=np.int64))]
            else:
                ids = ids[records]
            yield mine, ids, shard.text

    @property
    def nbytes(self) -> int:
        """Bytes of the index files."""
        return sum(shard.nbytes for shard in self._by_path.values())

    def column(self, e: int, feature_path: str) -> NDArray[np.float32]:
        """[T, width] float32 values of a numeric feature in episode ``e``, read-only.

        Raises:
            KeyError: the spec names no such numeric feature.
        """
        shard, number = self._shards[self.slice_of[e]], self._numbers["column", feature_path]
        first = int(shard.section(Section.FIRST_ROWS)[self.record_of[e]])
        found: NDArray[np.float32] = shard.section(Section.COLUMN, number)[first:]
        return found[: self.steps[e]]

    def episodes_at(self, numbers: NDArray[np.int64]) -> GatheredEpisodes:
        """Episodes ``numbers`` [n], which ascend; any may come more than once."""
        return GatheredEpisodes(
            self._shards,
            self.slice_of[numbers],
            self.record_of[numbers],
            self.steps[numbers],
            self._numbers,
        )

    def valid_steps(self) -> NDArray[np.bool_]:
        """[sum of ``steps``] which steps of a transformed dataset may be t, before the stride."""
        number = self._numbers["column", VALID_KEY]
        parts = [np.empty(0, dtype=np.bool_)]
        for piece, shard in zip(self.dataset.slices, self._shards, strict=True):
            first = shard.section(Section.FIRST_ROWS)
            begin, end = first[np.minimum([piece.start, piece.stop], len(first) - 1)].tolist()
            parts.append(shard.section(Section.COLUMN, number)[begin:end, 0] != 0)
        return np.concatenate(parts)

    def digest(self) -> str:
        """Short hash of the slices' content: the same for a copy of the files elsewhere.

        It follows from every section's checksum, so from all that is indexed: episodes, numbers,
        texts, and where frames lie. What a frame shows is no part of it.
        """
        digest = hashlib.blake2b(self.schema.fingerprint, digest_size=8)
        for piece, shard in zip(self.dataset.slices, self._shards, strict=True):
            whole = (Path(piece.path).name, piece.start, piece.stop, shard.front.rows)
            digest.update(repr(whole).encode() + shard.front.directory)
        return digest.hexdigest()

    def rows_of(self, camera: str) -> bytes:
        """Value that two datasets share if the keys of a camera's frames are comparable.

        Nothing where keys are places in a file. Where they are rows of the index (pictures packed
        in Parquet files), the indexed features, by which rows and features are numbered.
        """
        choices = self.dataset.cameras.get(camera, ())
        packed = any(feature.encoding == PARQUET for feature in choices)
        return self.schema.fingerprint if packed else b""

    def damage_reasons(self) -> tuple[str, ...]:
        """The quarantined records, for people."""
        slices = self.dataset.slices
        return tuple(f"{slices[d.slice].path}, record {d.record}: {d.reason}" for d in self.damaged)

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts about the files that a person should know, each once."""
        told = (note for shard in self._by_path.values() for note in shard.front.notes)
        return tuple(dict.fromkeys(told))

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """Each shard file and its whole index file."""
        for path, shard in self._by_path.items():
            yield path, shard.content()

    def check_unchanged(self, paths: Set[str] | None) -> None:
        """See ``ShardIndex.check_unchanged``; of the indexes of these shard files, or of all.

        Raises:
            SourceError: a damaged index cannot be built anew.
        """
        known = self._by_path.keys()
        for path in known if paths is None else known & paths:
            self._by_path[path].check_unchanged()

    def verify(self) -> None:
        """Checks every section of every shard's index now, not at its first touch."""
        for shard in self._shards:
            shard.verify()

    def derive_again(self) -> list[str]:
        """Shard files that give another index by now; each such index is replaced on disk.

        Every section of the others is checked.
        """
        return [path for path, one in self._by_path.items() if not one.derive_again()]


def _excluded(dataset: ResolvedDataset, path: str, record: int) -> bool:
    """True if ``keep`` leaves a damaged episode out by its number alone."""
    function = dataset.transform is not None and dataset.transform.spec is not None
    if dataset.keep is None or function:
        return False
    number = dataset.directory.episode_number(path, record)
    if number is None:
        return False
    from autoloader.formats.lerobot.metadata import EPISODE  # others go without it

    return dataset.keep.excludes({EPISODE: str(number)})


def _damaged(number: int, start: int, stop: int, front: Front) -> Iterator[DamagedRecord]:
    behind = front.damage.get(REST_OF_FILE, "the file has fewer records than its metadata says")
    for record in range(start, min(stop, len(front.steps))):
        if front.steps[record] < 0:
            yield DamagedRecord(number, record, front.damage[record])
    for record in range(max(start, len(front.steps)), stop):
        yield DamagedRecord(number, record, behind)
