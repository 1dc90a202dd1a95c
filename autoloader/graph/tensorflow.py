"""The one place that imports TensorFlow, quietly and without a GPU.

TensorFlow would otherwise take the trainer's CUDA device and print through its log.
"""

from __future__ import annotations

import os
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("NO_GCE_CHECK", "true")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensorflow as tf

tf.config.set_visible_devices([], "GPU")
# The functions here are small and run once an episode: optimising each graph costs 30 ms at every
# opening of a stream and gains nothing measurable afterwards.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})

__all__ = ["tf"]
