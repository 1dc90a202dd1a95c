"""Declares the demo mixture's 29 datasets: what real mixtures look like, in small.

Not here: how frames are drawn (``cli.demo_mixture.write``), how files are written
(``cli.demo_mixture.write``).

The features follow what Open X-Embodiment mixtures hold: flat and nested actions of 4 to 14 dims,
states in one piece, in several, or absent; language per step, in the observation, in the episode's
metadata, as code points, or absent; ``features.json`` with and without the image encoding; large
datasets beside one of 24 episodes; one at 50 Hz; one whose robot stands still now and then; depth
beside RGB. Two thirds have no second camera. The order is such that the first few are already
varied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from autoloader.spec.reading import parse_yaml

VERSION = "1.0.0"
"""Version directory of every demo dataset."""

RANGES_FILE = "keep_ranges.json"
"""Beside the version directory of a dataset that idles: the steps at which it does not."""

SIZE_BINS_KB = (5, 10, 15, 20, 25, 30, 35, 40, 45)
"""Upper edges of the histogram of encoded image sizes, in kB (10³ bytes); one more bin is open."""

CODE_POINTS = 96
"""Length of language that is stored as code points; what is left over is NUL."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a dataset's frames look and how they are stored.

    Attributes:
        encoding: ``jpeg`` or ``png``.
        quality: JPEG quality, 1 to 100; unused for PNG.
        noise: peak of the sensor noise in grey levels; 0 is a rendered picture.
        detail: strength of the finest grain, 1 is a photograph.
        bands: grey levels per channel of a rendered picture (PNG); 256 keeps all.
    """

    encoding: str = "jpeg"
    quality: int = 90
    noise: int = 6
    detail: float = 1.0
    bands: int = 256


@dataclass(frozen=True, slots=True)
class DemoDataset:
    """One dataset of the demo mixture.

    Attributes:
        name: dataset and folder name.
        weight: relative share in ``mix.yaml``.
        frames: frames of the train split at scale 1 (in the mean; lengths are drawn).
        lengths: shortest and longest episode, in frames.
        size: height and width of the primary camera in pixels.
        look: the picture's texture and encoding.
        primary: feature of the primary camera.
        second, third: feature and size of another camera, or ``None``.
        depth: feature of depth pictures (uint16 millimetres, PNG, the primary's size), or ``None``.
        hz: control rate, where steps are timed: ``observation/timestamp`` in seconds. Motions are
            that much slower from step to step; ``None`` is untimed, about 10 Hz.
        idles: whether the robot stands still at the start and once later (action 0, state held),
            and ``keep_ranges.json`` lists the steps between.
        action: feature below ``action`` → dims; ``""`` is a flat action. 0 dims is a scalar.
        action_fields: the spec's expression; default every feature in order.
        action_dtype: as stored.
        state: feature → dims; 0 dims is a scalar.
        language: features that hold the instruction.
        language_kind: ``text``, or ``codes`` (int32 code points).
        has_val: whether there is a ``val`` split of about 5 % more episodes.
        states_encoding: whether ``features.json`` says how images are encoded.
        shards: at most so many train shards.
        episodes: a fixed number of train episodes, whatever the scale.
        standard_names: shards are called ``-00000-of-00008``; else as TFDS's sequential writer
            leaves them, ``-00000``.
    """

    name: str
    weight: float
    frames: int
    lengths: tuple[int, int]
    size: tuple[int, int]
    look: Look
    primary: str = "observation/image"
    second: tuple[str, tuple[int, int]] | None = None
    third: tuple[str, tuple[int, int]] | None = None
    depth: str | None = None
    hz: int | None = None
    idles: bool = False
    action: Mapping[str, int] = field(default_factory=lambda: {"": 7})
    action_fields: tuple[object, ...] = ()
    action_dtype: str = "float32"
    state: Mapping[str, int] = field(default_factory=lambda: {"observation/state": 8})
    language: tuple[str, ...] = ("language_instruction",)
    language_kind: str = "text"
    has_val: bool = True
    states_encoding: bool = True
    shards: int = 8
    episodes: int | None = None
    standard_names: bool = True

    @property
    def action_paths(self) -> tuple[str, ...]:
        """The action's features, in order."""
        return tuple(f"action/{key}" if key else "action" for key in self.action)

    @property
    def cameras(self) -> tuple[tuple[str, tuple[int, int]], ...]:
        """Every camera's feature and size, the primary first."""
        return ((self.primary, self.size), *filter(None, (self.second, self.third)))

    def train_episodes(self, scale: float) -> int:
        """Episodes of the train split at ``scale``; never fewer than 2."""
        if self.episodes is not None:
            return self.episodes
        return max(2, round(scale * self.frames / (sum(self.lengths) / 2)))

    def val_episodes(self, scale: float) -> int:
        """Episodes of the val split at ``scale``; 0 where there is none."""
        return max(1, round(0.05 * self.train_episodes(scale))) if self.has_val else 0


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _declared() -> Iterator[DemoDataset]:
    text = resources.files(__package__).joinpath("datasets.yaml").read_text(encoding="utf-8")
    for entry in parse_yaml(text):
        look = Look(**entry.pop("look", {}))
        yield DemoDataset(look=look, **{key: _tuples(value) for key, value in entry.items()})


DATASETS: tuple[DemoDataset, ...] = tuple(_declared())
"""The whole mixture as ``datasets.yaml`` beside this file has it, in the order of ``mix.yaml``."""
