"""Activity of a batch builder: the counts that its process sends, and the sum over builders.

Not here: the whole pipeline's (``pipeline.pipeline``), who judges them (``controller``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from autoloader.telemetry.statistics import DatasetStatistics


@dataclass(frozen=True, slots=True)
class BuilderActivity:
    """Activity of a batch builder so far.

    Attributes:
        datasets: [D] activity of each dataset.
        from_disk: number of frames that were read from a disk, already decoded.
        run_bytes, read_bytes, reading_s, gather_s, gathered: see ``Statistics``.
    """

    datasets: Sequence[DatasetStatistics]
    from_disk: int = 0
    run_bytes: int = 0
    read_bytes: int = 0
    reading_s: float = 0.0
    gather_s: float = 0.0
    gathered: int = 0

    @classmethod
    def none(cls, datasets: int) -> BuilderActivity:
        """Activity of a builder that has not begun."""
        return cls([DatasetStatistics()] * datasets)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> BuilderActivity:
        """The activity that ``dataclasses.asdict`` gave these values of."""
        datasets = [DatasetStatistics(**one) for one in plain["datasets"]]
        return cls(**{**plain, "datasets": datasets})

    def plus(self, other: BuilderActivity | None) -> BuilderActivity:
        """Sum of both; ``None``: there is no other."""
        if other is None:
            return self
        datasets = [_both(a, b) for a, b in zip(self.datasets, other.datasets, strict=True)]
        return _sum(self, other, datasets=datasets, run_bytes=max(self.run_bytes, other.run_bytes))

    def over(self) -> BuilderActivity:
        """Activity of a builder that has ended: no sample waits in it any more."""
        ended = [replace(own, queue=0, queue_bytes=0, awaits="") for own in self.datasets]
        return replace(self, datasets=ended)


def _both(one: DatasetStatistics, other: DatasetStatistics) -> DatasetStatistics:
    """Sum of the activities of two batch builders for the same dataset."""
    most = max(one.generations, other.generations)
    awaits = one.awaits or other.awaits
    return _sum(one, other, generations=most, awaits=awaits, share=None, non_finite=None)


_Activity = TypeVar("_Activity", DatasetStatistics, BuilderActivity)


def _sum(one: _Activity, other: _Activity, **known: Any) -> _Activity:
    """Sum of every field that is not known."""
    names = one.__dataclass_fields__.keys() - known.keys()
    return type(one)(**known, **{name: getattr(one, name) + getattr(other, name) for name in names})
