"""Windows: which frames, states and actions the sample at t holds, and what edges do to them.

All indices are of the *strided* episode. ``integrations.tfdata.samples`` does the same arithmetic
in TensorFlow for the tf.data front door, except chunks per step; tests hold the two together.

A row that leaves the episode is masked. Its value is the nearest row of the episode (``repeat``)
or zero (``zero``); with ``drop`` no such sample exists. A sum adds the rows inside only. Columns of
``action_zero_outside`` are zero there, and are normalised as any value.

With ``action_per: step`` each step of the window (``frame_offsets``) has a chunk of actions, which
starts at that step as realised. The chunk of a step outside of the episode is masked.

An action relative to the state is taken row by row, and before rows are zeroed or summed: from
every row of the window, the state *at t* is taken away; with a chunk per step, the state at that
step.

A goal is one more frame behind those of the offsets: g uniform in t+1 … T−1 by a keyed hash of t,
or t itself where t is the last. It lies in the episode, so no edge holds for it and no t is lost.

Not here: the t that a dataset's rules take away (``samples.transforms.keep``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoloader.host.frozen import frozen
from autoloader.samples.draws import (
    PURPOSE_GOAL,
    Bools,
    Floats,
    Ints,
    Keys,
    fold_array,
    splitmix64_array,
)
from autoloader.spec import SampleSpec
from autoloader.spec.sample import Finish


@frozen
class WindowRows:
    """Rows of an episode for each of n samples.

    Attributes:
        index: [n, R] int64, inside the episode.
        inside: [n, R] bool, false where the wanted row lies outside.
        zeroed: [n, R] bool, true where the value must be zero.
        offset: [n, R] int32, relative to t, as realised.
    """

    index: Ints
    inside: Bools
    zeroed: Bools
    offset: NDArray[np.int32]


def dropped_edges(sample: SampleSpec) -> tuple[int, int]:
    """Numbers of t at the start and at the end of an episode that have no sample."""
    # A step that an edge moved inside has a chunk that reaches as far as that of t, at most.
    chunked = {0, *sample.frame_offsets} if sample.action_per == "step" else {0}
    own = sample.action_offsets
    offsets = (
        *sample.frame_offsets,
        *sample.state_offsets,
        *(step + row for step in chunked for row in (own[0], own[-1])),
    )
    start = max(0, -min(offsets)) if sample.edges.start == "drop" else 0
    return start, max(0, max(offsets)) if sample.edges.end == "drop" else 0


def valid_range(sample: SampleSpec, steps: int) -> tuple[int, int]:
    """First valid t and the one after the last, in an episode of ``steps`` (strided) frames."""
    first, end = dropped_edges(sample)
    return first, max(first, steps - end)


def valid_ranges(sample: SampleSpec, steps: Ints) -> tuple[Ints, Ints]:
    """``valid_range`` of each of many episodes [E], as two arrays [E] int64."""
    first, end = dropped_edges(sample)
    stop = np.maximum(first, np.asarray(steps, dtype=np.int64) - end)
    return np.full_like(stop, first), stop


def rows(t: Ints, offsets: Ints, steps: int | Ints, sample: SampleSpec) -> WindowRows:
    """The rows at ``t[:, None] + offsets`` under the sample's edges.

    Args:
        t: [n] int64 steps of the strided episode.
        offsets: [R] int64 offsets of the window, in strided steps.
        steps: frames of the (strided) episode; [n, 1] where the samples are of different ones.
        sample: the sample block whose edges apply.
    """
    wanted = t[:, None] + offsets[None, :]
    index = np.minimum(np.maximum(wanted, 0), steps - 1)
    inside = index == wanted
    start, end = sample.edges.start == "zero", sample.edges.end == "zero"
    zeroed, realised = np.zeros_like(inside), index
    if start or end:
        zeroed = ((wanted < 0) & start) | ((wanted >= steps) & end)
        realised = np.where(zeroed, wanted, index)
    return WindowRows(index, inside, zeroed, (realised - t[:, None]).astype(np.int32))


def action_rows(t: Ints, steps: int | Ints, sample: SampleSpec) -> tuple[Ints, WindowRows]:
    """The rows of every chunk of actions, and the step that each chunk starts from.

    A sample has k chunks, one behind the other: k is the window's steps, or 1.

    Args:
        t: [n] int64 steps of the strided episode.
        steps: frames of the (strided) episode; [n, 1] where the samples are of different ones.
        sample: window, horizon and edges.

    Returns:
        [n · k] int64 steps, and rows [n · k, horizon].
    """
    offsets = sample.action_start + sample.action_step * np.arange(sample.action_horizon)
    if sample.action_per == "sample":
        return t, rows(t, offsets, steps, sample)
    frame = rows(t, np.asarray(sample.frame_offsets, dtype=np.int64), steps, sample)
    at = frame.index.ravel()
    if not isinstance(steps, int):
        steps = np.repeat(steps, len(sample.frame_offsets), axis=0)
    window = rows(at, offsets, steps, sample)
    inside, zeroed = frame.inside.reshape(-1, 1), frame.zeroed.reshape(-1, 1)
    return at, WindowRows(
        window.index, window.inside & inside, window.zeroed | zeroed, window.offset
    )


def frame_rows(t: Ints, steps: int | Ints, sample: SampleSpec, keys: Keys) -> WindowRows:
    """The rows of a sample's frames: at its offsets, then the goal's where there is one.

    Args:
        t: [n] int64 steps of the strided episode.
        steps: frames of the (strided) episode; [n, 1] where the samples are of different ones.
        sample: offsets, edges and goal.
        keys: [n] uint64 ``block.episode_key`` of each sample; read only for a goal.
    """
    window = rows(t, np.asarray(sample.frame_offsets, dtype=np.int64), steps, sample)
    if sample.goal == "none":
        return window
    goal = goal_rows(t, steps, keys)[:, None]
    none = np.zeros_like(goal, dtype=np.bool_)
    return WindowRows(
        np.concatenate([window.index, goal], axis=1),
        np.concatenate([window.inside, ~none], axis=1),
        np.concatenate([window.zeroed, none], axis=1),
        np.concatenate([window.offset, (goal - t[:, None]).astype(np.int32)], axis=1),
    )


def goal_rows(t: Ints, steps: int | Ints, keys: Keys) -> Ints:
    """[n] int64 the goal of each sample; arguments as of ``frame_rows``."""
    hashes = splitmix64_array(fold_array(keys, np.full_like(t, PURPOSE_GOAL), t))
    left = np.broadcast_to(np.ravel(steps), t.shape) - 1 - t
    drawn = (hashes % np.maximum(left, 1).astype(np.uint64)).astype(np.int64)
    return np.asarray(t + np.where(left > 0, drawn + 1, 0), dtype=np.int64)


def finished_values(
    values: Floats, mask: Bools, window: WindowRows, finish: Finish, base: Floats | None
) -> tuple[Floats, Bools]:
    """Values as differences, edges and sums leave them, and their mask.

    Args:
        values: [n, R, width] float32, at the rows of ``window``; written to.
        mask: [n, R, width] bool, where they lie inside.
        window: rows of the window and their padding.
        finish: what is done: differences, zeros, and the sum of rows [n, 1, width], in this order.
        base: [n, ≥ w] float32, what is taken away from every row of a sample; ``None``: nothing.
    """
    if finish.relative and base is not None:
        chosen = list(finish.relative)
        values[..., chosen] -= base[:, None, chosen]
    values[window.zeroed] = 0.0
    if finish.zero_outside:
        zeroed = np.isin(np.arange(values.shape[-1]), finish.zero_outside)
        values[~window.inside[..., None] & zeroed] = 0.0
    if not finish.summed:
        return values, mask
    values = np.where(mask, values, np.float32(0)).sum(axis=1, keepdims=True, dtype=np.float32)
    return values, np.asarray(mask.any(axis=1, keepdims=True), dtype=np.bool_)
