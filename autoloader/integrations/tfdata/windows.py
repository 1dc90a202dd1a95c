"""The windows of ``samples.windows`` as TensorFlow operations, held together by a test.

Not here: which t there are (``integrations.tfdata.samples``), values at their rows
(``integrations.tfdata.fields``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from autoloader.pipeline.graph import draws
from autoloader.pipeline.graph.tensorflow import tf
from autoloader.samples.draws import PURPOSE_GOAL
from autoloader.spec import SampleSpec


class WindowTensors(NamedTuple):
    """Rows of an episode for each of n samples, as ``samples.windows.WindowRows`` has them.

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


def rows(t: Any, offsets: Any, steps: Any, sample: SampleSpec) -> WindowTensors:
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
    return WindowTensors(index, ~(before | after), zeroed, tf.cast(realised, tf.int32))


def frame_rows(t: Any, steps: Any, sample: SampleSpec, key: Any) -> WindowTensors:
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
    return WindowTensors(
        tf.concat([window.index, goal], 1),
        tf.concat([window.inside, ~none], 1),
        tf.concat([window.zeroed, none], 1),
        tf.concat([window.offset, tf.cast(goal - t[:, None], tf.int32)], 1),
    )
