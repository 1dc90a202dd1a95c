"""Public path of the batch layouts of other trainers: ``octo``, ``openpi``, ``openvla``."""

from autoloader.integrations.layouts import octo, openpi, openvla

__all__ = ["octo", "openpi", "openvla"]
