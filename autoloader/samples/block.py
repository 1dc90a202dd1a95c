"""A block of samples as a reader hands it over: encoded frames, and every sample's numbers.

Not here: encoded frames (``formats.frames``), making blocks (``index.planned``), where bytes come
from (``pipeline.graph``, ``pipeline.read``), decoding (``decode``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autoloader.formats.frames import Encoded
from autoloader.host.frozen import frozen
from autoloader.samples import windows
from autoloader.samples.draws import PURPOSE_ORDER, Bools, Ints, fold
from autoloader.samples.layout import PROVENANCE
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.transforms.fields import FieldName
from autoloader.spec import SampleSpec
from autoloader.spec.knobs import Knobs

DECODED_TOGETHER_BYTES = 256 * 2**20
"""What large pictures take that are decoded at the same time; a larger one is decoded alone."""
RUN_BYTES = 16 * 2**20
"""Encoded frames that a run should not exceed: where frames are large it has fewer samples. A batch
that has more is a run."""
MOST_UNFINISHED = 2
"""Batches with such runs that wait for decode threads while the next batch is filled."""


@frozen
class Place:
    """Place of an episode: dataset index, pass, number of its slice, record in the slice's file."""

    dataset: int
    pass_: int
    shard: int
    record: int

    def numbers(self) -> tuple[int, int, int, int]:
        """(dataset, pass, shard, record)."""
        return self.dataset, self.pass_, self.shard, self.record


class FrameLease(Protocol):
    """The decoded frames that a planned run may show, and those that it is to keep.

    Attributes:
        slots: camera → [m] int64 slot that each of the block's frames has; −1: none.
        written: camera → [S] bool, in which slots a frame lies. A thread that finds no frame in
            its slot decodes the frame, and puts it there.
        over: whether the lease was given up, or all samples of the run are in filled batches.
    """

    slots: dict[str, Ints]
    over: bool

    @property
    def written(self) -> Mapping[str, Bools]:
        """Camera → [S] bool, in which slots a frame lies."""

    def gather(self, camera: str, slots: Ints, out: NDArray[Any]) -> None:
        """Copy slots [n] into ``out`` [n, H·W·3], contiguous; slot 0 is black."""

    def put(self, camera: str, slot: int, picture: NDArray[Any]) -> None:
        """Copy a frame [H, W, C], contiguous, into a slot, which is written then.

        Does nothing once the cache may hold nothing any more.
        """

    @property
    def pinned_bytes(self) -> int:
        """Bytes of the slots that the lease shows frames from, or puts frames into."""

    def filled(self, rows: int) -> None:
        """Count ``rows`` more samples of the run, which lie in filled batches; any thread."""

    def give_up(self) -> None:
        """Give the slots up: the run is dropped, and read again later."""


@dataclass(slots=True)
class SampleBlock:
    """n samples that were read together: those of one episode, or those of a planned run.

    Frames stay encoded and are held once, however many of the samples show them. All numbers are
    ready to be copied into a batch, column by column.

    Attributes:
        columns: name of a batch's array → [n, …] its values for these samples. ``ledger`` [n, 6] is
            always among them: dataset, pass, shard, episode, t and, of a stream, how many samples
            the episode gives in this pass; else 1. ``provenance`` [n, 5] differs from it only where
            a sample stands in for one of a broken record.
        texts: n UTF-8 languages.
        frames: camera → its encoded frames. A camera that no sample of the block has is left out;
            a frame is ``None`` where its dataset has no such camera, or ``lease`` has it decoded.
        frame_row: [n, F] int64, which of ``frames`` each sample shows.
        frame_zeroed: [n, F] bool, frames that are shown as zeros.
        datasets: [n] index of each sample's dataset.
        linked: [n] whether a sample shares a frame with the one before it; ``None`` where no
            dataset is chained.
        nbytes: bytes held by frames and numbers; 0 where nobody asks.
        lease: decoded frames of the block; ``None``: all are decoded anew.
        videos: cameras that have frames of videos.
    """

    columns: dict[str, NDArray[Any]]
    texts: Sequence[bytes]
    frames: dict[str, list[Encoded | None]]
    frame_row: Ints
    frame_zeroed: Bools
    datasets: Sequence[int]
    linked: list[bool] | None = None
    nbytes: int = 0
    lease: FrameLease | None = None
    videos: Set[str] = frozenset()

    def __len__(self) -> int:
        return len(self.frame_row)

    @property
    def place(self) -> Place:
        """Where the episode of the first sample lies."""
        return self.place_at(0)

    @property
    def t(self) -> Ints:
        """[n] int64, in (strided) frames of each sample's episode."""
        return self.columns["ledger"][:, 4]

    def place_at(self, k: int) -> Place:
        """Where the episode of sample k lies."""
        return Place(*self.columns["ledger"][k, :4].tolist())


def stand_ins(block: SampleBlock, place: Place, count: int) -> SampleBlock:
    """``count`` samples in place of the broken record at ``place``: repeats of a good ``block``."""
    at = np.arange(count) % len(block)
    columns = {name: column[at] for name, column in block.columns.items()}
    columns["ledger"] = _ledger(place, columns["ledger"][:, 4])
    return SampleBlock(
        columns=columns,
        texts=[block.texts[k] for k in at.tolist()],
        frames=block.frames,
        frame_row=block.frame_row[at],
        frame_zeroed=block.frame_zeroed[at],
        datasets=[place.dataset] * count,
        nbytes=block.nbytes,
    )


def _ledger(place: Place, t: Ints) -> Ints:
    """[n, 6] int64 of all samples of an episode."""
    ledger = np.empty((len(t), len(PROVENANCE) + 1), np.int64)
    ledger[:, :4] = place.numbers()
    ledger[:, 4] = t
    ledger[:, 5] = len(t)
    return ledger


def episode_key(dataset: ResolvedDataset, place: Place) -> int:
    """The key of all draws of one episode in one pass."""
    return fold(dataset.key, PURPOSE_ORDER, place.pass_, place.shard, place.record)


def field_windows(
    sample: SampleSpec, name: FieldName, t: Ints, steps: int | Ints
) -> tuple[Ints, windows.WindowRows]:
    """The steps that a field's rows count from, and the rows; see ``windows.action_rows``."""
    if name == "action":
        return windows.action_rows(t, steps, sample)
    return t, windows.rows(t, field_offsets(sample, name), steps, sample)


def by_sample(sample: SampleSpec, name: FieldName, values: NDArray[Any]) -> NDArray[Any]:
    """``values`` of every chunk [n · k, …], with an axis for a sample's chunks if it may have k."""
    if name == "state" or sample.action_per == "sample":
        return values
    return values.reshape(-1, len(sample.frame_offsets), *values.shape[1:])


def field_offsets(sample: SampleSpec, name: FieldName) -> Ints:
    """Offsets [R] int64 from t of a field's rows, before any sum."""
    if name == "state":
        return np.asarray(sample.state_offsets, dtype=np.int64)
    return np.asarray(sample.action_offsets, dtype=np.int64)


def linked_rows(frame_row: Ints) -> list[bool]:
    """Of each sample, with frames [n, F], whether it shares one with the sample before."""
    return [False, *(frame_row[1:, :, None] == frame_row[:-1, None, :]).any(axis=(1, 2)).tolist()]


def different_frames(ledger: Ints, raw: Ints, drawn: Bools) -> tuple[Ints, Ints]:
    """Numbers of the different frames at raw steps [n, F] of sorted samples.

    Args:
        ledger: [n, 6], samples of an episode side by side.
        raw: [n, F] int64 unstrided steps of the frames.
        drawn: [n] whether frames of one step may differ between passes.

    Returns:
        [n, F] the number of each frame, and for every number where it comes first in ``raw``, flat.
    """
    other = (ledger[1:] != ledger[:-1])[:, [0, 2, 3]].any(axis=1)
    other |= drawn[1:] & (ledger[1:, 1] != ledger[:-1, 1])
    episode = np.concatenate([[0], np.cumsum(other)])
    same = (episode[:, None] * (int(raw.max(initial=0)) + 1) + raw).ravel()
    if (same[1:] > same[:-1]).all():  # all are different, and in order
        number = first = np.arange(raw.size)
    else:
        _, first, number = np.unique(same, return_index=True, return_inverse=True)
    return number.reshape(raw.shape), first


@frozen
class ReaderStart:
    """Where a reader opens: a pass, and the records of each shard already done in it.

    Attributes:
        pass_: the pass, from 0.
        skip: number of records, at the front of each slice, that are done.
    """

    pass_: int
    skip: tuple[int, ...]


@frozen
class EmptyEpisode:
    """A record that gives no sample.

    Attributes:
        place: place of the record.
        reason: reason of its quarantine; ``None`` where it is whole, and no window fits it.
    """

    place: Place
    reason: str | None


class SourceInterruptedError(Exception):
    """A source does not answer now; its reader opens it again at the cursor. Internal."""


class EpisodeStream(Protocol):
    """A reader of one dataset, episode by episode in the order of its files.

    ``open`` may be called again at any time, from any thread. An iterator that was opened before
    goes on, and its errors stay its own.
    """

    def open(self, start: ReaderStart, knobs: Knobs) -> Iterator[SampleBlock | EmptyEpisode]:
        """Episodes from ``start`` on, pass after pass, without end; in each pass every record once.

        Raises:
            SourceError: while iterating, when the source cannot be read at all.
            SourceInterruptedError: while iterating, when it may be read again later.
        """
