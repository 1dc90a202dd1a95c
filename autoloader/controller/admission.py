"""What knobs cost in memory, and whether a machine can give it: pure.

Not here: reading memory (``headroom``), choosing knobs (the policy).
"""

from __future__ import annotations

from dataclasses import dataclass

from autoloader.errors import BudgetInfeasibleError
from autoloader.knobs import Knobs
from autoloader.units import MIB, format_bytes

INTERPRETER_BYTES = 110 * MIB
"""A child that reads by index: Python, NumPy, OpenCV (measured: 100–110 MiB)."""
DECODE_PROCESS_BYTES = 70 * MIB
"""A decode process: Python, NumPy, OpenCV, less what it shares with its siblings."""
SAMPLE_BYTES = 32 * 1024
"""What a further waiting sample adds: about one encoded frame, since frames are held once."""
RUN_BYTES = 256 * 64 * 1024
"""One run of planned samples read ahead: 256 samples of about 64 kB of encoded frames."""
TENSORFLOW_BYTES = 520 * MIB
"""TensorFlow's own resident memory once imported (measured: 450–560 MiB)."""
STREAM_BYTES = 12 * MIB
"""One open stream at cycle_length 1, without the episodes in it (measured over 29 streams)."""
CYCLE_BYTES = 5 * MIB
"""Each further unit of cycle_length: threads, read buffers, a record in flight."""
MARGIN_BYTES = 256 * MIB
"""Least distance to the floor at which memory is still admitted (design: "Reflex")."""


@dataclass(frozen=True, slots=True)
class StartPrice:
    """Predicted bytes of a pipeline, by part.

    Attributes:
        framework_bytes: the interpreter and its libraries, TensorFlow where it is needed.
        streams_bytes: open streams, before the episodes they hold.
        queued_bytes: encoded episodes in queues, prefetch and parse; or runs read ahead.
        ring_bytes: the batch ring, when every slot is in use.
    """

    framework_bytes: int
    streams_bytes: int
    queued_bytes: int
    ring_bytes: int

    @property
    def total_bytes(self) -> int:
        """The whole."""
        return self.framework_bytes + self.streams_bytes + self.queued_bytes + self.ring_bytes


def price_start(
    knobs: Knobs, *, record_bytes: dict[str, int], batch_bytes: int, with_tensorflow: bool
) -> StartPrice:
    """Predict what a pipeline holds with these knobs.

    Args:
        knobs: the knobs.
        record_bytes: mean bytes of a record (an episode), by dataset.
        batch_bytes: bytes of one ring slot.
        with_tensorflow: whether any dataset is read through tf.data.
    """
    streams = queued = 0
    for name, record in record_bytes.items() if with_tensorflow else ():
        own = knobs.for_dataset(name)
        streams += STREAM_BYTES + CYCLE_BYTES * (own.cycle_length - 1)
        held = 1 + own.stream_prefetch + own.parse_parallel_calls + own.cycle_length
        waiting = max(own.queue_samples, own.shuffle_samples) * SAMPLE_BYTES
        queued += record * held + max(0, waiting - record)
    framework = TENSORFLOW_BYTES
    if not with_tensorflow:
        queued = RUN_BYTES * (knobs.read_ahead + 1) * knobs.decode_processes
        framework = INTERPRETER_BYTES
        if knobs.decode_processes > 1:
            framework += DECODE_PROCESS_BYTES * knobs.decode_processes
    return StartPrice(
        framework_bytes=framework,
        streams_bytes=streams,
        queued_bytes=queued,
        ring_bytes=knobs.ring_slots * batch_bytes,
    )


def admit_start(price: StartPrice, *, headroom_bytes: int, ram_floor_bytes: int) -> int:
    """Bytes left above the floor after starting at ``price``, where ``price`` is of minimum knobs.

    Raises:
        BudgetInfeasibleError: even these would cross the floor; with the numbers.
    """
    left = headroom_bytes - ram_floor_bytes - price.total_bytes
    if left < 0:
        raise BudgetInfeasibleError(
            f"the smallest pipeline needs about {format_bytes(price.total_bytes)} "
            f"(libraries {format_bytes(price.framework_bytes)}, streams "
            f"{format_bytes(price.streams_bytes)}, encoded {format_bytes(price.queued_bytes)}, "
            f"ring {format_bytes(price.ring_bytes)}), but only "
            f"{format_bytes(headroom_bytes)} can be had and {format_bytes(ram_floor_bytes)} of it "
            "must stay free",
            remedy="lower ram_floor or batch.size, use smaller frames or fewer datasets, "
            "or free memory",
        )
    return left
