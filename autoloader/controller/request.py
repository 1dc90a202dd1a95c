"""What a trainer asks of the controller that governs its pipeline, and what it lends it.

Not here: governing (``autoloader.process.control``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from autoloader.cache.disk import DiskRoom
from autoloader.controller.limits import ControllerLimits

DECISIONS_VARIABLE = "AUTOLOADER_DECISIONS"
"""Environment variable: the decision log's file, or a directory for one a run; unset: none."""
RUN_DIR_VARIABLE = "AUTOLOADER_RUN_DIR"
"""Environment variable: the folder that runs leave their records in, with their decision logs;
"off": no record; unset: a small ring of records in the cache directory."""
METRICS_PORT_VARIABLE = "AUTOLOADER_METRICS_PORT"
"""Environment variable: the port of 127.0.0.1 that shows metrics; unset: none."""
METRICS_FILE_VARIABLE = "AUTOLOADER_METRICS_FILE"
"""Environment variable: the file with metrics, or a directory for one a run; unset: none."""


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """Crosses to the child as plain values.

    Attributes:
        limits: what may not be overstepped.
        moves: whether there is a controller at all: policy and reflex.
        decisions: the decision log's file; "": none.
        run: the trainer in that log.
        visible_devices: the trainer's ``CUDA_VISIBLE_DEVICES``; ``None``: not set.
        trainer: process id of the trainer.
        node: the same for all ranks that share the machine and the job; "": it is alone.
        script: what the trainer runs, for people.
        frames_on_disk: where decoded frames may lie on a disk; ``None``: nowhere.
        helpers: address of the cluster whose hosts help; "": none do.
        record: folder of this run's record; "": none is kept.
        record_in_ring: whether that folder is one of the cache directory's ring.
        facts: what the record says of the start; plain values.
        metrics_port: of 127.0.0.1, where metrics are shown; 0: nowhere.
        metrics_file: where they are written; "": nowhere.
        disk_floor_bytes: what must stay free on the disk of the cache of shards; ``None``: as the
            environment says.
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

    def plain(self) -> dict[str, Any]:
        """Plain values."""
        found: dict[str, Any] = _REQUEST.dump_python(self, mode="json")
        return found

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> ControlRequest:
        """From ``plain``."""
        return _REQUEST.validate_python(plain)


_REQUEST = TypeAdapter(ControlRequest)
