"""Batches in the nested dictionaries of Octo, OpenVLA and openpi.

A layout takes a batch of an ``AutoLoader``, of torch tensors or NumPy arrays, and gives their
names, shapes and types: ``octo(batch, loader.dataset_names)``. It only rearranges; frames and
numbers stay views where the shapes allow it. Lightning takes a layout as ``to_batch``.

Not here: what the numbers are (the spec), Stage-2's layout (``lightning.layouts``).
"""

from __future__ import annotations

from autoloader.layouts.octo import octo
from autoloader.layouts.openpi import openpi
from autoloader.layouts.openvla import openvla

__all__ = ["octo", "openpi", "openvla"]
