"""Backbones: what looks at a frame and reads an instruction, behind one interface.

``build_backbone("tiny")`` is built in; any other name is a transformers checkpoint (``vlm``).

Not here: what is learned from the feature (``training.policy``).
"""

from __future__ import annotations

from training.backbones.base import Backbone, Tokens

__all__ = ["Backbone", "Tokens", "build_backbone"]


def build_backbone(name: str) -> Backbone:
    """The backbone called ``name``: ``tiny``, or a PaliGemma checkpoint's name or folder.

    Raises:
        UsageError: it needs ``transformers``, which is not installed, or cannot be loaded.
    """
    if name == "tiny":
        from training.backbones.tiny import TinyBackbone

        return TinyBackbone()
    from training.backbones.vlm import VisionLanguageBackbone

    return VisionLanguageBackbone.from_pretrained(name)
