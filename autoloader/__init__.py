"""autoloader: an adaptive, memory-aware data loader for mixtures of RLDS/TFDS datasets.

``AutoLoader`` and ``PipelineSpec`` are the front door. Importing this package imports neither
TensorFlow nor torch; each is loaded by the part that needs it, when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoloader.errors import (
        AutoloaderError,
        BudgetInfeasibleError,
        KnobError,
        MissingExtraError,
        PipelineError,
        ProfileError,
        SourceError,
        SpecError,
        UnsupportedError,
        UsageError,
        WorkerError,
    )
    from autoloader.loader import AutoLoader, ValidationLoader, validation_loaders
    from autoloader.process.augmentation import augment
    from autoloader.process.checkpoint import join_states
    from autoloader.samples.layout import Batch
    from autoloader.spec import PipelineSpec

__version__ = "0.1.0"
__all__ = [
    "AutoLoader",
    "AutoloaderError",
    "Batch",
    "BudgetInfeasibleError",
    "KnobError",
    "MissingExtraError",
    "PipelineError",
    "PipelineSpec",
    "ProfileError",
    "SourceError",
    "SpecError",
    "UnsupportedError",
    "UsageError",
    "ValidationLoader",
    "WorkerError",
    "__version__",
    "augment",
    "join_states",
    "validation_loaders",
]

_HOME = {
    "AutoLoader": "autoloader.loader",
    "Batch": "autoloader.samples.layout",
    "PipelineSpec": "autoloader.spec",
    "ValidationLoader": "autoloader.loader",
    "augment": "autoloader.process.augmentation",
    "join_states": "autoloader.process.checkpoint",
    "validation_loaders": "autoloader.loader",
}
"""Where a name of ``__all__`` is declared, if not in ``autoloader.errors``."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        import importlib

        return getattr(importlib.import_module(_HOME.get(name, "autoloader.errors")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    own = {name for name in globals() if name.startswith("__")}
    return sorted(own.union(__all__))
