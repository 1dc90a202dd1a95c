"""Decodes one frame into its place in a batch.

JPEG by libjpeg-turbo (simplejpeg) with the fast integer DCT, resize by OpenCV on uint8; both
release the interpreter while they work. Frames that already have the wanted size are decoded
straight into the batch. PNG and whatever else OpenCV reads works too, slower. Bilinear is OpenCV's
INTER_LINEAR (half-pixel centres, not antialiased, as ``tf.image.resize`` does it); lanczos3 is
Pillow's, which is antialiased.

Not here: threads (``decode.pool``), which frame goes where (``decode.assembler``).
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from autoloader.samples.block import Encoded
from autoloader.samples.encoded import PackedPicture, UnpackableError, VideoFrame
from autoloader.spec import CameraSpec

if TYPE_CHECKING:
    from autoloader.decode.video import VideoDecoder

Pixels = NDArray[np.uint8]

_JPEG = b"\xff\xd8\xff"
_JPEG_END = b"\xff\xd9"
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_SIZE = struct.Struct(">II")
_PNG_SIZE_AT = 16
_LARGEST_PIXELS = 64_000_000
_KEPT_BYTES = 16_000_000
"""A thread keeps a scratch picture up to this size; a larger one is made for the occasion."""


class UndecodableFrameError(ValueError):
    """A frame's bytes are no picture; the message says why. Internal: it becomes a quarantine."""


class FrameDecoder:
    """Decodes frames of one camera; may be used by many threads at a time.

    Args:
        camera: size, resize and fit.
    """

    def __init__(self, camera: CameraSpec) -> None:
        self._camera = camera
        self._height, self._width = camera.size
        self._scratch = threading.local()
        self._videos: VideoDecoder | None = None

    def decode_into(self, encoded: Encoded, out: Pixels) -> None:
        """Decode and resize ``encoded`` into ``out`` [H, W, 3] uint8, contiguous.

        Raises:
            UndecodableFrameError: it is no picture that can be decoded.
        """
        if isinstance(encoded, VideoFrame):
            self._video_into(encoded, out)
            return
        if isinstance(encoded, PackedPicture):
            try:
                encoded = encoded.picture()
            except UnpackableError as error:
                raise UndecodableFrameError(str(error)) from error
        is_jpeg = encoded[:3] == _JPEG
        try:
            if is_jpeg:
                self._jpeg_into(encoded, out)
            else:
                self._resize_into(self._other(encoded), out)
        except UndecodableFrameError:
            raise
        except (ValueError, LookupError, cv2.error, OverflowError, MemoryError) as error:
            raise UndecodableFrameError(_why(error, encoded, is_jpeg=is_jpeg)) from error

    def _video_into(self, frame: VideoFrame, out: Pixels) -> None:
        from autoloader.decode.video import UndecodableVideoError, VideoDecoder

        if self._videos is None:
            self._videos = VideoDecoder()
        try:
            self._resize_into(self._videos.picture(frame), out)
        except UndecodableVideoError as error:
            raise UndecodableFrameError(str(error)) from error

    def _jpeg_into(self, encoded: bytes | memoryview, out: Pixels) -> None:
        height, width, _, _ = simplejpeg.decode_jpeg_header(encoded, strict=False)
        if (height, width) == (self._height, self._width):
            simplejpeg.decode_jpeg(encoded, "RGB", fastdct=True, buffer=out)
            return
        if height * width > _LARGEST_PIXELS:
            raise UndecodableFrameError(f"{height}×{width} is larger than any camera's frame")
        picture = simplejpeg.decode_jpeg(
            encoded, "RGB", fastdct=True, buffer=self._buffer(height * width * 3)
        )
        self._resize_into(picture, out)

    @staticmethod
    def _other(encoded: bytes | memoryview) -> Pixels:
        if encoded[:8] == _PNG and len(encoded) >= _PNG_SIZE_AT + _PNG_SIZE.size:
            width, height = _PNG_SIZE.unpack_from(encoded, _PNG_SIZE_AT)
            if height * width > _LARGEST_PIXELS:
                raise UndecodableFrameError(f"{height}×{width} is larger than any camera's frame")
        data = np.frombuffer(encoded, np.uint8)
        picture = cv2.imdecode(data, cv2.IMREAD_COLOR_RGB) if len(data) else None
        if picture is None:
            raise UndecodableFrameError(f"{len(data)} bytes that are no JPEG, PNG or the like")
        return np.asarray(picture, dtype=np.uint8)

    def _buffer(self, size: int) -> Pixels:
        if size > _KEPT_BYTES:
            return np.empty(size, np.uint8)
        buffer = getattr(self._scratch, "buffer", None)
        if buffer is None or len(buffer) < size:
            buffer = self._scratch.buffer = np.empty(size, np.uint8)
        return np.asarray(buffer)

    def _resize_into(self, picture: Pixels, out: Pixels) -> None:
        height, width = picture.shape[:2]
        fit = self._camera.fit
        if fit == "crop":
            scale = max(self._height / height, self._width / width)
            rows = min(height, max(1, round(self._height / scale)))
            columns = min(width, max(1, round(self._width / scale)))
            top, left = (height - rows) // 2, (width - columns) // 2
            picture = picture[top : top + rows, left : left + columns]
        elif fit == "pad":
            scale = min(self._height / height, self._width / width)
            rows = min(self._height, max(1, round(height * scale)))
            columns = min(self._width, max(1, round(width * scale)))
            top, left = (self._height - rows) // 2, (self._width - columns) // 2
            out[:] = 0
            inner = np.empty((rows, columns, 3), np.uint8)
            self._scale(picture, inner)
            out[top : top + rows, left : left + columns] = inner
            return
        self._scale(picture, out)

    def _scale(self, picture: Pixels, out: Pixels) -> None:
        height, width = out.shape[:2]
        if picture.shape[:2] == (height, width):
            out[:] = picture
            return
        if self._camera.resize == "lanczos3":
            from PIL import Image  # the other methods, and the first batch, do without it

            scaled = Image.fromarray(np.ascontiguousarray(picture)).resize(
                (width, height), Image.Resampling.LANCZOS
            )
            out[:] = np.asarray(scaled)
            return
        how = cv2.INTER_AREA if self._camera.resize == "area" else cv2.INTER_LINEAR
        cv2.resize(picture, (width, height), dst=out, interpolation=how)


def _why(error: Exception, encoded: bytes | memoryview, *, is_jpeg: bool) -> str:
    """What is wrong with a picture; libjpeg-turbo says no more than a number of some."""
    said = " ".join(str(error).split())
    if not is_jpeg:
        return said or "no picture"
    if bytes(encoded[-2:]) != _JPEG_END:
        return f"the JPEG of {len(encoded)} bytes is cut off"
    words = any(letter.isalpha() for letter in said)
    return f"the JPEG of {len(encoded)} bytes is damaged" + (f": {said}" if words else "")
