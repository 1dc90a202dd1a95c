"""autoloader: an adaptive, memory-aware data loader for mixtures of RLDS/TFDS datasets.

``AutoLoader`` and ``PipelineSpec`` are the front door. Importing this package imports neither
TensorFlow nor torch; each is loaded by the part that needs it, when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoloader.checkpoint.state import join_states
    from autoloader.device.augmentation import augment
    from autoloader.loader import AutoLoader
    from autoloader.spec import PipelineSpec

__version__ = "0.1.0"
__all__ = ["AutoLoader", "PipelineSpec", "__version__", "augment", "join_states"]

_HOME = {
    "AutoLoader": "autoloader.loader",
    "PipelineSpec": "autoloader.spec",
    "augment": "autoloader.device.augmentation",
    "join_states": "autoloader.checkpoint.state",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
