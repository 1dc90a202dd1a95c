"""Turns a batch's uint8 pictures into what convolutions take, on the batch's own device.

Whole tensors at a time; a sample is never touched in Python. Pictures cross to the device as uint8,
a quarter of the bytes of float32, and become floats only there.

Not here: how pictures get to the device (``autoloader.lightning``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from autoloader.errors import UsageError


@dataclass(frozen=True, slots=True)
class FramePair:
    """The frame at t of each sample, and a later one.

    Attributes:
        now: ``[B, 3, H, W]`` floats in 0 to 1, the frame at t.
        later: ``[B, 3, H, W]``, the frame at a later offset.
        weight: ``[B]`` 1.0 where both frames are real, 0.0 where one is padding or the camera is
            missing.
    """

    now: Tensor
    later: Tensor
    weight: Tensor


def as_floats(frames: Tensor) -> Tensor:
    """``[..., H, W, 3]`` uint8 to ``[..., 3, H, W]`` float32 in 0 to 1, contiguous."""
    return frames.movedim(-1, -3).to(torch.float32, memory_format=torch.contiguous_format) / 255


def frame_pair(batch: dict[str, Any], camera: str, later: int = -1) -> FramePair:
    """The pair of frames that the latent action lies between.

    Args:
        batch: with ``images`` and ``frame_mask``.
        camera: whose frames.
        later: number of the later frame; the first one is taken for the frame at t.

    Raises:
        UsageError: the batch lacks the camera, or has one frame a sample.
    """
    if camera not in batch["images"]:
        raise UsageError(
            f"the batch has no camera {camera!r}",
            remedy=f"take --camera from: {', '.join(batch['images'])}",
        )
    frames, mask = batch["images"][camera], batch["frame_mask"][camera]
    if frames.shape[1] < 2:
        raise UsageError(
            "a latent action lies between two frames, and the samples have one",
            remedy="set sample.frame_offsets in the spec, such as [0, 5]",
        )
    ends = as_floats(frames[:, [0, later]])
    return FramePair(ends[:, 0], ends[:, 1], (mask[:, 0] & mask[:, later]).to(torch.float32))


def resized(pictures: Tensor, side: int) -> Tensor:
    """``[B, 3, H, W]`` to ``[B, 3, side, side]``, antialiased; as they are where they fit."""
    if pictures.shape[-2:] == (side, side):
        return pictures
    return F.interpolate(
        pictures, size=(side, side), mode="bilinear", align_corners=False, antialias=True
    )


def as_bytes(pictures: Tensor) -> Tensor:
    """``[..., 3, H, W]`` floats to ``[..., H, W, 3]`` uint8, clipped."""
    return (pictures.clamp(0, 1) * 255).round().to(torch.uint8).movedim(-3, -1)
