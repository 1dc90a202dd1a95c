"""Decodes one frame into its place in a batch.

JPEG by libjpeg-turbo (simplejpeg) with the fast integer DCT, resize by OpenCV on uint8; both
release the interpreter while they work. Frames that already have the wanted size are decoded
straight into the batch. PNG and whatever else OpenCV reads works too, slower. No format is turned
by the orientation in its EXIF data, as in TensorFlow. Bilinear is OpenCV's INTER_LINEAR (half-pixel
centres, not antialiased, as ``tf.image.resize`` does it by default); lanczos3 is Pillow's, which is
antialiased.

Not here: threads (``decode.pool``), which frame goes where (``decode.batch_builder``), resizing in
float32 as other projects do (``decode.resample``).
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from autoloader.decode import costs
from autoloader.samples.block import Encoded, PackedPicture, UnpackableError, VideoFrame
from autoloader.spec import CameraSpec

if TYPE_CHECKING:
    from autoloader.decode.video import VideoDecoder

Pixels = NDArray[np.uint8]

_JPEG = b"\xff\xd8\xff"
_JPEG_END = b"\xff\xd9"
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_SIZE = struct.Struct(">II")
_PNG_SIZE_AT = 16
_AS_STORED = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
_LARGEST_PIXELS = 64_000_000
_DECODED_BYTES = 8
"""That OpenCV takes for a pixel, of 16 bits and four channels at most."""
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
                self._resize_into(decoded(encoded, _AS_STORED), out)
        except UndecodableFrameError:
            raise
        except costs.CostlyPictureError as error:
            raise UndecodableFrameError(str(error)) from error
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
        size = costs.jpeg_bytes(encoded, height, width)
        if size > costs.SMALL_BYTES:
            with costs.room.taken(size):
                self._decode_jpeg(encoded, height, width, out)
        else:
            self._decode_jpeg(encoded, height, width, out)

    def _decode_jpeg(
        self, encoded: bytes | memoryview, height: int, width: int, out: Pixels
    ) -> None:
        if (height, width) == (self._height, self._width):
            simplejpeg.decode_jpeg(encoded, "RGB", fastdct=True, buffer=out)
            return
        if height * width > _LARGEST_PIXELS:
            raise UndecodableFrameError(f"{height}×{width} is larger than any camera's frame")
        buffer = self._buffer(height * width * 3)
        picture = simplejpeg.decode_jpeg(encoded, "RGB", fastdct=True, buffer=buffer)
        self._resize_into(picture, out)

    def _buffer(self, size: int) -> Pixels:
        if size > _KEPT_BYTES:
            return np.empty(size, np.uint8)
        buffer = getattr(self._scratch, "buffer", None)
        if buffer is None or len(buffer) < size:
            buffer = self._scratch.buffer = np.empty(size, np.uint8)
        return np.asarray(buffer)

    def _resize_into(self, picture: Pixels, out: Pixels) -> None:
        part, place = fitted(picture, out, self._camera)
        if place.shape == out.shape:
            self._scale(part, out)
            return
        inner = np.empty(place.shape, np.uint8)
        self._scale(part, inner)
        place[:] = inner

    def _scale(self, picture: Pixels, out: Pixels) -> None:
        height, width = out.shape[:2]
        if picture.shape[:2] == (height, width) or self._camera.resize == "nearest":
            nearest_into(picture, out)
            return
        if self._camera.upstream:
            from autoloader.decode.resample import resample  # most cameras go without

            resample(picture, out, self._camera.resize)
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


def decoded(encoded: bytes | memoryview, how: int) -> NDArray[Any]:
    """A picture as OpenCV reads it, by one of its ``IMREAD_`` modes.

    Raises:
        UndecodableFrameError: it is none, or larger than any camera's.
    """
    pixels = 0
    if encoded[:8] == _PNG and len(encoded) >= _PNG_SIZE_AT + _PNG_SIZE.size:
        width, height = _PNG_SIZE.unpack_from(encoded, _PNG_SIZE_AT)
        if height * width > _LARGEST_PIXELS:
            raise UndecodableFrameError(f"{height}×{width} is larger than any camera's frame")
        pixels = height * width
    elif encoded[:3] == _JPEG:
        height, width, _, _ = simplejpeg.decode_jpeg_header(encoded, strict=False)
        costs.jpeg_bytes(encoded, height, width)
        pixels = height * width
    if pixels * _DECODED_BYTES > costs.SMALL_BYTES:
        with costs.room.taken(pixels * _DECODED_BYTES):
            return _read(encoded, how)
    return _read(encoded, how)


def _read(encoded: bytes | memoryview, how: int) -> NDArray[Any]:
    data = np.frombuffer(encoded, np.uint8)
    picture = cv2.imdecode(data, how) if len(data) else None
    if picture is None:
        raise UndecodableFrameError(f"{len(data)} bytes that are no JPEG, PNG or the like")
    return np.asarray(picture)


def fitted(
    picture: NDArray[Any], out: NDArray[Any], camera: CameraSpec
) -> tuple[NDArray[Any], NDArray[Any]]:
    """(the part of ``picture`` that is shown, where in ``out`` it goes), by ``camera.fit``.

    What of ``out`` lies outside becomes zero. Either's first axes are rows and columns.
    """
    (height, width), (rows, columns) = picture.shape[:2], out.shape[:2]
    if camera.fit == "crop":
        scale = max(rows / height, columns / width)
        cut = min(height, max(1, round(rows / scale))), min(width, max(1, round(columns / scale)))
        return _centre(picture, *cut), out
    if camera.fit == "pad":
        out[:] = 0
        return picture, _centre(out, *_padded(height, width, camera))
    return picture, out


def _padded(height: int, width: int, camera: CameraSpec) -> tuple[int, int]:
    """Rows and columns of a picture inside its padding; openpi rounds them down."""
    rows, columns = camera.size
    if camera.upstream:
        ratio = max(width / columns, height / rows)
        return max(1, int(height / ratio)), max(1, int(width / ratio))
    scale = min(rows / height, columns / width)
    return min(rows, max(1, round(height * scale))), min(columns, max(1, round(width * scale)))


def _centre(picture: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    top, left = (picture.shape[0] - rows) // 2, (picture.shape[1] - columns) // 2
    return picture[top : top + rows, left : left + columns]


def nearest_into(picture: NDArray[Any], out: NDArray[Any]) -> None:
    """Fill ``out`` with the values of ``picture`` at the nearest places (half-pixel centres)."""
    if picture.shape[:2] == out.shape[:2]:
        out[:] = picture
        return
    (height, width), (rows, columns) = picture.shape[:2], out.shape[:2]
    down = (2 * np.arange(rows) + 1) * height // (2 * rows)
    right = (2 * np.arange(columns) + 1) * width // (2 * columns)
    out[:] = picture[down[:, None], right]


def _why(error: Exception, encoded: bytes | memoryview, *, is_jpeg: bool) -> str:
    """What is wrong with a picture; libjpeg-turbo says no more than a number of some."""
    said = " ".join(str(error).split())
    if not is_jpeg:
        return said or "no picture"
    if bytes(encoded[-2:]) != _JPEG_END:
        return f"the JPEG of {len(encoded)} bytes is cut off"
    words = any(letter.isalpha() for letter in said)
    return f"the JPEG of {len(encoded)} bytes is damaged" + (f": {said}" if words else "")
