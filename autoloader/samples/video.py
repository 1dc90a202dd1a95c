"""A frame of a video as a reader hands it over: the packets that it takes to decode it.

Not here: where packets lie (``catalog.lerobot.packets``), decoding them (``decode.video``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
