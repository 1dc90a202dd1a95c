"""Decodes one depth frame into its place in a batch: the values that are stored, to the bit.

A frame is resized by taking values at the nearest places, never by mixing them. A value of another
type than the camera's is cast where that loses nothing (16-bit integers to float32), else refused.

Not here: which features are depth frames (``samples.transforms.binding``), pictures of colours
(``decode.frames``).
"""

from __future__ import annotations

import zlib
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from autoloader.decode.frames import UndecodableFrameError, decoded
from autoloader.decode.jobs import Decoder
from autoloader.decode.resize import fitted, nearest_into
from autoloader.formats import Feature
from autoloader.formats.frames import ArrayPicture, Encoded, PackedPicture, VideoFrame
from autoloader.formats.records import MalformedRecordError, decode_varints
from autoloader.spec import CameraSpec

UNDECODABLE = (ValueError, MalformedRecordError, zlib.error, cv2.error, MemoryError)
"""What bytes that are no depth frame raise; ``UndecodableFrameError`` is a ``ValueError``."""
_LARGEST_FLOAT_WHOLE = 2**24
"""Above it float32 has no every whole number."""


class DepthDecoder(Decoder):
    """Decodes depth frames of one feature; may be used by many threads at a time.

    Args:
        camera: a depth camera: size, fit and type.
        feature: feature of the frames, which says how they are stored; see
            ``samples.transforms.binding``.
    """

    def __init__(self, camera: CameraSpec, feature: Feature) -> None:
        self._camera = camera
        self._feature = feature

    def decode_into(self, encoded: Encoded, out: NDArray[Any]) -> None:
        """Decode and resize ``encoded`` into ``out`` [H, W, 1] of the camera's type.

        Raises:
            UndecodableFrameError: the bytes are no such frame, or a value does not fit.
        """
        if isinstance(encoded, (VideoFrame, PackedPicture)):
            raise UndecodableFrameError("depth in videos or in Parquet pictures is not supported")
        rotated = False
        try:
            if isinstance(encoded, ArrayPicture):
                rotated, encoded = encoded.codec.rotated, encoded.stored().data
            values = depth_values(encoded, self._feature)
        except UndecodableFrameError:
            raise
        except UNDECODABLE as error:
            raise UndecodableFrameError(str(error)) from error
        _check_fits(values, out.dtype)
        if rotated:
            values = values[::-1, ::-1]
        part, place = fitted(values, out[..., 0], self._camera)
        nearest_into(part, place)


def depth_values(encoded: bytes | memoryview, feature: Feature) -> NDArray[Any]:
    """[h, w] the values of a depth frame in the type that they are stored in.

    Raises:
        ValueError, MalformedRecordError, zlib.error, cv2.error: it is none; see ``UNDECODABLE``.
    """
    if feature.encoding in (None, "png"):
        return _pictured(encoded, feature)
    shape = [size or 1 for size in feature.shape[:2]]
    if feature.encoding == "integers":
        return decode_varints(np.frombuffer(encoded, np.uint8)).reshape(shape)
    if feature.encoding == "zlib":
        encoded = _unpacked(encoded, np.dtype(feature.dtype).itemsize * feature.step_numbers)
    dtype = "float32" if feature.encoding == "floats" else feature.dtype
    return np.frombuffer(encoded, np.dtype(dtype).newbyteorder("<")).reshape(shape)


def _pictured(encoded: bytes | memoryview, feature: Feature) -> NDArray[Any]:
    """Depth of an encoded picture of 16 bits, or of four bytes a pixel."""
    picture = decoded(encoded, cv2.IMREAD_UNCHANGED)
    if feature.dtype == "uint16":
        if picture.dtype != np.uint16 or picture.ndim != 2:
            raise UndecodableFrameError(
                f"the picture has {_told(picture)}, but uint16 depth needs 1 channel of 16 bits"
            )
        return picture
    if picture.dtype != np.uint8 or picture.shape[2:] != (4,):
        raise UndecodableFrameError(
            f"the picture has {_told(picture)}, but float32 depth needs 4 channels of 8 bits"
        )
    in_order = np.ascontiguousarray(picture[..., [2, 1, 0, 3]])  # OpenCV swaps the first and third
    return in_order.view("<f4")[..., 0]


def _told(picture: NDArray[Any]) -> str:
    channels = picture.shape[2] if picture.ndim > 2 else 1
    return f"{channels} channel{'s' if channels > 1 else ''} of {8 * picture.itemsize} bits"


def _unpacked(packed: bytes | memoryview, nbytes: int) -> bytes:
    """``nbytes`` bytes that zlib has packed; another number is an ``UndecodableFrameError``."""
    found = zlib.decompressobj().decompress(packed, nbytes + 1)
    if len(found) != nbytes:
        raise UndecodableFrameError(f"a frame has {len(found)} bytes instead of {nbytes}")
    return found


def _check_fits(values: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Refuse whole numbers that the feature's type cannot hold exactly."""
    if np.can_cast(values.dtype, dtype):
        return
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    least, most = 0, np.iinfo(np.uint16).max
    if dtype == np.float32:
        least, most = -_LARGEST_FLOAT_WHOLE, _LARGEST_FLOAT_WHOLE
    if low < least or high > most:
        raise UndecodableFrameError(f"its values, {low} to {high}, do not fit {dtype}")
