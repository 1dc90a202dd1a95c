"""What a running pipeline is doing, as immutable snapshots.

Not here: who collects them (``runtime.pipeline``), who judges them (``controller``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DatasetActivity:
    """What one dataset is doing.

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
    """

    queue: int
    queue_bytes: int
    taken: int
    stalls: int
    quarantined: int
    generations: int
    decode_s: float
    decoded: int
    frames: int
    read_s: float
    episodes: int
    interruptions: int = 0


@dataclass(frozen=True, slots=True)
class PipelineActivity:
    """A snapshot of a pipeline.

    Attributes:
        datasets: by name.
        ring_slots, ring_out, ring_filled: slots in use; not free; filled and not taken.
        decode_waiting: samples waiting for a decode thread.
        mix_wait_s: time the mixer waited for samples.
        run_bytes: of a planned run as the last one was; 0 where none was read, or by stream.
        processes: ids of the decode processes, where there are any.
    """

    datasets: Mapping[str, DatasetActivity]
    ring_slots: int
    ring_out: int
    ring_filled: int
    decode_waiting: int
    mix_wait_s: float
    run_bytes: int = 0
    processes: Sequence[int] = ()

    @property
    def decodes_per_sample(self) -> float | None:
        """Frames decoded for a sample, over the samples decoded so far."""
        decoded = sum(own.decoded for own in self.datasets.values())
        return sum(own.frames for own in self.datasets.values()) / decoded if decoded else None
