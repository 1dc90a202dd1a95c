"""Public path of batch layouts: ``lerobot``, ``octo``, ``openpi``, ``openvla``."""

from autoloader.integrations.layouts import lerobot, octo, openpi, openvla

__all__ = ["lerobot", "octo", "openpi", "openvla"]
