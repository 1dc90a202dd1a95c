"""OpenVLA's batch, as its RLDS loader gives it to the tokeniser.

Not here: what NumPy and torch spell differently (``integrations.layouts.arrays``), windows
(``integrations.layouts.arrays``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoloader.integrations.layouts.arrays import blanked, constant, like, read_window


def openvla(
    batch: dict[str, Any],
    dataset_names: Sequence[str] = (),
    *,
    goal: bool = False,
    frame_offsets: Sequence[int] | None = None,
    action_start: int = 0,
) -> dict[str, Any]:
    """A batch as OpenVLA's RLDS loader has it: B samples, W frames (theirs is 1), H actions.

    - ``observation``: ``image_CAMERA`` [B, W, h, w, 3] uint8, ``depth_CAMERA`` [B, W, h, w] of
      depth cameras, as they are stored, ``proprio`` [B, W, P] float32 (where
      the mixture has a state), ``timestep`` [B, W] int32, ``pad_mask`` [B, W] bool, true is real,
      ``pad_mask_dict`` of [B, W] bool.
    - ``task``: ``language_instruction`` [B] bytes (they lower-case it when they write the prompt);
      with a goal ``image_CAMERA`` [B, h, w, 3], ``timestep`` [B] int32; ``pad_mask_dict``.
    - ``action`` [B, H, A] float32, ``absolute_action_mask`` [B, A] bool: true for the gripper, the
      last column that a dataset has.
    - ``dataset_name`` [B] bytes, where names are given.

    Rows behind the goal (or the episode's last step) are neutral, as there: the absolute column
    repeats the last row inside, the others are 0 in *normalised* units. Rows before the episode
    repeat its first action. This wants ``edges: {start: repeat, end: repeat}``, the default.

    Args:
        batch: a loader's, with ``metadata: full``; torch tensors or NumPy arrays.
        dataset_names: names by dataset index, ``loader.dataset_names``.
        goal: whether the spec says ``goal: uniform``, so that the last frame is the goal.
        frame_offsets: the spec's; ``None`` is a window of consecutive frames that ends at t.
        action_start: first action offset of the spec.

    Raises:
        UsageError: the batch does not tell places in episodes, or has another number of states
            than of frames.
    """
    window = read_window(
        batch, dataset_names, goal=goal, frame_offsets=frame_offsets, layout="OpenVLA"
    )
    action, mask = batch["action"], batch["action_mask"]
    rows = constant(range(action.shape[1]), window.samples)
    inside = mask.any(-1)
    before = (inside.cumsum(1) == 0) & inside.any(1)[:, None]
    before = before | (window.t[:, None] + action_start + rows < 0)
    inside = inside | before  # a row before the first one repeats it
    columns = mask.any(1)
    last = columns.sum(-1)[:, None] - 1
    absolute = columns & (constant(range(columns.shape[1]), last) == last)
    if window.goal is not None:
        ahead = like(window.goal - window.t - action_start, window.samples)[:, None]
        held = (rows - (rows - ahead).clip(0)).clip(0)  # up to the goal's own row
        action = action[window.samples[:, None], held]
        inside = inside & (rows <= ahead)
    action = blanked(action, ~inside[..., None] & ~absolute[:, None])
    found = {
        "observation": {**window.observation, "pad_mask": window.real},
        "task": window.task,
        "action": action,
        "absolute_action_mask": absolute,
    }
    return found if window.dataset_name is None else {**found, "dataset_name": window.dataset_name}
