"""Public path of the loader's JAX side: ``from autoloader.jax import device_put``."""

from autoloader.integrations.jax import device_put

__all__ = ["device_put"]
