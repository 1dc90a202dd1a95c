"""Frames as a reader hands them over where a file holds more than the bytes of each picture.

Of a video that is the packets that it takes to decode a frame; of a file that packs its pictures,
the stretch that holds one.

Not here: where they lie (``catalog.lerobot``), decoding them (``decode.video``, ``decode.frames``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoloader.extras import needs

_SNAPPY = "snappy"


@dataclass(frozen=True, slots=True)
class VideoCodec:
    """What a decoder is set up with.

    Attributes:
        name: FFmpeg's name of the format: "av1", "h264", "hevc" …
        setup: bytes that it needs before the first packet.
    """

    name: str
    setup: bytes


@dataclass(frozen=True, slots=True)
class VideoFrame:
    """One frame, still encoded: the packets from its keyframe to itself, in decoding order.

    Attributes:
        data: a stretch of the file that holds all of them.
        packets: start in ``data``, bytes, and number of the frame that each holds.
        number: the frame that is wanted.
        codec: what decodes it.
        origin: file and place of the keyframe: frames that have it in common are decoded together.
    """

    data: memoryview
    packets: Sequence[tuple[int, int, int]]
    number: int
    codec: VideoCodec
    origin: tuple[str, int]

    def __len__(self) -> int:
        """Bytes."""
        return len(self.data)


class UnpackableError(ValueError):
    """A stretch does not hold the picture. Internal: it becomes a quarantine."""


@dataclass(frozen=True, slots=True)
class PackedPicture:
    """One encoded picture, and what it is packed with.

    Attributes:
        data: a stretch of the file.
        codec: of ``catalog.lerobot.pictures.PictureTable``.
        unpacked: its bytes, unpacked.
        start, size: the picture within them.
    """

    data: memoryview
    codec: str
    unpacked: int
    start: int
    size: int

    def __len__(self) -> int:
        """Bytes."""
        return len(self.data)

    def picture(self) -> memoryview:
        """The encoded picture.

        Raises:
            UnpackableError: the stretch is damaged.
            MissingExtraError: pyarrow is not installed.
        """
        whole = self.data
        if self.codec:
            with needs("a LeRobot dataset", extra="lerobot"):
                import pyarrow
            packed: bytes | memoryview = self.data
            if self.codec == _SNAPPY:
                packed = _number(self.unpacked) + bytes(self.data)
            try:
                found = pyarrow.decompress(packed, self.unpacked, self.codec)
            except (pyarrow.ArrowException, OSError, ValueError) as error:
                raise UnpackableError(f"its page is damaged: {error}"[:120]) from error
            whole = memoryview(found)
        return whole[self.start : self.start + self.size]


def _number(value: int) -> bytes:
    """As snappy writes it: seven bits a byte."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
