"""The arithmetic of flow matching: the path from target to noise, its velocity, the way back.

Theory of operation. A straight path joins target and noise, with t = 1 at the noise:

    x_t = t · noise + (1 − t) · target,    dx_t/dt = noise − target

(flow matching with straight paths: Lipman et al. 2022, arXiv:2210.02747; rectified flow: Liu et al.
2022, arXiv:2209.03003). A network learns the velocity from x_t, t and what it sees; sampling starts
at noise, t = 1, and walks to t = 0 by Euler's rule. Times are drawn from Beta(1.5, 1), which has
more of the noisy end, where the answer must come from what is seen (as in π0, Black et al. 2024,
arXiv:2410.24164).

Invariants:
    1. Every draw is a function of (seed, purpose, step, rank): a resumed run draws what the
       uninterrupted one would have.
    2. Along the true velocity, Euler's rule arrives at the target in any number of steps.

Not here: the network (``policy``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

BETA = 1.5
"""Times come from Beta(BETA, 1), whose distribution function is t ** BETA."""


def keyed_seed(*key: int | str) -> int:
    """A seed that is a function of ``key`` alone, the same in every process."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True, slots=True)
class Draw:
    """What one flow-matching step draws.

    Attributes:
        noise: ``[B, D]``, standard normal.
        t: ``[B, 1]`` in (0, 1], from Beta(1.5, 1).
    """

    noise: Tensor
    t: Tensor


def draw(rows: int, width: int, device: torch.device, *key: int | str) -> Draw:
    """Noise and times for ``rows`` targets of ``width`` numbers, under ``key``."""
    generator = torch.Generator(device=device).manual_seed(keyed_seed(*key))
    noise = torch.randn(rows, width, generator=generator, device=device)
    uniform = torch.rand(rows, 1, generator=generator, device=device)
    return Draw(noise, (1 - uniform) ** (1 / BETA))


def on_path(target: Tensor, drawn: Draw) -> Tensor:
    """x_t, ``[B, D]``."""
    return drawn.t * drawn.noise + (1 - drawn.t) * target


def velocity(target: Tensor, noise: Tensor) -> Tensor:
    """dx_t/dt, ``[B, D]``: constant along the path."""
    return noise - target


def euler(field: Callable[[Tensor, Tensor], Tensor], noise: Tensor, steps: int) -> Tensor:
    """Walks from ``noise [B, D]`` at t = 1 to t = 0 in ``steps`` equal steps.

    Args:
        field: velocity at (x ``[B, D]``, t ``[B, 1]``).
        noise: where to start.
        steps: at least 1.
    """
    x = noise
    for step in range(steps):
        t = torch.full_like(x[:, :1], 1 - step / steps)
        x = x - field(x, t) / steps
    return x


def mean_loss(target: Tensor, drawn: Draw, mean: Tensor) -> Tensor:
    """``[B]``: the loss of who answers every question with the mean velocity, 0 − ``mean``."""
    return (velocity(target, drawn.noise) + mean).square().mean(1)


def blind_loss(drawn: Draw, variance: Tensor) -> Tensor:
    """``[B]``: the least that a linear answer to x_t and t costs that sees nothing else.

    With targets of ``variance [D]`` v, that is v / (t² + (1 − t)² · v): the variance of the
    velocity given x_t where targets are Gaussian.
    """
    floor = variance.clamp_min(1e-6)
    return (floor / (drawn.t**2 + (1 - drawn.t) ** 2 * floor)).mean(1)
