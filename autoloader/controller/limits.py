"""What the controller may never overstep, and the times it keeps; fixed while a pipeline runs.

Not here: what is done within them (``policy``, ``reflex``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from autoloader.controller.admission import MARGIN_BYTES
from autoloader.spec.knobs import UNUSED_KNOBS, KnobLimits, Knobs

logger = logging.getLogger(__name__)

ORDER_KNOBS = ("cycle_length", "shuffle_samples")

WEIGHTLESS_KNOBS = ("decode_threads", "io_threads", "min_ready_datasets")
"""Knobs that hold next to no memory: taking them would slow training and free nothing."""


@dataclass(frozen=True, slots=True)
class ControllerLimits:
    """Limits of one pipeline.

    Attributes:
        ram_floor_bytes: what must stay free.
        knobs: what the pipeline's knobs are held against.
        minimum: the smallest knobs it runs with; emergency goes there.
        order_fixed: order knobs stay as they are, because the order was promised.
        budget_ratio: this pipeline's share of what is above the floor and the margin.
        margin_bytes: least distance to the floor at which memory is still admitted.
        oldest_s: readings older than this are unknown.
        hold_off_s: a knob that moved rests for so long before it may grow again.
        calm_s: pressure must have been gone for so long before anything grows; doubled for each
            time that it came back soon.
        retry_s: what did not pay is not tried again for so long; doubled each time.
        silence_s: a consumer that neither takes nor wants a batch for so long is silent.
        pressure_percent: PSI ``memory some avg10`` that counts as pressure.
        gpu_busy_ratio: load from which on the GPU is the bottleneck.
        most_cache_bytes: what decoded frames grow to; ``None``: what the floor leaves.
    """

    ram_floor_bytes: int
    knobs: KnobLimits
    minimum: Knobs
    order_fixed: bool = False
    budget_ratio: float = 1.0
    margin_bytes: int = MARGIN_BYTES
    oldest_s: float = 3.0
    hold_off_s: float = 15.0
    calm_s: float = 10.0
    retry_s: float = 60.0
    silence_s: float = 5.0
    pressure_percent: float = 20.0
    gpu_busy_ratio: float = 0.95
    most_cache_bytes: int | None = None

    def least(self, knobs: Knobs) -> Knobs:
        """The knobs that hold the least memory, of those that are nowhere above ``knobs``.

        Threads stay; so do order knobs where the order was promised.
        """

        def to(key: str, value: int) -> int:
            return min(value, int(getattr(self.minimum, key.rpartition(".")[2])))

        return lowered(knobs, to, keep=ORDER_KNOBS if self.order_fixed else ())

    def smaller(self, knobs: Knobs) -> Knobs:
        """Knobs for after the kernel killed the child for memory: half the ring, least streams."""
        halved = ("ring_slots", "decode_threads", "queue_samples")
        values = {
            name: max(getattr(self.minimum, name), getattr(knobs, name) // 2) for name in halved
        }
        smaller = Knobs.build({**values, "reader": knobs.reader}, base=self.minimum)
        logger.warning("knobs after an out-of-memory kill: %s", smaller.changed(knobs))
        return smaller


def lowered(knobs: Knobs, to: Callable[[str, int], int], *, keep: tuple[str, ...]) -> Knobs:
    """The knobs, each that holds memory at ``to(flat name, value)``.

    Threads stay, and so do knobs that the reader does not heed, and those in ``keep``.
    """
    values = knobs.flat()
    stay = (*UNUSED_KNOBS[knobs.reader], *WEIGHTLESS_KNOBS, *keep)
    for key, value in values.items():
        if isinstance(value, int) and key.rpartition(".")[2] not in stay:
            values[key] = to(key, value)
    for key in values:
        dataset, _, knob = key.rpartition(".")
        if knob == "num_parallel_calls" and knobs.reader != "indexed":
            cycle = values.get(f"{dataset}.cycle_length" if dataset else "cycle_length")
            values[key] = min(values[key], values["cycle_length"] if cycle is None else cycle)
    return Knobs.build(values)
