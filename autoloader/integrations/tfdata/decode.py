"""Decodes a sample's frames in the graph: JPEG with the fast integer DCT, and PNG.

Pictures are resized by TensorFlow's kernels: bilinear with half-pixel centres and not antialiased,
area, or one of the antialiased methods; rounded to uint8. Frames agree with the decode pool's
within about 2 grey levels.

Not here: the pool (``decode.pool``), which samples there are (``integrations.tfdata.mixture``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoloader.pipeline.graph.tensorflow import tf
from autoloader.spec import CameraSpec


def decode_frame(encoded: Any, camera: CameraSpec) -> Any:
    """[H, W, 3] uint8 of one encoded frame, resized and fitted as ``camera`` says."""
    picture = tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_FAST")
    height, width = camera.size
    shape = tf.shape(picture)
    fitted = tf.cond(
        tf.reduce_all(shape[:2] == [height, width]),
        lambda: picture,
        lambda: _fit(picture, shape, camera),
    )
    return tf.ensure_shape(fitted, [height, width, 3])


def decode_sample(frames: Any, wanted: Any, cameras: Mapping[str, CameraSpec]) -> dict[str, Any]:
    """One sample's pictures by camera, [F, H, W, 3] uint8.

    Args:
        frames: [C, F] encoded, cameras in order.
        wanted: [C, F] bool; the others are black.
        cameras: in the same order.
    """
    return {
        name: tf.stack(
            [
                _frame_or_black(frames[number, f], wanted[number, f], camera)
                for f in range(int(frames.shape[1]))
            ]
        )
        for number, (name, camera) in enumerate(cameras.items())
    }


def _frame_or_black(encoded: Any, wanted: Any, camera: CameraSpec) -> Any:
    return tf.cond(
        wanted,
        lambda: decode_frame(encoded, camera),
        lambda: tf.zeros([*camera.size, 3], tf.uint8),
    )


def _fit(picture: Any, shape: Any, camera: CameraSpec) -> Any:
    """[H, W, 3] uint8 of a picture of this ``shape``, as operations."""
    height, width = camera.size
    if camera.fit == "stretch":
        return _resize(picture, tf.constant([height, width]), camera.resize)
    wanted = tf.constant([height, width], tf.float64)
    found = tf.cast(shape[:2], tf.float64)
    if camera.fit == "crop":
        scale = tf.reduce_max(wanted / found)
        inner = tf.minimum(shape[:2], _at_least_one(wanted / scale))
        at = (shape[:2] - inner) // 2
        cut = picture[at[0] : at[0] + inner[0], at[1] : at[1] + inner[1]]
        return _resize(cut, tf.constant([height, width]), camera.resize)
    if camera.upstream:
        # A graph's optimiser turns a division by a constant into a product with its reciprocal,
        # which rounds otherwise: 80 / (60 / 90) would be 119. This maximum is no constant to it.
        divisor = tf.maximum(wanted, tf.minimum(found, wanted))
        inner = tf.maximum(tf.cast(found / tf.reduce_max(found / divisor), tf.int32), 1)
    else:
        scale = tf.reduce_min(wanted / found)
        inner = tf.minimum([height, width], _at_least_one(found * scale))
    before = ([height, width] - inner) // 2
    after = [height, width] - inner - before
    resized = _resize(picture, inner, camera.resize)
    return tf.pad(resized, [[before[0], after[0]], [before[1], after[1]], [0, 0]])


def _at_least_one(sizes: Any) -> Any:
    return tf.maximum(tf.cast(tf.round(sizes), tf.int32), 1)


def _resize(picture: Any, size: Any, how: str) -> Any:
    method = how.removeprefix("tf_").removeprefix("pillow_")
    antialias = how not in ("bilinear", "area")
    resized = tf.image.resize(picture, size, method=method, antialias=antialias)
    return tf.saturate_cast(tf.round(resized), tf.uint8)
