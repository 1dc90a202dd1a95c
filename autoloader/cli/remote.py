"""Commands that run TensorFlow themselves where their data is remote.

Not here: what they do with it (``cli.stats``, ``cli.verify``).
"""

from __future__ import annotations

import os
from typing import Any

from autoloader.catalog.files import is_remote


def read_here(spec: Any) -> bool:
    """Have this process read the remote files of ``spec`` itself; whether there are any."""
    if not any(is_remote(one.path or one.data_dir or "") for one in spec.datasets):
        return False
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # TensorFlow would take the whole of a GPU's memory
    from autoloader.graph import files

    files.enter()
    return True
