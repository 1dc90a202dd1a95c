"""The policy that the torch examples train. Put your own model in its place.

docs/reference/batch.md has the keys and shapes of a batch.
"""

import json

import torch
from torch import Tensor, nn

from autoloader import AutoLoader, Batch


class Policy(nn.Module):
    """Predicts a chunk of actions from the last frame of camera "primary" and the last state.

    Args:
        loader: has the sizes of a batch, and the statistics of its normalisation.
    """

    def __init__(self, loader: AutoLoader) -> None:
        super().__init__()
        layout = loader.plan.mixture.layout
        actions = layout.action_rows * layout.action_width
        self.eye = nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.GELU(), nn.Conv2d(16, 32, 4, 4))
        self.head = nn.Sequential(
            nn.Linear(32 + layout.state_width, 128), nn.GELU(), nn.Linear(128, actions)
        )
        self.normalization = json.dumps(loader.normalization, default=lambda array: array.tolist())

    def forward(self, batch: Batch) -> Tensor:
        """Mean absolute error of the actions that are there."""
        device = next(self.parameters()).device
        frames = batch["images"]["primary"][:, -1].to(device).permute(0, 3, 1, 2) / 255
        state, action = batch["state"][:, -1].to(device), batch["action"].to(device)
        seen = torch.cat([self.eye(frames).mean(dim=(2, 3)), state], dim=1)
        error: Tensor = self.head(seen).view_as(action) - action
        return error[batch["action_mask"].to(device)].abs().mean()
