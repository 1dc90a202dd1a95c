"""The windows of ``samples.windows`` as TensorFlow operations, held together by a test.

Not here: which t there are (``graph.episodes``), what a field's columns are (``tfdata.fields``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from autoloader.graph import draws
from autoloader.graph.tensorflow import tf
from autoloader.samples.draws import PURPOSE_GOAL
from autoloader.spec import SampleSpec


class Rows(NamedTuple):
    """Rows of an episode for each of n samples, as ``samples.windows.Rows`` has them.

    Attributes:
        index: [n, R] int64, inside the episode.
        inside: [n, R] bool.
        zeroed: [n, R] bool.
        offset: [n, R] int32.
    """

    index: Any
    inside: Any
    zeroed: Any
    offset: Any


def rows(t: Any, offsets: Any, steps: Any, sample: SampleSpec) -> Rows:
    """The rows at ``t[:, None] + offsets`` under the sample's edges.

    Args:
        t: [n] int64.
        offsets: [R] int64.
        steps: int64 scalar, frames of the (strided) episode.
        sample: whose edges hold.
    """
    wanted = t[:, None] + offsets[None, :]
    index = tf.maximum(tf.minimum(wanted, steps - 1), 0)
    before, after = wanted < 0, wanted >= steps
    zeroed = tf.zeros_like(before)
    if sample.edges.start == "zero":
        zeroed = zeroed | before
    if sample.edges.end == "zero":
        zeroed = zeroed | after
    realised = tf.where(zeroed, wanted, index) - t[:, None]
    return Rows(index, ~(before | after), zeroed, tf.cast(realised, tf.int32))


def frame_rows(t: Any, steps: Any, sample: SampleSpec, key: Any) -> Rows:
    """The rows of a sample's frames: at its offsets, then the goal's where there is one.

    Args:
        t: [n] int64.
        steps: int64 scalar, frames of the (strided) episode.
        sample: offsets, edges and goal.
        key: uint64 scalar, of the episode in its pass.
    """
    window = rows(t, tf.constant(sample.frame_offsets, tf.int64), steps, sample)
    if sample.goal == "none":
        return window
    hashes = draws.splitmix64(draws.fold(draws.fold(key, PURPOSE_GOAL), t))
    left = steps - 1 - t
    drawn = hashes % tf.bitcast(tf.maximum(left, 1), tf.uint64)
    goal = tf.where(left > 0, t + 1 + tf.bitcast(drawn, tf.int64), t)[:, None]
    none = tf.zeros_like(goal, tf.bool)
    return Rows(
        tf.concat([window.index, goal], 1),
        tf.concat([window.inside, ~none], 1),
        tf.concat([window.zeroed, none], 1),
        tf.concat([window.offset, tf.cast(goal - t[:, None], tf.int32)], 1),
    )


def window_values(
    column: Any, window: Rows, width: int, *, dims: Sequence[int] = (), base: Any = None
) -> tuple[Any, Any]:
    """Values [n, R, width] float32 and mask [n, R, width] bool of a column [T, w], w ≤ width.

    Args:
        column: the field's values.
        window: which rows of it.
        width: columns to pad to.
        dims: columns that are differences to ``base``.
        base: [n, any] float32, what is taken away from every row of a sample.
    """
    own = int(column.shape[1])
    taken = tf.gather(column, window.index)
    if dims and base is not None:
        columns = [base[:, d] if d in dims else tf.zeros_like(base[:, 0]) for d in range(own)]
        taken = tf.where(
            tf.constant([d in dims for d in range(own)]),
            taken - tf.stack(columns, axis=1)[:, None],
            taken,
        )
    taken = tf.where(window.zeroed[:, :, None], tf.zeros_like(taken), taken)
    mask = tf.broadcast_to(window.inside[:, :, None], tf.shape(taken))
    padding = [[0, 0], [0, 0], [0, width - own]]
    return tf.pad(taken, padding), tf.pad(mask, padding)


def summed_values(
    column: Any, window: Rows, width: int, *, dims: Sequence[int] = (), base: Any = None
) -> tuple[Any, Any]:
    """The sum over a window's rows inside the episode: [n, 1, width] and its mask.

    Rows are added one after the other, as NumPy adds them, so that sums agree to the bit.
    """
    values, mask = window_values(column, window, width, dims=dims, base=base)
    values = tf.where(mask, values, tf.zeros_like(values))
    total = values[:, 0]
    for row in range(1, int(window.index.shape[1])):
        total = total + values[:, row]
    return total[:, None], tf.reduce_any(mask, axis=1, keepdims=True)
