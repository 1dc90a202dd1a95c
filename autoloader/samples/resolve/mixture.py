"""A spec for one split, ready to be read, and what the memory of reading it hangs on.

Not here: how it comes about (``split``, ``normalise``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autoloader.samples.layout import BatchLayout
from autoloader.samples.resolve.dataset import ResolvedDataset
from autoloader.samples.statistics import NormalizationStatistics
from autoloader.spec import PipelineSpec
from autoloader.units import MIB

REMOTE_BUFFER_BYTES = 16 * MIB
"""What TensorFlow's remote files read at once (``graph.tensorflow``)."""


@dataclass(frozen=True, slots=True)
class MixtureSizes:
    """What the memory of a mixture's pipeline hangs on beside its knobs.

    Attributes:
        record_bytes: mean bytes of a record (an episode), by dataset.
        batch_bytes: bytes of one ring slot.
        buffer_bytes: what each open file holds beside, by dataset; absent is nothing.
    """

    record_bytes: dict[str, int]
    batch_bytes: int
    buffer_bytes: Mapping[str, int] = field(default_factory=dict)


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
        )
