"""Batches in the nested dictionaries of Octo, OpenVLA and openpi.

A layout takes a batch of an ``AutoLoader``, of torch tensors or NumPy arrays, and gives their
names, shapes and types: ``octo(batch, loader.dataset_names)``. It only rearranges; frames and
numbers stay views where the shapes allow it. Lightning takes a layout as ``to_batch``.

Not here: what the numbers are (the spec), Stage-2's layout (``integrations.lightning.layouts``).
"""

from __future__ import annotations

from autoloader.integrations.layouts.octo import octo
from autoloader.integrations.layouts.openpi import openpi
from autoloader.integrations.layouts.openvla import openvla

__all__ = ["octo", "openpi", "openvla"]
