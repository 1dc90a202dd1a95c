"""GPUs: whether NVML answers, memory errors, and memory that others hold.

Not here: load while a run goes on (``probes.gpu``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from autoloader.doctor.findings import Fact, Finding, Machine, Seen
from autoloader.units import GIB, format_bytes

_LIBRARY_MISSING = ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded", "ImportError")
"""What a machine without an NVIDIA driver says."""


def gpus(machine: Machine) -> Iterator[Seen]:
    """Each device's health, and who holds its memory."""
    try:
        nvml = _module(machine)
        nvml.nvmlInit()
    except Exception as error:  # noqa: BLE001  (drivers fail in many ways)
        yield _no_answer(error)
        return
    try:
        for number in range(nvml.nvmlDeviceGetCount()):
            yield from _device(machine, nvml, number)
    except Exception as error:  # noqa: BLE001  (drivers fail in many ways)
        yield _no_answer(error)
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def _module(machine: Machine) -> Any:
    if machine.nvml is not None:
        return machine.nvml
    import pynvml

    return pynvml


def _no_answer(error: Exception) -> Seen:
    kind = type(error).__name__
    if kind in _LIBRARY_MISSING:
        return Fact("gpu", "no NVIDIA driver here")
    return Finding(
        "gpu",
        "warning",
        f"NVML does not answer ({kind}: {error}): the controller cannot see whether the GPU waits",
        "run nvidia-smi; after a driver update the machine must be started anew",
    )


def _device(machine: Machine, nvml: Any, number: int) -> Iterator[Seen]:
    device = nvml.nvmlDeviceGetHandleByIndex(number)
    name = nvml.nvmlDeviceGetName(device)
    called = f"GPU {number} ({name.decode() if isinstance(name, bytes) else name})"
    memory = nvml.nvmlDeviceGetMemoryInfo(device)
    yield Fact(
        "gpu", f"{called}: {format_bytes(memory.used)} of {format_bytes(memory.total)} in use"
    )
    errors = _uncorrected(nvml, device)
    if errors:
        yield Finding(
            "gpu",
            "error",
            f"{called} counts {errors} memory errors that could not be corrected",
            "take another GPU, and have this one reset or replaced",
        )
    held = 0
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(device):
        taken = process.usedGpuMemory or 0
        held += taken
        if not (machine.proc / str(process.pid)).exists():
            yield Finding(
                "gpu",
                "warning",
                f"{called}: {format_bytes(taken)} are held by pid {process.pid}, which cannot be "
                "seen from here: it has ended, or runs in another container",
                f"fuser -v /dev/nvidia{number} on the host names who keeps the device open",
            )
        else:
            yield Fact("gpu", f"{called}: {format_bytes(taken)} are held by pid {process.pid}")
    if memory.used - held > memory.total // 10 + GIB:
        yield Finding(
            "gpu",
            "warning",
            f"{called}: {format_bytes(memory.used - held)} are in use and no process is named",
            f"fuser -v /dev/nvidia{number} on the host names who keeps the device open",
        )


def _uncorrected(nvml: Any, device: Any) -> int:
    """Memory errors since the driver was loaded that ECC could not correct; 0 without ECC."""
    try:
        return int(
            nvml.nvmlDeviceGetTotalEccErrors(
                device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        )
    except Exception:  # noqa: BLE001  (not every device has ECC)
        return 0
