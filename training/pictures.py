"""Draws what a validation showed: samples, and the predicted latent beside the target.

A sheet has a row for each sample: the frame at t, the later frame, the later frame as the
quantiser's decoder draws it from the target latent, the same from the predicted latent, and both
latents as strips of cells, blue below the mean and red above.

Not here: what was sampled (``module``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from training.images import as_bytes, resized
from training.module import Shown
from training.quantiser import Quantiser

SIDE = 128
_GAP = 8
_LINE = 14
_CELL = 10
_HEADS = ("frame at t", "later frame", "drawn from target", "drawn from predicted", "latents")

Pixels = npt.NDArray[np.uint8]


def strip(latent: Tensor) -> Pixels:
    """``[D]`` as cells in a row, ``[10, 10 · D, 3]``: white at 0, full colour at ±2.5."""
    value = (latent.float().cpu() / 2.5).clamp(-1, 1).numpy()
    red, blue = 1 + np.minimum(value, 0), 1 - np.maximum(value, 0)
    cells = np.stack((red, np.minimum(red, blue), blue), -1)
    return np.kron((255 * cells).astype(np.uint8)[None], np.ones((_CELL, _CELL, 1), np.uint8))


@torch.no_grad()
def sheet(shown: Shown, quantiser: Quantiser) -> Image.Image:
    """The picture of one validation."""
    now, later = shown.pair.now.float(), shown.pair.later.float()
    columns = [
        now,
        later,
        quantiser.decode(now, quantiser.vectors(shown.target)),
        quantiser.decode(now, quantiser.vectors(shown.predicted)),
    ]
    shots = [as_bytes(resized(column, SIDE)).cpu().numpy() for column in columns]
    rows = len(now)
    step = SIDE + _GAP + _LINE
    wide = _GAP + len(shots) * (SIDE + _GAP) + _CELL * shown.target.shape[1] + _GAP
    page = Image.new("RGB", (wide, _LINE + _GAP + rows * step), "white")
    pen = ImageDraw.Draw(page)
    for place, head in enumerate(_HEADS):
        pen.text((_GAP + place * (SIDE + _GAP), 2), head, fill="black")
    for row in range(rows):
        top = _LINE + _GAP + row * step
        for place, shot in enumerate(shots):
            page.paste(Image.fromarray(shot[row]), (_GAP + place * (SIDE + _GAP), top))
        left = _GAP + len(shots) * (SIDE + _GAP)
        for line, (word, latent) in enumerate(
            (("target", shown.target), ("predicted", shown.predicted))
        ):
            at = top + line * (_LINE + _CELL + _GAP)
            pen.text((left, at), word, fill="black")
            page.paste(Image.fromarray(strip(latent[row])), (left, at + _LINE))
        words = f"{shown.datasets[row]}: {shown.language[row]}"[:120]
        # Pillow's built-in font has Latin letters only.
        words = words.encode("latin-1", "replace").decode("latin-1")
        pen.text((_GAP, top + SIDE), words, fill="black")
    return page
