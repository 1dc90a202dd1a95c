"""Decoding and resizing by TensorFlow's kernels (``decode: graph``), as ``runtime.decode`` does it.

JPEG with the fast integer DCT; bilinear with half-pixel centres and not antialiased, area, or
antialiased lanczos3; rounded to uint8. Frames agree with the pool's within 2 grey levels or so.

A kernel that fails ends the whole element, and with it its batch. So only what looks whole (begins
and ends as a JPEG or PNG does) is decoded in a graph; the rest is left to the decode pool, which
says what is wrong with it.

Not here: the pool (``runtime.pool``), who decodes what (``graph.mixture``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.graph.tensorflow import tf
from autoloader.spec import CameraSpec

_JPEG, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_PNG, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"


def looks_whole(encoded: Any) -> Any:
    """[...] bool: whether [...] encoded frames begin and end as a JPEG or a PNG does."""
    length = tf.strings.length(encoded)

    def between(first: bytes, last: bytes) -> Any:
        # ``substr`` refuses a place outside, so short ones are made long enough to ask.
        padded = tf.strings.join([encoded, tf.fill(tf.shape(encoded), b"\0" * 16)])
        at = tf.maximum(length - len(last), 0)
        begins = tf.strings.substr(padded, 0, len(first)) == first
        ends = tf.strings.substr(padded, at, tf.fill(tf.shape(at), len(last))) == last
        return begins & ends

    return between(_JPEG, _JPEG_END) | between(_PNG, _PNG_END)


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


def fitted_picture(picture: NDArray[np.uint8], camera: CameraSpec) -> NDArray[np.uint8]:
    """[H, W, 3] uint8 of one decoded picture [h, w, 3], resized and fitted as ``camera`` says."""
    if picture.shape[:2] == tuple(camera.size):
        return picture
    with tf.device("/CPU:0"):
        given = tf.constant(picture)
        return np.asarray(_fit(given, tf.shape(given), camera))


def _fit(picture: Any, shape: Any, camera: CameraSpec) -> Any:
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
    scale = tf.reduce_min(wanted / found)
    inner = tf.minimum([height, width], _at_least_one(found * scale))
    before = ([height, width] - inner) // 2
    after = [height, width] - inner - before
    resized = _resize(picture, inner, camera.resize)
    return tf.pad(resized, [[before[0], after[0]], [before[1], after[1]], [0, 0]])


def _at_least_one(sizes: Any) -> Any:
    return tf.maximum(tf.cast(tf.round(sizes), tf.int32), 1)


def _resize(picture: Any, size: Any, how: str) -> Any:
    resized = tf.image.resize(picture, size, method=how, antialias=how == "lanczos3")
    return tf.saturate_cast(tf.round(resized), tf.uint8)


def decode_sample(
    frames: Any, wanted: Any, cameras: Mapping[str, CameraSpec]
) -> tuple[dict[str, Any], Any]:
    """One sample's pictures by camera, [F, H, W, 3] uint8, and whether they were decoded here.

    Args:
        frames: [C, F] encoded, cameras in order.
        wanted: [C, F] bool; the others are black.
        cameras: in the same order.
    """
    whole = tf.reduce_all(looks_whole(frames) | ~wanted)
    pictures = {}
    for number, (name, camera) in enumerate(cameras.items()):
        pictures[name] = tf.stack(
            [
                _frame_or_black(frames[number, f], wanted[number, f] & whole, camera)
                for f in range(int(frames.shape[1]))
            ]
        )
    return pictures, whole


def _frame_or_black(encoded: Any, wanted: Any, camera: CameraSpec) -> Any:
    return tf.cond(
        wanted,
        lambda: decode_frame(encoded, camera),
        lambda: tf.zeros([*camera.size, 3], tf.uint8),
    )
