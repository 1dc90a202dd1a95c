"""The last stretch of a batch: to the device, augmented, in the trainer's layout and type.

Theory of operation. The order of the steps keeps the host from waiting. Parameters of the
augmentation and names of datasets and episodes come from numbers that are still on the host.
Frames, actions and states go to the device as the ring holds them; augmentation, the change of type
and of layout run there. Nothing waits for the device.

Not here: the copy itself (``transfer``), the operations (``augmentation``), when (``datamodule``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from autoloader.device.augmentation import Augmenter
from autoloader.device.transfer import mapped
from autoloader.lightning.streams import HostBatch, ToBatch

_READ_ON_THE_HOST = ("provenance", "dataset_index")


class Delivery:
    """Delivers one loader's batches.

    Args:
        names: ``loader.dataset_names``.
        augmenter: augments frames; ``None`` leaves them.
        to_batch: see ``streams.ToBatch``.
        frame_dtype: what uint8 tensors become, in [0, 1]; ``None`` leaves them.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        augmenter: Augmenter | None,
        to_batch: ToBatch | None,
        frame_dtype: torch.dtype | None,
    ) -> None:
        self._names = names
        self._augmenter = augmenter if augmenter is not None and augmenter.active else None
        self._to_batch = to_batch
        self._frame_dtype = frame_dtype

    def __call__(self, tree: Any, move: Callable[[Any], Any]) -> Any:
        """A batch, or a combination of several, moved by ``move`` and made ready."""
        if isinstance(tree, HostBatch):
            return self._deliver(tree, move)
        if isinstance(tree, dict) and any(isinstance(v, HostBatch) for v in tree.values()):
            return {key: self(value, move) for key, value in tree.items()}
        if isinstance(tree, (list, tuple)) and any(isinstance(v, HostBatch) for v in tree):
            return type(tree)(self(value, move) for value in tree)
        return move(tree)

    def _deliver(self, batch: HostBatch, move: Callable[[Any], Any]) -> Any:
        host = {key: batch[key] for key in _READ_ON_THE_HOST if key in batch}
        moved = move({key: value for key, value in batch.items() if key not in host})
        if self._augmenter is not None:
            drawn = self._augmenter.parameters(np.asarray(host["provenance"]))
            moved = self._augmenter.apply(moved, drawn)
        ready: Any = {**moved, **host}
        if self._to_batch is not None:
            ready = self._to_batch(ready, self._names)
        return mapped(move(ready), self._finish)

    def _finish(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.uint8 and self._frame_dtype is not None:
            scaled = tensor.to(self._frame_dtype, memory_format=torch.contiguous_format)
            return scaled.div_(255)
        return tensor if tensor.device.type == "cpu" else tensor.contiguous()
