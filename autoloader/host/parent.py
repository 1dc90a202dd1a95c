"""A process that ends with the one that started it.

Not here: starting it (``supervision.start``).
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    Args:
        parent: process that started it; where it is gone already, this process ends now.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
