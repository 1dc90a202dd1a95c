"""A spec for one split, ready to be read, and what the memory of reading it hangs on.

Not here: how it comes about (``split``, ``normalise``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from autoloader.samples.layout import BatchLayout
from autoloader.samples.resolve.dataset import ResolvedDataset
from autoloader.samples.statistics import NormalizationStatistics
from autoloader.spec import PipelineSpec
from autoloader.units import MIB

BLOCK_SLACK = 1.125
"""Blocks have so many samples, not bytes: some are larger, and all have their windows' edges."""
LEAST_BLOCK_BYTES = 64 * MIB
REMOTE_BUFFER_BYTES = 16 * MIB
"""What TensorFlow's remote files read at once (``graph.tensorflow``)."""


@dataclass(frozen=True, slots=True)
class MixtureSizes:
    """What the memory of a mixture's pipeline hangs on beside its knobs.

    Attributes:
        record_bytes: mean bytes of a record (an episode), by dataset.
        batch_bytes: bytes of one ring slot.
        buffer_bytes: what each open file holds beside, by dataset; absent is nothing.
        block_bytes: what the blocks of ``mixing.locality`` take at most; 0 without it.
        request_bytes: what requests to stores that are under way take at most; 0 of local data.
        picture_bytes: of the largest picture as it is declared, decoded; 0 where none says.
    """

    record_bytes: dict[str, int]
    batch_bytes: int
    buffer_bytes: Mapping[str, int] = field(default_factory=dict)
    block_bytes: int = 0
    request_bytes: int = 0
    picture_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ResolvedMixture:
    """A spec for one split, ready to be read; ``statistics`` where it is normalised."""

    spec: PipelineSpec
    split: str
    datasets: tuple[ResolvedDataset, ...]
    layout: BatchLayout
    statistics: Mapping[str, NormalizationStatistics] | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it; see ``split.resolve_plain``."""
        found = self.statistics
        return {
            "spec": self.spec.model_dump(mode="json"),
            "split": self.split,
            "statistics": found and {name: one.plain() for name, one in found.items()},
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Dataset names, by dataset index."""
        return tuple(dataset.name for dataset in self.datasets)

    @property
    def shards(self) -> dict[str, int]:
        """Shards of each dataset's split."""
        return {dataset.name: len(dataset.slices) for dataset in self.datasets}

    @property
    def sizes(self) -> MixtureSizes:
        """What its memory hangs on; asks the file system."""
        return MixtureSizes(
            {one.name: one.record_bytes for one in self.datasets},
            self.layout.slot_bytes,
            {one.name: REMOTE_BUFFER_BYTES for one in self.datasets if one.remote},
            self._block_bytes(),
            self._request_bytes(),
            self._picture_bytes(),
        )

    def _picture_bytes(self) -> int:
        pictures = [
            feature.shape
            for dataset in self.datasets
            for features in dataset.cameras.values()
            for feature in features
            if feature.kind == "image"
        ]
        return max((prod(size or 0 for size in shape) for shape in pictures), default=0)

    def _request_bytes(self) -> int:
        if not any(one.remote for one in self.datasets):
            return 0
        from autoloader.remote.requests import IN_FLIGHT_BYTES

        return IN_FLIGHT_BYTES

    def _block_bytes(self) -> int:
        """Two windows of each dataset: the one in use, and the one that is read meanwhile.

        At least what the runs that are read ahead show, where windows are small.
        """
        near = self.spec.mixing.locality
        if near is None:
            return 0
        window = (near.window + 1) * near.block
        wholes = [one.record_bytes * one.records for one in self.datasets]
        pairs = sum(2 * min(window, whole + near.block) for whole in wholes)
        return max(LEAST_BLOCK_BYTES, int(BLOCK_SLACK * pairs))
