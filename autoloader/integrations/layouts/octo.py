"""Octo's batch, as its version 1.5 trains on it.

Not here: what NumPy and torch spell differently (``integrations.layouts.arrays``), windows
(``integrations.layouts.arrays``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoloader.errors import UsageError
from autoloader.integrations.layouts.arrays import constant, read_window


def octo(
    batch: dict[str, Any],
    dataset_names: Sequence[str] = (),
    *,
    goal: bool = False,
    frame_offsets: Sequence[int] | None = None,
) -> dict[str, Any]:
    """A batch as Octo 1.5 has it: B samples, a window of W frames, chunks of H actions of width A.

    - ``observation``: ``image_CAMERA`` [B, W, h, w, 3] uint8, ``depth_CAMERA`` [B, W, h, w] of
      depth cameras, as they are stored, ``proprio`` [B, W, P] float32 (where
      the mixture has a state), ``timestep`` [B, W] int32, ``timestep_pad_mask`` [B, W] bool, true
      is real, ``task_completed`` [B, W, H] bool, ``pad_mask_dict`` of [B, W] bool: true where the
      dataset has such a picture; always for numbers.
    - ``task``: ``language_instruction`` [B] bytes; with a goal ``image_CAMERA`` [B, h, w, 3] and
      ``timestep`` [B] int32; ``pad_mask_dict`` of [B] bool.
    - ``action`` [B, W, H, A] float32 and ``action_pad_mask`` [B, W, H, A] bool.
    - ``dataset_name`` [B] bytes, where names are given.

    The mask of actions is Octo's: false in columns that a dataset lacks, and from the *third* row
    behind the goal (or the episode's last step) on; the two rows before that count as real there.
    A goal has no proprio, which the batch does not hold.

    Args:
        batch: a loader's, with ``metadata: full``; torch tensors or NumPy arrays.
        dataset_names: names by dataset index, ``loader.dataset_names``.
        goal: whether the spec says ``goal: uniform``, so that the last frame is the goal.
        frame_offsets: the spec's; ``None`` is a window of consecutive frames that ends at t.

    Raises:
        UsageError: the batch has no chunk for each frame of the window, no place in its episodes,
            or another number of states than of frames.
    """
    window = read_window(
        batch, dataset_names, goal=goal, frame_offsets=frame_offsets, layout="Octo"
    )
    action, mask = batch["action"], batch["action_mask"]
    if action.ndim == 3:
        action, mask = action[:, None], mask[:, None]
    if action.shape[1] != window.size:
        raise UsageError(
            f"{action.shape[1]} chunks of actions a sample for a window of {window.size} frames: "
            "the Octo layout has one for each",
            remedy="write action_per: step in the spec's sample",
        )
    horizon = action.shape[2]
    inside = mask[:, -1].any(-1)
    last = window.t + inside.sum(-1) - 1 if window.goal is None else window.goal
    rows = constant(range(window.size), window.t)[:, None] + constant(range(horizon), window.t)
    steps = window.t[:, None, None] - (window.size + 1) + rows
    completed = last[:, None, None] - steps <= 0
    columns = mask.any(1).any(1)
    found = {
        "observation": {
            **window.observation,
            "timestep_pad_mask": window.real,
            "task_completed": completed,
        },
        "task": window.task,
        "action": action,
        "action_pad_mask": columns[:, None, None] & ~completed[..., None],
    }
    return found if window.dataset_name is None else {**found, "dataset_name": window.dataset_name}
