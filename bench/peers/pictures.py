"""Decoding and resizing one frame in Python, for the peers and the limit that do it there.

simplejpeg (libjpeg-turbo) with the fast integer DCT, straight into the batch where the frame has
the wanted size; OpenCV's bilinear resize where it has not. Both release the interpreter's lock.

Not here: TensorFlow's decoding (``bench.peers.tfdata_samples``), the loader's own; it is written
again here because the bench knows the loader by its front door only.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

# Who calls this has threads of its own.
cv2.setNumThreads(1)

_OWN = threading.local()
"""``room``: this thread's, for frames that are resized."""


def decode_frames(encoded: Sequence[bytes], out: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Decodes frames into ``out`` ``[F, H, W, 3]``, and gives it; the same object once."""
    done: dict[int, int] = {}
    for number, one in enumerate(encoded):
        if (before := done.setdefault(id(one), number)) < number:
            out[number] = out[before]
        else:
            _decode(one, out[number])
    return out


def _decode(encoded: bytes, out: NDArray[np.uint8]) -> None:
    """Decodes a frame into ``out`` ``[H, W, 3]``."""
    if encoded[:3] == b"\xff\xd8\xff":
        height, width, _, _ = simplejpeg.decode_jpeg_header(encoded, strict=False)
        if (height, width) == out.shape[:2]:
            simplejpeg.decode_jpeg(encoded, "RGB", fastdct=True, buffer=out)
            return
        if getattr(_OWN, "room", out[:0]).size < height * width * 3:
            _OWN.room = np.empty(height * width * 3, np.uint8)
        picture = simplejpeg.decode_jpeg(encoded, "RGB", fastdct=True, buffer=_OWN.room)
    else:
        data = np.frombuffer(encoded, np.uint8)
        picture = np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR_RGB), np.uint8)
    if picture.shape == out.shape:
        out[:] = picture
    else:
        cv2.resize(picture, out.shape[1::-1], dst=out, interpolation=cv2.INTER_LINEAR)
