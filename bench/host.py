"""What a result was measured on: the machine, the versions, and what else was running.

Not here: the results (``bench.report``).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import Any

from autoloader.host.machine import VERSIONS, cpu_model, memory_bytes, usable_processors
from bench.peers import ENVIRONMENT

PACKAGES = (*VERSIONS, "tensorflow-datasets")

PEERS_PACKAGES = ("array_record", "datasets", "grain", "pyarrow")
"""Where peers have an environment of their own, the versions are those they find there."""


def fingerprint() -> dict[str, Any]:
    """The machine and the versions, as plain values."""
    versions = {name: _version(name, None) for name in PACKAGES}
    own = [str(place) for place in ENVIRONMENT.glob("lib/python*/site-packages")]
    versions |= {name: _version(name, own) for name in PEERS_PACKAGES}
    return {
        "processor": cpu_model(),
        "cpus": usable_processors(),
        "memory_kib": str(memory_bytes() // 1024),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _version(name: str, places: list[str] | None) -> str:
    """A package's version in ``places``, else here."""
    found = next(iter(importlib.metadata.distributions(name=name, path=places or [])), None)
    try:
        return found.version if found else importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def load() -> dict[str, Any]:
    """Load averages and processor seconds spent by anybody so far."""
    one, five, fifteen = os.getloadavg()
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    ticks = [int(field) for field in fields]
    busy = sum(ticks) - ticks[3] - ticks[4]
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "load_average": [one, five, fifteen],
        "busy_cpu_s": busy / os.sysconf("SC_CLK_TCK"),
        "monotonic_s": time.monotonic(),
    }
