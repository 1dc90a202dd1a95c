"""Where the snapshots of a pipeline go: to those who look now, into the record, to metrics.

Not here: what a snapshot says (``telemetry.snapshot``), taking it (``actuation.moments``).
"""

from __future__ import annotations

import hashlib
import json
import platform
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from autoloader.decode.quarantine import BadRecord
from autoloader.host.machine import memory_bytes
from autoloader.host.processors import usable_processors
from autoloader.process.setup import PipelineSetup
from autoloader.telemetry.run_log import RunLog, end_logs
from autoloader.telemetry.runtime import RunFile, forget_all
from autoloader.telemetry.snapshot import Snapshot
from autoloader.units import format_bytes


class Sink(Protocol):
    """Where snapshots go. Called from the policy's thread: it must not wait, and not raise."""

    def write(self, moment: Snapshot) -> None:
        """One more."""
        ...

    def close(self) -> None:
        """There are no more."""
        ...


def open_sinks(
    setup: PipelineSetup, number: int, quarantined: Callable[[], Sequence[BadRecord]]
) -> tuple[Sink, ...]:
    """Where the snapshots of a pipeline go.

    Args:
        setup: what it is opened with.
        number: which pipeline of its trainer.
        quarantined: gives its bad records.
    """
    request = setup.control
    found: list[Sink] = [RunFile(request.run, number)]
    if request.record:
        found.append(
            RunLog(
                Path(request.record) / f"{setup.mixture.split}-{number}.jsonl",
                facts=lambda: facts_of(setup),
                bad=lambda: [asdict(one) for one in quarantined()],
                in_ring=request.record_in_ring,
            )
        )
    if request.metrics_port or request.metrics_file:
        from autoloader.telemetry.exporter import Exporter

        port, file = request.metrics_port, request.metrics_file
        found.append(Exporter(request.run, number, port=port, file=file))
    return tuple(found)


def end_all() -> None:
    """Nothing more is said of any pipeline of this process, which ends without closing them."""
    forget_all()
    end_logs()
    if exporter := sys.modules.get("autoloader.telemetry.exporter"):
        exporter.end_exports()


def facts_of(setup: PipelineSetup) -> dict[str, Any]:
    """What the record says of the start; plain values."""
    spec = setup.mixture.spec
    written = json.dumps(spec.model_dump(mode="json"), sort_keys=True)
    memory = format_bytes(memory_bytes())
    return {
        "autoloader": sys.modules["autoloader"].__version__,  # the front door is above this
        "python": platform.python_version(),
        "host": f"{socket.gethostname()}: {usable_processors()} processors, {memory}",
        "reader": setup.knobs.reader,
        "batch_size": spec.batch.size,
        "batch_bytes": setup.mixture.sizes.batch_bytes,
        "cameras": {name: list(camera.size) for name, camera in spec.cameras.items()},
        "spec_digest": hashlib.sha256(written.encode()).hexdigest()[:16],
        **setup.control.facts,
    }
