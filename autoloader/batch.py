"""A batch as the trainer sees it: a dict of tensors over a ring slot, without a copy.

Tensors are made through NumPy (``torch.from_numpy`` keeps the array, and with it the slot, alive;
``torch.frombuffer`` would not). A slot is lent until the last tensor over it is gone.

Not here: the slot itself (``ring.memory``), moving to a device (``lightning``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from autoloader.spec import PipelineSpec

Batch = dict[str, Any]
"""What iterating a loader yields; keys, shapes and types in ``assemble``."""


class AugmentableBatch(dict[str, Any]):
    """A batch that knows how it is to be augmented (``autoloader.augment``).

    Attributes:
        spec: the loader's; ``None`` where a library has rebuilt the dict by its type.
        split: the loader's.
    """

    __slots__ = ("spec", "split")

    def __init__(
        self, batch: Mapping[str, Any], spec: PipelineSpec | None = None, split: str = ""
    ) -> None:
        super().__init__(batch)
        self.spec = spec
        self.split = split


def assemble(
    views: Mapping[str, np.ndarray],
    texts: list[bytes],
    *,
    rows: int,
    metadata: Literal["none", "dataset_only", "full"],
    wrap: Callable[[np.ndarray], Any],
    features: Mapping[str, list[Any]] | None = None,
) -> Batch:
    """The batch over a slot's arrays; ``features`` are those that are texts.

    Returns:
        images: camera → ``[B, F, H, W, 3] uint8``.
        frame_mask: camera → ``[B, F] bool``, false where padded or the camera is missing.
        frame_offset: ``[B, F] int32``, as realised.
        action, action_mask: ``[B, H, A] float32`` zero-padded, ``bool``.
        state, state_mask: ``[B, Fs, S] float32`` zero-padded, ``bool``.
        language: list of B str.
        features, feature_mask: name → ``[B, Fs, …]`` or ``[B, …]`` and ``[B, Fs]`` or ``[B]`` bool,
            where the spec names features; texts as lists of str.
        dataset_index: ``[B] int64`` (not with metadata none).
        provenance: ``[B, 5] int64``: dataset, pass, shard, episode, t (with metadata full).
    """
    batch: Batch = {"images": {}, "frame_mask": {}}
    for name, view in views.items():
        part, _, camera = name.partition("/")
        if camera:
            batch.setdefault(part, {})[camera] = wrap(view[:rows])
    for name in ("frame_offset", "action", "action_mask", "state", "state_mask"):
        batch[name] = wrap(views[name][:rows])
    if features:
        batch.setdefault("features", {}).update(features)
    batch["language"] = [text.decode("utf-8", "replace") for text in texts]
    if metadata != "none":
        batch["dataset_index"] = wrap(views["dataset_index"][:rows])
    if metadata == "full":
        batch["provenance"] = wrap(views["provenance"][:rows])
    return batch


def wrapper(output: Literal["torch", "numpy"]) -> Callable[[np.ndarray], Any]:
    """What turns an array into the batch's element: a torch tensor over it, or itself."""
    if output == "numpy":
        return np.asarray
    import torch

    return torch.from_numpy
