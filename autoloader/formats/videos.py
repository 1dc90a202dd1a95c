"""Videos: their packets, and the stretch of the file that each frame is decoded from.

A frame is a byte range of the file: from the keyframe that it depends on to the frame itself, in
the order in which decoders want the packets. Nothing is decoded here.

Not here: decoding (``decode.frames``), which episode lies where (each format).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoloader.formats import files
from autoloader.formats.files import UnreadableError, naming, told_stand_in
from autoloader.formats.frames import TOLD, VideoCodec, VideoFrame
from autoloader.host.extras import needs
from autoloader.host.frozen import frozen

_REORDERED = 32
"""Packets that may lie behind a frame that is shown before theirs."""
MOST_PACKETS = 2**24
_PARTS = "its edit list has several parts; re-encode it with ffmpeg -i IN OUT.mp4"
_SLICE, _INTRA = (1, 5), (2, 5, 12, 13, 14, 15)
"""H.264's types of units that are slices; the first five bits of an intra slice's type."""
_START = b"\0\0\1"
"""Start code of a unit of H.264."""


@frozen
class PacketTable:
    """The packets of a video's one picture track, in decoding order: P of them, and F frames.

    An edit list may hide packets, on which frames that are shown may still depend: P ≥ F.

    Attributes:
        codec: parameters of the video decoder.
        offset: [P] int64 place in the file.
        size: [P] int64 bytes of the packet.
        number: [P] int64 which frame it is, by the time at which it is shown; -1: it is hidden.
        shown_s: [F] float64 when frame k is shown, from the first one on; ascending.
        packet_of: [F] int64 the packet of frame k.
        key_of: [F] int64 the packet from which decoders must begin for frame k.
    """

    codec: VideoCodec
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    number: NDArray[np.int64]
    shown_s: NDArray[np.float64]
    packet_of: NDArray[np.int64]
    key_of: NDArray[np.int64]

    def __len__(self) -> int:
        """F."""
        return len(self.packet_of)


def read_packets(path: str, most: int | None = None) -> PacketTable:
    """The packets of the first video track of a file.

    Args:
        path: path of the video.
        most: read only so many that are not hidden, the first in decoding order; default: all.

    Raises:
        UnreadableError: the file is no video, or damaged.
        OSError: the file cannot be opened.
        MissingExtraError: PyAV is not installed.
    """
    with needs("a video", extra="lerobot"):
        import av
    try:
        # Anything else but a file would be waited for.
        with files.opened_regular(path) as file, av.open(path) as container:
            if not container.streams.video:
                raise UnreadableError("it has no video track")
            stream = container.streams.video[0]
            context, base = stream.codec_context, stream.time_base
            if context is None or base is None:
                raise UnreadableError("its video track has no known codec or time base")
            codec = VideoCodec(
                context.codec.canonical_name,
                bytes(context.extradata or b""),
                tuple(int(getattr(context, one)) for one in TOLD),
            )
            rows: list[_Row] = []
            left = MOST_PACKETS + 1 if most is None else most
            for packet in (one for one in container.demux(stream) if one.size):
                if packet.pts is None or packet.pos is None or packet.pos < 0:
                    raise UnreadableError(
                        "a packet has no timestamp (pts) or no position in the file",
                        remedy="repair it: ffmpeg -fflags +genpts -i IN -c copy OUT.mp4",
                    )
                if not rows and os.pread(file.fileno(), packet.size, packet.pos) != bytes(packet):
                    raise UnreadableError(
                        f"its packets are not stored as decoders need ({container.format.name})",
                        remedy="convert it: ffmpeg -i IN -c copy OUT.mp4",
                    )
                is_key = packet.is_keyframe and (
                    codec.name != "h264" or _is_intra(bytes(packet), codec.setup)
                )
                rows.append((packet.pos, packet.size, packet.pts, is_key, packet.is_discard))
                if len(rows) > MOST_PACKETS:
                    raise UnreadableError(f"it has more than {MOST_PACKETS} packets")
                left -= not packet.is_discard
                if not left:
                    break
    except (av.error.FileNotFoundError, av.error.PermissionError):
        raise
    except (av.error.FFmpegError, ValueError, OverflowError) as error:
        name = "" if isinstance(error, UnreadableError) else f"{type(error).__name__}: "
        raise UnreadableError(told_stand_in(path) or f"{name}{error}"[:200]) from error
    if not rows:
        raise UnreadableError("it holds no frames")
    if max(place + size for place, size, *_ in rows) > Path(path).stat().st_size:
        raise UnreadableError("it is cut off")
    return _table(codec, float(base), rows)


_Row = tuple[int, int, int, bool, bool]
"""A packet: place, bytes, time in units of the base, whether it is a keyframe, or hidden."""


def _table(codec: VideoCodec, base_s: float, rows: Sequence[_Row]) -> PacketTable:
    """The packets ``rows``, in decoding order, once they are known to show frames."""
    offset, size, time, key, hidden = (
        np.asarray(column, np.int64) for column in zip(*rows, strict=True)
    )
    packet_of = np.argsort(time, kind="stable")
    shown = time[packet_of]
    if len(doubled := np.flatnonzero(np.diff(shown) <= 0)):
        parts = hidden[packet_of[doubled]].any() or hidden[packet_of[doubled + 1]].any()
        raise UnreadableError(_PARTS if parts else "two of its frames have the same time")
    number = np.empty_like(packet_of)
    number[packet_of] = np.arange(len(packet_of))
    # Frames that come behind a keyframe and are shown before it depend on the keyframe before.
    keys = np.flatnonzero(key != 0)
    keys = keys[np.argsort(number[keys])]
    if not len(keys) or number[keys[0]] != 0:
        raise UnreadableError("it does not begin with a keyframe")
    key_of = keys[np.searchsorted(number[keys], np.arange(len(time)), side="right") - 1]
    if (early := key_of > packet_of).any():
        parts = hidden[key_of[early]].any()
        raise UnreadableError(_PARTS if parts else "a frame lies before the keyframe that it needs")
    kept = hidden[packet_of] == 0
    if not kept.any():
        raise UnreadableError("its edit list hides every frame")
    packet_of, key_of, shown = packet_of[kept], key_of[kept], shown[kept]
    number[:] = -1
    number[packet_of] = np.arange(len(packet_of))
    shown_s = (shown - shown[0]) * base_s
    return PacketTable(codec, offset, size, number, shown_s, packet_of, key_of)


def packets_of(path: str) -> PacketTable:
    """All packets of a video; raises UnreadableError where there is none, too."""
    with naming("the video cannot be read"):
        return read_packets(path)


def _is_intra(packet: bytes, setup: bytes) -> bool:
    """Tell whether a packet of H.264 that is called a keyframe depends on no other.

    With intra refresh it is the first of several, which together make a whole picture.
    """
    for at in _units_of(packet, setup):
        unit = packet[at : at + 2]
        if len(unit) == 2 and unit[0] % 32 in _SLICE:
            first_and_type = unit[1]
            return unit[0] % 32 == _SLICE[1] or first_and_type >> 2 & 31 in _INTRA
    return True


def _units_of(packet: bytes, setup: bytes) -> Iterator[int]:
    """Places of the units in a packet of H.264, behind their lengths or their start codes."""
    if len(setup) > 4 and setup[0] == 1:
        at, size = 0, setup[4] % 4 + 1
        while at + size < len(packet):
            yield at + size
            at += size + int.from_bytes(packet[at : at + size], "big")
        return
    at = packet.find(_START)
    while at >= 0:
        yield at + len(_START)
        at = packet.find(_START, at + len(_START))


def first_frames_of(path: str, first: int, count: int) -> Sequence[VideoFrame]:
    """``count`` frames of a video from frame ``first`` on; reads no packets far behind them.

    Raises:
        UnreadableError: the file is no video, or damaged.
        OSError: the file cannot be opened.
        IndexError: the video has fewer frames.
        MissingExtraError: PyAV is not installed.
    """
    table = read_packets(path, most=first + count + _REORDERED)
    data = mapped(path)
    found = []
    for frame in range(first, first + count):
        own = slice(int(table.key_of[frame]), int(table.packet_of[frame]) + 1)
        offsets, sizes = table.offset[own], table.size[own]
        begin = int(offsets[0])
        packets = list(
            zip((offsets - begin).tolist(), sizes.tolist(), table.number[own].tolist(), strict=True)
        )
        stretch = data[begin : int((offsets + sizes).max())]
        found.append(VideoFrame(stretch, packets, frame, table.codec, (path, begin)))
    return found


def mapped(path: str) -> memoryview:
    """A file's bytes, of which only those that are looked at are read."""
    with files.opened_regular(path) as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
