"""The loader's statistics: immutable, each with its unit and what to do about it.

"Not measured" is ``None``, never 0.

Not here: collecting them (``loader``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DatasetStatistics:
    """One dataset.

    Attributes:
        weight: its share by the spec, of 1.
        share: its share of the samples so far; ``None`` before any.
        samples: of it so far: delivered by the loader, or mixed in its child.
        queue: encoded samples waiting; at 0 for long, its stream is too slow (raise
            ``cycle_length`` or ``stream_prefetch`` for it).
        stalls: times the mixture waited 5 s for it; look at its storage.
        quarantined: its bad records; ``loader.quarantined()`` names them.
        generations: times its stream was opened since the pipeline began: one, and one more with
            each change of a stream knob.
        non_finite: its samples whose action or state held NaN or an infinite value, since the
            loader was made; any: look at its records, and set ``errors.non_finite``. ``None``: the
            loader's child does not know.
        interruptions: times its remote files did not answer and it went on where it stopped; many
            of them: look at the network.
        decode_s, decoded: seconds that decode threads worked on its samples, and such samples,
            since the pipeline began. One that is dear among others: store smaller frames.
    """

    weight: float
    share: float | None = None
    samples: int = 0
    queue: int = 0
    stalls: int = 0
    quarantined: int = 0
    generations: int = 0
    interruptions: int = 0
    decode_s: float = 0.0
    decoded: int = 0
    non_finite: int | None = None


@dataclass(frozen=True, slots=True)
class RingStatistics:
    """The batch ring.

    Attributes:
        slots: batches it can hold.
        filled: batches ready for the consumer.
        allocated_bytes: pages the kernel holds for it.
        copies: batches handed out as copies because the consumer keeps too many; ``None``: the
            loader's child does not know.
        stuck: slots out of use, beside the others, because a thread that was told to end still
            writes to them (``isolation="thread"``; a child is started anew instead). Any for long:
            a picture takes long to decode, or the file system does not answer.
    """

    slots: int = 0
    filled: int = 0
    allocated_bytes: int = 0
    copies: int | None = None
    stuck: int = 0

    @property
    def occupancy_ratio(self) -> float:
        """Ready batches / slots; near 1 the consumer is the bottleneck, near 0 the loader."""
        return self.filled / self.slots if self.slots else 0.0


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Decoded frames held in memory (indexed reader); of all ranks that share a child.

    Attributes:
        budget_bytes: what it may hold (``cache_bytes``).
        held_bytes, slots: what it holds, and how many frames that is.
        private_bytes: what frames of all its loaders take of the child's own memory; what decode
            processes share is not in it.
        hits, misses: frames shown from it, and frames that were decoded instead.
        hit_ratio: hits of both; ``None`` before any. Where it is low and memory is free, raise
            ``cache_bytes``.
        threshold: what a frame may burden to be held: positions until it is shown again × bytes ÷
            seconds that a hit saves; ``None`` while all that is shown again is held.
        from_disk: frames of this loader that were read from a disk, already decoded (the profile's
            ``cache``); they are among the misses.
        stuck: frames out of use until a thread that was told to end has ended, see
            ``RingStatistics.stuck``.
    """

    budget_bytes: int
    held_bytes: int
    slots: int
    hits: int
    misses: int
    hit_ratio: float | None
    threshold: float | None
    from_disk: int = 0
    private_bytes: int = 0
    stuck: int = 0


@dataclass(frozen=True, slots=True)
class HelperStatistics:
    """Builders on other hosts (``helpers``), since this loader last began in its child.

    Attributes:
        present: helpers that work now; those that are on their way do not count.
        possible: for how many the cluster has processors; 0: not known.
        batches: that they have filled.
        compared, different: batches that were filled here as well, and that differed. Any: a host
            reads other data or runs other code; the log names it.
        late: batches that were filled here because an answer did not come in time. Many: the link
            or a host is overloaded; use fewer ``helper_slots``.
        again: these, and those whose helper was lost.
    """

    present: int = 0
    possible: int = 0
    batches: int = 0
    compared: int = 0
    different: int = 0
    late: int = 0
    again: int = 0


@dataclass(frozen=True, slots=True)
class ControllerStatistics:
    """What the controller did since this loader last began in its child.

    Attributes:
        decisions: about one a second.
        changes: of knobs, by the policy; many without end: replay the decision log.
        taken_back: changes that did not pay.
        refused: changes for which there was no room any more when they were to be applied.
        drops: rounds in which the reflex dropped buffers; any: the RAM floor was crossed, by this
            loader or by a neighbour.
        shrinks: times that knobs were made smaller because memory was short, by the reflex or the
            policy; each is told in the log. Many: lower the floor, or what else takes memory.
    """

    decisions: int = 0
    changes: int = 0
    taken_back: int = 0
    refused: int = 0
    drops: int = 0
    shrinks: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of a loader.

    Attributes:
        samples, batches: delivered since it was made.
        samples_per_s: over the last batches (up to 256).
        wait_ratio: share of the consumer's time spent waiting for batches, over the same batches;
            above 0.01 training waits for data.
        batch_latency_s: p50, p90, p99 of the time from asking for a batch to having it.
        headroom_bytes: what the machine can still give.
        loader_bytes: what the loader holds, without the ring; ranks that share a child each say
            what it holds for all.
        decodes_per_sample: frames decoded for a sample, all cameras, over the samples so far;
            ``mixing.chain`` and ``cache_bytes`` lower it. ``None`` before there were any.
        batch_call_s: mean seconds of the spec's ``batch.call`` for a batch; they pass one after the
            other, so where they come near the time of a training step, make it cheaper. ``None``
            without one.
        ring: the batch ring.
        cache: decoded frames held in memory.
        helpers: builders on other hosts; ``None`` where there are none (``helper_slots`` is 0, and
            none has helped).
        datasets: by name.
        knobs: the values in force.
        state: the controller's state.
        controller: what it did; ``None`` without one.
        repeats: batches that were handed out again (``replay_one_batch``).
        starts: times the pipeline began: one, and one more each time it was sent elsewhere
            (``load_state_dict``, a validation that begins anew); parking adds none.
        restarts: times the child was started again.
        worker_pids: the children.
    """

    samples: int
    batches: int
    samples_per_s: float | None
    wait_ratio: float | None
    batch_latency_s: Mapping[str, float] | None
    headroom_bytes: int | None
    loader_bytes: int | None
    decodes_per_sample: float | None
    batch_call_s: float | None
    ring: RingStatistics
    cache: CacheStatistics
    helpers: HelperStatistics | None
    datasets: Mapping[str, DatasetStatistics]
    knobs: Mapping[str, Any]
    state: str | None
    controller: ControllerStatistics | None
    repeats: int
    starts: int
    restarts: int
    worker_pids: tuple[int, ...]

    @property
    def control(self) -> ControllerStatistics | None:
        """``controller``, as a snapshot calls it."""
        return self.controller

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        plain = asdict(self)
        plain["ring"]["occupancy_ratio"] = self.ring.occupancy_ratio
        return plain
