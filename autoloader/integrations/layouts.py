"""Batches as other trainers expect them: LeRobot, Octo, OpenVLA, openpi, and Stage-2 trainers.

A layout takes a batch of an ``AutoLoader``, of torch tensors or NumPy arrays, and gives that
trainer's names, shapes and types: ``octo(batch, loader.dataset_names)``. A layout only rearranges:
frames and numbers stay views where the shapes allow it. The Lightning data module takes a layout
as ``to_batch``.

Theory of operation. A batch says which frame it really holds (``frame_offset``), not which frame
was asked for. Where the two differ, the frame stands in for one before the episode. Octo and
OpenVLA call such rows padding and keep the picture's own mask: whether the dataset has a picture
there.

Not here: what the numbers are (the spec), when a layout is called (``integrations.lightning``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from autoloader.errors import UsageError, many, nearest
from autoloader.host.frozen import frozen
from autoloader.samples.layout import Batch

ACTION, STATE = "action", "observation.state"
"""LeRobot's keys of actions and states."""


def octo(
    batch: dict[str, Any],
    dataset_names: Sequence[str] = (),
    *,
    goal: bool = False,
    frame_offsets: Sequence[int] | None = None,
) -> dict[str, Any]:
    """A batch as Octo 1.5 has it: B samples, a window of W frames, chunks of H actions of width A.

    - ``observation``: ``image_CAMERA`` [B, W, h, w, 3] uint8; ``depth_CAMERA`` [B, W, h, w] of
      depth cameras, values as stored. ``proprio`` [B, W, P] float32, if the mixture has a state;
      ``timestep`` [B, W] int32; ``timestep_pad_mask`` [B, W] bool, true is real.
      ``task_completed`` [B, W, H] bool; ``pad_mask_dict`` of [B, W] bool: true where the
      dataset has such a picture, always for numbers.
    - ``task``: ``language_instruction`` [B] bytes; with a goal ``image_CAMERA`` [B, h, w, 3] and
      ``timestep`` [B] int32; ``pad_mask_dict`` of [B] bool.
    - ``action`` [B, W, H, A] float32 and ``action_pad_mask`` [B, W, H, A] bool.
    - ``dataset_name`` [B] bytes, where names are given.

    The mask of actions is Octo's: false in columns that a dataset lacks, and from the *third* row
    behind the goal (or the episode's last step) on. The two rows before count as real.
    A goal has no proprio, because the batch has none.

    Args:
        batch: a loader's, with ``metadata: full``; torch tensors or NumPy arrays.
        dataset_names: names by dataset index, ``loader.dataset_names``.
        goal: whether the spec says ``goal: uniform``, so that the last frame is the goal.
        frame_offsets: the spec's; ``None`` is a window of consecutive frames that ends at t.

    Raises:
        UsageError: the batch has no chunk for each frame of the window, no place in its episodes,
            or another number of states than of frames.
    """
    window = _read_window(
        batch, dataset_names, goal=goal, frame_offsets=frame_offsets, layout="Octo"
    )
    action, mask = batch["action"], batch["action_mask"]
    if action.ndim == 3:
        action, mask = action[:, None], mask[:, None]
    if action.shape[1] != window.size:
        raise UsageError(
            f"a sample has {many(action.shape[1], 'chunk')} of actions and "
            f"{many(window.size, 'frame')}: the Octo layout needs a chunk for each frame",
            remedy="write action_per: step in the spec's sample",
        )
    horizon = action.shape[2]
    last = window.t + mask[:, -1].any(-1).sum(-1) - 1 if window.goal is None else window.goal
    rows = _constant(range(window.size), window.t)[:, None] + _constant(range(horizon), window.t)
    steps = window.t[:, None, None] - (window.size + 1) + rows
    completed = last[:, None, None] - steps <= 0
    columns = mask.any(1).any(1)
    window.found["observation"] |= {"timestep_pad_mask": window.real, "task_completed": completed}
    pad_mask = columns[:, None, None] & ~completed[..., None]
    return {**window.found, "action": action, "action_pad_mask": pad_mask}


def openvla(
    batch: dict[str, Any],
    dataset_names: Sequence[str] = (),
    *,
    goal: bool = False,
    frame_offsets: Sequence[int] | None = None,
    action_start: int = 0,
) -> dict[str, Any]:
    """A batch as OpenVLA's RLDS loader has it: B samples, W frames (theirs is 1), H actions.

    - ``observation``: ``image_CAMERA`` [B, W, h, w, 3] uint8; ``depth_CAMERA`` [B, W, h, w] of
      depth cameras, values as stored. ``proprio`` [B, W, P] float32, if the mixture has a state;
      ``timestep`` [B, W] int32; ``pad_mask`` [B, W] bool, true is real; ``pad_mask_dict`` of
      [B, W] bool.
    - ``task``: ``language_instruction`` [B] bytes (they lower-case it when they write the prompt);
      with a goal ``image_CAMERA`` [B, h, w, 3], ``timestep`` [B] int32; ``pad_mask_dict``.
    - ``action`` [B, H, A] float32, ``absolute_action_mask`` [B, A] bool: true for the gripper, the
      last column that a dataset has.
    - ``dataset_name`` [B] bytes, where names are given.

    Rows behind the goal (or the episode's last step) are neutral, as in OpenVLA. The absolute
    column repeats the last row inside; the others are 0 in *normalised* units. Rows before the
    episode repeat its first action. This wants ``edges: {start: repeat, end: repeat}``, the
    default.

    Args:
        batch: a loader's, with ``metadata: full``; torch tensors or NumPy arrays.
        dataset_names: names by dataset index, ``loader.dataset_names``.
        goal: whether the spec says ``goal: uniform``, so that the last frame is the goal.
        frame_offsets: the spec's; ``None`` is a window of consecutive frames that ends at t.
        action_start: first action offset of the spec.

    Raises:
        UsageError: the batch does not tell places in episodes, has another number of states than of
            frames, or lacks the action at t, by which a dataset's columns are known.
    """
    window = _read_window(
        batch, dataset_names, goal=goal, frame_offsets=frame_offsets, layout="OpenVLA"
    )
    action, mask = batch["action"], batch["action_mask"]
    if not action_start <= 0 < action_start + action.shape[1]:
        raise UsageError(
            f"a sample's actions are those from t{action_start:+} to "
            f"t{action_start + action.shape[1] - 1:+}: the OpenVLA layout needs the one at t",
            remedy="write action_start: 0 in the spec's sample; or one below 0, and an "
            "action_horizon that goes up to t",
        )
    rows = _constant(range(action.shape[1]), window.samples)
    inside = mask.any(-1)
    before = (inside.cumsum(1) == 0) & inside.any(1)[:, None]
    before = before | (window.t[:, None] + action_start + rows < 0)
    inside = inside | before  # a row before the first one repeats it
    columns = mask.any(1)
    last = columns.sum(-1)[:, None] - 1
    absolute = columns & (_constant(range(columns.shape[1]), last) == last)
    if window.goal is not None:
        ahead = _like(window.goal - window.t - action_start, window.samples)[:, None]
        held = (rows - (rows - ahead).clip(0)).clip(0)  # up to the goal's own row
        action = action[window.samples[:, None], held]
        inside = inside & (rows <= ahead)
    action = _blanked(action, ~inside[..., None] & ~absolute[:, None])
    window.found["observation"]["pad_mask"] = window.real
    return {**window.found, "action": action, "absolute_action_mask": absolute}


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

    - ``image``: openpi's camera → [B, h, w, 3] uint8; zeros where the mixture has no such camera.
      openpi's are 224 × 224, scaled to [-1, 1] when the model reads them.
    - ``image_mask``: openpi's camera → [B] bool; a camera that the mixture lacks is false, and with
      ``pi0_fast`` true, as there.
    - ``state`` [B, 32] and ``actions`` [B, H, 32] float32, zero columns behind the data's own; with
      ``pi0_fast`` as wide as they are. No mask tells rows behind the episode's end.
    - ``prompt``: list of B str.

    Args:
        batch: a loader's, of one frame and one state a sample; torch tensors or NumPy arrays.
        dataset_names: taken for the sake of ``to_batch``; openpi names no dataset.
        model: model whose names and widths the batch gets.
        cameras: openpi's camera → the batch's; default primary, wrist and right_wrist (or, with
            ``pi0_fast``, primary, secondary and wrist).

    Raises:
        UsageError: more than one frame or state, no camera at all, or more columns than 32.
    """
    frames = {name: one.shape[1] for name, one in batch["images"].items()}
    states = batch["state"].shape[1]
    if not frames or set(frames.values()) != {1} or states != 1:
        counts = {"state": states, **frames}
        told = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise UsageError(
            f"openpi takes one state and one frame a camera, and a sample has {told}",
            remedy="write sample: {frame_offsets: [0], state_offsets: [0]}, without goal",
        )
    taken = cameras or _CAMERAS["pi0_fast" if model == "pi0_fast" else "pi0"]
    missing = set(cameras.values()) - set(frames) if cameras else set()
    if missing:
        raise UsageError(
            f"the batch has no camera {', '.join(map(repr, sorted(missing)))}",
            remedy=f"choose from: {', '.join(frames)}",
        )
    coloured = [name for name, one in batch["images"].items() if one.shape[-1] == 3]
    if not coloured:
        raise UsageError(
            f"the batch has depth cameras only ({', '.join(frames)}); openpi takes colour frames",
            remedy="add a colour camera to the spec",
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


def lerobot(
    batch: Mapping[str, Any],
    dataset_names: Sequence[str] = (),
    *,
    cameras: Mapping[str, str] | None = None,
    features: Mapping[str, str] | None = None,
    windows: Collection[str] | None = None,
    parquet_images: Collection[str] = (),
    now: int = -1,
    floats: bool = True,
) -> dict[str, Any]:
    """A batch as lerobot's ``DataLoader`` gives it: B samples, T observations, H actions.

    - ``observation.images.CAMERA``: [B, C, h, w], or [B, T, C, h, w]; float32 in [0, 1] or uint8.
    - ``observation.state``: [B, S], or [B, T, S] float32; ``action``: [B, H, A] float32.
    - ``KEY_is_pad``: [B, T] or [B, H] bool, of keys that have a window; true outside the episode.
    - ``task``: list of B texts.
    - what ``features`` names; of ``index`` that of the dataset plus 2^40 times the dataset's
      number, so that it is unique over a mixture.

    A video with one observation has no axis of time. A state, and a picture of a Parquet file,
    have one even for a window of one, as in lerobot. Every array is contiguous, as lerobot's are;
    pictures and what ``features`` names of the step t are copies.

    Args:
        batch: batch of a loader; torch tensors or NumPy arrays.
        dataset_names: not used; taken for the sake of ``to_batch``.
        cameras: camera of the batch → key; default: ``observation.images.CAMERA``.
        features: name in ``batch["features"]`` → key, of numbers of the step t, or of all
            observations where the key begins with ``observation.``.
        windows: keys that have ``delta_timestamps``; default: the action, and observations where
            there are several.
        parquet_images: keys of cameras whose pictures lie in Parquet files.
        now: place of t among the observations.
        floats: makes float32 in [0, 1] of uint8 pictures; False leaves them, as lerobot's
            training has them since 0.6.

    Raises:
        UsageError: the batch holds a depth camera, or actions of several steps.
    """
    cameras = cameras or {name: f"observation.images.{name}" for name in batch["images"]}
    asked = {ACTION} if windows is None else windows
    found: dict[str, Any] = {}

    def put(key: str, rows: Any, real: Any, *, axis: bool) -> None:
        window = key in asked or (windows is None and rows.shape[1] > 1)
        found[key] = rows if rows.shape[1] > 1 or (window and axis) else rows[:, 0]
        if window:
            found[f"{key}_is_pad"] = ~real

    for name, key in cameras.items():
        frames = batch["images"][name]
        if frames.shape[-1] != 3:
            raise UsageError(
                f"camera {name!r} has {frames.shape[-1]} channels; the layout takes colour frames",
                remedy="leave depth cameras out of the spec",
            )
        # As lerobot's in memory too: convolutions round by the order of strides.
        if _is_torch(frames):
            frames = frames.movedim(-1, -3).contiguous()
        else:
            frames = np.ascontiguousarray(frames.transpose(0, 1, 4, 2, 3))
        if floats and "uint8" in str(frames.dtype):
            frames = (frames.float() if _is_torch(frames) else frames.astype("float32")) / 255
        put(key, frames, batch["frame_mask"][name], axis=key in parquet_images)
    if batch["state"].shape[-1]:
        put(STATE, batch["state"], batch["state_mask"].any(-1), axis=True)
    if batch["action"].ndim != 3:
        raise UsageError(
            "the batch has a chunk of actions for each frame; lerobot takes one for each sample",
            remedy="leave action_per: step out of the spec",
        )
    put(ACTION, batch["action"], batch["action_mask"].any(-1), axis=True)
    for name, key in (features or {}).items():
        rows, real = batch["features"][name], batch["feature_mask"][name]
        if key.startswith("observation."):
            put(key, rows, real, axis=True)
        else:
            found[key] = rows[:, [now]].reshape(len(rows))
    if "index" in found and "dataset_index" in batch:
        found["index"] = found["index"] + batch["dataset_index"] * 2**40
    return {**found, "task": list(batch["language"])}


def _to_width(numbers: Any, name: str) -> Any:
    """Numbers padded with zeros to the columns of openpi's models."""
    if numbers.shape[-1] > WIDTH:
        raise UsageError(
            f"{name} has {numbers.shape[-1]} columns; openpi's models take {WIDTH}",
            remedy=f"choose fewer columns for {name} in the spec",
        )
    own = numbers.shape[-1]
    if own == WIDTH:
        return numbers
    made = filled((*numbers.shape[:-1], WIDTH), 0, numbers)
    made[..., :own] = numbers
    return made


@frozen
class Stage2Layout:
    """Batch as Stage-2 trainers of vision-language-action models expect it.

    Needs ``metadata: full``. A batch is a dict:

    - ``frames``: ``[B, 3, T, H, W] uint8``, a view of one camera;
    - ``language``: list of B str;
    - ``action``: ``[B, A] float32`` where the horizon is 1, else ``[B, horizon, A]``;
    - ``state``: ``[B, S]`` or ``[B, Fs, S] float32``;
    - ``dataset_name``: list of B str;
    - ``episode_id``: list of B str, the same for all samples of one episode, in every pass;
    - ``frame_idx``: ``[B] int64``, t of the sample in its (strided) episode;
    - the other keys of the loader's batch, as they are.

    Args:
        camera: camera that the frames are of; ``None``: the only or first one.
    """

    camera: str | None = None

    def __call__(self, batch: Batch, dataset_names: Sequence[str]) -> dict[str, Any]:
        """The batch, rearranged; frames and numbers are views of it.

        Raises:
            UsageError: the camera or the metadata is not in the batch.
        """
        images = batch["images"]
        camera = self.camera if self.camera is not None else next(iter(images))
        if camera not in images:
            raise UsageError(
                f"Stage2Layout(camera={camera!r}): the mixture has no camera of this name",
                remedy=nearest(camera, images),
            )
        if "provenance" not in batch:
            raise UsageError(
                "Stage2Layout needs the place of each sample in its dataset; the spec has "
                "metadata: " + ("dataset_only" if "dataset_index" in batch else "none"),
                remedy="write metadata: full at the top level of the spec",
            )
        places = batch["provenance"].tolist()
        kept = {key: value for key, value in batch.items() if key != "images"}
        return {
            **kept,
            "frames": images[camera].permute(0, 4, 1, 2, 3),
            "action": _without_horizon(batch["action"]),
            "state": _without_horizon(batch["state"]),
            "dataset_name": [dataset_names[place[0]] for place in places],
            "episode_id": [f"{dataset_names[d]}/{shard}/{e}" for d, _, shard, e, _ in places],
            "frame_idx": batch["provenance"][:, 4],
        }


def _without_horizon(rows: Any) -> Any:
    return rows[:, 0] if rows.shape[1] == 1 else rows


@frozen
class _Window:
    """Facts of a batch that Octo's and OpenVLA's layouts need.

    Attributes:
        size: W, frames without the goal.
        samples: [B] int64, 0 … B − 1.
        t: [B] int32, where the samples stand in their episodes.
        real: [B, W] bool, false where a row stands for one before the episode.
        goal: [B] int32, the goal's place in the episode, or ``None``.
        found: parts that both layouts have: ``observation`` (images, proprio, timestep), ``task``
            (the goal's pictures, the instruction), each with its ``pad_mask_dict``, and
            ``dataset_name``, [B] bytes, where names were given.
    """

    size: int
    samples: Any
    t: Any
    real: Any
    goal: Any | None
    found: dict[str, Any]


def _read_window(
    batch: dict[str, Any],
    dataset_names: Sequence[str],
    *,
    goal: bool,
    frame_offsets: Sequence[int] | None,
    layout: str,
) -> _Window:
    """The window of a batch; arguments are those of ``octo``.

    Raises:
        UsageError: the batch lacks what the layout needs; ``layout`` is its name.
    """
    if "provenance" not in batch:
        raise UsageError(
            f"the {layout} layout needs each frame's place in its episode, which the batch lacks",
            remedy="write metadata: full at the top level of the spec",
        )
    offsets = batch["frame_offset"]
    asked = _asked(offsets.shape[1] - goal, goal, frame_offsets, layout)
    size = len(asked)
    t = _like(batch["provenance"][:, 4], offsets)
    held = offsets[:, :size]
    repeated = held != _constant(asked, offsets)
    real = ~repeated & (t[:, None] + held >= 0)
    first = (~real).sum(-1).clip(0, size - 1)
    samples = _constant(range(len(t)), first)
    always = filled((len(t), size), True, real)
    present: dict[str, Any] = {}
    observation: dict[str, Any] = {"pad_mask_dict": present}
    there: dict[str, Any] = {}
    task: dict[str, Any] = {"pad_mask_dict": there}
    for camera, frames in batch["images"].items():
        mask = batch["frame_mask"][camera]
        name = f"image_{camera}"
        if frames.shape[-1] == 1:  # theirs have no axis of channels
            name, frames = f"depth_{camera.removeprefix('depth_')}", frames[..., 0]
        observation[name] = frames[:, :size]
        present[name] = mask[:, :size] | (repeated & mask[samples, first][:, None])
        if goal:
            task[name] = frames[:, size]
            there[name] = mask[:, size]
    if batch["state"].shape[-1]:
        if (states := batch["state"].shape[1]) != size:
            raise UsageError(
                f"a sample has {many(size, 'frame')}, but {many(states, 'state')}; the {layout} "
                "layout needs a state (proprio) for each frame",
                remedy=f"write state_offsets: {asked} in the spec's sample",
            )
        observation["proprio"], present["proprio"] = batch["state"], always
    observation["timestep"] = (t[:, None] + held).clip(0)
    present["timestep"] = always
    goal_at = None
    if goal:
        task["timestep"] = goal_at = t + offsets[:, size]
        there["timestep"] = always[:, 0]
    task["language_instruction"] = _texts_as_bytes(batch["language"])
    there["language_instruction"] = _constant([bool(text) for text in batch["language"]], real)
    found: dict[str, Any] = {"observation": observation, "task": task}
    if dataset_names:
        each = [dataset_names[i] for i in batch["dataset_index"].tolist()]
        found["dataset_name"] = _texts_as_bytes(each)
    return _Window(size, samples, t, real, goal_at, found)


def _asked(size: int, goal: bool, frame_offsets: Sequence[int] | None, layout: str) -> list[int]:
    """The window's offsets, as many as the batch has frames beside the goal."""
    if not size:
        raise UsageError(
            f"the {layout} layout with goal=True needs a goal frame, and samples have one frame",
            remedy="write goal: uniform in the spec's sample, or leave goal=True out",
        )
    asked = list(range(1 - size, 1)) if frame_offsets is None else list(frame_offsets)
    if len(asked) != size:
        raise UsageError(
            f"frame_offsets={asked} has {many(len(asked), 'offset')}, but a sample has "
            f"{many(size, 'frame')}"
            f"{' beside its goal' if goal else ' (goal=False)'}",
            remedy="pass sample.frame_offsets of the spec, and goal=True if it has sample.goal",
        )
    return asked


def _is_torch(array: Any) -> bool:
    """True for a torch tensor."""
    return hasattr(array, "new_tensor")


def _like(array: Any, other: Any) -> Any:
    """``array`` in the type, and on the device, of ``other``."""
    return array.to(other) if _is_torch(array) else array.astype(other.dtype)


def _constant(values: Sequence[Any], other: Any) -> Any:
    """An array of ``values`` in the type, and on the device, of ``other``."""
    return other.new_tensor(values) if _is_torch(other) else np.asarray(values, other.dtype)


def filled(shape: Sequence[int], value: Any, other: Any) -> Any:
    """An array full of ``value`` in the type, and on the device, of ``other``."""
    if _is_torch(other):
        return other.new_full(tuple(shape), value)
    return np.full(tuple(shape), value, other.dtype)


def _blanked(array: Any, where: Any) -> Any:
    """A copy of ``array`` with zeros where ``where`` (of the same shape) is true."""
    if _is_torch(array):
        return array.masked_fill(where, 0)
    return np.where(where, np.zeros((), array.dtype), array)


def _texts_as_bytes(texts: Sequence[str]) -> Any:
    """[B] NumPy objects: the texts in UTF-8, as TensorFlow gives them to NumPy."""
    made = np.empty(len(texts), object)
    made[:] = [text.encode("utf-8") for text in texts]
    return made
