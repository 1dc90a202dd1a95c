"""Files in memory that two processes share.

Not here: what lies in them (``ring.memory``, ``process.control_page``, ``supervision``).
"""

from __future__ import annotations

import os

from autoloader.errors import PipelineError


def memory_file(name: str, size: int = 0, flags: int = 0) -> int:
    """The descriptor of a new file in memory.

    Args:
        name: shown in ``/proc/PID/fd``.
        size: bytes; pages come only where it is written.
        flags: of ``os.memfd_create``, beside ``MFD_CLOEXEC``.

    Raises:
        PipelineError: the kernel refuses it.
    """
    descriptor = -1
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | flags)
        os.ftruncate(descriptor, size)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise PipelineError(
            f"the kernel refuses a file in memory of {size} bytes: {error.strerror}",
            remedy="allow memfd_create (a container's seccomp profile may forbid it), and files of "
            "that size (ulimit -f)",
        ) from error
    return descriptor
