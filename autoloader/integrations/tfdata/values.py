"""Windows, fields and normalisation as TensorFlow operations, tested equal to ``samples``.

Not here: which t there are (``integrations.tfdata.samples``), the language of fields
(``spec.fields``), binding it to features (``samples.transforms.fields``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from autoloader.pipeline.graph.tensorflow import fold, splitmix64, tf
from autoloader.samples.draws import PURPOSE_GOAL
from autoloader.samples.statistics import Scaling
from autoloader.samples.transforms.fields import NumericField
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


def window_rows(t: Any, offsets: Any, steps: Any, sample: SampleSpec) -> WindowTensors:
    """The rows at ``t[:, None] + offsets`` under the sample's edges.

    Args:
        t: [n] int64 steps of the strided episode.
        offsets: [R] int64 offsets of the window, in strided steps.
        steps: int64 scalar, frames of the (strided) episode.
        sample: the sample block whose edges apply.
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
        t: [n] int64 steps of the strided episode.
        steps: int64 scalar, frames of the (strided) episode.
        sample: offsets, edges and goal.
        key: uint64 scalar, of the episode in its pass.
    """
    window = window_rows(t, tf.constant(sample.frame_offsets, tf.int64), steps, sample)
    if sample.goal == "none":
        return window
    hashes = splitmix64(fold(fold(key, PURPOSE_GOAL), t))
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


def evaluate(field: NumericField, columns: Mapping[str, Any], steps: Any) -> Any:
    """The field's values [steps, width] float32.

    Args:
        field: a bound field.
        columns: feature path → [steps, feature width] float32.
        steps: int64 scalar, frames of the (strided) episode.
    """
    parts = []
    for term, width in zip(field.terms, field.widths, strict=True):
        if term.path is None:
            parts.append(tf.fill(tf.stack([steps, width]), np.float32(term.value)))
            continue
        part = columns[term.path][:, term.slice()]
        for op in term.ops:
            if op.name == "clip":
                # Not clip_by_value: a NaN stays one, as in NumPy.
                low, high = np.float32(op.values[0]), np.float32(op.values[1])
                part = tf.where(part < low, low, part)
                part = tf.where(part > high, high, part)
            elif op.name == "invert":
                part = np.float32(1) - part
            else:
                part = part * np.float32(op.values[0])
        parts.append(part)
    values = tf.concat(parts, axis=1)
    return tf.ensure_shape(values, [None, field.width])


def as_columns(values: Any, width: int) -> Any:
    """A per-step feature [T, ...] as [T, width] float32."""
    return tf.cast(tf.reshape(values, [-1, width]), tf.float32)


def window_values(
    column: Any,
    window: WindowTensors,
    width: int,
    *,
    dims: Sequence[int] = (),
    base: Any = None,
    summed: bool = False,
) -> tuple[Any, Any]:
    """``samples.windows.window_values``: a column [T, w] at a window's rows, and the mask."""
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
    values, mask = tf.pad(taken, padding), tf.pad(mask, padding)
    if not summed:
        return values, mask
    values = tf.where(mask, values, tf.zeros_like(values))
    total = values[:, 0]
    for row in range(1, int(window.index.shape[1])):  # one after the other, as NumPy adds them
        total = total + values[:, row]
    return total[:, None], tf.reduce_any(mask, axis=1, keepdims=True)


def scaled(scaling: Scaling, values: Any, nothing: Any) -> Any:
    """``Scaling.apply`` of [n, R, W] float32 with rows [n, R] bool that hold nothing."""
    width = len(scaling.centre)
    own = values[..., :width]
    found = (own - scaling.centre) * scaling.factor + scaling.shift
    if scaling.clip:
        found = tf.where(found < -1.0, np.float32(-1), found)
        found = tf.where(found > 1.0, np.float32(1), found)
    active = tf.constant(scaling.active) & ~nothing[..., None]
    return tf.concat([tf.where(active, found, own), values[..., width:]], axis=-1)


def text_of_points(points: Any) -> Any:
    """[m] UTF-8 of [m, L] code points: zeros and what is no character are left out.

    Where ``samples.transforms.fields`` keeps a noncharacter (U+FFFE and its like), TensorFlow's
    encoder puts U+FFFD; no instruction has one.
    """
    points = tf.cast(points, tf.int64)
    surrogate = (points >= 0xD800) & (points <= 0xDFFF)
    valid = (points > 0) & (points < 0x110000) & ~surrogate
    kept = tf.ragged.boolean_mask(tf.cast(points, tf.int32), valid)
    return tf.strings.unicode_encode(kept, "UTF-8")
