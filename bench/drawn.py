"""Mixtures that the bench draws itself, for what the demo mixture has no example of.

``counted``: three datasets of 96×96 JPEGs with unequal weights, small enough for a test suite;
what the regression gate counts on. ``png`` and ``png_480``: one dataset of PNGs, 240×320 and
480×640. ``large``: one dataset of 720×1280 JPEGs. The same names give the same bytes, as long as
the encoders do.

Theory of operation. A picture is smooth noise (a small random picture, enlarged) with some grain on
it, so that it compresses like a camera's. Neither TensorFlow nor TFDS is needed: an Example is
written by ``bench.records``.

Not here: where they are kept (``bench.data``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg

from bench.records import Values, example_bytes, write_records
from bench.versions import write_mix, write_version

FORMAT = 3
"""Raised when the same names begin to mean other data."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """One mixture.

    Attributes:
        weights: of each dataset.
        shards, episodes, steps: of each dataset, of each shard, of each episode.
        height, width: of the stored pictures.
        grain: grey levels of noise on them, up and down; what makes their bytes many.
        png: whether they are PNGs; else JPEGs.
        size: side of a frame in the batch.
        batch: samples of a batch.
    """

    weights: Mapping[str, float]
    shards: int
    episodes: int
    steps: int
    height: int
    width: int
    grain: int = 4
    png: bool = False
    size: int = 256
    batch: int = 48


DRAWINGS: Mapping[str, Drawing] = {
    "counted": Drawing({"red": 5, "green": 3, "blue": 2}, 2, 5, 16, 96, 96, size=192, batch=4),
    "png": Drawing({"png": 1}, 4, 6, 24, 240, 320, png=True),
    "png_480": Drawing({"png": 1}, 4, 3, 24, 480, 640, png=True),
    "large": Drawing({"large": 1}, 4, 3, 24, 720, 1280),
}


def draw(name: str, place: Path) -> None:
    """Fills ``place`` with the mixture ``name`` and its ``mix.yaml``."""
    drawing = DRAWINGS[name]
    rng = np.random.default_rng(sum(map(ord, name)))
    declared = json.dumps(features(drawing))
    for dataset in drawing.weights:
        counts = [drawing.episodes] * drawing.shards
        for path in write_version(place, dataset, declared, counts):
            write_records(path, (_episode(drawing, rng) for _ in range(drawing.episodes)))
    write_mix(
        place / "mix.yaml", drawing.weights, image="image", size=drawing.size, batch=drawing.batch
    )


def _episode(drawing: Drawing, rng: np.random.Generator) -> bytes:
    pictures: Values = [_picture(drawing, rng) for _ in range(drawing.steps)]
    words: Values = [b"put the drawing away"] * drawing.steps
    return example_bytes(
        {
            "steps/observation/image": pictures,
            "steps/observation/state": rng.random(3 * drawing.steps, np.float32),
            "steps/action": rng.random(7 * drawing.steps, np.float32),
            "steps/language_instruction": words,
        }
    )


def _picture(drawing: Drawing, rng: np.random.Generator) -> bytes:
    """One frame as it is stored."""
    coarse = rng.integers(0, 256, (drawing.height // 24, drawing.width // 24, 3), np.uint8)
    shape = (drawing.width, drawing.height)
    smooth = cv2.resize(coarse, shape, interpolation=cv2.INTER_CUBIC).astype(np.int16)
    grain = rng.integers(-drawing.grain, drawing.grain + 1, smooth.shape, np.int16)
    picture: Any = np.clip(smooth + grain, 0, 255).astype(np.uint8)
    if drawing.png:
        return bytes(cv2.imencode(".png", picture[..., ::-1])[1])
    return bytes(simplejpeg.encode_jpeg(picture, quality=85))


def features(drawing: Drawing) -> dict[str, Any]:
    """``features.json``, as far as it is read."""
    steps = {
        "observation": _dict(
            {
                "image": _leaf(
                    "image_feature.Image",
                    "image",
                    (drawing.height, drawing.width, 3),
                    "uint8",
                    encodingFormat="png" if drawing.png else "jpeg",
                ),
                "state": _leaf("tensor_feature.Tensor", "tensor", (3,), encoding="none"),
            }
        ),
        "action": _leaf("tensor_feature.Tensor", "tensor", (7,), encoding="none"),
        "language_instruction": {
            "pythonClassName": "tensorflow_datasets.core.features.text_feature.Text",
            "text": {},
        },
    }
    sequence = {
        "pythonClassName": "tensorflow_datasets.core.features.dataset_feature.Dataset",
        "sequence": {"feature": _dict(steps), "length": "-1"},
    }
    return _dict({"steps": sequence})


def _leaf(
    python: str, kind: str, shape: tuple[int, ...], dtype: str = "float32", **more: str
) -> dict[str, Any]:
    return {
        "pythonClassName": f"tensorflow_datasets.core.features.{python}",
        kind: {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": dtype, **more},
    }


def _dict(features: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
        "featuresDict": {"features": dict(features)},
    }
