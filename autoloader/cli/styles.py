"""The conventions that ``init --style`` writes specs in, as text that people go on editing.

The figures are those that Octo 1.5, OpenVLA and openpi train with.

Not here: what a dataset's fields are in each (``cli.dataset_entries``), putting the file together
(``cli.spec_text``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal


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
        project: whose recipes (``autoloader.recipes``) datasets are written by, if any's.
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


_SIZES = {"primary": "{size: [256, 256]}", "wrist": "{size: [128, 128]}"}
_BY_SIZE = "natural                   # shares by size; explicit: by each dataset's weight"
_SCALED = "natural_scaled            # shares are weight × samples, as these weights are meant"
_BALANCED = "natural_scaled            # weight × all recorded steps, as there"
_ENDLESS = (
    "mixing: {epoch: forever}          # as there; a number makes epochs of so many samples\n"
)
_COPIES = (
    "The project trained on copies whose frames were stretched to 256×256 and encoded anew as "
    "JPEG; of the public files frames differ a little. See docs/howto/from-other-loaders.md."
)
_CROP = "random_resized_crop: {{scale: {0}, ratio: {1}}}   # there along the diagonal\n"
_COLOURS = (
    "brightness: {0}                 # a shift of the full range\n"
    "contrast: [{1}, {2}]            # there around each channel's mean, here around the grey one\n"
    "saturation: [{1}, {2}]\n"
    "hue: {3}                        # part of the colour circle\n"
)
_OCTO_COLOURS = _COLOURS.format("0.1", "0.9", "1.1", "0.05")

STYLES: Mapping[StyleName, Style] = {
    StyleName.plain: Style(
        about=("One frame, one state and one action a sample, numbers as they lie in the files.",),
        weights=(_SCALED, _BY_SIZE),
        sample="sample:\n"
        "  frame_offsets: [0]              # the frame at t; [-1, 0] adds the one before\n"
        "  action_horizon: 1               # its action; 8 gives the next eight\n",
        cameras=_SIZES,
        raw=True,
    ),
    StyleName.octo: Style(
        about=(
            "As Octo 1.5 pretrains: a window of 2 frames, chunks of 4 actions, a goal, numbers by "
            "mean and std with the gripper left out. autoloader.layouts.octo gives its batch.",
            _COPIES,
        ),
        weights=(_BALANCED, _BALANCED),
        sample="sample:\n"
        "  frame_offsets: [-1, 0]          # window_size: 2\n"
        "  state_offsets: [-1, 0]          # the proprio of the same steps, where it is read\n"
        "  action_horizon: 4               # action_horizon: 4\n"
        "  action_per: step                # a chunk for each step of the window\n"
        "  goal: uniform                   # from t + 1 on; Octo's may be t itself\n"
        "  per_episode: 100                # subsample_length: 100\n",
        cameras={
            "primary": "{size: [256, 256], resize: tf_lanczos3}",
            "wrist": "{size: [128, 128], resize: tf_lanczos3}",
        },
        augment={
            "primary": _CROP.format("[0.8, 1.0]", "[0.9, 1.1]") + _OCTO_COLOURS,
            "wrist": _OCTO_COLOURS,
        },
        rest="normalize:\n"
        '  action: {method: mean_std, dims: "[:-1]", arithmetic: octo}   # all but the gripper\n'
        "  statistics_of: recorded         # every step of all splits, as there, also for weights\n"
        "batch: {size: 48}                 # samples per batch and rank\n" + _ENDLESS,
        project="octo",
        held_out=("val",),
        rest_of_train="5%",
        only_cameras=True,
        state=False,
    ),
    StyleName.openvla: Style(
        about=(
            "As OpenVLA trains: one frame, one action, labelled episodes, actions by their 1st and "
            "99th percentiles with the gripper left out. autoloader.layouts.openvla gives its "
            "batch.",
            _COPIES,
        ),
        weights=(_BALANCED, _BALANCED),
        sample="sample:\n"
        "  frame_offsets: [0]              # window_size: 1\n"
        "  action_horizon: 1               # future_action_window_size: 0\n",
        cameras={"primary": "{size: [224, 224], resize: tf_lanczos3}"},
        augment={
            "primary": _CROP.format("[0.9, 0.9]", "[1.0, 1.0]")
            + _COLOURS.format("0.2", "0.8", "1.2", "0.05")
        },
        augmented="as its finetune.py; its train.py has image_aug off: take the block away",
        rest="normalize:\n"
        "  # BOUNDS_Q99\n"
        '  action: {method: q01_q99, dims: "[:-1]", clip: true, arithmetic: openvla}\n'
        "  statistics_of: recorded         # every step of all splits, as there, also for weights\n"
        "batch: {size: 48}                 # samples per batch and rank\n" + _ENDLESS,
        project="openvla",
        held_out=("val",),
        rest_of_train="5%",
        only_cameras=True,
        state=False,
    ),
    StyleName.openpi: Style(
        about=(
            "As openpi trains on DROID: chunks of 16 joint positions relative to the state at t, "
            "state and actions by quantiles, the gripper too. autoloader.layouts.openpi gives its "
            "batch.",
            "Its own augmentation turns frames and jitters colours of every second one in the "
            "model step; its statistics are quantiles of a histogram: see "
            "docs/howto/from-other-loaders.md.",
        ),
        weights=(
            "explicit                  # as they are; there they must sum to 1",
            "explicit                  # by each dataset's weight",
        ),
        sample="sample:\n"
        "  frame_offsets: [0]\n"
        "  state_offsets: [0]\n"
        "  action_horizon: 16              # rows behind the end repeat the last one\n",
        cameras={
            "primary": "{size: [224, 224], resize: pillow_bilinear, fit: pad}   # on black",
            "wrist": "{size: [224, 224], resize: pillow_bilinear, fit: pad}",
        },
        rest="normalize:\n"
        "  action: {method: q01_q99, arithmetic: openpi}   # pi0.5, pi0-FAST; pi0: mean_std\n"
        "  state: {method: q01_q99, arithmetic: openpi}\n"
        "  statistics_of: samples          # a row counts once per chunk that it lies in\n"
        "pad_to: {action: 32, state: 32}   # pi0 and pi0.5; pi0-FAST is not padded\n"
        "batch: {size: 32}                 # samples per batch and rank\n" + _ENDLESS,
        project="openpi",
        held_out=(),
        rest_of_train="none",
    ),
    StyleName.stage2: Style(
        about=("Pairs of frames about a second apart, and the sum of the actions between them.",),
        weights=(_SCALED, _BY_SIZE),
        sample="sample: {frame_offsets: [0, 5], action_horizon: 5, action_reduce: sum}\n",
        cameras=_SIZES,
        pairs=True,
    ),
}
