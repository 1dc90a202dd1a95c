"""The latent-action quantiser: what happened between two frames, as a few code words.

Theory of operation. An encoder looks at the frame at t and at what changed until the later frame,
and says a few vectors (*slots*). Each is replaced by the nearest vector of a codebook, and a
decoder must draw the later frame from the frame at t and these code words alone. What gets through
is what the frame at t cannot tell: the latent action (Ye et al. 2024, LAPA, arXiv:2410.11758).
Gradients pass the rounding unchanged, the codebook follows the means of what it is asked for, and
the encoder is pulled towards its code word (van den Oord et al. 2017, VQ-VAE, arXiv:1711.00937).

For Stage 2 the quantiser is frozen; ``targets`` are its quantised slots in a row, shifted and
scaled so that every number has mean 0 and variance 1 over the data it was calibrated on.

Invariants:
    1. ``targets`` is a function of the pair of frames: no state moves in eval mode.
    2. A code word nobody asks for is replaced by a vector somebody said, under a key.

Not here: its training (``stage1``), its use as a target (``module``).
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoloader.errors import UsageError
from training.flow import keyed_seed
from training.images import resized

_FORMAT = "autoloader-quantiser-1"
_PACE = 0.2
"""Share of the way that a code word goes, per batch, to the mean of what asked for it."""
_COMMITMENT = 0.25
_RARE = 0.05
"""A code word asked for less often than this share of the mean is replaced."""


@dataclass(frozen=True, slots=True)
class QuantiserConfig:
    """Sizes of a quantiser.

    Attributes:
        side: pixels of the square pictures it works on.
        width: channels of its first layer.
        slots: code words per pair of frames.
        codes: vectors in the codebook.
        code_dim: numbers in each.
    """

    side: int = 32
    width: int = 24
    slots: int = 4
    codes: int = 16
    code_dim: int = 8

    @property
    def latent_dim(self) -> int:
        """Numbers in a target."""
        return self.slots * self.code_dim


@dataclass(frozen=True, slots=True)
class Quantised:
    """What a pair of frames became.

    Attributes:
        codes: ``[B, slots]`` int64, into the codebook.
        vectors: ``[B, slots, code_dim]``; gradients pass to the encoder.
        commitment: how far the encoder is from its code words, a scalar.
    """

    codes: Tensor
    vectors: Tensor
    commitment: Tensor


class Quantiser(nn.Module):
    """Encoder, codebook and decoder; see the module."""

    codebook: Tensor
    asked: Tensor
    mean: Tensor
    scale: Tensor
    variance: Tensor

    def __init__(self, config: QuantiserConfig) -> None:
        super().__init__()
        self.config = config
        width, latent = config.width, config.latent_dim
        cells = (config.side // 8) ** 2
        self.encoder = nn.Sequential(
            nn.Conv2d(6, width, 4, 2, 1),
            nn.GELU(),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.GELU(),
            nn.Conv2d(2 * width, 2 * width, 4, 2, 1),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(2 * width * cells, latent),
        )
        # Spread over the batch, or all pairs would say the same and share one code word.
        self.said = nn.BatchNorm1d(latent, affine=False)
        self.look = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.GELU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.GELU()
        )
        self.told = nn.Linear(latent, 4 * width)
        self.draw = nn.Sequential(
            nn.Conv2d(2 * width, 2 * width, 3, 1, 1),
            nn.GELU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.GELU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )
        self.register_buffer("codebook", torch.randn(config.codes, config.code_dim))
        self.register_buffer("asked", torch.ones(config.codes))
        self.register_buffer("mean", torch.zeros(latent))
        self.register_buffer("scale", torch.ones(latent))
        self.register_buffer("variance", torch.ones(latent))

    def encode(self, now: Tensor, later: Tensor) -> Tensor:
        """Two frames ``[B, 3, H, W]`` to what the encoder says, ``[B, slots, code_dim]``."""
        side = self.config.side
        before, after = resized(now, side), resized(later, side)
        said = self.encoder(torch.cat((2 * before - 1, 4 * (after - before)), 1))
        said = torch.as_tensor(self.said(said))
        return said.view(-1, self.config.slots, self.config.code_dim)

    def quantise(self, said: Tensor) -> Quantised:
        """The nearest code words of ``said [B, slots, code_dim]``."""
        codes = torch.cdist(said.flatten(0, 1), self.codebook).argmin(1)
        nearest = self.codebook[codes].view_as(said)
        commitment = F.mse_loss(said, nearest)
        return Quantised(codes.view(said.shape[:2]), said + (nearest - said).detach(), commitment)

    def decode(self, now: Tensor, vectors: Tensor) -> Tensor:
        """The later frame, ``[B, 3, side, side]``, from the frame at t and ``[B, slots, dim]``."""
        picture = resized(now, self.config.side)
        gain, shift = self.told(vectors.flatten(1)).chunk(2, 1)
        seen = self.look(2 * picture - 1)
        seen = seen * (1 + gain[:, :, None, None]) + shift[:, :, None, None]
        return picture + torch.as_tensor(self.draw(seen))

    @torch.no_grad()
    def follow(self, said: Tensor, codes: Tensor, *key: int | str) -> None:
        """Move the codebook towards the means of what asked for it; replace what nobody asks for.

        Args:
            said: ``[B, slots, code_dim]``.
            codes: ``[B, slots]``, what each was rounded to.
            key: of the draw of replacements.
        """
        flat = said.flatten(0, 1)
        hot = F.one_hot(codes.flatten(), self.config.codes).to(flat.dtype)
        count = hot.sum(0)
        means = (hot.T @ flat) / count.clamp_min(1)[:, None]
        self.codebook.lerp_(means, _PACE * (count > 0).to(flat.dtype)[:, None])
        self.asked.lerp_(count / count.mean().clamp_min(1e-6), _PACE / 4)
        generator = torch.Generator().manual_seed(keyed_seed(*key))
        picks = torch.randint(len(flat), (self.config.codes,), generator=generator)
        rare = self.asked < _RARE
        self.codebook.copy_(torch.where(rare[:, None], flat[picks.to(flat.device)], self.codebook))
        self.asked.masked_fill_(rare, 1.0)

    def loss(self, now: Tensor, later: Tensor, weight: Tensor, *key: int | str) -> Tensor:
        """Stage 1's loss, a scalar; in training mode the codebook follows."""
        said = self.encode(now, later)
        found = self.quantise(said)
        if self.training:
            self.follow(said.detach(), found.codes, *key)
        error = (self.decode(now, found.vectors) - resized(later, self.config.side)).square()
        drawn = (error.mean((1, 2, 3)) * weight).sum() / weight.sum().clamp_min(1e-6)
        # Differences between near frames are small; ×100 brings them beside the commitment.
        return 100 * drawn + _COMMITMENT * found.commitment

    @torch.no_grad()
    def targets(self, now: Tensor, later: Tensor) -> Tensor:
        """What Stage 2 learns, ``[B, latent_dim]``: standardised code words of the pair."""
        flat = self.quantise(self.encode(now, later)).vectors.flatten(1)
        return (flat - self.mean) / self.scale

    def vectors(self, targets: Tensor) -> Tensor:
        """The other way: ``[B, latent_dim]`` to ``[B, slots, code_dim]``, for ``decode``."""
        flat = targets * self.scale + self.mean
        return flat.view(-1, self.config.slots, self.config.code_dim)

    @torch.no_grad()
    def calibrate(self, flat: Tensor) -> None:
        """Take mean and scale of ``targets`` from ``flat [N, latent_dim]`` quantised vectors."""
        self.mean.copy_(flat.mean(0))
        deviation = flat.std(0, unbiased=False)
        self.scale.copy_(deviation.clamp_min(1e-2))
        # Of the targets: 1, or 0 where a number never changes.
        self.variance.copy_((deviation / self.scale).square())

    def frozen(self) -> Quantiser:
        """Itself, in eval mode and without gradients."""
        self.eval()
        return self.requires_grad_(False)


def save_quantiser(quantiser: Quantiser, path: Path, *, origin: dict[str, Any]) -> None:
    """Write it in one go: whoever sees the file sees all of it.

    Args:
        quantiser: what to write.
        path: where to.
        origin: plain values that say what it was trained on.
    """
    document = {
        "format": _FORMAT,
        "config": asdict(quantiser.config),
        "state": {key: value.cpu() for key, value in quantiser.state_dict().items()},
        "origin": origin,
    }
    part = path.with_suffix(f".part{os.getpid()}")
    torch.save(document, part)
    part.replace(path)


def load_quantiser(path: Path) -> tuple[Quantiser, dict[str, Any]]:
    """A frozen quantiser and its origin.

    Raises:
        UsageError: there is no such file, or it holds something else.
    """
    try:
        document = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise ValueError(f"it is no {_FORMAT}")  # noqa: TRY301  (told with all else below)
        quantiser = Quantiser(QuantiserConfig(**document["config"]))
        quantiser.load_state_dict(document["state"])
    except Exception as error:  # torch.load raises whatever a file provokes
        raise UsageError(
            f"{path} cannot be read as a latent-action quantiser: {error}",
            remedy="give a file that Stage 1 wrote (OUTPUT/quantiser.pt), or leave "
            "--laq-checkpoint out to train one",
        ) from error
    return quantiser.frozen(), dict(document["origin"])
