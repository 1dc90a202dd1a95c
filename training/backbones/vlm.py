"""A PaliGemma checkpoint of ``transformers`` as a backbone (Beyer et al. 2024, arXiv:2407.07726).

The picture's patches and the instruction's tokens go through the model together; the feature is the
mean of the last layer's states over what is there. Pictures are resized and normalised here, on the
device and by the batch; the checkpoint's own image processor, which takes pictures one by one, is
not used.

Needs the extra ``vlm`` (transformers).

Not here: the built-in backbone (``tiny``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from autoloader.errors import UsageError
from training.backbones.base import Backbone, Tokens
from training.images import resized

Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]
"""A tokenizer: texts to token ids, each with the model's own marks."""


class VisionLanguageBackbone(Backbone):
    """See the module.

    Args:
        model: a ``PaliGemmaModel``.
        encode: its tokenizer.
    """

    def __init__(self, model: Any, encode: Encode) -> None:
        super().__init__()
        config = model.config
        self.model = model
        self.width = int(config.text_config.hidden_size)
        self._encode = encode
        self._side = int(config.vision_config.image_size)
        self._patches = (self._side // int(config.vision_config.patch_size)) ** 2
        self._image_token = int(config.image_token_id)

    @classmethod
    def from_pretrained(cls, name: str) -> VisionLanguageBackbone:
        """The checkpoint called ``name``, or in that folder.

        Raises:
            UsageError: transformers is missing, or cannot load it.
        """
        try:
            import transformers
        except ImportError as error:
            raise UsageError(
                f"the backbone {name!r} needs transformers, which is not installed",
                remedy="pip install 'autoloader-rlds[vlm]', or take --backbone tiny",
            ) from error
        try:
            model = transformers.PaliGemmaModel.from_pretrained(name)
            tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the backbone {name!r} cannot be loaded: {str(error).splitlines()[0]}",
                remedy="take tiny, or a PaliGemma checkpoint's name or folder",
            ) from error

        def encode(texts: Sequence[str]) -> Sequence[Sequence[int]]:
            ids: Sequence[Sequence[int]] = tokenizer([f"{text}\n" for text in texts])["input_ids"]
            return ids

        return cls(model, encode)

    def tokens(self, language: Sequence[str]) -> Tokens:
        texts = [torch.tensor(list(ids), dtype=torch.int64) for ids in self._encode(language)]
        ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=0)
        lengths = torch.tensor([len(text) for text in texts])
        image = torch.full((len(texts), self._patches), self._image_token)
        there = torch.arange(ids.shape[1]) < lengths[:, None]
        return {
            "input_ids": torch.cat((image, ids), 1),
            "attention_mask": torch.cat((torch.ones_like(image), there.to(torch.int64)), 1),
        }

    def forward(self, pictures: Tensor, tokens: Tokens) -> Tensor:
        pixels = 2 * resized(pictures, self._side) - 1
        said = self.model(
            input_ids=tokens["input_ids"],
            attention_mask=tokens["attention_mask"],
            # All of it is prefix: every token sees every other.
            token_type_ids=torch.zeros_like(tokens["input_ids"]),
            pixel_values=pixels.to(self.model.dtype),
        ).last_hidden_state.float()
        there = tokens["attention_mask"][:, :, None]
        return torch.as_tensor((said * there).sum(1) / there.sum(1))
