"""Limits and wishes of a trainer, which its controller keeps to; fixed while a pipeline runs.

``ControlRequest`` goes to the loader's child as plain values.

Not here: decisions within the limits (``policy``, ``reflex``), governing
(``process.control``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from autoloader.cache.disk import DiskRoom
from autoloader.host.frozen import frozen
from autoloader.host.units import MIB
from autoloader.spec.knobs import (
    LIGHT_KNOBS,
    ORDER_KNOBS,
    PIXEL_THREADS,
    THREADS_OF,
    UNUSED_KNOBS,
    KnobLimits,
    Knobs,
)

logger = logging.getLogger(__name__)

MARGIN_BYTES = 256 * MIB
"""Least distance to the floor at which memory is still admitted; see ``reflex``."""


@frozen
class ControllerLimits:
    """Limits of one pipeline.

    Attributes:
        ram_floor_bytes: bytes of memory that must stay free.
        knobs: limits of the pipeline's knobs.
        minimum: the smallest knobs it runs with; emergency goes there.
        order_fixed: order knobs stay as they are, because the order was promised.
        budget_ratio: this pipeline's share of what is above the floor and the margin.
        margin_bytes: least distance to the floor at which memory is still admitted.
        hold_off_s: a knob that moved rests for so long before it may grow again.
        calm_s: pressure must have been gone for so long before anything grows; doubled for each
            time that it came back soon.
        retry_s: seconds before a change that did not pay is tried again; doubled each time.
        silence_s: a consumer that neither takes nor wants a batch for so long is silent.
        pressure_percent: PSI ``memory some avg10`` that counts as pressure.
        gpu_busy_ratio: load from which on the GPU is the bottleneck.
        most_cache_bytes: most bytes of decoded frames; ``None``: all that the floor leaves.
    """

    ram_floor_bytes: int
    knobs: KnobLimits
    minimum: Knobs
    order_fixed: bool = False
    budget_ratio: float = 1.0
    margin_bytes: int = MARGIN_BYTES
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
        least = {name: getattr(self.minimum, name) for name in THREADS_OF.values()}
        values = least | {
            name: max(getattr(self.minimum, name), getattr(knobs, name) // 2)
            for name in ("ring_slots", "queue_samples", *PIXEL_THREADS.values())
        }
        smaller = Knobs.build(values, base=self.least(knobs))
        logger.warning("knobs after an out-of-memory kill: %s", smaller.changed(knobs))
        return smaller


def lowered(knobs: Knobs, to: Callable[[str, int], int], *, keep: tuple[str, ...]) -> Knobs:
    """The knobs, each that holds memory at ``to(flat name, value)``.

    Threads stay, and so do knobs that the reader does not heed, and those in ``keep``.
    """
    values = knobs.flat()
    stay = (*UNUSED_KNOBS[knobs.reader], *LIGHT_KNOBS, *keep)
    numbers = {key: value for key, value in values.items() if isinstance(value, int)}
    less = {k: to(k, v) for k, v in numbers.items() if k.rpartition(".")[2] not in stay}
    return knobs if less.items() <= values.items() else Knobs.build(values | less)


DECISIONS_VARIABLE = "AUTOLOADER_DECISIONS"
"""Environment variable: the decision log's file, or a directory for one a run; unset: none."""
RUN_DIR_VARIABLE = "AUTOLOADER_RUN_DIR"
"""Environment variable: the folder that runs leave their records in, with their decision logs;
"off": no record; unset: a small ring of records in the cache directory."""
METRICS_PORT_VARIABLE = "AUTOLOADER_METRICS_PORT"
"""Environment variable: the port of 127.0.0.1 that shows metrics; unset: none."""
METRICS_FILE_VARIABLE = "AUTOLOADER_METRICS_FILE"
"""Environment variable: the file with metrics, or a directory for one a run; unset: none."""


@frozen
class ControlRequest:
    """Crosses to the child as plain values (``spec.block.plain_of``).

    Attributes:
        limits: limits of the controller.
        moves: whether there is a controller at all: policy and reflex.
        decisions: the decision log's file; "": none.
        run: the trainer in that log.
        visible_devices: the trainer's ``CUDA_VISIBLE_DEVICES``; ``None``: not set.
        trainer: process id of the trainer.
        node: the same for all ranks that share the machine and the job; "": it is alone.
        script: name of the trainer's script, for people.
        frames_on_disk: room for decoded frames on a disk; ``None``: there is none.
        helpers: address of the cluster whose hosts help; "": none do.
        record: folder of this run's record; "": none is kept.
        record_in_ring: whether that folder is one of the cache directory's ring.
        facts: facts of the start for the run's record; plain values.
        metrics_port: port of 127.0.0.1 where metrics are shown; 0: nowhere.
        metrics_file: path of the file that metrics are written to; "": none.
        disk_floor_bytes: bytes that must stay free on the disk of the cache of shards; ``None``: as
            the environment says.
        run_bytes: see ``MixtureSizes``.
    """

    limits: ControllerLimits
    moves: bool
    decisions: str
    run: str
    visible_devices: str | None
    trainer: int
    node: str = ""
    script: str = ""
    frames_on_disk: DiskRoom | None = None
    helpers: str = ""
    record: str = ""
    record_in_ring: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    metrics_port: int = 0
    metrics_file: str = ""
    disk_floor_bytes: int | None = None
    run_bytes: int = 0
