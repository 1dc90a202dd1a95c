"""A vision-language model behind the backbones' interface, tiny and random."""

import warnings

import pytest
import torch

from training.backbones.vlm import VisionLanguageBackbone
from training.policy import Policy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="the extra vlm is not installed")


def tiny_model() -> VisionLanguageBackbone:
    torch.manual_seed(0)
    config = transformers.PaliGemmaConfig(
        vision_config={"model_type": "siglip_vision_model", "hidden_size": 16,
                       "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "image_size": 28, "patch_size": 14, "projection_dim": 24},
        text_config={"model_type": "gemma", "hidden_size": 24, "intermediate_size": 32,
                     "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
                     "head_dim": 12, "vocab_size": 300}, image_token_id=299, projection_dim=24,
    )  # fmt: skip
    model = transformers.PaliGemmaModel(config)
    return VisionLanguageBackbone(model, lambda texts: [[2, *text.encode(), 10] for text in texts])


def test_a_vision_language_model_serves_as_backbone_and_learns():
    backbone = tiny_model()
    policy = Policy(backbone, latent_dim=6)
    pictures = torch.rand(3, 3, 40, 40)
    feature = policy.backbone(
        pictures, policy.tokens(["lift the cup", "", "push"], pictures.device)
    )
    assert feature.shape == (3, backbone.width)
    answer = policy.latent_head(torch.randn(3, 6), torch.rand(3, 1), feature)
    assert answer.shape == (3, 6)
    feature.square().sum().backward()
    assert all(p.grad is not None for p in backbone.model.language_model.layers.parameters())


def test_padding_of_an_instruction_does_not_change_its_feature():
    backbone = tiny_model().eval()
    picture = torch.rand(1, 3, 28, 28)
    with torch.no_grad():
        alone = backbone(picture, backbone.tokens(["lift"]))
        padded = backbone(picture.repeat(2, 1, 1, 1), backbone.tokens(["lift", "lift it now"]))
    torch.testing.assert_close(padded[:1], alone)
    assert not torch.allclose(padded[0], padded[1])
