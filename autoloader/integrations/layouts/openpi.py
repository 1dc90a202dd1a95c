"""openpi's batch, as its model's observation is read from.

Not here: what NumPy and torch spell differently (``integrations.layouts.arrays``), windows
(``integrations.layouts.arrays``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from autoloader.errors import UsageError
from autoloader.integrations.layouts.arrays import filled, widened

WIDTH = 32
"""Columns of state and actions in pi0 and pi0.5."""
_CAMERAS: dict[str, dict[str, str]] = {
    "pi0": {
        "base_0_rgb": "primary",
        "left_wrist_0_rgb": "wrist",
        "right_wrist_0_rgb": "right_wrist",
    },
    "pi0_fast": {"base_0_rgb": "primary", "base_1_rgb": "secondary", "wrist_0_rgb": "wrist"},
}


def openpi(
    batch: dict[str, Any],
    dataset_names: Sequence[str] = (),
    *,
    model: Literal["pi0", "pi05", "pi0_fast"] = "pi05",
    cameras: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A batch as openpi has it before tokens are made: B samples, H actions.

    - ``image``: openpi's camera → [B, h, w, 3] uint8 (theirs are 224 × 224, scaled to [-1, 1] when
      the model reads them); zeros where the mixture has no such camera.
    - ``image_mask``: openpi's camera → [B] bool; a camera that the mixture lacks is false, and with
      ``pi0_fast`` true, as there.
    - ``state`` [B, 32] and ``actions`` [B, H, 32] float32, zero columns behind the data's own; with
      ``pi0_fast`` as wide as they are. No mask tells rows behind the episode's end.
    - ``prompt``: list of B str.

    Args:
        batch: a loader's, of one frame and one state a sample; torch tensors or NumPy arrays.
        dataset_names: taken for the sake of ``to_batch``; openpi names no dataset.
        model: which names and widths.
        cameras: openpi's camera → the batch's; default primary, wrist and right_wrist (or, with
            ``pi0_fast``, primary, secondary and wrist).

    Raises:
        UsageError: more than one frame or state, no camera at all, or more columns than 32.
    """
    del dataset_names
    frames = {name: one.shape[1] for name, one in batch["images"].items()}
    states = batch["state"].shape[1]
    if not frames or set(frames.values()) != {1} or states != 1:
        raise UsageError(
            f"frames of a sample by camera: {frames}; states: {states}; openpi takes one of each",
            remedy="write sample: {frame_offsets: [0], state_offsets: [0]}, without goal",
        )
    taken = cameras or _CAMERAS["pi0_fast" if model == "pi0_fast" else "pi0"]
    missing = set(cameras.values()) - set(frames) if cameras else set()
    if missing:
        raise UsageError(
            f"the batch has no camera {', '.join(sorted(missing))}",
            remedy=f"name some of: {', '.join(frames)}",
        )
    coloured = [name for name, one in batch["images"].items() if one.shape[-1] == 3]
    if not coloured:
        raise UsageError(
            f"cameras of the batch: {', '.join(frames)}, all of depth; openpi takes colours",
            remedy="name a colour camera in the spec",
        )
    shape_of, mask_of = batch["images"][coloured[0]], batch["frame_mask"][coloured[0]]
    image, image_mask = {}, {}
    for theirs, ours in taken.items():
        if ours in frames:
            image[theirs] = batch["images"][ours][:, 0]
            image_mask[theirs] = batch["frame_mask"][ours][:, 0]
        else:
            image[theirs] = filled((len(shape_of), *shape_of.shape[2:]), 0, shape_of)
            image_mask[theirs] = filled((len(shape_of),), model == "pi0_fast", mask_of)
    state, actions = batch["state"][:, 0], batch["action"]
    if model != "pi0_fast":
        state, actions = _to_width(state, "state"), _to_width(actions, "action")
    return {
        "image": image,
        "image_mask": image_mask,
        "state": state,
        "actions": actions,
        "prompt": list(batch["language"]),
    }


def _to_width(numbers: Any, name: str) -> Any:
    if numbers.shape[-1] > WIDTH:
        raise UsageError(
            f"{name} has {numbers.shape[-1]} columns; openpi's models take {WIDTH}",
            remedy=f"choose fewer columns for {name} in the spec",
        )
    return widened(numbers, WIDTH)
