"""The samples of one record whose bytes are in memory: walked as the index walks it, then planned.

The stream reader has records and no index. A record becomes an index of one episode, with the same
columns and frame ranges as in an index file, so that what makes samples is the same for both.

Not here: finding the record's bytes (``pipeline.graph.reader``), what a sample is
(``index.planned``).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.index.build import index_payload
from autoloader.index.dataset import DatasetIndex
from autoloader.index.episodes import FeatureNumbers, GatheredEpisodes
from autoloader.index.format import NO_FEATURE, Section
from autoloader.index.planned import RunPlanner
from autoloader.index.valid import valid_t
from autoloader.samples import draws
from autoloader.samples.block import Encoded, Place, SampleBlock, episode_key
from autoloader.samples.layout import BatchLayout
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import RecordSchema
from autoloader.samples.transforms.transform import VALID_KEY
from autoloader.samples.windows import valid_range
from autoloader.sampling.plan import PlannedSamples

_planning = threading.Lock()
"""A mixture drains its queues evenly, so many readers wake together: planning one at a time, they
leave the interpreter to the decode pool in between."""


class RecordSamples:
    """Makes the samples of a dataset's records, for any number of threads.

    Args:
        dataset: the dataset of the records.
        layout: widths to pad to.
    """

    def __init__(self, dataset: ResolvedDataset, layout: BatchLayout) -> None:
        self._dataset = dataset
        self._schema = RecordSchema.of(dataset)
        self._numbers = FeatureNumbers(self._schema)
        self._records: dict[int, tuple[Place, RecordIndex]] = {}
        self._next = itertools.count()
        self._planner = RunPlanner([dataset], layout, self._episodes, [False])

    def of(self, place: Place, payload: bytes) -> SampleBlock | None:
        """The samples of the record at ``place``; ``None`` where it has none.

        Their frames are copied out of ``payload``.

        Raises:
            MalformedRecordError: it is no Example with the features that the spec names.
        """
        record = RecordIndex(self._dataset, self._schema, self._numbers, payload)
        t = record.drawn(place)
        if not len(t):
            return None
        number = next(self._next)
        self._records[number] = place, record
        none = np.zeros(len(t), np.int64)
        planned = PlannedSamples(
            none.astype(np.int32), none - 1, none + place.pass_, none + number, t
        )
        try:
            with _planning:
                block, reads = self._planner.run(planned)
        finally:
            del self._records[number]
        block.columns["ledger"][:, -1] = len(t)
        for camera in self._dataset.cameras:
            ranges = reads.ranges[camera]
            starts, sizes = ranges.offset.tolist(), ranges.length.tolist()
            frames: list[Encoded | None] = [
                None if file < 0 else payload[start : start + size]
                for file, start, size in zip(ranges.file.tolist(), starts, sizes, strict=True)
            ]
            block.frames[camera] = frames
            block.nbytes += int(ranges.length[ranges.file >= 0].sum())
        block.nbytes += sum(column.nbytes for column in block.columns.values())
        return block

    def _episodes(self, dataset: int, numbers: NDArray[np.int64]) -> GatheredEpisodes:
        """A record as ``RunPlanner`` wants it, once for each of its samples."""
        del dataset
        place, record = self._records[int(numbers[0])]
        none = np.zeros(len(numbers), np.int64)
        return GatheredEpisodes(
            {place.shard: record},
            np.full(len(numbers), place.shard, np.int32),
            none + place.record,
            record.steps.repeat(len(numbers)),
            self._numbers,
            rows=none,
        )


class RecordIndex(DatasetIndex):
    """The index of one record, and the tables that it consists of.

    Args:
        dataset: dataset that the record belongs to.
        schema: features that are indexed.
        numbers: the numbers of its features.
        payload: the record; its frames lie there, not in a file.
    """

    path = ""

    def __init__(
        self,
        dataset: ResolvedDataset,
        schema: RecordSchema,
        numbers: FeatureNumbers,
        payload: bytes,
    ) -> None:
        self.dataset = dataset
        self._numbers = numbers
        steps, self._sections, texts = index_payload(payload, schema)
        self.steps = np.array([steps], np.int32)
        self._sections[Section.FIRST_ROWS, NO_FEATURE] = np.zeros(1, np.int64)
        self._texts: list[bytes] = []
        for number, own in texts.items():
            self._sections[Section.TEXT_IDS, number] += np.int32(len(self._texts))
            self._texts += own

    def drawn(self, place: Place) -> NDArray[np.int64]:
        """[n] the t that samples are of, in the order in which they come."""
        dataset = self.dataset
        ruled = dataset.keep is not None or dataset.transform is not None
        allowed = valid_t(self) if ruled else None
        if allowed is None:
            t = np.arange(*valid_range(dataset.sample, int(self.strided[0])), dtype=np.int64)
        else:
            t = allowed.numbers(0)
        t = draws.ordered(episode_key(dataset, place), t)
        if dataset.sample.per_episode != "all":
            t = t[: dataset.sample.per_episode]
        return t[dataset.turn[0] :: dataset.turn[1]]

    def valid_steps(self) -> NDArray[np.bool_]:
        """See ``DatasetIndex``."""
        number = self._numbers["column", VALID_KEY]
        return np.asarray(self._sections[Section.COLUMN, number][:, 0] != 0)

    def text_ids(
        self, feature_path: str
    ) -> Iterator[tuple[slice, NDArray[np.int32], Callable[[int], bytes]]]:
        """See ``DatasetIndex``."""
        number = self._numbers["language", feature_path]
        yield slice(0, 1), self._sections[Section.TEXT_IDS, number], self.text

    def section(self, kind: Section, feature: int = NO_FEATURE) -> NDArray[Any]:
        """See ``EpisodeTables``."""
        return self._sections[kind, feature]

    def has(self, kind: Section, feature: int = NO_FEATURE) -> bool:
        """See ``EpisodeTables``."""
        return (kind, feature) in self._sections

    def text(self, number: int) -> bytes:
        """See ``EpisodeTables``."""
        return self._texts[number]

    def texts(self, numbers: NDArray[np.int32]) -> list[bytes]:
        """See ``EpisodeTables``."""
        return [self._texts[number] for number in numbers.tolist()]
