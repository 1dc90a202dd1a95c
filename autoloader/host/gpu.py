"""Load of the trainer's GPUs, by NVML: a gate for the policy, never a target.

The devices are those of the trainer's ``CUDA_VISIBLE_DEVICES`` (indices, GPU or MIG UUIDs); of
several that it can see, those its process is found on, else all. Load is SM activity by GPM where
the device has it (Hopper and newer, MIG included), else utilisation, which only says that some
kernel ran. With several devices the least busy one counts. Load of a device on which another
process runs too says little about this run, and is marked shared.

NVML may be missing, fail to load, or die in the middle of a run: then ``read`` gives nothing, and
whoever asks asks again later (``clock.Watched``).

Not here: what it means (``policy``).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from autoloader.host.frozen import frozen

logger = logging.getLogger(__name__)

_SM_UTIL = 2
"""NVML_GPM_METRIC_SM_UTIL."""


@frozen
class GpuReading:
    """Load of the trainer's devices.

    Attributes:
        busy_ratio: load of the least busy device, of 1.
        shared: another process runs on one of them.
    """

    busy_ratio: float
    shared: bool


@dataclass(eq=False)
class GpuProbe:
    """Asks NVML.

    Attributes:
        visible: the trainer's ``CUDA_VISIBLE_DEVICES``; ``None`` where it is not set.
        trainer: the trainer's process id.
        nvml: the module; found by itself.
    """

    visible: str | None
    trainer: int
    nvml: ModuleType | Any | None = None
    _nvml: Any = None
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _samples: dict[int, Any] = field(default_factory=dict)

    def read(self) -> GpuReading | None:
        """The load now; ``None`` where nothing can be said."""
        if self.visible is not None and not self.visible.strip(", "):
            return None
        try:
            return self._read()
        except Exception as error:  # NVML trouble, whatever it is, never stops a run
            self._stop()
            raise ValueError(f"NVML: {type(error).__name__}: {error}") from error

    def _read(self) -> GpuReading | None:
        if self._nvml is None:
            self._nvml = self._open.enter_context(open_nvml(self.nvml))
        nvml = self._nvml
        devices = self._devices(nvml)
        users = [self._pids(nvml, device) for device in devices]
        chosen = [n for n, pids in enumerate(users) if self.trainer in pids] or range(len(devices))
        loads = []
        for n in chosen:
            load = self._load(nvml, n, devices[n])
            if load is not None:
                loads.append(load)
        if not loads:
            return None
        return GpuReading(
            busy_ratio=min(loads), shared=any(users[n] - {self.trainer} for n in chosen)
        )

    def _stop(self) -> None:
        """Forget everything, so that the next reading begins anew."""
        self._samples.clear()
        self._nvml = None
        self._open.close()

    def _devices(self, nvml: Any) -> list[Any]:
        count = nvml.nvmlDeviceGetCount()
        if self.visible is None:
            return [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(count)]
        found = []
        for name in (part.strip() for part in self.visible.split(",")):
            if name.isdigit():
                if int(name) >= count:
                    break  # CUDA ignores what follows an index that does not exist
                found.append(nvml.nvmlDeviceGetHandleByIndex(int(name)))
            elif name.startswith(("GPU-", "MIG-")):
                found.append(nvml.nvmlDeviceGetHandleByUUID(name.encode()))
            else:
                break
        return found

    def _pids(self, nvml: Any, device: Any) -> set[int]:
        try:
            return {int(one.pid) for one in nvml.nvmlDeviceGetComputeRunningProcesses(device)}
        except nvml.NVMLError:
            return set()

    def _load(self, nvml: Any, number: int, device: Any) -> float | None:
        activity = self._by_gpm(nvml, number, device)
        if activity is not None:
            return activity
        try:
            return float(nvml.nvmlDeviceGetUtilizationRates(device).gpu) / 100.0
        except nvml.NVMLError:
            return None  # a MIG device without GPM

    def _by_gpm(self, nvml: Any, number: int, device: Any) -> float | None:
        """SM activity since the last reading; ``None`` at the first, or where there is none."""
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice:
                return None
            sample = nvml.nvmlGpmSampleAlloc()
            nvml.nvmlGpmSampleGet(device, sample)
        except (nvml.NVMLError, AttributeError):
            return None
        before = self._samples.get(number)
        self._samples[number] = sample
        if before is None:
            return None
        try:
            asked = nvml.c_nvmlGpmMetricsGet_t()
            asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
            asked.numMetrics = 1
            asked.sample1, asked.sample2 = before, sample
            asked.metrics[0].metricId = _SM_UTIL
            nvml.nvmlGpmMetricsGet(asked)
            if asked.metrics[0].nvmlReturn != 0:
                return None
            return min(1.0, max(0.0, float(asked.metrics[0].value) / 100.0))
        except nvml.NVMLError:
            return None
        finally:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlGpmSampleFree(before)


@contextlib.contextmanager
def open_nvml(module: Any = None) -> Iterator[Any]:
    """NVML, for a ``with`` block; drivers fail in many ways, so any ``Exception`` may come.

    Args:
        module: module that stands for ``pynvml``; ``None``: the real one.
    """
    if module is None:
        ctypes.CDLL("libnvidia-ml.so.1")  # without a driver the binding is 2 MiB for nothing
        import pynvml

        module = pynvml
    module.nvmlInit()
    try:
        yield module
    finally:
        with contextlib.suppress(Exception):
            module.nvmlShutdown()


def gpu_name(module: Any, device: Any) -> str:
    """Name of a device, by NVML."""
    name = module.nvmlDeviceGetName(device)
    return name.decode() if isinstance(name, bytes) else str(name)


def gpu_names() -> tuple[str, ...]:
    """GPUs; none where NVML does not load or fails, for that must never stop a run."""
    try:
        with open_nvml() as module:
            devices = map(module.nvmlDeviceGetHandleByIndex, range(module.nvmlDeviceGetCount()))
            return tuple(gpu_name(module, device) for device in devices)
    except Exception as error:  # noqa: BLE001  (drivers fail in many ways, and none matters here)
        logger.info("NVML does not answer, going on without GPU names: %s", error)
        return ()
