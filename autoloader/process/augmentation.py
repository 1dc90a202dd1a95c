"""Augments a batch's frames on whatever device they are, by the spec's ``augment``.

Theory of operation. Parameters are keyed hashes of a sample's provenance (dataset name, pass,
shard, record, t), its camera and the operation's place in the list. There is no generator and no
state, so a resumed run, another rank or another device draws the same. All frames of a sample share
them, its goal among them; the next pass draws others. Frames are uint8 before and after, and
float32 in [0, 1] from the first operation to the last. The operations are kornia's:

    random_resized_crop   area share in ``scale``, aspect in ``ratio`` (log-uniform), bilinear
    brightness            x + shift
    contrast              mean grey of the frame + factor × (x − mean)
    saturation            saturation × factor, in HSV
    hue                   hue + shift turns, in HSV

Only what trains is augmented: of any split but ``train``, batches come back as they are.

Invariants:
    1. The same sample of the same pass gets bit-identical parameters, wherever and whenever.
    2. Frames that hold nothing (a missing camera, ``edges: zero``) stay zero.

Not here: the language (``spec.mixture``), when it is called (``integrations.lightning``, or the
user).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import UsageError
from autoloader.host.extras import needs
from autoloader.samples.draws import PURPOSE_AUGMENT, dataset_key, fold, fold_array
from autoloader.samples.layout import AugmentableBatch, Batch
from autoloader.spec import PipelineSpec
from autoloader.spec.mixture import AugmentOp

TRAIN: Final = "train"
_ULP = 2.0**-53

Parameters = Mapping[str, tuple[NDArray[np.float32], ...]]
"""Camera → for each of its operations, in order, [B, 4] (a crop's x, y, width, height as shares of
the frame) or [B, 1] (a shift or factor)."""


def augmenter(spec: PipelineSpec, split: str = TRAIN) -> Augmenter:
    """Augmenter for batches of ``spec``; of any split but ``train`` it does nothing."""
    return Augmenter(spec, split)


def augment(batch: Batch, spec: PipelineSpec | None = None) -> Batch:
    """The batch with its frames augmented, on the device where they are.

    Args:
        batch: batch of an ``AutoLoader``, on any device; it is not changed.
        spec: the loader's spec; needed where ``batch`` is a dict of one's own, such as after
            moving it to a device key by key. It is then taken as a training batch.

    Raises:
        UsageError: nothing says how, the batch has no provenance, or holds no torch tensors.
    """
    if isinstance(batch, AugmentableBatch) and batch.spec is not None:
        return augmenter(batch.spec, batch.split)(cast("Batch", batch))
    if spec is None:
        raise UsageError(
            "the batch does not say how to augment it: the loader's batch was changed, or the "
            "spec has no augment",
            remedy="call autoloader.augment(batch, spec), where spec has augment",
        )
    return augmenter(spec)(batch)


class Augmenter:
    """Augments batches; callable, thread-safe, and without state.

    Args:
        spec: pipeline spec, of which ``augment`` and ``seed`` are used.
        split: name of the split that batches are of.
    """

    def __init__(self, spec: PipelineSpec, split: str = TRAIN) -> None:
        self._operations = dict(spec.augment) if split == TRAIN else {}
        names = [one.name for one in spec.datasets if one.split.get(split) is not None]
        keys = [fold(dataset_key(spec.seed, name), PURPOSE_AUGMENT) for name in names]
        self._keys = np.asarray(keys, dtype=np.uint64)

    @property
    def active(self) -> bool:
        """True if it does anything."""
        return bool(self._operations)

    def __call__(self, batch: Batch) -> Batch:
        """``apply`` with the batch's own ``parameters``."""
        if not self.active:
            return batch
        if "provenance" not in batch:
            raise UsageError(
                'the batch has no batch["provenance"], which seeds its augmentation',
                remedy="write metadata: full at the top level of the spec, and leave provenance "
                "in the batch",
            )
        return self.apply(batch, self.parameters(np.asarray(batch["provenance"].tolist())))

    def parameters(self, provenance: NDArray[Any]) -> Parameters:
        """Draws for samples with ``provenance`` [B, 5] int64; runs on the host."""
        numbers = np.asarray(provenance, dtype=np.int64).reshape(-1, 5)
        keys = fold_array(self._keys[numbers[:, 0]], *(numbers[:, k] for k in range(1, 5)))
        return {
            camera: tuple(
                _drawn(op, fold_array(keys, np.full(len(keys), place, dtype=np.int64)))
                for place, op in enumerate(operations, start=_camera_number(camera))
            )
            for camera, operations in self._operations.items()
        }

    def apply(self, batch: Batch, parameters: Parameters) -> Batch:
        """A batch of the same keys whose frames are augmented; the given one is left as it is."""
        images = dict(batch["images"])
        for camera, drawn in parameters.items():
            if camera in images:
                operations = zip(self._operations[camera], drawn, strict=True)
                images[camera] = _augmented(images[camera], list(operations))
        return {**batch, "images": images}


def _camera_number(camera: str) -> int:
    """By the camera's name, so that another camera's coming or going changes nothing."""
    return int.from_bytes(hashlib.blake2b(camera.encode(), digest_size=6).digest(), "little") << 8


def _drawn(op: AugmentOp, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
    """[B, 4] or [B, 1] parameters of an operation from keys [B]."""

    def unit(number: int) -> NDArray[np.float64]:
        hashes = fold_array(keys, np.full(len(keys), number, dtype=np.int64))
        return np.asarray((hashes >> np.uint64(11)).astype(np.float64) * _ULP)

    if op.name != "random_resized_crop":
        return (op.low + unit(0) * (op.high - op.low)).astype(np.float32)[:, None]
    area = op.low + unit(0) * (op.high - op.low)
    narrow, wide = (math.log(bound) for bound in op.ratio)
    aspect = np.exp(narrow + unit(1) * (wide - narrow))
    # A crop of this area that would be wider or higher than the frame is cut to it.
    width = np.minimum(np.sqrt(area * aspect), 1.0)
    height = np.minimum(np.sqrt(area / aspect), 1.0)
    crop = np.stack([unit(2) * (1 - width), unit(3) * (1 - height), width, height], axis=1)
    return crop.astype(np.float32)


def _augmented(images: Any, operations: list[tuple[AugmentOp, NDArray[np.float32]]]) -> Any:
    """``images`` [B, F, H, W, 3] uint8, augmented; a new tensor on the same device."""
    with needs("augment"):
        import torch

    if not isinstance(images, torch.Tensor):
        raise UsageError(
            f"frames are {type(images).__name__}, not torch tensors",
            remedy='augment works on torch batches: use output="torch"',
        )
    count, frames, height, width, channels = images.shape
    if not images.numel():
        return images
    flat = images.reshape(count * frames, height, width, channels)
    there = flat.flatten(1).amax(dim=1) > 0
    values = flat.permute(0, 3, 1, 2).to(torch.float32) / 255
    for op, drawn in operations:
        shared = torch.from_numpy(np.repeat(drawn, frames, axis=0)).to(images.device)
        values = _applied(op, values, shared)
    done = (values.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    done = torch.where(there[:, None, None, None], done, flat)
    return done.reshape(images.shape)


def _applied(op: AugmentOp, values: Any, drawn: Any) -> Any:
    """``values`` [N, 3, H, W] float32 in [0, 1] after one operation.

    Parameters are ``drawn`` [N, 4] or [N, 1].
    """
    with needs("augment"):
        from kornia import enhance

    if op.name == "random_resized_crop":
        return _cropped(values, drawn)
    factor = drawn[:, 0]
    if op.name == "brightness":
        return enhance.adjust_brightness(values, factor)
    if op.name == "contrast":
        return enhance.adjust_contrast_with_mean_subtraction(values, factor)
    if op.name == "saturation":
        return enhance.adjust_saturation(values, factor)
    return enhance.adjust_hue(values, factor * (2 * math.pi))


def _cropped(values: Any, crop: Any) -> Any:
    """Each picture's crop, resized to the picture's size."""
    import torch
    from kornia.geometry.transform import crop_and_resize

    height, width = values.shape[-2:]
    if min(height, width) == 1:  # a line has no crop
        return values
    left, top = crop[:, 0] * (width - 1), crop[:, 1] * (height - 1)
    right, bottom = left + crop[:, 2] * (width - 1), top + crop[:, 3] * (height - 1)
    corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    boxes = torch.stack([torch.stack(corner, dim=1) for corner in corners], dim=1)
    return crop_and_resize(values, boxes, (height, width))
