"""The environment of a process that the bench starts.

Not here: which process (``bench.runner``, ``bench.peers``).
"""

from __future__ import annotations

import os
from pathlib import Path

from autoloader.host.supervision import tunables


def environment() -> dict[str, str]:
    """No device, a quiet TensorFlow, and the copies of library and bench that this process uses."""
    places = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]
    return {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        # What the loader's own processes have, for everybody: copies of frames are faster.
        "GLIBC_TUNABLES": tunables(os.environ.get("GLIBC_TUNABLES", "")),
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
    }
