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

NO_ROOM: NDArray[np.uint8] = np.empty(0, np.uint8)


def decode_into(
    encoded: bytes, out: NDArray[np.uint8], room: NDArray[np.uint8] = NO_ROOM
) -> NDArray[np.uint8]:
    """Decodes a frame into ``out`` ``[H, W, 3]``; returns room to give to the next call."""
    height, width = out.shape[:2]
    if encoded[:3] == b"\xff\xd8\xff":
        own_height, own_width, _, _ = simplejpeg.decode_jpeg_header(encoded, strict=False)
        if (own_height, own_width) == (height, width):
            simplejpeg.decode_jpeg(encoded, "RGB", fastdct=True, buffer=out)
            return room
        if room.size < own_height * own_width * 3:
            room = np.empty(own_height * own_width * 3, np.uint8)
        picture = simplejpeg.decode_jpeg(encoded, "RGB", fastdct=True, buffer=room)
    else:
        data = np.frombuffer(encoded, np.uint8)
        picture = np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR_RGB), np.uint8)
    if picture.shape[:2] == (height, width):
        out[:] = picture
    else:
        cv2.resize(picture, (width, height), dst=out, interpolation=cv2.INTER_LINEAR)
    return room


_OWN = threading.local()


def decode_frames(encoded: Sequence[bytes], size: tuple[int, int]) -> NDArray[np.uint8]:
    """``[F, H, W, 3]``; a frame that is there twice (the same object) is decoded once."""
    frames = np.empty((len(encoded), *size, 3), np.uint8)
    for number, one in enumerate(encoded):
        before = next(at for at, other in enumerate(encoded) if other is one)
        if before < number:
            frames[number] = frames[before]
        else:
            _OWN.room = decode_into(one, frames[number], getattr(_OWN, "room", NO_ROOM))
    return frames
