"""Windows: which frames, states and actions the sample at t holds, and what edges do to them.

All indices are of the *strided* episode. ``graph.windows`` does the same arithmetic in TensorFlow
for the in-graph mixtures; a property test holds the two together.

A row that leaves the episode is masked. Its value is the nearest row of the episode (``repeat``)
or zero (``zero``); with ``drop`` no such sample exists. A sum adds the rows inside only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoloader.spec import SampleSpec


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of an episode for each of n samples.

    Attributes:
        index: [n, R] int64, inside the episode.
        inside: [n, R] bool, false where the wanted row lies outside.
        zeroed: [n, R] bool, true where the value must be zero.
        offset: [n, R] int32, relative to t, as realised.
    """

    index: NDArray[np.int64]
    inside: NDArray[np.bool_]
    zeroed: NDArray[np.bool_]
    offset: NDArray[np.int32]


def valid_range(sample: SampleSpec, steps: int) -> tuple[int, int]:
    """First valid t and the one after the last, in an episode of ``steps`` (strided) frames."""
    offsets = (
        *sample.frame_offsets,
        *sample.state_offsets,
        sample.action_start,
        sample.action_start + sample.action_horizon - 1,
    )
    first = max(0, -min(offsets)) if sample.edges.start == "drop" else 0
    stop = min(steps, steps - max(offsets)) if sample.edges.end == "drop" else steps
    return first, max(first, stop)


def valid_count(sample: SampleSpec, steps: int) -> int:
    """How many samples an episode of ``steps`` (strided) frames gives in a pass."""
    first, stop = valid_range(sample, steps)
    count = stop - first
    return count if sample.per_episode == "all" else min(count, sample.per_episode)


def rows(
    t: NDArray[np.int64],
    offsets: NDArray[np.int64],
    steps: int | NDArray[np.int64],
    sample: SampleSpec,
) -> Rows:
    """The rows at ``t[:, None] + offsets`` under the sample's edges.

    Args:
        t: [n] int64.
        offsets: [R] int64.
        steps: frames of the (strided) episode; [n, 1] where the samples are of different ones.
        sample: whose edges hold.
    """
    wanted = t[:, None] + offsets[None, :]
    index = np.clip(wanted, 0, steps - 1)
    before, after = wanted < 0, wanted >= steps
    zeroed = (before & (sample.edges.start == "zero")) | (after & (sample.edges.end == "zero"))
    realised = np.where(zeroed, wanted, index) - t[:, None]
    return Rows(index, ~(before | after), zeroed, realised.astype(np.int32))


def window_values(
    column: NDArray[np.float32], window: Rows, width: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Values [n, R, width] float32 and mask [n, R, width] bool of a column [T, w], w ≤ width."""
    shape = (*window.index.shape, width)
    values = np.zeros(shape, dtype=np.float32)
    mask = np.zeros(shape, dtype=np.bool_)
    own = column.shape[1]
    values[..., :own] = column[window.index]
    values[window.zeroed] = 0.0
    mask[..., :own] = window.inside[..., None]
    return values, mask


def summed_values(
    column: NDArray[np.float32], window: Rows, width: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The sum over a window's rows inside the episode: [n, 1, width] and its mask."""
    values, mask = window_values(column, window, width)
    values = np.where(mask, values, np.float32(0)).sum(axis=1, keepdims=True, dtype=np.float32)
    return values, np.asarray(mask.any(axis=1, keepdims=True), dtype=np.bool_)
