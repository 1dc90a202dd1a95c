"""Decodes one frame into its place in a batch: pictures of any format, and frames of videos.

JPEG by libjpeg-turbo (simplejpeg) with the fast integer DCT, resize by OpenCV on uint8; both
release the interpreter while they work. Frames that already have the wanted size are decoded
straight into the batch. OpenCV reads PNG and other formats, slower. No format is turned by the
orientation in its EXIF data, as in TensorFlow.

*Videos* by PyAV (FFmpeg), one decoder a thread, codec and setup. A decoder begins at a frame's
keyframe and is fed until the frame comes out. It stays where it is: a later frame of the same
keyframe goes on from there, so that neighbours are decoded once. Frames of one keyframe that a job
wants are decoded together. Of H.264 and HEVC those frames are left out that nobody wants and no
other frame refers to: the pixels of the others are the same. Each decoder runs in the thread that
calls it. A HEVC stream with temporal sub-layers is decoded whole: its packets that say that nothing
refers to them speak of their own sub-layer only.

*Costs.* libjpeg goes over the whole picture once for each scan, and a scan may have few bytes. So
pixels × scans may be ``MOST_COST`` at most: ten seconds or so of a processor. A picture with more
than one scan also has its coefficients in memory while it is decoded, two bytes for each value. A
picture that takes more than ``SMALL_BYTES`` waits for room: pictures that are decoded at the same
time take ``DECODED_TOGETHER_BYTES``, and a larger one is decoded alone. No picture begins that
takes more than the memory which is free. Decode processes of one pipeline take turns.

Ordinary pictures neither count nor wait: two multiplications tell them.

Not here: threads (``decode.jobs``), the frame of each row (``decode.batch_builder``), resizing
(``decode.resize``), the price of a start (``controller.admission``).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from autoloader.decode.resize import Pixels, resize_into
from autoloader.formats.files import UnreadableError
from autoloader.formats.frames import (
    TOLD,
    ArrayPicture,
    Encoded,
    PackedPicture,
    VideoCodec,
    VideoFrame,
)
from autoloader.formats.pictures import check_picture
from autoloader.host.allocator import reuse_freed
from autoloader.host.extras import needs
from autoloader.host.headroom import HeadroomProbe, headroom_or_none
from autoloader.host.threads import APART, work_of
from autoloader.host.units import MIB, format_bytes
from autoloader.samples.block import DECODED_TOGETHER_BYTES
from autoloader.spec import CameraSpec

_JPEG = b"\xff\xd8\xff"
_JPEG_END = b"\xff\xd9"
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_SIZE = struct.Struct(">II")
_PNG_SIZE_AT, _PNG_DEPTH_AT, _PNG_CHUNKS_AT = 16, 24, 33
_AS_STORED = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
_LARGEST_PIXELS = 64_000_000
_DECODED_BYTES = 8
"""That OpenCV takes for a pixel, of 16 bits and four channels at most."""
_KEPT_BYTES = 16_000_000
"""A thread keeps a scratch picture up to this size; a larger one is made for the occasion."""
_REUSED_BYTES = 2**20
"""Above a frame of a video of 640x480 pixels. Mapping each frame anew costs a tenth of decoding AV1
of that size, and a sixth of windows of H.264. Mixtures without videos gain nothing from it."""
MOST_DECODERS = 8
"""Decoders that a thread keeps; each holds a few pictures."""
_LAYERS_AT = 21
"""Byte of HEVC's setup (``hvcC``) with the number of temporal sub-layers, in bits 3 to 5; 0:
unknown."""
_DECODERS = {"av1": "libdav1d"}
"""Which of several decoders of a format; FFmpeg's own for AV1 needs a GPU."""


class UndecodableFrameError(ValueError):
    """A frame's bytes are no picture; the message says why. Internal: it becomes a quarantine."""


class FrameDecoder:
    """Decodes frames of one camera; may be used by many threads at a time.

    Args:
        camera: size, resize and fit.
        white: whether pictures are white where they are transparent; else alpha is left out.
        turned: whether first and last channels change places.
    """

    def __init__(self, camera: CameraSpec, *, white: bool = False, turned: bool = False) -> None:
        self._camera = camera
        self._white, self._turned = white, turned
        self._scratch = threading.local()

    def decode_into(self, encoded: Encoded, out: Pixels) -> None:
        """Decode and resize ``encoded`` into ``out`` [H, W, 3] uint8, contiguous.

        Raises:
            UndecodableFrameError: ``encoded`` is no picture that can be decoded.
        """
        if isinstance(encoded, VideoFrame):
            if not self.decode_together([encoded], [out], alone=True):
                raise UndecodableFrameError("the decoder makes no frame of its packets")
            return
        self._picture_into(encoded, out)
        if self._turned:
            _turn(out)

    def _picture_into(
        self, encoded: bytes | memoryview | PackedPicture | ArrayPicture, out: Pixels
    ) -> None:
        """Decode what is no frame of a video, with its channels as they are stored."""
        if isinstance(encoded, PackedPicture):
            try:
                encoded = encoded.picture()
            except UnreadableError as error:
                raise UndecodableFrameError(str(error)) from error
        if isinstance(encoded, ArrayPicture):
            self._array_into(encoded, out)
            return
        is_jpeg = encoded[:3] == _JPEG
        try:
            if is_jpeg:
                self._jpeg_into(encoded, out)
            elif self._white:
                check_picture(lambda count, at: bytes(encoded[at : at + count]))
                picture = decoded(encoded, cv2.IMREAD_UNCHANGED)
                if (grey := _clear_grey(encoded)) >= 0:
                    picture[picture == grey] = np.iinfo(picture.dtype).max
                resize_into(on_white(picture), out, self._camera)
            else:
                resize_into(decoded(encoded, _AS_STORED), out, self._camera)
        except UndecodableFrameError:
            raise
        except (ValueError, LookupError, cv2.error, OverflowError, MemoryError) as error:
            raise UndecodableFrameError(_why(error, encoded, is_jpeg=is_jpeg)) from error

    def decode_together(
        self, frames: Sequence[VideoFrame], out: Sequence[Pixels], *, alone: bool = False
    ) -> Set[int]:
        """Decode frames of one keyframe, each into its ``out``; the numbers of those that came.

        A damaged frame may keep others from coming, which may still be decoded alone.

        Raises:
            UndecodableFrameError: the frame is to be decoded ``alone``, and is damaged.
        """
        came = set()
        with contextlib.suppress(*() if alone else (UndecodableFrameError,)):
            for k, picture in self._stream(frames[0].codec).pictures(frames):
                resize_into(picture, out[k], self._camera)
                if self._turned:
                    _turn(out[k])
                came.add(k)
        return came

    def _stream(self, codec: VideoCodec) -> _Stream:
        """The calling thread's decoder of such videos."""
        known: OrderedDict[VideoCodec, _Stream] | None = getattr(self._scratch, "streams", None)
        if known is None:
            known = self._scratch.streams = OrderedDict()
        stream = known.pop(codec, None) or _Stream(codec)
        known[codec] = stream
        if len(known) > MOST_DECODERS:
            known.popitem(last=False)
        return stream

    def _jpeg_into(self, encoded: bytes | memoryview, out: Pixels) -> None:
        height, width, _, _ = simplejpeg.decode_jpeg_header(encoded, strict=False)
        pixels, scans = height * width, len(encoded) // SHORTEST_SCAN + 1  # at most
        if pixels <= SMALL_PIXELS and pixels * scans <= most:
            self._sized_jpeg_into(encoded, height, width, out)
            return
        with room.taken(jpeg_bytes(encoded, height, width)):
            self._sized_jpeg_into(encoded, height, width, out)

    def _sized_jpeg_into(
        self, encoded: bytes | memoryview, height: int, width: int, out: Pixels
    ) -> None:
        if (height, width) == self._camera.size:
            simplejpeg.decode_jpeg(encoded, "RGB", fastdct=True, buffer=out)
            return
        _check_pixels(height, width)
        buffer = self._buffer(height * width * 3)
        picture = simplejpeg.decode_jpeg(encoded, "RGB", fastdct=True, buffer=buffer)
        resize_into(picture, out, self._camera)

    def _array_into(self, picture: ArrayPicture, out: Pixels) -> None:
        """Unpack or decode a picture of an array, its channels and its top put right."""
        codec = picture.codec
        try:
            stored = picture.stored()
            if codec.encoded and codec.rotated:
                stored = decoded(stored.data, _AS_STORED)
        except (ValueError, LookupError, cv2.error, MemoryError) as error:
            raise UndecodableFrameError(str(error)) from error
        if codec.encoded and not codec.rotated:
            self._picture_into(stored.data, out)
        else:
            if codec.rotated:
                stored = np.ascontiguousarray(stored[::-1, ::-1])
            if stored.shape[-1] == 1:
                stored = np.repeat(stored, _RGB, axis=-1)
            resize_into(stored, out, self._camera)
        if codec.bgr:
            _turn(out)

    def _buffer(self, size: int) -> Pixels:
        if size > _KEPT_BYTES:
            return np.empty(size, np.uint8)
        buffer = getattr(self._scratch, "buffer", None)
        if buffer is None or len(buffer) < size:
            buffer = self._scratch.buffer = np.empty(size, np.uint8)
        return np.asarray(buffer)


def _check_pixels(height: int, width: int) -> None:
    if height * width > _LARGEST_PIXELS:
        told = f"the picture claims {height}×{width} pixels"
        raise UndecodableFrameError(f"{told}; the limit is {_LARGEST_PIXELS:,} in all")


def _turn(out: Pixels) -> None:
    """Have first and last channels of a frame change places."""
    out[...] = out[..., ::-1].copy()


def decoded(encoded: bytes | memoryview, how: int) -> NDArray[Any]:
    """A picture as OpenCV reads it, by one of its ``IMREAD_`` modes.

    Raises:
        UndecodableFrameError: ``encoded`` is no picture, or larger than any camera's.
    """
    pixels = 0
    if encoded[:8] == _PNG and len(encoded) >= _PNG_SIZE_AT + _PNG_SIZE.size:
        width, height = _PNG_SIZE.unpack_from(encoded, _PNG_SIZE_AT)
        _check_pixels(height, width)
        pixels = height * width
    elif encoded[:3] == _JPEG:
        height, width, _, _ = simplejpeg.decode_jpeg_header(encoded, strict=False)
        jpeg_bytes(encoded, height, width)
        pixels = height * width
    with room.taken(pixels * _DECODED_BYTES):
        return _read(encoded, how)


def on_white(picture: NDArray[Any]) -> Pixels:
    """[H, W, 3] uint8 RGB of a picture as OpenCV reads it: grey, BGR or BGRA, of 8 or 16 bits."""
    if picture.dtype == np.uint16:
        picture = (picture >> 8).astype(np.uint8)
    if picture.ndim == 2:
        return np.repeat(picture[..., None], _RGB, axis=-1)
    found = picture[..., 2::-1]
    if picture.shape[-1] == _RGB:
        return np.ascontiguousarray(found)
    alpha = picture[..., 3:].astype(np.uint16)
    return ((found * alpha + (255 - alpha) * 255 + 127) // 255).astype(np.uint8)


def _clear_grey(encoded: bytes | memoryview) -> int:
    """Value that a PNG of greys shows as transparent, which OpenCV does not tell; -1: none."""
    at, is_grey = _PNG_CHUNKS_AT, encoded[:8] == _PNG and encoded[_PNG_DEPTH_AT + 1] == 0
    while is_grey and at + 8 < len(encoded) and encoded[at + 4 : at + 8] != b"IDAT":
        size, body = int.from_bytes(encoded[at : at + 4], "big"), at + 8
        if encoded[at + 4 : body] == b"tRNS":
            most = (1 << min(8, encoded[_PNG_DEPTH_AT])) - 1  # fewer bits are spread over 8
            return int.from_bytes(encoded[body : body + 2], "big") * (255 // most)
        at = body + size + 4
    return -1


def is_black(encoded: bytes | memoryview) -> bool:
    """Tell whether a picture is all zero, as the placeholder of a missing camera is."""
    try:
        return not decoded(encoded, cv2.IMREAD_UNCHANGED).any()
    except (ValueError, UndecodableFrameError, cv2.error):
        return not encoded


def _read(encoded: bytes | memoryview, how: int) -> NDArray[Any]:
    """Pixels of an encoded picture, by OpenCV's flag ``how``."""
    data = np.frombuffer(encoded, np.uint8)
    picture = cv2.imdecode(data, how) if len(data) else None
    if picture is None:
        raise UndecodableFrameError(f"its {len(data)} bytes are not a JPEG or PNG picture")
    return np.asarray(picture)


def _why(error: Exception, encoded: bytes | memoryview, *, is_jpeg: bool) -> str:
    """The fault of a picture; of some, libjpeg-turbo says no more than a number."""
    said = " ".join(str(error).split())
    if not is_jpeg:
        return said or "it is not a picture"
    if bytes(encoded[-2:]) != _JPEG_END:
        return f"the JPEG of {len(encoded)} bytes is cut off"
    words = any(letter.isalpha() for letter in said)
    return f"the JPEG of {len(encoded)} bytes is damaged" + (f": {said}" if words else "")


def _may_skip(codec: VideoCodec) -> bool:
    """Tell whether the decoder leaves out only frames that no other frame refers to."""
    if codec.name != "hevc":
        return codec.name == "h264"
    setup = codec.setup
    return len(setup) > _LAYERS_AT and setup[0] == 1 and setup[_LAYERS_AT] >> 3 & 7 == 1


class _Stream:
    """A video decoder, and the place in the video that it has reached."""

    def __init__(self, codec: VideoCodec) -> None:
        reuse_freed(_REUSED_BYTES)
        with needs("a video", extra="lerobot"):
            import av
            from av.video.reformatter import VideoReformatter
        self._av: Any = av
        self._codec = codec
        self._reformatter = VideoReformatter()
        self._context: Any = None
        self._origin: tuple[str, int] | None = None
        self._may_skip = _may_skip(codec)
        self._skips = False
        self._fed = 0
        self._last: tuple[int, Pixels] | None = None

    def pictures(self, frames: Sequence[VideoFrame]) -> Iterator[tuple[int, Pixels]]:
        """Numbers of ``frames``, all of one keyframe, and their pictures, as they come.

        A picture [H, W, 3] uint8 RGB is not to be written to. Frames are left out which the packets
        do not give.

        Raises:
            UndecodableFrameError: the packets are damaged.
        """
        first = frames[0]
        if self._origin == first.origin and self._last and len(frames) == 1:
            number, picture = self._last
            if number == first.number:
                yield 0, picture
                return
        left = {one.number: k for k, one in enumerate(frames)}
        try:
            for skipping in (True, False) if self._may_skip else (False,):
                if not left:
                    break
                for found in self._coming([frames[k] for k in left.values()], skipping):
                    k = left.pop(found.pts, -1)
                    if k < 0:
                        continue
                    picture = np.asarray(
                        self._reformatter.reformat(found, format="rgb24").to_ndarray(), np.uint8
                    )
                    self._last = found.pts, picture
                    yield k, picture
                    if not left:
                        break
        except (self._av.error.FFmpegError, ValueError) as error:
            self._origin, self._last, self._context = None, None, None
            raise UndecodableFrameError(f"the video is damaged: {error}"[:120]) from error

    def _coming(self, frames: Sequence[VideoFrame], skipping: bool) -> Iterator[Any]:
        """Frames that come out, to the last packet of ``frames`` and what is held back then.

        With ``skipping`` none of those that are not wanted and no other frame refers to.
        """
        wanted = {len(one.packets) - 1 for one in frames}
        longest = max(frames, key=lambda one: len(one.packets))
        if self._origin != longest.origin or self._fed > min(wanted):
            self._begin(longest)
        for start, size, number in longest.packets[self._fed :]:
            packet = self._av.Packet(longest.data[start : start + size])
            packet.pts = packet.dts = number
            packet.is_keyframe = not self._fed
            if self._may_skip:
                self._skip(skipping and self._fed not in wanted)
            self._fed += 1
            yield from self._context.decode(packet)
        self._origin = None  # a decoder that was drained begins anew
        yield from self._context.decode(None)

    def _skip(self, skips: bool) -> None:
        if skips != self._skips:
            self._skips = skips
            self._context.skip_frame = "NONREF" if skips else "DEFAULT"

    def _begin(self, frame: VideoFrame) -> None:
        if self._context is None:
            name = _DECODERS.get(self._codec.name, self._codec.name)
            self._context = self._av.CodecContext.create(name, "r")
            self._context.extradata = self._codec.setup or None
            for name, value in zip(TOLD, self._codec.told, strict=True):
                setattr(self._context, name, value)
            self._context.thread_count = 1
            self._skips = False
        else:
            self._context.flush_buffers()
        self._origin, self._fed, self._last = frame.origin, 0, None


MOST_COST = 2**28
"""Pixels × scans of a picture; ``VARIABLE`` gives another number."""
VARIABLE = "AUTOLOADER_PICTURE_COST"
SMALL_BYTES = 16 * MIB
"""Bytes that each thread may take at any time."""
MEMORY_WAIT_S = 10.0
"""Seconds that a large picture waits for memory, until it is refused."""
SHORTEST_SCAN = 10
"""Bytes of a scan, at least."""
SMALL_PIXELS = SMALL_BYTES // 16
"""Pixels that take less than ``SMALL_BYTES`` in any JPEG."""
_LOOK_S = 0.2
_RGB = 3
_START_OF_SCAN = 0xDA
_NO_FRAME_HEADERS = (0xC4, 0xC8, 0xCC)
_ONE_AFTER_THE_OTHER = (0xC0, 0xC1, 0xC9)
_ALONE = (0x01, *range(0xD0, 0xD8))


class CostlyPictureError(UndecodableFrameError):
    """Decoding a picture would take too much time or memory."""


def most_cost() -> int:
    """Pixels × scans that one picture may have."""
    with contextlib.suppress(KeyError, ValueError):
        return int(float(os.environ[VARIABLE]))
    return MOST_COST


most = most_cost()
"""``most_cost`` at the start of the process."""


def jpeg_bytes(encoded: bytes | memoryview, height: int, width: int) -> int:
    """Bytes that decoding a JPEG takes for a moment, about.

    Raises:
        CostlyPictureError: the picture has too many pixels × scans.
    """
    pixels = height * width
    scans, components = scans_of(encoded)
    if pixels * scans > most:
        times = f" in {scans} scans" if scans > 1 else ""
        raise CostlyPictureError(
            f"a picture of {height}×{width} pixels{times} takes too long to decode: "
            f"{pixels * scans:.3g} pixels × scans; {VARIABLE} sets the limit, {most:.3g}"
        )
    return pixels * (_RGB + (2 * components if scans > 1 else 0))


def scans_of(encoded: bytes | memoryview) -> tuple[int, int]:
    """(scans, components) of a JPEG: 1 where the first scan of a plain picture holds it all."""
    at, end, components, plain = 2, len(encoded) - 9, _RGB, False
    while at < end and encoded[at] == 0xFF:
        marker = encoded[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _ALONE:
            at += 2
        elif marker == _START_OF_SCAN:
            if plain and encoded[at + 4] == components:
                return 1, components
            break
        else:
            if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME_HEADERS:
                components, plain = encoded[at + 9], marker in _ONE_AFTER_THE_OTHER
            at += 2 + (encoded[at + 2] << 8 | encoded[at + 3])
    # Within a scan 0xFF is followed by 0, so its start is found by its two bytes alone.
    return max(1, bytes(encoded[at:]).count(b"\xff\xda")), components


_NO_WAIT = contextlib.nullcontext()


class DecodeRoom:
    """Lets large pictures in, as far as memory reaches; any thread.

    Args:
        headroom: reads the bytes of memory that are free; ``None`` where not known.
    """

    def __init__(self, headroom: Callable[[], int | None]) -> None:
        self._headroom = headroom
        self._changed = threading.Condition()
        self._taken = 0
        self._shared = -1

    def share(self, descriptor: int) -> None:
        """Take turns with all processes that share the same file."""
        self._shared = descriptor

    def taken(self, size: int) -> contextlib.AbstractContextManager[None]:
        """Room for a picture while it is decoded; a small one needs to ask for none.

        Raises:
            CostlyPictureError: the memory cannot be had.
        """
        return self._taken_by(size) if size > SMALL_BYTES else _NO_WAIT

    @contextlib.contextmanager
    def _taken_by(self, size: int) -> Iterator[None]:
        with work_of(APART), self._changed:
            self._changed.wait_for(
                lambda: not self._taken or self._taken + size <= DECODED_TOGETHER_BYTES
            )
            if not self._taken and self._shared >= 0:
                fcntl.lockf(self._shared, fcntl.LOCK_EX, 1, 0)
            self._taken += size
        try:
            self._await_memory(size)
            yield
        finally:
            with self._changed:
                self._taken -= size
                if not self._taken and self._shared >= 0:
                    fcntl.lockf(self._shared, fcntl.LOCK_UN, 1, 0)
                self._changed.notify_all()

    def _await_memory(self, size: int) -> None:
        """Wait until all pictures under way would fit, or this one where it is alone."""
        deadline = time.monotonic() + MEMORY_WAIT_S
        while (headroom := self._headroom()) is not None and headroom < self._taken:
            if self._taken == size and time.monotonic() > deadline:
                raise CostlyPictureError(
                    f"decoding it needs {format_bytes(size)} of memory, and only "
                    f"{format_bytes(headroom)} are free"
                )
            time.sleep(_LOOK_S)


room: DecodeRoom
"""Of this process."""


def _begin() -> None:
    """In a fork too: the threads that decoded are not here."""
    global room
    room = DecodeRoom(functools.partial(headroom_or_none, HeadroomProbe()))


_begin()
os.register_at_fork(after_in_child=_begin)
