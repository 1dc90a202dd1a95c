"""Quantiser, backbone, heads and pictures, on plain tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoloader.errors import UsageError
from training import flow
from training.backbones import build_backbone
from training.backbones.tiny import TinyBackbone, hashed_grams
from training.images import as_bytes, as_floats, frame_pair, weighted_mean
from training.module import Shown, Stage2Config, Stage2Module
from training.pictures import SIDE, sheet
from training.policy import FlowHead, Policy
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


def test_floats_are_channels_first_and_bytes_come_back_as_they_were():
    frames = torch.randint(0, 256, (2, 3, 5, 7, 3), dtype=torch.uint8)
    floats = as_floats(frames)
    assert floats.shape == (2, 3, 3, 5, 7)
    assert floats.dtype == torch.float32
    assert floats.is_contiguous()
    assert torch.equal(as_bytes(floats), frames)


def test_a_pair_is_the_first_frame_and_the_later_one_and_padding_weighs_nothing():
    frames = torch.arange(4, dtype=torch.uint8).view(1, 4, 1, 1, 1).repeat(2, 1, 8, 8, 3)
    mask = torch.tensor([[True] * 4, [True, True, False, True]])
    batch = {"images": {"wrist": frames}, "frame_mask": {"wrist": mask}}
    pair = frame_pair(batch, "wrist", 2)
    assert pair.now.max() == 0
    assert (pair.later * 255).round().unique().tolist() == [2.0]
    assert pair.weight.tolist() == [1.0, 0.0]
    assert weighted_mean(torch.tensor([3.0, 100.0]), pair.weight) == 3.0
    with pytest.raises(UsageError, match="no camera 'primary'"):
        frame_pair(batch, "primary")
    one = {"images": {"wrist": frames[:, :1]}, "frame_mask": {"wrist": mask[:, :1]}}
    with pytest.raises(UsageError, match="two frames"):
        frame_pair(one, "wrist")


@settings(max_examples=30)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=6))
def test_an_instruction_is_hashed_alike_alone_and_in_a_batch(language: list[str]):
    together = hashed_grams(language)
    ends = [*together["starts"].tolist()[1:], len(together["grams"])]
    for text, start, end in zip(language, together["starts"].tolist(), ends, strict=True):
        assert hashed_grams([text])["grams"].tolist() == together["grams"][start:end].tolist()
        assert end > start


def test_the_feature_depends_on_the_picture_and_on_the_instruction():
    torch.manual_seed(0)
    backbone = build_backbone("tiny")
    pictures = torch.rand(2, 3, 48, 80)
    says = backbone(pictures, backbone.tokens(["lift", "lift"]))
    assert says.shape == (2, backbone.width)
    other = backbone(pictures, backbone.tokens(["lift", "push"]))
    assert torch.allclose(says[0], other[0])
    assert not torch.allclose(says[1], other[1])
    assert not torch.allclose(says[0], says[1])


def test_stage_1_learns_to_tell_motions_apart(taught: tuple[Quantiser, list[float]]):
    quantiser, losses = taught
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    now, later = moving_squares(256, 999)
    drawn = quantiser.decode(now, quantiser.quantise(quantiser.encode(now, later)).vectors)
    assert (drawn - later).square().mean() < 0.8 * (now - later).square().mean()
    assert len(quantiser.quantise(quantiser.encode(now, later)).codes.unique(dim=0)) > 3


def test_targets_are_standardised_and_a_function_of_the_pair_alone(quantiser: Quantiser):
    now, later = moving_squares(256, 10_000)
    before = {key: value.clone() for key, value in quantiser.state_dict().items()}
    targets = quantiser.targets(now, later)
    # As it was calibrated on these very pairs:
    torch.testing.assert_close(targets.mean(0), torch.zeros(8), atol=1e-4, rtol=0)
    torch.testing.assert_close(targets.var(0, unbiased=False), quantiser.variance)
    assert torch.equal(targets[:5], quantiser.targets(now[:5], later[:5]))
    assert all(torch.equal(before[key], value) for key, value in quantiser.state_dict().items())
    exact = quantiser.codebook[quantiser.quantise(quantiser.encode(now, later)).codes]
    torch.testing.assert_close(quantiser.vectors(targets), exact, atol=1e-5, rtol=1e-5)


def test_a_code_word_that_nobody_asks_for_is_replaced():
    torch.manual_seed(0)
    quantiser = Quantiser(SMALL)
    said = torch.randn(16, 2, 4)
    quantiser.codebook[3] = 1000.0
    for step in range(80):
        quantiser.follow(said, quantiser.quantise(said).codes, "test", step)
    assert quantiser.codebook.abs().max() < 10


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


def test_a_new_head_answers_the_mean_velocity():
    head = FlowHead(8, 5)
    assert not head(torch.randn(3, 5), torch.rand(3, 1), torch.randn(3, 8)).any()


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


def plain_batch(rows: int) -> dict[str, object]:
    torch.manual_seed(3)
    return {
        "images": {"primary": torch.randint(0, 256, (rows, 2, 16, 16, 3), dtype=torch.uint8)},
        "frame_mask": {"primary": torch.ones(rows, 2, dtype=torch.bool)},
        "action": torch.randn(rows, 2, 3),
        "action_mask": torch.ones(rows, 2, 3, dtype=torch.bool),
        "language": ["lift"] * rows,
    }


def test_what_is_masked_moves_no_loss(quantiser: Quantiser):
    config = Stage2Config(camera="primary", quantiser=SMALL, action_shape=(2, 3))
    module = Stage2Module(config, quantiser)
    assert module.policy.action_head is not None
    torch.nn.init.normal_(module.policy.action_head.end[1].weight)
    batch = plain_batch(4)
    batch["action_mask"][:, 1, 2] = False
    feature = torch.randn(4, module.policy.backbone.width)
    before = module._action_loss(feature, batch, 0)
    # The head sees the masked number, so it is the error there that must not count.
    batch["action"][:, 1, 2] = 0.0
    reference = module._action_loss(feature, batch, 0)
    batch["action_mask"][:] = True
    assert module._action_loss(feature, batch, 0) != reference
    assert before.isfinite()


def test_the_quantiser_stays_frozen_while_the_policy_trains(quantiser: Quantiser):
    module = Stage2Module(Stage2Config(camera="primary", quantiser=SMALL), quantiser).train()
    assert module.policy.training
    assert not any(part.training for part in module.quantiser.modules())
    learned = {
        id(p)
        for group in module.configure_optimizers()["optimizer"].param_groups
        for p in group["params"]
    }
    assert learned == {id(p) for p in module.policy.parameters()}


@settings(max_examples=5)
@given(rows=st.integers(1, 4))
def test_the_sheet_shows_each_sample_as_it_is(quantiser: Quantiser, rows: int):
    pair = frame_pair(plain_batch(rows), "primary")
    target = torch.linspace(-3, 3, 8).repeat(rows, 1)
    shown = Shown(pair, target, -target, ["nimm die Schüssel"] * rows, ["bridge"] * rows)
    page = np.asarray(sheet(shown, quantiser))
    assert page.shape[2] == 3
    left = page[22 : 22 + SIDE, 8 : 8 + SIDE].astype(int)
    corner = as_bytes(pair.now)[0].numpy().astype(int)
    assert abs(left.mean() - corner.mean()) < 3
