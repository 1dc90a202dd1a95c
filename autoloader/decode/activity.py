"""What a running pipeline is doing, as immutable snapshots.

Not here: who collects them (``pipeline.pipeline``), who judges them (``controller``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoloader.telemetry.statistics import CacheStatistics, DatasetStatistics, HelperStatistics


@dataclass(slots=True)
class DatasetActivity:
    """What one dataset is doing; who makes one may add what it knows, nobody after that.

    Attributes:
        queue: encoded samples waiting.
        queue_bytes: encoded bytes held by them.
        taken: samples mixed so far.
        stalls: times the mixture waited 5 s for it.
        quarantined: its bad records.
        generations: times its stream was opened.
        decode_s, decoded: seconds of decoding and samples decoded.
        frames: frames decoded for these; one that several samples share counts once.
        interruptions: times its (remote) source broke off and was opened again.
        read_s, episodes: seconds its reader waited for its source, and episodes read.
        awaits: what it waits for, where nothing of it is there: "opening shard 3/1024".
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
        """What people are told of it; ``own`` is what only the teller knows."""
        names = DatasetStatistics.__dataclass_fields__.keys() & self.__dataclass_fields__.keys()
        return DatasetStatistics(weight, share, **{n: getattr(self, n) for n in names}, **own)

    def plus(self, other: DatasetActivity) -> DatasetActivity:
        """What two batch builders have done for the same dataset."""
        summed = {
            name: getattr(self, name) + getattr(other, name)
            for name in self.__slots__
            if name not in ("generations", "awaits")
        }
        return DatasetActivity(
            generations=max(self.generations, other.generations),
            awaits=self.awaits or other.awaits,
            **summed,
        )


@dataclass(frozen=True, slots=True)
class BuilderActivity:
    """What a batch builder has done so far.

    Attributes:
        datasets: [D], of each dataset.
        run_bytes: bytes of the memory that its last planned run was read into; 0 where none was.
        read_bytes, reading_s: bytes read for planned runs, and seconds that this took.
        gather_s, gathered: seconds of copying samples whose frames were held, and such samples.
        from_disk: frames that were read from a disk, already decoded.
    """

    datasets: Sequence[DatasetActivity]
    run_bytes: int = 0
    read_bytes: int = 0
    reading_s: float = 0.0
    gather_s: float = 0.0
    gathered: int = 0
    from_disk: int = 0

    @classmethod
    def none(cls, datasets: int) -> BuilderActivity:
        """Nothing yet."""
        return cls([DatasetActivity()] * datasets)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> BuilderActivity:
        """From ``dataclasses.asdict``."""
        datasets = [DatasetActivity(**one) for one in plain["datasets"]]
        return cls(**{**plain, "datasets": datasets})

    def plus(self, other: BuilderActivity | None) -> BuilderActivity:
        """Both together; ``None``: there is no other."""
        if other is None:
            return self
        return BuilderActivity(
            [a.plus(b) for a, b in zip(self.datasets, other.datasets, strict=True)],
            max(self.run_bytes, other.run_bytes),
            self.read_bytes + other.read_bytes,
            self.reading_s + other.reading_s,
            self.gather_s + other.gather_s,
            self.gathered + other.gathered,
            self.from_disk + other.from_disk,
        )

    def over(self) -> BuilderActivity:
        """What it leaves behind when it has ended: nothing waits in it any more."""
        ended = [replace(own, queue=0, queue_bytes=0, awaits="") for own in self.datasets]
        return replace(self, datasets=ended)


@dataclass(frozen=True, slots=True)
class PipelineActivity:
    """A snapshot of a pipeline.

    Attributes:
        datasets: by name.
        ring_slots, ring_out, ring_filled: slots in use; not free; filled and not taken.
        ring_stuck: slots that threads of an earlier pipeline still write to.
        run_bytes: of a planned run as the last one was; 0 where none was read, or by stream.
        read_bytes, reading_s: bytes read for planned runs, and seconds that this took.
        gather_s, gathered: seconds of copying samples whose frames were held, and such samples.
        cache: what is held of decoded frames.
        processes: ids of the decode processes, where there are any.
        call_s, calls: seconds of ``batch.call``, and batches that it was called for.
        helpers: on other hosts.
    """

    datasets: Mapping[str, DatasetActivity]
    ring_slots: int
    ring_out: int
    ring_filled: int
    run_bytes: int = 0
    read_bytes: int = 0
    reading_s: float = 0.0
    processes: Sequence[int] = ()
    gather_s: float = 0.0
    gathered: int = 0
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
        """Frames decoded for a sample, over the samples filled so far."""
        decoded = self.gathered + sum(own.decoded for own in self.datasets.values())
        return sum(own.frames for own in self.datasets.values()) / decoded if decoded else None
