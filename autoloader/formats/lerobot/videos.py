"""The first frame of each episode in the videos of a LeRobot dataset.

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

Not here: packets (``formats.videos``), frames in an index (``formats.episodes``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.host.frozen import frozen

LARGEST_DRIFT_FRAMES = 0.5
"""A time that is off by more than this many frames belongs to another frame."""
_BETWEEN_FRAMES = 0.25
"""A distance between two episodes that is farther from a whole number of frames is none."""


@frozen
class Spans:
    """The n episodes of a video, as the list of episodes has them; n > 0.

    Attributes:
        index: [n] int64 numbers of the episodes, which ascend.
        length: [n] int64 number of frames, none of them 0.
        start, end: [n] float64 begin and end by the list, in frames; ``end`` is NaN where the list
            does not say it.
        sure: [n] true if the list agrees with itself on the length.
    """

    index: NDArray[np.int64]
    length: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    sure: NDArray[np.bool_]

    def behind(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """[n] first frame of each episode, where they lie one behind the other in some order."""
        first = np.empty_like(self.length)
        first[order] = np.cumsum(self.length[order]) - self.length[order]
        return first

    def placement(
        self, first: NDArray[np.int64], lost: Mapping[int, str] | None = None, note: str = ""
    ) -> Placement:
        """All episodes at their first frames, except those that are lost."""
        lost = lost or {}
        pairs = zip(self.index.tolist(), first.tolist(), strict=True)
        return Placement({index: here for index, here in pairs if index not in lost}, lost, note)


@frozen
class Placement:
    """The episodes of a video.

    Attributes:
        first: episode → the frame that it begins with.
        lost: episode → why nobody knows that frame.
        note: remark for people; "": there is none.
    """

    first: Mapping[int, int]
    lost: Mapping[int, str] = field(default_factory=dict)
    note: str = ""


def place(spans: Spans, frames: int, *, followed: bool = False, by_row: bool = False) -> Placement:
    """Place the episodes of a video.

    Args:
        spans: all of them.
        frames: number of the video's frames.
        followed: whether the number behind the last one is of an episode that lies nowhere.
        by_row: whether starts are not looked at (``timestamps: ignore``).
    """
    index, total = spans.index.tolist(), int(spans.length.sum())
    if total == frames:
        return _by_lengths(spans, frames, by_row=by_row)
    named = f"episode {index[0]}"
    if len(index) > 1:
        named = f"its {len(index)} episodes, {index[0]} to {index[-1]},"
    why = f"it has {frames} frames, and {named} should have {total}"
    if by_row or total > frames or (np.diff(spans.start) <= 0).any():
        clashes = _clashes(spans)
        return Placement({}, {one: clashes.get(one, why) for one in index})
    found = _by_starts(spans)
    length = int(spans.length[-1])
    end = found.first.get(index[-1], frames - length) + length
    if end == frames or (followed and end < frames):
        return found
    return Placement({}, dict.fromkeys(index, why))


def _by_lengths(spans: Spans, frames: int, *, by_row: bool) -> Placement:
    """Of episodes whose lengths give all frames of the video."""
    by_number = spans.behind(np.arange(len(spans.index)))
    if by_row:
        return spans.placement(by_number)
    by_start, back = (
        spans.behind(np.lexsort((number, spans.start))) for number in (spans.index, -spans.index)
    )
    if (np.abs(spans.start - by_start) < LARGEST_DRIFT_FRAMES).all():
        return spans.placement(by_start)
    off = np.abs(spans.start - by_number)
    moved = off >= LARGEST_DRIFT_FRAMES
    agreed = spans.sure.all() & (by_number == by_start) & (by_number == back)
    lost = _clashes(spans)
    lost = {
        number: lost.get(number)
        or (
            f"episode {number} begins with frame {start:.2f} by its from_timestamp, and with frame "
            f"{here} by the lengths of the {len(off)} episodes"
        )
        for number, start, here in _rows(moved & ~agreed, spans.index, spans.start, by_number)
    }
    moved &= agreed
    if not moved.any():
        return spans.placement(by_number, lost)
    note = (
        f"{moved.sum()} of {len(off)} episodes begin up to {off[moved].max():.2f} frames elsewhere "
        f"than their from_timestamp says; their lengths give its {frames} frames, and place them"
    )
    return spans.placement(by_number, lost, note)


def _by_starts(spans: Spans) -> Placement:
    """Of episodes that leave frames of the video out, in the order of numbers and starts."""
    apart = np.diff(spans.start) - spans.length[:-1]
    steps = spans.length[:-1] + np.rint(apart).astype(np.int64)
    first = np.cumsum(np.append(np.rint(spans.start[:1]).astype(np.int64), steps))
    astray = np.abs(spans.start - first) >= LARGEST_DRIFT_FRAMES
    astray[1:] |= np.abs(apart - np.rint(apart)) > _BETWEEN_FRAMES
    lost = _clashes(spans)
    told = spans.end - spans.start
    differs = np.abs(told - spans.length) >= LARGEST_DRIFT_FRAMES  # false of NaN
    for number, length, frames in _rows(differs, spans.index, spans.length, told):
        why = f"episode {number} has {length} frames, and {frames:.2f} from its from_timestamp to "
        lost.setdefault(number, why + "its to_timestamp")
    behind = np.logical_or.accumulate(astray)  # one that is not where it should be moves the others
    for number, start, here in _rows(behind, spans.index, spans.start, first):
        why = (
            f"episode {number} begins with frame {start:.2f} by its from_timestamp, and with frame "
        )
        why += f"{here} by those before it; the lengths do not give the video's frames"
        lost.setdefault(number, why)
    return spans.placement(first, lost)


def _rows(which: NDArray[np.bool_], *columns: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    """The rows of some columns for which a condition holds."""
    return zip(*(column[which].tolist() for column in columns), strict=True)


def _clashes(spans: Spans) -> dict[int, str]:
    """Episode → its frames by its start, and those of one that wants some of them too."""
    found: dict[int, str] = {}
    starts = np.rint(spans.start).astype(np.int64)
    columns = (starts, starts + spans.length, spans.index)
    told = sorted(zip(*(column.tolist() for column in columns), strict=True))
    farthest = told[0]
    for span in told[1:]:
        if span[0] < farthest[1]:
            for (a, b, own), (c, d, other) in ((span, farthest), (farthest, span)):
                words = f"frames {a} to {b - 1} are of episode {own}, and {c} to {d - 1}"
                found.setdefault(own, f"{words} of episode {other}")
        farthest = max(farthest, span, key=lambda one: one[1])
    return found
