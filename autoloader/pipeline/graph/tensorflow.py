"""The one place that imports TensorFlow, in a loader quietly and without a GPU.

TensorFlow would otherwise take the trainer's CUDA device and print through its log.

Its client for ``gs://`` is set here too, where the environment does not say otherwise: it asks for
a cloud machine's credentials only on such a machine (elsewhere each first access would wait for a
server that is not there), it gives up within about a minute rather than an hour, and it holds
``READ_BUFFER_BYTES`` for each open file rather than 64 MiB.

Keras, which TensorFlow loads at once and no graph here needs, waits until somebody asks for
``tf.keras``: that is a fifth of the time of the import, and 64 MB of each process.

Not here: the graphs themselves (the package's other modules).
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any, cast

from autoloader.host.extras import needs


def _on_google_cloud() -> bool:
    try:
        return "Google" in Path("/sys/class/dmi/id/product_name").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


# A program that imports the tf.data front door runs TensorFlow itself: its devices, its log and how
# its graphs are optimised are its own affair.
_ours = "autoloader.integrations.tfdata" not in sys.modules
if _ours:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if not _on_google_cloud() and "GCE_METADATA_HOST" not in os.environ:
    os.environ.setdefault("NO_GCE_CHECK", "true")
for _name, _value in (
    ("GCS_READ_CACHE_BLOCK_SIZE_MB", "16"),
    ("GCS_RETRY_CONFIG_MAX_RETRIES", "5"),  # pauses of 1, 2, 4, 8 and 16 s
    ("GCS_REQUEST_CONNECTION_TIMEOUT_SECS", "15"),
    ("GCS_REQUEST_IDLE_TIMEOUT_SECS", "30"),
    ("GCS_METADATA_REQUEST_TIMEOUT_SECS", "60"),
    ("GCS_READ_REQUEST_TIMEOUT_SECS", "600"),
):
    os.environ.setdefault(_name, _value)

_KERAS = "keras.src.optimizers"
"""TensorFlow imports it at its end, and goes on where it cannot be had."""
if _ours:
    sys.modules.setdefault(_KERAS, cast("Any", None))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    with needs("reading with tf.data"):
        import tensorflow as tf

if _ours:
    if sys.modules[_KERAS] is None:
        del sys.modules[_KERAS]
    tf.config.set_visible_devices([], "GPU")
    # The functions here are small and run once an episode: optimising each graph costs 30 ms at
    # every opening of a stream and gains nothing measurable afterwards.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})

READ_BUFFER_BYTES = int(os.environ["GCS_READ_CACHE_BLOCK_SIZE_MB"]) * 2**20

__all__ = ["READ_BUFFER_BYTES", "tf"]
