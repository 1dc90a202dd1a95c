"""The conventions that ``init --style`` writes specs in, as text that people go on editing.

Not here: what a dataset's fields are in each (``cli.dataset_entries``), putting the file together
(``cli.spec_text``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class StyleName(str, Enum):
    """Conventions, by the project that has them."""

    plain = "plain"
    stage2 = "stage2"


@dataclass(frozen=True, slots=True)
class Style:
    """What a spec has beside its datasets.

    Attributes:
        about: comment lines at the top.
        weights: the line ``weights``; of a mixture, and without one.
        sample: YAML lines behind it.
        cameras: camera → its line's value and comment; others are as ``primary``.
        augment: camera → YAML lines of its operations.
        rest: YAML lines at the end.
        raw: whether actions and states are taken as they lie.
        pairs: whether each dataset has an offset of about a second.
    """

    about: str
    weights: tuple[str, str]
    sample: str
    cameras: Mapping[str, str]
    augment: Mapping[str, str] = field(default_factory=dict)
    rest: str = "batch: {size: 48}                 # samples per batch and rank\n"
    raw: bool = False
    pairs: bool = False


_SIZES = {"primary": "{size: [256, 256]}", "wrist": "{size: [128, 128]}"}

STYLES: Mapping[StyleName, Style] = {
    StyleName.plain: Style(
        about="One frame, one state and one action a sample, numbers as they lie in the files.",
        weights=(
            "natural_scaled            # shares are weight × samples, as the mixture's are meant",
            "natural                   # shares by size; explicit: by each dataset's weight",
        ),
        sample="sample:\n"
        "  frame_offsets: [0]              # the frame at t; [-1, 0] adds the one before\n"
        "  action_horizon: 1               # its action; 8 gives the next eight\n",
        cameras=_SIZES,
        raw=True,
    ),
    StyleName.stage2: Style(
        about="Pairs of frames about a second apart, and the sum of the actions between them.",
        weights=(
            "natural_scaled            # shares are weight × samples",
            "natural                   # shares by size; explicit: by each dataset's weight",
        ),
        sample="sample: {frame_offsets: [0, 5], action_horizon: 5, action_reduce: sum}\n",
        cameras=_SIZES,
        pairs=True,
    ),
}
