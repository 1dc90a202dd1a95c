"""Quantiser, backbone, heads and pictures, on plain tensors."""

from pathlib import Path

import pytest
import torch

from autoloader.errors import UsageError
from training import flow
from training.backbones.tiny import TinyBackbone
from training.images import frame_pair
from training.policy import Policy
from training.quantiser import Quantiser, QuantiserConfig, load_quantiser, save_quantiser

SMALL = QuantiserConfig(side=16, width=8, slots=2, codes=4, code_dim=4)


def moving_squares(rows: int, key: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames with a bright square, and later ones where it has moved one of four ways."""
    generator = torch.Generator().manual_seed(key)
    now, later = torch.zeros(2, rows, 3, 16, 16)
    for row in range(rows):
        y, x, way = torch.randint(4, 8, (3,), generator=generator).tolist()
        dy, dx = ((0, 4), (0, -4), (4, 0), (-4, 0))[way - 4]
        now[row, :, y : y + 4, x : x + 4] = 1
        later[row, :, y + dy : y + dy + 4, x + dx : x + dx + 4] = 1
    return now, later


def taught_quantiser(steps: int) -> tuple[Quantiser, list[float]]:
    torch.manual_seed(0)
    quantiser = Quantiser(SMALL)
    optimiser = torch.optim.AdamW(quantiser.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        now, later = moving_squares(16, step)
        loss = quantiser.loss(now, later, torch.ones(16), "test", step)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    quantiser.frozen()
    now, later = moving_squares(256, 10_000)
    quantiser.calibrate(quantiser.quantise(quantiser.encode(now, later)).vectors.flatten(1))
    return quantiser, losses


@pytest.fixture(scope="module")
def taught() -> tuple[Quantiser, list[float]]:
    return taught_quantiser(120)


@pytest.fixture(scope="module")
def quantiser(taught: tuple[Quantiser, list[float]]) -> Quantiser:
    return taught[0]


def test_a_pair_is_the_first_frame_and_the_later_one_and_padding_weighs_nothing():
    frames = torch.arange(4, dtype=torch.uint8).view(1, 4, 1, 1, 1).repeat(2, 1, 8, 8, 3)
    mask = torch.tensor([[True] * 4, [True, True, False, True]])
    batch = {"images": {"wrist": frames}, "frame_mask": {"wrist": mask}}
    pair = frame_pair(batch, "wrist", 2)
    assert pair.now.max() == 0
    assert (pair.later * 255).round().unique().tolist() == [2.0]
    assert pair.weight.tolist() == [1.0, 0.0]
    with pytest.raises(UsageError, match="no camera 'primary'"):
        frame_pair(batch, "primary")
    one = {"images": {"wrist": frames[:, :1]}, "frame_mask": {"wrist": mask[:, :1]}}
    with pytest.raises(UsageError, match="two frames"):
        frame_pair(one, "wrist")


def test_stage_1_learns_to_tell_motions_apart(taught: tuple[Quantiser, list[float]]):
    quantiser, losses = taught
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    now, later = moving_squares(256, 999)
    drawn = quantiser.decode(now, quantiser.quantise(quantiser.encode(now, later)).vectors)
    assert (drawn - later).square().mean() < 0.8 * (now - later).square().mean()
    assert len(quantiser.quantise(quantiser.encode(now, later)).codes.unique(dim=0)) > 3


def test_a_quantiser_is_read_as_it_was_written_and_nothing_else_is(
    quantiser: Quantiser, tmp_path: Path
):
    path = tmp_path / "quantiser.pt"
    save_quantiser(quantiser, path, origin={"steps": 3})
    assert [file.name for file in tmp_path.iterdir()] == ["quantiser.pt"]
    again, origin = load_quantiser(path)
    pair = moving_squares(4, 5)
    assert torch.equal(again.targets(*pair), quantiser.targets(*pair))
    assert origin == {"steps": 3}
    assert not any(p.requires_grad for p in again.parameters())
    torch.save({"format": "something else"}, path)
    with pytest.raises(UsageError, match="cannot be read as a latent-action quantiser"):
        load_quantiser(path)


def test_a_policy_learns_what_the_frame_tells_and_samples_it():
    torch.manual_seed(0)
    policy = Policy(TinyBackbone(side=32), latent_dim=3)
    pictures = torch.stack([torch.full((3, 32, 32), shade) for shade in (0.0, 1.0)]).repeat(
        8, 1, 1, 1
    )
    target = torch.tensor([[1.0, -1.0, 0.5], [-1.0, 1.0, -0.5]]).repeat(8, 1)
    tokens = policy.tokens([""] * 16, pictures.device)
    optimiser = torch.optim.AdamW(policy.parameters(), lr=2e-3)
    for step in range(40):
        drawn = flow.draw(16, 3, pictures.device, "policy", step)
        feature = policy.backbone(pictures, tokens)
        answer = policy.latent_head(flow.on_path(target, drawn), drawn.t, feature)
        loss = (answer - flow.velocity(target, drawn.noise)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        feature = policy.backbone(pictures, tokens)
        sampled = policy.sample(feature, flow.draw(16, 3, pictures.device, 1).noise, 10)
    assert (sampled - target).square().mean() < 0.3 * target.square().mean()
