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

from autoloader.processors import usable_processors

PACKAGES = (
    "autoloader-rlds",
    "numpy",
    "opencv-python-headless",
    "simplejpeg",
    "tensorflow",
    "tensorflow-datasets",
    "torch",
)


def fingerprint() -> dict[str, Any]:
    """The machine and the versions, as plain values."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "processor": _after("/proc/cpuinfo", "model name"),
        "cpus": usable_processors(),
        "memory_kib": _after("/proc/meminfo", "MemTotal").split()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions,
    }


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


def _after(path: str, key: str) -> str:
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(key):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return "unknown"
