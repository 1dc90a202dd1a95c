"""The one place that imports TensorFlow, in a loader quietly and without a GPU.

TensorFlow would otherwise take the trainer's CUDA device and print through its log.

Its client for ``gs://`` is set here too, unless the environment says otherwise. It asks for a cloud
machine's credentials only on such a machine: elsewhere each first access would wait for a server
that is not there. It gives up within about a minute rather than an hour, and holds
``READ_BUFFER_BYTES`` for each open file rather than 64 MiB.

Keras, which TensorFlow loads at once and no graph here needs, waits until somebody asks for
``tf.keras``: that is a fifth of the time of the import, and 64 MB of each process.

It holds the keyed draws of ``samples.draws`` as TensorFlow operations; a test compares both.

Not here: the graphs themselves (the package's other modules).
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any, cast

from autoloader.host.extras import needs
from autoloader.samples.draws import GOLDEN, MIX_1, MIX_2


def _on_google_cloud() -> bool:
    """True if this machine is one of Google Cloud, by the name of its product."""
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

__all__ = ["READ_BUFFER_BYTES", "by_draw", "choose", "drawn_order", "fold", "splitmix64", "tf"]


def _u64(value: int) -> Any:
    return tf.constant(value, tf.uint64)


def splitmix64(values: Any) -> Any:
    """Hash of each element of a uint64 tensor."""
    shift, xor = tf.bitwise.right_shift, tf.bitwise.bitwise_xor
    z = values + _u64(GOLDEN)
    z = xor(z, shift(z, _u64(30))) * _u64(MIX_1)
    z = xor(z, shift(z, _u64(27))) * _u64(MIX_2)
    return xor(z, shift(z, _u64(31)))


def fold(key: Any, *parts: Any) -> Any:
    """A key below ``key`` (uint64) for each int64 part, mixed in one after the other."""
    for part in parts:
        key = splitmix64(
            tf.bitwise.bitwise_xor(key, tf.bitcast(tf.cast(part, tf.int64), tf.uint64))
        )
    return key


def drawn_order(key: Any, first: Any, stop: Any) -> Any:
    """First … stop−1 [n] int64 in the order of their hashes under ``key``; ties by number."""
    return by_draw(key, tf.range(tf.cast(first, tf.int64), tf.cast(stop, tf.int64)))


def by_draw(key: Any, numbers: Any) -> Any:
    """``numbers`` [n] int64, which ascend, in the order of their hashes under ``key``."""
    hashes = splitmix64(tf.bitwise.bitwise_xor(tf.bitcast(numbers, tf.uint64), key))
    signed = tf.bitcast(tf.bitwise.bitwise_xor(hashes, _u64(1 << 63)), tf.int64)
    return tf.gather(numbers, tf.argsort(signed, stable=True))


def choose(key: Any, count: int) -> Any:
    """A number of 0 … count−1, as an int32 scalar."""
    return tf.cast(splitmix64(key) % _u64(count), tf.int32)
