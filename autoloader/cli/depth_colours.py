"""Depth frames as pictures that a person can look at, and which features of a dataset are depth.

Not here: drawing them (``cli.contact_sheet``), decoding (``decode.depth``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.catalog import Feature
from autoloader.transforms.cameras import is_depth_picture, is_depth_tensor

_COLOURS = "viridis"
_LEAST_SIDE = 16
"""A tensor of fewer rows or columns is a matrix, not a picture."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Which values the first and the last colour stand for."""

    low: float
    high: float


def coloured(frames: NDArray[Any]) -> tuple[NDArray[np.uint8], Scale | None]:
    """([F, H, W, 3] pictures, their scale) of depth frames [F, H, W, 1].

    Colours go from the least to the greatest value of all frames. What was not measured (zero, or
    not finite) is black. Without any value there is no scale.
    """
    from matplotlib import colormaps

    values = frames[..., 0].astype(np.float64)
    there = np.isfinite(values) & (values != 0)
    pictures = np.zeros((*values.shape, 3), np.uint8)
    if not there.any():
        return pictures, None
    scale = Scale(float(values[there].min()), float(values[there].max()))
    share = (values[there] - scale.low) / ((scale.high - scale.low) or 1.0)
    pictures[there] = colormaps[_COLOURS](share, bytes=True)[:, :3]
    return pictures, scale


def draw_scale(axes: Any, place: tuple[float, float, float, float], scale: Scale) -> None:
    """Draw the colours beside a row of frames, with the values at their ends.

    Args:
        axes: matplotlib's, of the frames.
        place: left, top, width, height in its data coordinates; y goes down.
        scale: of the frames.
    """
    left, top, width, height = place
    limits = axes.get_xlim(), axes.get_ylim()
    axes.imshow(
        np.linspace(1, 0, 64)[:, None],
        cmap=_COLOURS,
        extent=(left, left + width, top + height, top),
        clip_on=False,
    )
    axes.set_xlim(limits[0])
    axes.set_ylim(limits[1])
    right = left + 1.3 * width
    axes.text(right, top, f"{scale.high:.3g}", fontsize=4, va="top")
    axes.text(right, top + height, f"{scale.low:.3g}", fontsize=4, va="bottom")


def depth_features(features: Mapping[str, Feature]) -> dict[str, str]:
    """Path → type of a camera that holds it, of what looks like depth by type, shape and name."""
    found = {}
    for path, feature in features.items():
        tensor = is_depth_tensor(feature) and min(s or 0 for s in feature.shape[:2]) >= _LEAST_SIDE
        if is_depth_picture(feature) or (tensor and "depth" in path.lower()):
            found[path] = "uint16" if feature.dtype == "uint16" else "float32"
    return found
