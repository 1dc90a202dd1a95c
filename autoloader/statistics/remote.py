"""Action and state of a remote dataset's episodes, for its statistics: one pass over all its bytes.

What an index gives of local files, held in memory: the numbers alone, no picture. Shards are read
side by side, to hide the network's latency. Only ``autoloader stats`` asks for it.

Not here: what is computed of them (``compute``).
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from autoloader.catalog import ShardSlice, files
from autoloader.catalog.example import parse_example
from autoloader.catalog.tfrecord import (
    HEADER_BYTES,
    MalformedRecordError,
    payload_is_whole,
    read_record,
    walk_records,
)
from autoloader.index.valid import allowed_by_function
from autoloader.samples.record import numbers_of
from autoloader.samples.resolve import ResolvedDataset
from autoloader.transforms.ranges import Ranges
from autoloader.transforms.transform import VALID_KEY

_READERS = 4

logger = logging.getLogger(__name__)

Columns = dict[str, NDArray[np.float32]]


class RemoteEpisode:
    """The numbers of one episode."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def column(self, feature_path: str) -> NDArray[np.float32]:
        """[T, width] float32 values of a numeric feature."""
        return self._columns[feature_path]


class RemoteEpisodes:
    """The numbers of every readable episode; see ``compute.Episodes``.

    Args:
        dataset: whose episodes.

    Attributes:
        dataset: it.
        steps: [E] raw steps.

    Raises:
        SourceError: a file cannot be read.
    """

    def __init__(self, dataset: ResolvedDataset) -> None:
        self.dataset = dataset
        self._found: list[tuple[Columns, NDArray[np.bool_]]] = []
        with ThreadPoolExecutor(_READERS, "autoloader-statistics") as pool:
            for found in pool.map(self._of_slice, dataset.slices):
                self._found += found
        self.steps: NDArray[np.int32] = np.asarray(
            [len(valid) for _, valid in self._found], dtype=np.int32
        )

    @property
    def episodes(self) -> int:
        """E."""
        return len(self._found)

    def episode(self, e: int) -> RemoteEpisode:
        """Episode ``e``."""
        return RemoteEpisode(self._found[e][0])

    def kept(self) -> Ranges | None:
        """The valid t of each episode where some are left out, else ``None``."""
        return None if self.dataset.transform is None else allowed_by_function(self)

    def valid_steps(self) -> NDArray[np.bool_]:
        """[sum of ``steps``] which steps of a transformed dataset may be t, before the stride."""
        return np.concatenate([np.empty(0, np.bool_), *(valid for _, valid in self._found)])

    def _of_slice(self, piece: ShardSlice) -> list[tuple[Columns, NDArray[np.bool_]]]:
        found = []
        try:
            with files.opened_anywhere(piece.path) as file:
                size = files.source_bytes(file)
                for record, (start, length, lost) in enumerate(
                    walk_records(file, size, verify=True)
                ):
                    if lost is not None or record >= piece.stop:
                        self._say(piece.path, record, lost)
                        break
                    if record < piece.start:
                        continue
                    payload = read_record(file, start + HEADER_BYTES, length)
                    if not payload_is_whole(file, start + HEADER_BYTES, length):
                        self._say(piece.path, record, "the checksum of the payload is wrong")
                        continue
                    try:
                        found.append(self._of_record(payload))
                    except MalformedRecordError as error:
                        self._say(piece.path, record, str(error))
        except OSError as error:
            raise files.unreadable(error, piece.path, dataset=self.dataset.name) from error
        return found

    def _of_record(self, payload: bytes) -> tuple[Columns, NDArray[np.bool_]]:
        dataset = self.dataset
        numeric = dataset.numeric_features()
        keys = {feature.key for feature in numeric.values()}
        if dataset.transform is not None:
            payload, _ = dataset.transform.rewritten(payload, keys)
            keys.add(VALID_KEY)
        found = parse_example(payload, only=keys)
        columns = {path: numbers_of(found.get(one.key), one) for path, one in numeric.items()}
        counts = {len(column) for column in columns.values()}
        if len(counts) != 1:
            raise MalformedRecordError(f"features differ in length: {sorted(counts)} steps")
        steps = counts.pop()
        valid = np.ones(steps, dtype=np.bool_)
        if VALID_KEY in found and steps:
            barred = found[VALID_KEY].values
            assert barred is not None
            valid = np.asarray(barred) != 0
        return columns, valid

    def _say(self, path: str, record: int, reason: str | None) -> None:
        if reason is not None:
            logger.warning("%s, record %d, is left out: %s", path, record, reason)
