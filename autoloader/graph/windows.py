"""The windows of ``sampling.windows`` as TensorFlow operations, held together by a test.

Not here: which t there are (``graph.episodes``), what a field's columns are (``graph.fields``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from autoloader.graph.tensorflow import tf
from autoloader.spec import SampleSpec


class Rows(NamedTuple):
    """Rows of an episode for each of n samples, as ``sampling.windows.Rows`` has them.

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


def window_values(column: Any, window: Rows, width: int) -> tuple[Any, Any]:
    """Values [n, R, width] float32 and mask [n, R, width] bool of a column [T, w], w ≤ width."""
    own = int(column.shape[1])
    taken = tf.gather(column, window.index)
    taken = tf.where(window.zeroed[:, :, None], tf.zeros_like(taken), taken)
    mask = tf.broadcast_to(window.inside[:, :, None], tf.shape(taken))
    padding = [[0, 0], [0, 0], [0, width - own]]
    return tf.pad(taken, padding), tf.pad(mask, padding)


def summed_values(column: Any, window: Rows, width: int) -> tuple[Any, Any]:
    """The sum over a window's rows inside the episode: [n, 1, width] and its mask.

    Rows are added one after the other, as NumPy adds them, so that sums agree to the bit.
    """
    values, mask = window_values(column, window, width)
    values = tf.where(mask, values, tf.zeros_like(values))
    total = values[:, 0]
    for row in range(1, int(window.index.shape[1])):
        total = total + values[:, row]
    return total[:, None], tf.reduce_any(mask, axis=1, keepdims=True)
