"""The few things that NumPy and torch spell differently, without importing either's other.

A torch tensor may lie on a device; what is made here lies where the array that it is made for does.

Not here: any project's layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def is_torch(array: Any) -> bool:
    """Whether this is a torch tensor."""
    return hasattr(array, "new_tensor")


def like(array: Any, other: Any) -> Any:
    """``array`` in the type, and on the device, of ``other``."""
    return array.to(other) if is_torch(array) else array.astype(other.dtype)


def constant(values: Sequence[Any], other: Any) -> Any:
    """An array of ``values`` in the type, and on the device, of ``other``."""
    return other.new_tensor(values) if is_torch(other) else np.asarray(values, other.dtype)


def filled(shape: Sequence[int], value: Any, other: Any) -> Any:
    """An array full of ``value`` in the type, and on the device, of ``other``."""
    if is_torch(other):
        return other.new_full(tuple(shape), value)
    return np.full(tuple(shape), value, other.dtype)


def blanked(array: Any, where: Any) -> Any:
    """A copy of ``array`` with zeros where ``where`` (of the same shape) is true."""
    if is_torch(array):
        return array.masked_fill(where, 0)
    return np.where(where, np.zeros((), array.dtype), array)


def widened(array: Any, width: int) -> Any:
    """``array`` with zero columns behind its own, ``width`` in all."""
    own = array.shape[-1]
    if own == width:
        return array
    made = filled((*array.shape[:-1], width), 0, array)
    made[..., :own] = array
    return made


def texts_as_bytes(texts: Sequence[str]) -> Any:
    """[B] NumPy objects: the texts in UTF-8, as TensorFlow gives them to NumPy."""
    made = np.empty(len(texts), object)
    made[:] = [text.encode("utf-8") for text in texts]
    return made
