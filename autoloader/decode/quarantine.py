"""Bad records: counted, named, and tolerated up to the spec's limit.

Not here: finding them (``pipeline.graph.reader``, ``decode.batch_builder``).
"""

from __future__ import annotations

import logging
import threading

from autoloader.host.records import dataclass
from autoloader.samples.block import Place
from autoloader.samples.resolve import ResolvedMixture
from autoloader.samples.transforms.keep import too_many_bad

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BadRecord:
    """One quarantined record: its place and the reason."""

    dataset: str
    path: str
    shard: int
    record: int
    reason: str


class Quarantine:
    """Bad records of a mixture; thread-safe."""

    def __init__(self, mixture: ResolvedMixture) -> None:
        self._mixture = mixture
        self._lock = threading.Lock()
        self._bad: dict[tuple[int, int, int], BadRecord] = {}
        self._counts = [0] * len(mixture.datasets)

    def add(self, place: Place, reason: str) -> None:
        """Quarantine a record; a second time changes nothing.

        Raises:
            SourceError: the dataset has more bad records than ``errors.max_corrupt_ratio`` (one
                is always tolerated).
        """
        dataset = self._mixture.datasets[place.dataset]
        piece = dataset.slices[place.shard]
        with self._lock:
            key = (place.dataset, place.shard, place.record)
            if key in self._bad:
                return
            bad = BadRecord(dataset.name, piece.path, place.shard, place.record, reason)
            self._bad[key] = bad
            self._counts[place.dataset] += 1
            count = self._counts[place.dataset]
        logger.warning(
            "dataset %s: record %d of %s is quarantined: %s",
            bad.dataset,
            bad.record,
            bad.path,
            bad.reason,
        )
        ratio = self._mixture.spec.errors.max_corrupt_ratio
        last = f"record {bad.record} of {bad.path}: {reason}"
        if error := too_many_bad(dataset.name, count, dataset.records, ratio, last):
            raise error

    def count(self, dataset: int) -> int:
        """Bad records of a dataset."""
        return self._counts[dataset]

    def records(self) -> tuple[BadRecord, ...]:
        """All bad records so far."""
        with self._lock:
            return tuple(self._bad.values())
