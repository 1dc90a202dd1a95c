"""Formats whose episodes have their frames elsewhere: in videos, or packed in the shard file.

An episode becomes a record of RLDS, so that transforms and the index take it as any other: its
numbers and texts under the names of its features, and for each picture a mark that says which
camera's and which step's it is. The marks that a transform leaves say which steps' frames it shows.

``EpisodeFormat`` is the class to write a format from: an episode is its values, and where each
camera's first frame lies in a video.

Invariants:
    1. An episode is indexed whole or not at all.
    2. The tables are a function of the files' bytes, the metadata and the wanted features alone.

Not here: packets of videos (``videos``), tables themselves (``tables``).
"""

from __future__ import annotations

import hashlib
import os
import struct
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from autoloader.formats.dataset import DatasetFormat, PlainReader, ShardSlice
from autoloader.formats.features import VIDEO, Feature
from autoloader.formats.files import Found, UnreadableError, naming
from autoloader.formats.frames import Encoded
from autoloader.formats.plain import LazyPicture, Step
from autoloader.formats.records import RecordPlace, write_example
from autoloader.formats.tables import (
    ONCE,
    ReadRecord,
    Section,
    ShardTables,
    SourceIdentity,
    TableBuilder,
    Texts,
    Values,
    Wanted,
)
from autoloader.formats.videos import PacketTable, first_frames_of, packets_of
from autoloader.host.frozen import frozen
from autoloader.spec.model import Timestamps

Ints = NDArray[np.int64]
MARK = struct.Struct("<II")
"""Stand-in for a picture: the camera's place in the sorted names, and the step."""


# -- the tables of a file -----------------------------------------------------------------------


PackedFrames = Callable[[Ints], tuple[dict[Section, Any], list[bytes]]]
"""Frames of an episode that lie packed in the shard file: some steps → (values of
their sections, the codec). Keys of frames count from the first chunk that is given."""


@frozen
class VideoFrames:
    """Frames of an episode that lie in a video.

    Attributes:
        path: path of the video.
        packets: packets of the video.
        shown: [T] int64 frame of the video that each step shows.
    """

    path: str
    packets: PacketTable
    shown: Ints


@frozen
class StoredEpisode:
    """An episode as an index takes it.

    Attributes:
        record: values of the episode as a ``tf.train.Example``, with marks for pictures.
        steps: number of its steps.
        frames: camera → where its frames lie; raises UnreadableError.
        offset: number that the index keeps as the place of the record.
    """

    record: bytes
    steps: int
    frames: Callable[[str], VideoFrames | PackedFrames]
    offset: int = 0


GiveEpisode = Callable[[], StoredEpisode]
"""Gives an episode of a shard file; raises UnreadableError of a damaged one."""


def fitting(values: NDArray[Any], dtype: Any, path: str) -> NDArray[Any]:
    """A feature's numbers as float32 or int64. Raises UnreadableError where they change."""
    if (changed := changed_by(values, dtype)).any():
        raise UnreadableError(
            f"{path} holds {values[changed][0]}, and its type, {np.dtype(dtype)}, cannot hold that"
        )
    return values.astype(dtype)


def changed_by(values: NDArray[Any], dtype: Any) -> NDArray[np.bool_]:
    """Which numbers are others as integers of a type, or infinite only as floats of it."""
    if np.dtype(dtype).kind == "f":
        return np.asarray(np.isfinite(values) & (np.abs(values) > np.finfo(dtype).max))
    with np.errstate(invalid="ignore"):
        given = values.astype(dtype)
    turned = (given < 0) != (values < 0)  # 2**63 becomes negative
    return np.asarray((given.astype(values.dtype) != values) | turned, np.bool_)


def marks_of(camera: int, steps: int) -> list[bytes]:
    """The marks of a camera's pictures; see ``MARK``."""
    return [MARK.pack(camera, step) for step in range(steps)]


@dataclass
class FileTables:
    """The tables of a shard file's episodes, as they lie there or as the transform leaves them.

    Args:
        path: path of the shard file.
        wanted: features that are indexed.
        read: reads an episode as a record, through the transform if there is one.
        features: features of the dataset, by path.
        cameras: keys of its pictures, sorted.

    Attributes:
        notes: facts about the file that a person should know, as keys; once all were read.
    """

    path: str
    wanted: Wanted
    read: ReadRecord
    features: Mapping[str, Feature]
    cameras: Sequence[str]

    def __post_init__(self) -> None:
        """Prepare what is found once a file; nothing is read yet."""
        transform = self.wanted.transform
        given = self.features if transform is None else transform.features
        self._of_videos = {one.key for one in given.values() if one.encoding == VIDEO}
        self.notes: dict[str, None] = {}
        self._packets: Counter[int] = Counter()
        self._begins: dict[tuple[int, str], int] = {}

    def build(self, episodes: Iterable[GiveEpisode]) -> TableBuilder:
        """The tables of the file's episodes, in their order."""
        builder = TableBuilder(self.wanted.features)
        for give in episodes:
            try:
                one = give()
                steps, values, texts = self._values(one)
            except UnreadableError as error:
                builder.leave_out(0, 0, str(error))
            else:
                builder.add(one.offset, one.steps, steps, values, texts)
        for note in self.notes:
            builder.note(note)
        return builder

    def _values(self, one: StoredEpisode) -> tuple[int, Values, Texts]:
        """(steps, values for the sections, texts) of an episode.

        Raises:
            UnreadableError: its frames are not there, or the transform's function fails on it.
        """
        steps, values, texts = self.read(one.record, len(one.record))
        placed: Values = {}
        for number, feature in enumerate(self.wanted.features):
            if feature.role == "frames":
                marks = values.pop((Section.FRAME_OFFSETS, number))
                del values[Section.FRAME_LENGTHS, number]
                found, texts[number] = self._frames(one, number, marks)
                placed.update({(kind, number): part for kind, part in found.items()})
        # Texts get their numbers in this order: the bytes of index files depend on it.
        values = placed | values if self.wanted.transform is None else values | placed
        return steps, values, texts

    def _frames(
        self, one: StoredEpisode, number: int, marks: Ints
    ) -> tuple[dict[Section, Any], list[bytes]]:
        """Sections of the frames whose marks lie at these places of an episode's record.

        Args:
            one: episode of the file.
            number: number of the feature in the schema.
            marks: [n] places of the marks, in bytes.

        Raises:
            UnreadableError: the frames are not there, are of several cameras, or are stored in
                another way than in the first episode.
        """
        feature = self.wanted.features[number]
        if not len(marks):
            once = ONCE if feature.key in self._of_videos else (Section.FRAME_CODECS,)
            return {kind: np.zeros(1, np.int64) for kind in once}, [b""]
        data = np.frombuffer(one.record, np.uint8)
        told = data[marks[:, None] + np.arange(MARK.size)].view("<u4")
        of = set(told[:, 0].tolist())
        if len(of) > 1:
            raise UnreadableError(f"{feature.path} mixes frames of several cameras")
        camera, steps = self.cameras[of.pop()], told[:, 1].astype(np.int64)
        if (self.features[camera].encoding == VIDEO) != (feature.key in self._of_videos):
            raise UnreadableError(
                f"{feature.path} shows {camera}, stored as video in one episode and as pictures in "
                "another"
            )
        frames = one.frames(camera)
        if isinstance(frames, VideoFrames):
            return self._of_video(frames, number, steps)
        found, codec = frames(steps)
        if Section.FRAME_KEYS in found:
            found[Section.FRAME_KEYS] = found[Section.FRAME_KEYS] + self._packets[number]
            self._packets[number] += len(found[Section.PACKET_OFFSETS])
        return found, codec

    def _of_video(
        self, frames: VideoFrames, number: int, steps: Ints
    ) -> tuple[dict[Section, Any], list[bytes]]:
        """As ``_frames``; each feature that shows frames of a video holds its packets once."""
        table, shown = frames.packets, frames.shown[steps]
        key, packet = table.key_of[shown], table.packet_of[shown]
        new = (number, frames.path) not in self._begins
        if new:
            self._begins[number, frames.path] = self._packets[number]
            self._packets[number] += len(table.offset)
        base = self._begins[number, frames.path]
        ends = np.maximum.accumulate(table.offset + table.size)
        found: dict[Section, Any] = {
            Section.FRAME_OFFSETS: table.offset[key],
            Section.FRAME_LENGTHS: ends[packet] - table.offset[key],
            Section.FRAME_KEYS: base + key,
            Section.FRAME_PACKETS: base + packet,
            Section.FRAME_FILES: np.zeros(1, np.int64),
            Section.FRAME_CODECS: np.ones(1, np.int64),
        }
        if new:
            found[Section.PACKET_OFFSETS] = table.offset
            found[Section.PACKET_SIZES] = table.size
            found[Section.PACKET_NUMBERS] = table.number
        folder = os.path.dirname(self.path)  # noqa: PTH120
        file = os.fsencode(os.path.relpath(frames.path, folder))
        return found, [file, table.codec.text]


@dataclass(frozen=True)
class StoredFormat(DatasetFormat):
    """A format whose episodes become records, as this module says.

    A file of frames that are in no video belongs to one shard file alone: its frames are told apart
    by their row in the shard.
    """

    streamable: ClassVar[bool] = False

    @abstractmethod
    def stored(
        self, path: str, only: slice, wanted: Wanted | None, notes: dict[str, None]
    ) -> Iterator[GiveEpisode]:
        """A function that gives the episodes of a shard file in order; any thread may call it.

        Each is called before the next is asked for, and raises UnreadableError of a damaged
        episode.

        Args:
            path: path of the shard file.
            only: which of its episodes.
            wanted: features that are indexed; ``None``: every one is read, and no frames.
            notes: filled with facts about the file that a person should know, as keys.

        Raises:
            OSError: the file cannot be read.
        """

    def tables(self, path: str, wanted: Wanted, read: ReadRecord) -> ShardTables:
        """See ``DatasetFormat``."""
        source = self.identity(path, wanted)
        tables = FileTables(path, wanted, read, self.features, self.cameras)
        return tables.build(self.stored(path, slice(None), wanted, tables.notes)).tables(source)

    def records(self, slices: Sequence[ShardSlice]) -> Iterator[tuple[RecordPlace, bytes]]:
        """See ``DatasetFormat``; an episode's pictures are marks of the camera and the step."""
        for piece in slices:
            own = self.stored(piece.path, slice(piece.start, piece.stop), None, {})
            for record, give in enumerate(own, start=piece.start):
                with suppress(UnreadableError):
                    yield RecordPlace(piece.path, record), give().record


def identity_of(paths: Iterable[str], root: str, digest: bytes = b"") -> SourceIdentity:
    """State of several files, each of which may be missing; paths count from ``root``.

    So an index beside data that was moved stays right.

    Args:
        paths: paths of the files, in an order that stays.
        root: folder of the dataset.
        digest: hash of whatever else the tables are made from.
    """
    stamp, size = hashlib.blake2b(digest, digest_size=8), 0
    for file in paths:
        stamp.update(os.fsencode(file.removeprefix(f"{root}/")))
        try:
            found = os.stat(file)  # noqa: PTH116
        except OSError:
            stamp.update(b"\0missing\0")
            continue
        size += found.st_size
        stamp.update(b"\0%d %d\0" % (found.st_size, found.st_mtime_ns))
    return SourceIdentity(size, int.from_bytes(stamp.digest(), "little") >> 1)


# -- formats in a few lines ---------------------------------------------------------------------


def video(path: str, height: int | None = None, width: int | None = None) -> Feature:
    """A camera whose frames lie in videos."""
    return Feature(path, path, "image", "uint8", (height, width, 3), VIDEO, per_step=True)


def numbers(path: str, width: int, dtype: str = "float32") -> Feature:
    """A feature of ``width`` numbers for each step."""
    return Feature(path, path, "tensor", dtype, (width,), None, per_step=True)


def text(path: str) -> Feature:
    """A feature with one text for each step."""
    return Feature(path, path, "text", "string", (), None, per_step=True)


@frozen
class Episode:
    """One episode of an ``EpisodeFormat``, T steps.

    Attributes:
        steps: T.
        values: feature path → [T, …] numbers, or T texts.
        videos: camera → (video, the frame of it that step 0 shows).
        damage: reason why the episode cannot be used; "": it can.
    """

    steps: int
    values: Mapping[str, NDArray[Any] | Sequence[Any]] = field(default_factory=dict)
    videos: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    damage: str = ""


@dataclass(frozen=True)
class EpisodeFormat(StoredFormat):
    """A format to write in a few lines: numbers and texts from anywhere, frames from videos.

    A subclass says four things. Whatever else it knows of its folder may be a
    ``functools.cached_property``.

    1. ``title``, the format's name in messages, and ``marker``, a file that every dataset has.
    2. ``open(path, dataset=...)``: the dataset in a folder, from its metadata alone. It gives
       ``name`` (the folder's), ``version`` (any text), ``path`` (absolute), ``features`` (path →
       ``video(...)``, ``numbers(...)`` or ``text(...)``), ``splits`` (name → a ``ShardSlice`` for
       each shard file), ``dataset`` and ``steps`` (shard file → frames of each episode). What is
       missing or broken is a ``SourceError`` with a remedy. A dataset that knows its frame rate has
       ``fps``.
    3. ``episodes(path)``: the episodes of a shard file, in their order. A shard file is what one
       thread indexes at a time and what ``train[:2shard]`` counts, such as a CSV file.
    4. ``videos_of(path)``: the videos that these episodes show. When a shard file or one of them
       changes, its index is built anew.

    All the rest follows: the index, windows, shuffling, exact resume, decoding, ``plan``, ``init``
    and ``inspect``. Frames are found by PyAV (extra ``lerobot``), and read by ranges of the files.
    An episode with ``damage`` is left out by that reason, within ``errors.max_corrupt_ratio``.
    ``verify`` compares with ``episodes`` and PyAV; override ``plain_reader`` to compare with values
    that another program reads. A format whose frames are no videos is a ``StoredFormat``.

    A package brings the format as an entry point of the group ``autoloader.formats``, and a spec
    names it: ``kind: NAME``.
    """

    @abstractmethod
    def episodes(self, path: str) -> Iterator[Episode]:
        """The episodes of a shard file, in their order; any thread may ask.

        Raises:
            OSError: the file cannot be read.
        """

    @abstractmethod
    def videos_of(self, path: str) -> Collection[str]:
        """The videos that the episodes of a shard file show, there or not."""

    def identity(self, path: str, wanted: Wanted) -> SourceIdentity:
        """See ``DatasetFormat``."""
        os.stat(path)  # noqa: PTH116  (raises where it is not there)
        return identity_of([path, *sorted(self.videos_of(path))], self.path)

    def stored(
        self, path: str, only: slice, wanted: Wanted | None, notes: dict[str, None]
    ) -> Iterator[GiveEpisode]:
        """See ``StoredFormat``."""
        known = Found(packets_of)
        for one in islice(self.episodes(path), only.start, only.stop):
            yield partial(self._stored, one, known)

    def first_frames(self, path: str, record: int, camera: str, count: int) -> Sequence[Encoded]:
        """See ``DatasetFormat``."""
        one = self.episode(path, record)
        return first_frames_of(*one.videos[camera], min(count, one.steps))

    def plain_reader(self, timestamps: Timestamps = "check") -> PlainReader[Any]:
        """See ``DatasetFormat``."""
        return EpisodeReader(self, timestamps)

    def episode(self, path: str, record: int) -> Episode:
        """An episode of a shard file; reads no further ones.

        Raises:
            OSError: the file cannot be read.
            LookupError: the file has fewer episodes.
        """
        for number, one in enumerate(self.episodes(path)):
            if number == record:
                return one
        raise LookupError(f"{path} has no episode {record}")

    def _stored(self, one: Episode, known: Mapping[str, PacketTable]) -> StoredEpisode:
        if one.damage:
            raise UnreadableError(one.damage)
        values: dict[str, Any] = {}
        for path, feature in self.features.items():
            if feature.kind == "image":
                values[path] = marks_of(self.cameras.index(path), one.steps)
            elif feature.kind == "text":
                values[path] = [str(each).encode(errors="replace") for each in one.values[path]]
            else:
                dtype = np.float32 if "float" in feature.dtype else np.int64
                values[path] = fitting(np.asarray(one.values[path]), dtype, path).reshape(-1)
        return StoredEpisode(write_example(values), one.steps, partial(_frames, one, known))


def _frames(one: Episode, known: Mapping[str, PacketTable], camera: str) -> VideoFrames:
    """Frames of an episode; ``known`` has the packets of videos. Raises UnreadableError."""
    if camera not in one.videos:
        raise UnreadableError(f"{camera}: the episode has no video")
    path, first = one.videos[camera]
    with naming(f"{camera}, {path.rpartition('/')[2]}"):
        table = known[path]
        if not 0 <= first <= len(table) - one.steps:
            shown = f"{first} to {first + one.steps - 1}"
            raise UnreadableError(f"it has {len(table)} frames, and the episode needs {shown}")
    return VideoFrames(path, table, np.arange(first, first + one.steps))


class EpisodeReader(PlainReader[EpisodeFormat]):
    """See ``PlainReader``: an episode's values as the format gives them, its frames by PyAV."""

    reads_by = "the format"
    faults = (OSError,)

    def steps(self, piece: ShardSlice, record: int) -> list[Step]:
        """See ``PlainReader``."""
        one = self.directory.episode(piece.path, record)
        return [self._step(one, t) for t in range(one.steps)]

    def _step(self, one: Episode, t: int) -> Step:
        step: dict[str, Any] = {}
        for path, feature in self.directory.features.items():
            if feature.kind == "image":
                file, first = one.videos[path]
                step[path] = LazyPicture(partial(self.videos.frame, file, first + t))
            else:
                step[path] = one.values[path][t]
                if feature.kind == "text":
                    step[path] = str(step[path]).encode(errors="replace")
        return step
