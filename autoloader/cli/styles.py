"""The conventions that ``init --style`` writes specs in, as text that people go on editing.

The figures are those that Octo 1.5, OpenVLA and openpi train with.

Not here: what a dataset's fields are in each (``cli.written_spec``), putting the file together
(``cli.written_spec``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any, Literal


class StyleName(str, Enum):
    """Conventions, by the project that has them."""

    plain = "plain"
    octo = "octo"
    openvla = "openvla"
    openpi = "openpi"
    stage2 = "stage2"


@dataclass(frozen=True, slots=True)
class Style:
    """What a spec has beside its datasets.

    Attributes:
        about: comments at the top, one sentence or a few each.
        weights: the line ``weights``; of a mixture, and without one.
        sample: YAML lines behind it.
        cameras: camera → its line's value and comment; others are as ``primary``.
        augment: camera → YAML lines of its operations.
        augmented: comment on the block ``augment``.
        rest: YAML lines at the end.
        project: whose recipes (``autoloader.spec.recipes``) datasets are written by, if any's.
        only_cameras: whether the batch has the style's cameras and no others: those that no
            dataset fills are black.
        state: whether the project reads the state; else it stands as a comment.
        raw: whether actions and states are taken as they lie.
        pairs: whether each dataset has an offset of about a second.
        held_out: splits that may be validated on, the first that is there.
        rest_of_train: what is validated on else: some of train's episodes, at least one; the last
            5 %, rounded as TFDS does, which is none of a few episodes; or none.
    """

    about: tuple[str, ...]
    weights: tuple[str, str]
    sample: str
    cameras: Mapping[str, str]
    augment: Mapping[str, str] = field(default_factory=dict)
    augmented: str = "on the device; never in validation"
    rest: str = "batch: {size: 48}                 # samples per batch and rank\n"
    project: str | None = None
    only_cameras: bool = False
    state: bool = True
    raw: bool = False
    pairs: bool = False
    held_out: tuple[str, ...] = ("val", "validation", "test")
    rest_of_train: Literal["some", "5%", "none"] = "some"


@cache
def styles() -> Mapping[StyleName, Style]:
    """All styles, as ``styles.yaml`` beside this file has them."""
    from autoloader.spec.reading import parse_yaml

    text = resources.files(__package__).joinpath("styles.yaml").read_text(encoding="utf-8")
    found = {}
    for name, entry in parse_yaml(text).items():
        values: dict[str, Any] = {
            key: tuple(one) if isinstance(one, list) else one for key, one in entry.items()
        }
        found[StyleName(name)] = Style(**values)
    return found
