"""The Stage-2 policy: a backbone's feature, and heads that learn a velocity from it.

Theory of operation. A head gets a point x_t on the path between target and noise, its t, and the
feature of what the policy sees. It answers the velocity there (``flow``). t is embedded as sines of
several wavelengths; feature and t together scale and shift every layer.

Not here: losses and metrics (``module``), where the latent targets come from (``quantiser``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training import flow
from training.backbones import Backbone, Tokens

_WAVES = 16


def time_embedding(t: Tensor) -> Tensor:
    """``[B, 1]`` in 0 to 1 as ``[B, 2 · 16]`` sines and cosines, wavelengths 4 down to 0.004."""
    rates = torch.exp(torch.linspace(0, math.log(1000), _WAVES, device=t.device)) * math.pi / 2
    return torch.cat(((t * rates).sin(), (t * rates).cos()), 1)


class _Layer(nn.Module):
    def __init__(self, width: int, condition: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.film = nn.Linear(condition, 2 * width)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU())
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        gain, shift = self.film(condition).chunk(2, 1)
        return x + torch.as_tensor(self.outer(self.inner(self.norm(x) * (1 + gain) + shift)))


class FlowHead(nn.Module):
    """Answers the velocity of ``dim`` numbers at a point of their path.

    Args:
        feature: width of the backbone's feature.
        dim: numbers in a target.
        width: of the layers.
        layers: how many.
    """

    def __init__(self, feature: int, dim: int, *, width: int = 192, layers: int = 3) -> None:
        super().__init__()
        self.dim = dim
        self.begin = nn.Linear(dim, width)
        self.tell = nn.Sequential(nn.Linear(feature + 2 * _WAVES, width), nn.GELU())
        self.layers = nn.ModuleList([_Layer(width, width) for _ in range(layers)])
        self.end = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, dim))
        last = self.end[1]
        assert isinstance(last, nn.Linear)
        # At first the answer is 0, the mean velocity of standardised targets.
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor, t: Tensor, feature: Tensor) -> Tensor:
        """``[B, dim]`` from x_t ``[B, dim]``, t ``[B, 1]`` and the feature ``[B, width]``."""
        condition = self.tell(torch.cat((feature, time_embedding(t)), 1))
        x = self.begin(x)
        for layer in self.layers:
            x = layer(x, condition)
        return torch.as_tensor(self.end(x))


class Policy(nn.Module):
    """Backbone and heads.

    Args:
        backbone: sees and reads.
        latent_dim: numbers in a latent action.
        action_dim: numbers in a chunk of real actions; 0 leaves the action head out.
    """

    def __init__(self, backbone: Backbone, latent_dim: int, action_dim: int = 0) -> None:
        super().__init__()
        self.backbone = backbone
        self.latent_head = FlowHead(backbone.width, latent_dim)
        self.action_head = FlowHead(backbone.width, action_dim) if action_dim else None

    def tokens(self, language: Sequence[str], device: torch.device) -> Tokens:
        """The batch's instructions as the backbone's tensors, on ``device``."""
        read = self.backbone.tokens(language)
        return {key: value.to(device, non_blocking=True) for key, value in read.items()}

    def sample(self, feature: Tensor, noise: Tensor, steps: int) -> Tensor:
        """Latent actions ``[B, latent_dim]``, from noise by Euler's rule."""
        return flow.euler(lambda x, t: self.latent_head(x, t, feature), noise, steps)
