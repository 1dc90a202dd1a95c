"""The videos of a LeRobot dataset: their packets, and the first frame of each episode in them.

A frame is a byte range of the file: from the keyframe that it depends on to the frame itself, in
the order in which decoders want the packets. Nothing is decoded here.

Metadata says three times where an episode begins: by ``from_timestamp``, by the lengths of the
episodes before it, and by the number of frames of the video. Writers that add up the durations of
files let ``from_timestamp`` drift, and merges mix it up; so no start is believed alone.

    lengths give all frames   a start within half a frame of the lengths' sum is right; where starts
                              and numbers put the episodes in the same order, the sum is right for
                              the others too (that is noted); else they are left out
    the video has more        starts are right as long as they keep whole frames apart, ends fit
                              them, and the last frames are the last episode's, or those of a next
                              number that is not listed
    the video has less        none is right: nobody knows which frames are lost

Not here: decoding (``decode.frames``), frames in an index (``formats.lerobot.tables``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoloader.formats import files
from autoloader.formats.files import told_stand_in
from autoloader.host.extras import needs

LARGEST_DRIFT_FRAMES = 0.5
"""A time that is off by more than this many frames belongs to another frame."""
_BETWEEN_FRAMES = 0.25
"""A distance between two episodes that is farther from a whole number of frames is none."""


MOST_PACKETS = 2**24


class UnreadableVideoError(ValueError):
    """A file is no video that can be read; the message says why. Internal: a quarantine."""


@dataclass(frozen=True, slots=True)
class PacketTable:
    """The packets of a video's one picture track, in decoding order; P of them.

    Attributes:
        codec: FFmpeg's name of the decoder's format: "av1", "h264", "hevc" …
        setup: bytes that the decoder needs before the first packet.
        offset: [P] int64 place in the file.
        size: [P] int64 bytes of the packet.
        number: [P] int64 which frame it is, by the time at which it is shown.
        shown_s: [P] float64 when frame k is shown, from the first one on; ascending.
        packet_of: [P] int64 the packet of frame k.
        key_of: [P] int64 the packet from which decoders must begin for frame k.
    """

    codec: str
    setup: bytes
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    number: NDArray[np.int64]
    shown_s: NDArray[np.float64]
    packet_of: NDArray[np.int64]
    key_of: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offset)


def read_packets(path: str, most: int | None = None) -> PacketTable:
    """The packets of the first video track of a file.

    Args:
        path: path of the video.
        most: read only so many, the first in decoding order; default: all.

    Raises:
        UnreadableVideoError: it is no video, or damaged.
        OSError: it cannot be opened.
        MissingExtraError: PyAV is not installed.
    """
    with needs("a LeRobot dataset with videos", extra="lerobot"):
        import av
    try:
        with files.opened_regular(path):
            pass  # anything else but a file would be waited for
        with av.open(path) as container:
            if not container.streams.video:
                raise UnreadableVideoError("it has no video track")
            stream = container.streams.video[0]
            context, base = stream.codec_context, stream.time_base
            if context is None or base is None:
                raise UnreadableVideoError("its video track has no known codec or time base")
            codec, setup = context.codec.canonical_name, context.extradata
            rows: list[tuple[int, int, int, bool]] = []
            for packet in container.demux(stream):
                if len(rows) == most:
                    break
                if not packet.size:
                    continue
                if packet.pts is None or packet.pos is None or packet.pos < 0:
                    raise UnreadableVideoError("a packet has no time or no place")
                rows.append((packet.pos, packet.size, packet.pts, packet.is_keyframe))
                if len(rows) > MOST_PACKETS:
                    raise UnreadableVideoError(f"it has more than {MOST_PACKETS} packets")
    except (av.error.FileNotFoundError, av.error.PermissionError):
        raise
    except (av.error.FFmpegError, ValueError, OverflowError) as error:
        why = told_stand_in(path) or f"{type(error).__name__}: {error}"[:200]
        raise UnreadableVideoError(why) from error
    if not rows:
        raise UnreadableVideoError("it has no frame")
    if max(place + size for place, size, *_ in rows) > Path(path).stat().st_size:
        raise UnreadableVideoError("it is cut off")
    offset, size, time, key = (np.asarray(column, np.int64) for column in zip(*rows, strict=True))
    packet_of = np.argsort(time, kind="stable")
    shown = time[packet_of]
    if (np.diff(shown) <= 0).any():
        raise UnreadableVideoError("two of its frames are shown at one time")
    number = np.empty_like(packet_of)
    number[packet_of] = np.arange(len(packet_of))
    # Frames that come behind a keyframe and are shown before it depend on the keyframe before.
    keys = np.flatnonzero(key != 0)
    keys = keys[np.argsort(number[keys])]
    if not len(keys) or number[keys[0]] != 0:
        raise UnreadableVideoError("it does not begin with a keyframe")
    nearest = np.searchsorted(number[keys], np.arange(len(time)), side="right") - 1
    key_of = keys[nearest]
    if (key_of > packet_of).any():
        raise UnreadableVideoError("a frame lies before its keyframe")
    shown_s = (shown - shown[0]) * float(base)
    return PacketTable(codec, bytes(setup or b""), offset, size, number, shown_s, packet_of, key_of)


@dataclass(frozen=True, slots=True)
class Span:
    """An episode in a video, as the list of episodes has it.

    Attributes:
        index: number of the episode.
        length: number of frames of the episode.
        start, end: where it begins, and ends, by the list, in frames; ``end`` is ``None`` where the
            list does not say it.
        sure: whether the list agrees with itself on the length.
    """

    index: int
    length: int
    start: float
    end: float | None = None
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Placement:
    """The episodes of a video.

    Attributes:
        first: episode → the frame that it begins with.
        lost: episode → why nobody knows that frame.
        note: what a person should know; "" where there is nothing.
    """

    first: Mapping[int, int]
    lost: Mapping[int, str] = field(default_factory=dict)
    note: str = ""


def place(
    spans: Sequence[Span], frames: int, *, followed: bool = False, by_row: bool = False
) -> Placement:
    """Place the episodes of a video.

    Args:
        spans: all of them, none of length 0.
        frames: number of the video's frames.
        followed: whether the number behind the last one is of an episode that lies nowhere.
        by_row: whether starts are not looked at (``timestamps: ignore``).
    """
    spans = sorted(spans, key=lambda one: one.index)
    total = sum(one.length for one in spans)
    if total == frames:
        return _by_lengths(spans, frames, by_row=by_row)
    named = f"episode {spans[0].index}"
    if len(spans) > 1:
        named = f"its {len(spans)} episodes, {spans[0].index} to {spans[-1].index},"
    why = f"it has {frames} frames, and {named} {total}"
    if by_row or total > frames or any(a.start >= b.start for a, b in pairwise(spans)):
        clashes = _clashes(spans)
        return Placement({}, {one.index: clashes.get(one.index, why) for one in spans})
    found = _by_starts(spans)
    last = spans[-1]
    end = found.first.get(last.index, frames - last.length) + last.length
    if end == frames or (followed and end < frames):
        return found
    return Placement({}, {one.index: why for one in spans})


def _by_lengths(spans: Sequence[Span], frames: int, *, by_row: bool) -> Placement:
    """Of episodes whose lengths give all frames of the video."""
    by_number = _sums(spans, lambda one: one.index)
    if by_row:
        return Placement(by_number)
    by_start = _sums(spans, lambda one: (one.start, one.index))
    if all(_near(one, by_start) for one in spans):
        return Placement(by_start)
    sums = (by_number, by_start, _sums(spans, lambda one: (one.start, -one.index)))
    sure = all(one.sure for one in spans)
    clashes = _clashes(spans)
    first, lost, most, moved = {}, {}, 0.0, 0
    for one in spans:
        here = by_number[one.index]
        if not _near(one, by_number):
            if not sure or len({each[one.index] for each in sums}) > 1:
                lost[one.index] = clashes.get(one.index) or (
                    f"episode {one.index} begins with frame {one.start:.2f} by its from_timestamp, "
                    f"and with frame {here} by the lengths of the {len(spans)} episodes"
                )
                continue
            moved, most = moved + 1, max(most, abs(one.start - here))
        first[one.index] = here
    note = (
        f"{moved} of {len(spans)} episodes begin up to {most:.2f} frames elsewhere than their "
        f"from_timestamp says; their lengths give its {frames} frames, and place them"
    )
    return Placement(first, lost, note if moved else "")


def _by_starts(spans: Sequence[Span]) -> Placement:
    """Of episodes that leave frames of the video out, in the order of numbers and starts."""
    clashes = _clashes(spans)
    first: dict[int, int] = {}
    lost: dict[int, str] = dict(clashes)
    here, before, astray = round(spans[0].start), spans[0], False
    for one in spans:
        if one is not before:
            apart = one.start - before.start - before.length
            here += before.length + round(apart)
            astray = astray or abs(apart - round(apart)) > _BETWEEN_FRAMES
        astray = astray or abs(one.start - here) >= LARGEST_DRIFT_FRAMES
        if one.end is not None and abs(one.end - one.start - one.length) >= LARGEST_DRIFT_FRAMES:
            lost.setdefault(
                one.index,
                f"episode {one.index} has {one.length} frames, and {one.end - one.start:.2f} from "
                "its from_timestamp to its to_timestamp",
            )
        if astray and one.index not in lost:
            lost[one.index] = (
                f"episode {one.index} begins with frame {one.start:.2f} by its from_timestamp, and "
                f"with frame {here} by those before it; the lengths do not give the video's frames"
            )
        if one.index not in lost:
            first[one.index] = here
        before = one
    return Placement(first, lost)


def _near(one: Span, sums: Mapping[int, int]) -> bool:
    return abs(one.start - sums[one.index]) < LARGEST_DRIFT_FRAMES


def _sums(spans: Sequence[Span], order: Callable[[Span], object]) -> dict[int, int]:
    """Episode → its first frame, where they lie one behind the other in some order."""
    found, here = {}, 0
    for one in sorted(spans, key=order):  # type: ignore[arg-type]
        found[one.index] = here
        here += one.length
    return found


def _clashes(spans: Sequence[Span]) -> dict[int, str]:
    """Episode → its frames by its start, and those of one that wants some of them too."""
    found: dict[int, str] = {}
    told = sorted((round(one.start), round(one.start) + one.length, one.index) for one in spans)
    farthest = told[0]
    for span in told[1:]:
        if span[0] < farthest[1]:
            for (a, b, own), (c, d, other) in ((span, farthest), (farthest, span)):
                words = f"frames {a} to {b - 1} are of episode {own}, and {c} to {d - 1}"
                found.setdefault(own, f"{words} of episode {other}")
        farthest = max(farthest, span, key=lambda one: one[1])
    return found
