"""A batch as the trainer sees it: a dict of tensors over a ring slot, without a copy.

Tensors are made through NumPy (``torch.from_numpy`` keeps the array, and with it the slot, alive;
``torch.frombuffer`` would not). A slot is lent until the last tensor over it is gone.

Not here: the slot itself (``decode.ring``), moving to a device (``integrations.lightning``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, cast

import numpy as np

from autoloader.spec import PipelineSpec

Array = Any
"""A ``torch.Tensor`` or, with ``output="numpy"``, a NumPy array."""


class _AsTheSpecSays(TypedDict, total=False):
    """Keys that only some specs ask for, by ``features`` and ``metadata``."""

    features: dict[str, Any]
    feature_mask: dict[str, Array]
    dataset_index: Array
    provenance: Array


class Batch(_AsTheSpecSays):
    """One batch as a plain dict; B samples of F frames and Fs states.

    Attributes:
        images: camera → ``[B, F, H, W, 3] uint8``; depth camera → ``[B, F, H, W, 1]`` uint16 or
            float32.
        frame_mask: camera → ``[B, F] bool``, false where padded or the camera is missing.
        frame_offset: ``[B, F] int32``, as realised.
        action: ``[B, horizon, A] float32``, zero-padded.
        action_mask: ``[B, horizon, A] bool``.
        state: ``[B, Fs, S] float32``, zero-padded.
        state_mask: ``[B, Fs, S] bool``.
        language: list of B texts, one for each sample.
        features: name → ``[B, Fs, …]`` or ``[B, …]``, texts as lists (where the spec names any).
        feature_mask: name → ``[B, Fs]`` or ``[B]`` bool (where the spec names features).
        dataset_index: ``[B] int64``, into ``loader.dataset_names`` (not with metadata none).
        provenance: ``[B, 5] int64``: dataset, pass, shard, episode, t (with metadata full).
    """

    images: dict[str, Array]
    frame_mask: dict[str, Array]
    frame_offset: Array
    action: Array
    action_mask: Array
    state: Array
    state_mask: Array
    language: list[str]


class AugmentableBatch(dict[str, Any]):
    """A batch that knows how it is to be augmented (``autoloader.augment``).

    Attributes:
        spec: the loader's; ``None`` where a library has rebuilt the dict by its type.
        split: name of the loader's split.
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
    """The batch over a slot's arrays; ``features`` are those that are texts."""
    batch: dict[str, Any] = {"images": {}, "frame_mask": {}}
    for name, view in views.items():
        part, _, camera = name.partition("/")
        if part == "called":
            batch[camera] = wrap(view[:rows])
        elif camera:
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
    return cast("Batch", batch)


def wrapper(output: Literal["torch", "numpy"]) -> Callable[[np.ndarray], Any]:
    """Function from an array to the batch's element: a torch tensor over it, or itself."""
    if output == "numpy":
        return np.asarray
    import torch

    return torch.from_numpy
