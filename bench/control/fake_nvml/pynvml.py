"""NVML as ``BENCH_FAKE_NVML`` tells it: one device, its load from a file, "dead" when NVML dies.

Put first on a loader's import path by the bench, where the real module would be found otherwise.
Only what the loader's probe asks; the device has no GPM, and nobody else runs on it.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """What NVML raises."""


def _told() -> str:
    text = Path(os.environ["BENCH_FAKE_NVML"]).read_text().strip()
    if text == "dead":
        raise NVMLError("Driver Not Loaded")
    return text


def nvmlInit() -> None:
    _told()


def nvmlShutdown() -> None:
    """Nothing to end."""


def nvmlDeviceGetCount() -> int:
    _told()
    return 1


def nvmlDeviceGetHandleByIndex(number: int) -> Any:
    _told()
    return number


def nvmlDeviceGetComputeRunningProcesses(_device: Any) -> list[Any]:
    _told()
    return []


def nvmlDeviceGetMemoryInfo(_device: Any) -> Any:
    _told()
    return SimpleNamespace(used=8 * 2**30, total=24 * 2**30, free=16 * 2**30)


def nvmlDeviceGetUtilizationRates(_device: Any) -> Any:
    return SimpleNamespace(gpu=round(100 * float(_told())), memory=50)


def nvmlGpmQueryDeviceSupport(_device: Any) -> Any:
    _told()
    return SimpleNamespace(isSupportedDevice=0)
