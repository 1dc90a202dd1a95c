"""GPUs: whether NVML answers, memory errors, and memory that others hold.

Not here: load while a run goes on (``host.probes.gpu``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoloader.cli.host_checks.findings import Fact, Finding, Machine, Seen
from autoloader.host.machine import gpu_name, nvml
from autoloader.host.units import GIB, format_bytes

_LIBRARY_MISSING = ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded", "ImportError")
"""What a machine without an NVIDIA driver says."""


def gpus(machine: Machine) -> Iterator[Seen]:
    """Each device's health, and who holds its memory."""
    try:
        with nvml(machine.nvml) as module:
            for number in range(module.nvmlDeviceGetCount()):
                yield from _device(machine, module, number)
    except Exception as error:  # noqa: BLE001  (drivers fail in many ways)
        yield _no_answer(error)


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


def _device(machine: Machine, module: Any, number: int) -> Iterator[Seen]:
    device = module.nvmlDeviceGetHandleByIndex(number)
    called = f"GPU {number} ({gpu_name(module, device)})"
    memory = module.nvmlDeviceGetMemoryInfo(device)
    yield Fact(
        "gpu", f"{called}: {format_bytes(memory.used)} of {format_bytes(memory.total)} in use"
    )
    errors = _uncorrected(module, device)
    if errors:
        yield Finding(
            "gpu",
            "error",
            f"{called} counts {errors} memory errors that could not be corrected",
            "take another GPU, and have this one reset or replaced",
        )
    held = 0
    for process in module.nvmlDeviceGetComputeRunningProcesses(device):
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


def _uncorrected(module: Any, device: Any) -> int:
    """Memory errors since the driver was loaded that ECC could not correct; 0 without ECC."""
    try:
        return int(
            module.nvmlDeviceGetTotalEccErrors(
                device, module.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, module.NVML_VOLATILE_ECC
            )
        )
    except Exception:  # noqa: BLE001  (not every device has ECC)
        return 0
