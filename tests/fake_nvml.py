"""NVML over GPUs that a test tells."""

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """What NVML raises."""


class FakeNvml(SimpleNamespace):
    """The functions of ``pynvml`` that are used; what is not told of a device is not supported.

    Attributes:
        dead: what calls that need the driver raise.
        started: how often it was begun, less how often it was shut down.
    """

    NVMLError = NVMLError
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(
        self, *devices: dict[str, Any], gpm: bool = False, dead: Exception | None = None
    ) -> None:
        def begun(more: int) -> None:
            if self.dead and more > 0:
                raise self.dead
            self.started += more

        def count() -> int:
            if self.dead:
                raise self.dead
            return len(devices)

        def told(device: dict[str, Any], name: str) -> Any:
            if name not in device:
                raise NVMLError("Not Supported")
            return device[name]

        def measured(asked: Any) -> None:
            assert "freed" not in asked.sample1
            asked.metrics[0].value = asked.sample2["activity"]

        own, metric = SimpleNamespace, {"nvmlReturn": 0, "value": 0.0}
        super().__init__(
            dead=dead,
            started=0,
            nvmlInit=lambda: begun(1),
            nvmlShutdown=lambda: begun(-1),
            nvmlDeviceGetCount=count,
            nvmlDeviceGetHandleByIndex=lambda n: devices[n],
            nvmlDeviceGetHandleByUUID=lambda uuid: next(
                one for one in devices if one["uuid"] == uuid.decode()
            ),
            nvmlDeviceGetName=lambda _: b"H200",
            nvmlDeviceGetMemoryInfo=lambda one: own(used=one.get("used", 0), total=140 * 2**30),
            nvmlDeviceGetTotalEccErrors=lambda one, *_: told(one, "uncorrected"),
            nvmlDeviceGetComputeRunningProcesses=lambda one: [
                own(pid=pid, usedGpuMemory=held) for pid, held in one.get("pids", {}).items()
            ],
            nvmlDeviceGetUtilizationRates=lambda one: own(gpu=told(one, "load")),
            nvmlGpmQueryDeviceSupport=lambda _: own(isSupportedDevice=gpm),
            nvmlGpmSampleAlloc=dict,
            nvmlGpmSampleFree=lambda sample: sample.update(freed=True),
            nvmlGpmSampleGet=lambda one, sample: sample.update(activity=one["activity"]),
            c_nvmlGpmMetricsGet_t=lambda: own(metrics=[own(**metric)]),
            nvmlGpmMetricsGet=measured,
        )
