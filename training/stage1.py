"""The short Stage-1 run: trains a latent-action quantiser on the mixture, then calibrates it.

A few hundred steps give code words that tell one motion from another, which is enough for the
trainer to be tried out; who has a better quantiser brings it by ``--laq-checkpoint``.

Not here: the quantiser (``quantiser``).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autoloader.errors import UsageError
from autoloader.loader import AutoLoader
from autoloader.spec import PipelineSpec
from training.flow import keyed_seed
from training.images import FramePair, frame_pair
from training.quantiser import Quantiser, QuantiserConfig, load_quantiser, save_quantiser

_LEARNING_RATE = 2e-3
_CALIBRATION_BATCHES = 16
_MOST_EMPTY = 100
_PATIENCE_S = 3600.0
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Stage1Report:
    """What became of a Stage-1 run.

    Attributes:
        first_loss, last_loss: means of the first and last tenth of the steps.
        codes_used: share of the codebook that the calibration data asked for.
    """

    first_loss: float
    last_loss: float
    codes_used: float


def origin_of(spec: PipelineSpec, camera: str, steps: int, seed: int) -> dict[str, Any]:
    """What a quantiser depends on, as plain values: equal origins, equal quantisers."""
    text = spec.model_dump_json(exclude={"validation", "errors"})
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return {"spec": digest, "camera": camera, "steps": steps, "seed": seed}


def train_quantiser(
    loader: AutoLoader,
    config: QuantiserConfig,
    *,
    camera: str,
    later: int,
    steps: int,
    seed: int,
    device: torch.device,
    on_step: Callable[[int, int], None] | None = None,
) -> tuple[Quantiser, Stage1Report]:
    """Trains a quantiser for ``steps`` batches of ``loader`` and calibrates it on some more.

    Args:
        loader: gives batches of at least two frames.
        config: sizes.
        camera: whose frames.
        later: number of the later frame in a sample.
        steps: at least 1.
        seed: of weights and draws.
        device: where to compute.
        on_step: called with steps done and in all.

    Returns:
        The quantiser, frozen, on the CPU.
    """
    torch.manual_seed(keyed_seed(seed, "stage 1"))
    quantiser = Quantiser(config).to(device)
    optimiser = torch.optim.AdamW(quantiser.parameters(), lr=_LEARNING_RATE)
    pairs = _pairs(loader, camera, later, device)
    losses: list[Tensor] = []
    for step in range(steps):
        pair = next(pairs)
        loss = quantiser.loss(pair.now, pair.later, pair.weight, seed, "stage 1", step)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(quantiser.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.detach())
        if on_step is not None:
            on_step(step + 1, steps)
    quantiser.frozen()
    vectors, codes = [], []
    for _ in range(_CALIBRATION_BATCHES):
        pair = next(pairs)
        found = quantiser.quantise(quantiser.encode(pair.now, pair.later))
        vectors.append(found.vectors.flatten(1))
        codes.append(found.codes.flatten())
    quantiser.calibrate(torch.cat(vectors))
    tenth = max(1, steps // 10)
    report = Stage1Report(
        first_loss=float(torch.stack(losses[:tenth]).mean()),
        last_loss=float(torch.stack(losses[-tenth:]).mean()),
        codes_used=int((torch.cat(codes).bincount() > 0).sum()) / config.codes,
    )
    return quantiser.cpu(), report


def _endless(loader: AutoLoader) -> Iterator[dict[str, Any]]:
    while True:
        count = 0
        for batch in loader:
            count += 1
            yield dict(batch)
        if not count:
            raise UsageError(
                "the mixture has less than one batch an epoch",
                remedy="make --batch-size smaller",
            )


def _pairs(
    loader: AutoLoader, camera: str, later: int, device: torch.device
) -> Iterator[FramePair]:
    """The pairs of each batch that are real: padding would be in means and in the codebook.

    A batch with fewer than two, of which there is no variance, is passed over.

    Raises:
        UsageError: many batches have none.
    """
    empty = 0
    for batch in _endless(loader):
        pair = frame_pair(_moved(batch, camera, device), camera, later)
        real = pair.weight > 0
        empty = 0 if int(real.sum()) > 1 else empty + 1
        if not empty:
            yield FramePair(pair.now[real], pair.later[real], pair.weight[real])
        elif empty == _MOST_EMPTY:
            raise UsageError(
                f"{empty} batches have no two samples with both frames of camera {camera!r}",
                remedy="choose another --camera, or smaller sample.frame_offsets in the spec",
            )


def _moved(batch: dict[str, Any], camera: str, device: torch.device) -> dict[str, Any]:
    """The camera's frames and mask on ``device``; the rest of the batch is not needed."""
    return {
        part: {camera: batch[part][camera].to(device)}
        for part in ("images", "frame_mask")
        if camera in batch[part]
    }


def kept_quantiser(path: Path, origin: dict[str, Any]) -> Quantiser | None:
    """The quantiser at ``path`` if it has this ``origin``."""
    if not path.is_file():
        return None
    quantiser, found = load_quantiser(path)
    return quantiser if found == origin else None


def awaited_quantiser(path: Path, origin: dict[str, Any]) -> Quantiser:
    """Waits until rank 0 has written the quantiser of this ``origin``.

    Raises:
        UsageError: it does not come.
    """
    began = time.monotonic()
    while (quantiser := kept_quantiser(path, origin)) is None:
        if time.monotonic() - began > _PATIENCE_S:
            raise UsageError(
                f"rank 0 did not write {path}",
                remedy="see what rank 0 says; --output must be a folder that all ranks share",
            )
        time.sleep(_POLL_S)
    return quantiser


__all__ = [
    "Stage1Report",
    "awaited_quantiser",
    "kept_quantiser",
    "origin_of",
    "save_quantiser",
    "train_quantiser",
]
