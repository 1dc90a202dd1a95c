"""Activity of a running pipeline, as snapshots.

Not here: who collects them (``pipeline.pipeline``), who judges them (``controller``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypeVar

from autoloader.host.records import dataclass
from autoloader.telemetry.statistics import CacheStatistics, DatasetStatistics, HelperStatistics


@dataclass(slots=True)
class DatasetActivity:
    """Activity of one dataset; its source and its builder fill it in, and nobody changes it later.

    Attributes:
        queue: number of encoded samples that wait.
        queue_bytes: encoded bytes of these samples.
        taken: number of samples mixed so far.
        stalls: number of times that the mixture waited 5 s for the dataset.
        quarantined: number of bad records.
        generations: number of times that its stream was opened.
        decode_s: seconds that threads decoded its frames.
        decoded: number of samples decoded.
        frames: number of frames decoded for these; a frame that several samples share counts once.
        read_s: seconds that its reader waited for the source.
        episodes: number of episodes read.
        interruptions: number of times that its remote source broke off and was opened again.
        awaits: wait of its reader, where no sample is there: "opening shard 3/1024".
    """

    queue: int = 0
    queue_bytes: int = 0
    taken: int = 0
    stalls: int = 0
    quarantined: int = 0
    generations: int = 0
    decode_s: float = 0.0
    decoded: int = 0
    frames: int = 0
    read_s: float = 0.0
    episodes: int = 0
    interruptions: int = 0
    awaits: str = ""

    def told(self, weight: float, share: float | None, **own: int) -> DatasetStatistics:
        """Statistics of the dataset; ``own`` has the fields that this activity lacks."""
        names = DatasetStatistics.__dataclass_fields__.keys() & self.__dataclass_fields__.keys()
        return DatasetStatistics(weight, share, **{n: getattr(self, n) for n in names}, **own)

    def plus(self, other: DatasetActivity) -> DatasetActivity:
        """Sum of the activities of two batch builders for the same dataset."""
        most = max(self.generations, other.generations)
        return _sum(self, other, generations=most, awaits=self.awaits or other.awaits)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """Reading of planned runs, and copies from the frame cache.

    Attributes:
        run_bytes: bytes of the memory that the last planned run was read into; 0: there is none.
        read_bytes: bytes read for planned runs.
        reading_s: seconds that reading these bytes took.
        gather_s: seconds of copying samples whose frames were cached.
        gathered: number of such samples.
    """

    run_bytes: int = 0
    read_bytes: int = 0
    reading_s: float = 0.0
    gather_s: float = 0.0
    gathered: int = 0


@dataclass(frozen=True, slots=True)
class BuilderActivity(_Runs):
    """Activity of a batch builder so far; see ``_Runs`` for more.

    Attributes:
        datasets: [D] activity of each dataset.
        from_disk: number of frames that were read from a disk, already decoded.
    """

    datasets: Sequence[DatasetActivity]
    from_disk: int = 0

    @classmethod
    def none(cls, datasets: int) -> BuilderActivity:
        """Activity of a builder that has not begun."""
        return cls([DatasetActivity()] * datasets)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> BuilderActivity:
        """From ``dataclasses.asdict``."""
        datasets = [DatasetActivity(**one) for one in plain["datasets"]]
        return cls(**{**plain, "datasets": datasets})

    def plus(self, other: BuilderActivity | None) -> BuilderActivity:
        """Sum of both; ``None``: there is no other."""
        if other is None:
            return self
        datasets = [a.plus(b) for a, b in zip(self.datasets, other.datasets, strict=True)]
        return _sum(self, other, datasets=datasets, run_bytes=max(self.run_bytes, other.run_bytes))

    def over(self) -> BuilderActivity:
        """Activity of a builder that has ended: no sample waits in it any more."""
        ended = [replace(own, queue=0, queue_bytes=0, awaits="") for own in self.datasets]
        return replace(self, datasets=ended)


@dataclass(frozen=True, slots=True)
class PipelineActivity(_Runs):
    """Snapshot of a pipeline; see ``_Runs`` for more.

    Attributes:
        datasets: activity of each dataset, by name.
        ring_slots: number of slots in use.
        ring_out: number of slots that are not free.
        ring_filled: number of slots that are filled and not taken.
        processes: ids of the decode processes; empty without them.
        cache: statistics of the frame cache.
        call_s: seconds that ``batch.call`` took so far.
        calls: number of batches that it was called for.
        helpers: statistics of helpers on other hosts.
        ring_stuck: number of slots that threads of an earlier pipeline still write to.
    """

    datasets: Mapping[str, DatasetActivity]
    ring_slots: int
    ring_out: int
    ring_filled: int
    processes: Sequence[int] = ()
    cache: CacheStatistics = field(default_factory=CacheStatistics)
    call_s: float = 0.0
    calls: int = 0
    helpers: HelperStatistics = field(default_factory=HelperStatistics)
    ring_stuck: int = 0

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> PipelineActivity:
        """From ``dataclasses.asdict``."""
        datasets = {name: DatasetActivity(**own) for name, own in plain["datasets"].items()}
        cache = CacheStatistics(**plain["cache"])
        helpers = HelperStatistics(**plain["helpers"])
        return cls(**{**plain, "datasets": datasets, "cache": cache, "helpers": helpers})

    @property
    def decodes_per_sample(self) -> float | None:
        """Mean number of frames decoded for a sample, over the samples filled so far."""
        decoded = self.gathered + sum(own.decoded for own in self.datasets.values())
        return sum(own.frames for own in self.datasets.values()) / decoded if decoded else None


_Activity = TypeVar("_Activity", DatasetActivity, BuilderActivity)


def _sum(one: _Activity, other: _Activity, **known: Any) -> _Activity:
    """Sum of every field that is not known."""
    names = one.__dataclass_fields__.keys() - known.keys()
    return type(one)(**known, **{name: getattr(one, name) + getattr(other, name) for name in names})
