"""JAX's side of the loader: batches as arrays on its devices, sharded over all processes.

A process knows its rank from an initialised ``jax.distributed`` (``process.ranks``).

Not here: the loader (``loader``), and TensorFlow's front door, which JAX programs may use as well
(``integrations.tfdata``).
"""

from __future__ import annotations

from autoloader.host.extras import needs

with needs("autoloader.integrations.jax"):
    from autoloader.integrations.jax.placement import device_put

__all__ = ["device_put"]
