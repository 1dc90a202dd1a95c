"""What does not change of a machine while it runs: its processor, memory, GPUs, and versions.

Not here: how many processors a process may use (``host.processors``), what memory is left
(``host.probes.headroom``), load (``host.probes.gpu``).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

VERSIONS = (
    "autoloader-rlds",
    "numpy",
    "opencv-python-headless",
    "simplejpeg",
    "tensorflow",
    "torch",
)
"""Packages whose version may change a rate."""


def memory_bytes() -> int:
    """Main memory, whatever of it this process may use."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cpu_model() -> str:
    """The processor as the kernel names it; its architecture where it names none."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        if found := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            return found[1].strip()
    return os.uname().machine


def versions(packages: Iterable[str] = VERSIONS) -> dict[str, str]:
    """Versions of packages, as far as they are installed."""
    found = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@contextmanager
def nvml(module: Any = None) -> Iterator[Any]:
    """NVML for a block; drivers fail in many ways, so what it raises is any ``Exception``.

    Args:
        module: stands for ``pynvml``.
    """
    if module is None:
        import pynvml

        module = pynvml
    module.nvmlInit()
    try:
        yield module
    finally:
        with suppress(Exception):
            module.nvmlShutdown()


def gpu_name(module: Any, device: Any) -> str:
    """What NVML calls a device."""
    name = module.nvmlDeviceGetName(device)
    return name.decode() if isinstance(name, bytes) else str(name)


def gpu_names() -> tuple[str, ...]:
    """GPUs; none where NVML does not load or fails, for that must never stop a run."""
    try:
        with nvml() as module:
            devices = map(module.nvmlDeviceGetHandleByIndex, range(module.nvmlDeviceGetCount()))
            return tuple(gpu_name(module, device) for device in devices)
    except Exception as error:  # noqa: BLE001  (drivers fail in many ways, and none matters here)
        logger.info("NVML does not answer, going on without GPU names: %s", error)
        return ()
