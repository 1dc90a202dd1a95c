"""Decodes a sample's frames in the graph: JPEG with the fast integer DCT, and PNG.

Not here: resizing (``graph.resize``), which samples there are (``tfdata.mixture``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoloader.graph.resize import fit
from autoloader.graph.tensorflow import tf
from autoloader.spec import CameraSpec


def decode_frame(encoded: Any, camera: CameraSpec) -> Any:
    """[H, W, 3] uint8 of one encoded frame, resized and fitted as ``camera`` says."""
    picture = tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_FAST")
    height, width = camera.size
    shape = tf.shape(picture)
    fitted = tf.cond(
        tf.reduce_all(shape[:2] == [height, width]),
        lambda: picture,
        lambda: fit(picture, shape, camera),
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
