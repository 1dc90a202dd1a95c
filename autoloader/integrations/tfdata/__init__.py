"""The tf.data front door: a mixture as a ``tf.data.Dataset``, for TensorFlow and JAX programs.

Importing it imports TensorFlow, with the program's own devices.

Not here: anything that a loader uses.
"""

from __future__ import annotations

from autoloader.integrations.tfdata.mixture import as_dataset

__all__ = ["as_dataset"]
