"""Trainers and frameworks around the loader: Lightning, JAX, tf.data, Ray, batch layouts.

Each imports its framework only when it is used, and no other integration:

    ``lightning``: ``AutoLoaderDataModule``, and a monitor for the trainer's logger.
    ``jax``: batches as arrays on JAX's devices.
    ``tfdata``: a mixture as a ``tf.data.Dataset``, with its own graph of a sample.
    ``layouts``: batches in the nested dictionaries of Octo, OpenVLA and openpi.
    ``ray``: batches that are filled by other hosts, and indexes built by them.

People import ``autoloader.integrations.lightning``, ``.jax``, ``.tfdata`` and ``.layouts``.

Never here: anything that a plain loop over ``AutoLoader`` needs.
"""
