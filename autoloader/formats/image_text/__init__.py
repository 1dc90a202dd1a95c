"""Image–text data: records of texts and pictures, each an episode of one step without an action.

A file of records is a shard. Records of JSONL files and JSON lists name pictures, which are files
below the media root. Tar shards and Parquet files of the Hugging Face Hub hold their pictures.

Theory of operation. Opening counts the records of each file once, and keeps the count in the user's
cache. The index has 16 bytes for a record: one step, its place, its first picture. A picture has
12 bytes, 24 in Parquet. Texts are read when a sample is planned, at their places; those of Parquet
files lie in the index. Indexing looks at each record's JSON and at each picture's header.

Invariants:
    1. No path of a record leads out of the media root, by its letters.
    2. A record is indexed whole or not at all.

Not here: finding and parsing records (``records``), sizes of pictures (``formats.pictures``).
"""

from __future__ import annotations

import json
import os
import re
import stat
import tarfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SourceError
from autoloader.formats import files
from autoloader.formats.cache import JsonCache
from autoloader.formats.dataset import DatasetFormat, PlainReader, ShardSlice
from autoloader.formats.features import Feature
from autoloader.formats.files import UnreadableError, naming
from autoloader.formats.frames import Encoded
from autoloader.formats.image_text.records import (
    PICTURES,
    Found,
    Record,
    names_pictures,
    natural,
    records_in,
    rows_at,
    rows_of_parquet,
    texts_at,
)
from autoloader.formats.lerobot.parquet import PictureTable, read_pictures
from autoloader.formats.pictures import check_picture
from autoloader.formats.places import NAMES_SPLIT, RECORDS, dataset_around
from autoloader.formats.plain import Step, pixels_of
from autoloader.formats.records import FileChangedError
from autoloader.formats.tables import (
    FIRST_NOTE,
    NO_FEATURE,
    ReadRecord,
    Section,
    ShardTables,
    SourceIdentity,
    Wanted,
)
from autoloader.formats.videos import mapped
from autoloader.spec.model import MOST_PICTURES, TEXTS, Timestamps

MOST_PICTURE_BYTES = 2**28
_LOOKED_AT = 64
"""Records by which a spec is drafted."""
_LATELY = 2**15
"""Pictures whose headers were looked at last: several records may ask about one."""
_OF_SPLIT = re.compile(r"(.+?)-\d+-of-\d+(-[0-9a-f]+)?")
_counts = JsonCache("image_text", version=1)


def image(number: int) -> str:
    """Path of the feature that is a record's picture of this number."""
    return f"image_{number}"


def _features() -> dict[str, Feature]:
    found = [Feature(name, name, "text", "string", (), None, per_step=False) for name in TEXTS]
    for name in map(image, range(MOST_PICTURES)):
        found.append(Feature(name, name, "image", "uint8", (None, None, 3), None, per_step=True))
        flag = f"has_{name}"
        found.append(Feature(flag, flag, "tensor", "bool", (), None, per_step=False))
    return {one.path: one for one in found}


@dataclass(frozen=True)
class ImageTextDirectory(DatasetFormat):
    """A folder of files of records, or one of them; see ``DatasetFormat``.

    Attributes:
        media: folder that paths of pictures start at.
        packed: Parquet file → name of its column of pictures; "": it has none.
    """

    title: ClassVar[str] = "image-text"
    marker: ClassVar[str] = ""
    streamable: ClassVar[bool] = False
    still: ClassVar[bool] = True

    media: str = ""
    packed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def check(cls, path: str | Path, *, dataset: str) -> str:
        """See ``DatasetFormat``; the path may be one file."""
        if files.is_remote(path):
            return super().check(path, dataset=dataset)
        text = files.normal(path)
        if not record_files(text):
            raise SourceError(
                f"dataset {dataset}: {text} is no file of records ({', '.join(RECORDS)}), and no "
                "folder with one",
                remedy="give the path of such a file, or of the folder that holds them",
            )
        return text

    @classmethod
    def open(cls, path: str, *, dataset: str) -> ImageTextDirectory:
        """See ``DatasetFormat``."""
        paths = record_files(path)
        kinds = {Path(one).suffix for one in paths}
        if len(kinds) > 1 and not kinds <= {".jsonl", ".ndjson"}:
            raise SourceError(
                f"dataset {dataset}: {path} holds records in files of several kinds: "
                f"{', '.join(sorted(kinds))}",
                remedy=f"give the dataset's folder: {around}"
                if (around := dataset_around(path))
                else "give the path of one file, or move each kind into its own folder",
            )
        splits: dict[str, list[ShardSlice]] = {}
        packed = {}
        for one in paths:
            found = partial(_count, one, dataset)
            count, column = _counts.of_file(one, (one,), found, dataset=dataset)
            if Path(one).suffix == ".parquet":
                packed[one] = column
            split = _split_of(one, path)
            own = splits.setdefault(split, [])
            own.append(ShardSlice(one, len(own), 0, count, split))
        single = Path(path).is_file()
        return cls(
            name=Path(path).stem if single else Path(path).name,
            version="1",
            path=path,
            features=_features(),
            splits={name: tuple(own) for name, own in splits.items()},
            dataset=dataset,
            media=str(Path(path).parent) if single else path,
            packed=packed,
        )

    def look(self) -> tuple[int, str]:
        """(most pictures of one of the first records, path of one that is not there or "").

        Raises:
            UnreadableError: none of the first records can be read.
        """
        first = next((slices[0] for slices in self.splits.values() if slices), None)
        if first is None:
            raise UnreadableError("its files hold no record")
        path, most, missing = first.path, 0, ""
        read, fault = False, ""
        column = self.packed.get(path, "")
        for one in islice(self._records(path), _LOOKED_AT):
            names: Sequence[str] = ()
            try:  # a record that is broken may stand among others, and indexing leaves it out
                if one.text:
                    names = Record.parse(one.text, caption=one.caption).pictures
            except UnreadableError as error:
                fault = fault or str(error)
                continue
            read = True
            if one.pictures or column:
                names = ()
            most = max(most, len(names), len(one.pictures), 1 if column else 0)
            missing = missing or next((name for name in names if not self._has(name)), "")
        if fault and not read:
            raise UnreadableError(fault)
        return most, missing

    def _has(self, picture: str) -> bool:
        """True if a picture that a record names is there, and may be read."""
        try:
            return Path(self.place_of(picture)).is_file()
        except (UnreadableError, OSError):  # outside of the media root, or too long for a path
            return False

    def with_media(self, media: str) -> ImageTextDirectory:
        """The dataset, whose pictures lie below another folder."""
        return replace(self, media=files.normal(media))

    def identity(self, path: str, wanted: Wanted) -> SourceIdentity:
        """See ``DatasetFormat``; pictures in files of their own do not count."""
        return SourceIdentity.of(os.stat(path))  # noqa: PTH116

    def tables(self, path: str, wanted: Wanted, read: ReadRecord) -> ShardTables:
        """See ``DatasetFormat``; all are of one step, so rows are records."""
        source = self.identity(path, wanted)
        shown = sum(one.role == "frames" for one in wanted.features)
        try:
            found = self._found(path)
        except UnreadableError as error:
            raise SourceError(
                f"dataset {self.dataset}: {path}: {error}",
                remedy="repair the file, or move it out of the folder",
            ) from error
        if self.identity(path, wanted) != source:
            raise FileChangedError(f"{path} was written to")
        return found.tables(source, shown)

    def first_frames(self, path: str, record: int, camera: str, count: int) -> Sequence[Encoded]:
        """See ``DatasetFormat``; in place of a picture that is not there the record's last."""
        wanted = int(camera.rpartition("_")[2])
        if column := self.packed.get(path, ""):
            table = read_pictures(path, column, self._count_of(path), record + 1)
            return table.pictures(mapped(path), slice(record, record + 1))
        found = next(islice(records_in(path), record, None))
        if found.pictures:
            begin, size = found.pictures[min(wanted, len(found.pictures) - 1)]
            return [mapped(path)[begin : begin + size]]
        names = Record.parse(found.text, caption=found.caption).pictures
        return [mapped(self.place_of(names[min(wanted, len(names) - 1)]))]

    def plain_reader(self, timestamps: Timestamps = "check") -> ImageTextReader:
        """See ``DatasetFormat``."""
        return ImageTextReader(self, timestamps)

    def place_of(self, picture: str) -> str:
        """The file of a picture that a record names. Raises UnreadableError."""
        if picture[0] != "/" and ".." not in picture:
            return f"{self.media}/{picture}"
        whole = os.path.normpath(os.path.join(self.media, picture))  # noqa: PTH118
        if not whole.startswith(self.media.rstrip("/") + "/"):
            raise UnreadableError(f"{picture[:200]!r} lies outside of {self.media}")
        return whole

    def texts(self, path: str, places: NDArray[np.int64], ends: NDArray[np.int64]) -> list[Record]:
        """Records whose texts lie at these places of a file.

        Raises:
            SourceError: the file is another one by now, or cannot be read.
        """
        try:
            return texts_at(path, places, ends)
        except (UnreadableError, OSError) as error:
            raise SourceError(
                f"dataset {self.dataset}: {path} has changed since it was indexed, and cannot be "
                f"read now: {error}",
                remedy="put the file back as it was, or repair it; then start the run again",
            ) from error

    def _records(self, path: str) -> Iterator[Found]:
        """The records of a file, in their order; Raises as ``records_in``."""
        packed = path in self.packed
        return (Found(0, text) for text in rows_at(path)) if packed else records_in(path)

    def _found(self, path: str) -> _Tables:
        """The tables of a file; texts of Parquet go into the index. Raises UnreadableError."""
        within, looked_at = path.endswith(".tar"), lru_cache(_LATELY)(self._looked_at)
        found = _Tables(packed=path in self.packed)
        if column := self.packed.get(path, ""):
            table = read_pictures(path, column, self._count_of(path))
            found.codec = table.codec
            placed = partial(_packed_places, table, names_pictures(path, column), mapped(path))
        with files.opened(path) as file:
            for row, one in enumerate(self._records(path)):
                places: Sequence[tuple[int, ...]] = one.pictures
                fault = one.fault
                try:
                    if not fault:
                        record = Record.parse(one.text, caption=one.caption)
                        if column:
                            places = placed(row)
                        elif within:
                            _look_within(file, one.pictures)
                        else:
                            places = [looked_at(name) for name in record.pictures]
                        record.check_marks(len(places))
                except UnreadableError as error:
                    fault = str(error)
                found.add(one, fault, places)
            found.places.append(os.fstat(file).st_size)
        return found

    def _looked_at(self, name: str) -> tuple[int, int]:
        """(0, bytes) of a picture's file. Raises UnreadableError."""
        path = self.place_of(name)
        with naming(name[:200]):
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            try:
                found = os.fstat(file)
                if not stat.S_ISREG(found.st_mode):
                    raise UnreadableError("it is not a regular file")
                if found.st_size > MOST_PICTURE_BYTES:
                    raise UnreadableError(f"it has more than {MOST_PICTURE_BYTES:,} bytes")
                check_picture(partial(os.pread, file))
            finally:
                os.close(file)
        return 0, found.st_size

    def _count_of(self, path: str) -> int:
        return next(one.records for own in self.splits.values() for one in own if one.path == path)


class _Tables:
    """Tables of a file's records, as they are found."""

    def __init__(self, *, packed: bool = False) -> None:
        self.packed = packed
        self.places = array("q")
        self.first = array("i", [0])
        self.pictures = array("q")
        self.damage: dict[int, str] = {}
        self.texts: list[bytes] = []
        self.codec: str | None = None
        self.most = 0

    def add(self, one: Found, fault: str, pictures: Sequence[tuple[int, ...]]) -> None:
        """Add the next record; one with a fault has no pictures."""
        if fault:
            self.damage[len(self.first) - 1] = fault[:300]
            pictures = ()
        self.most = max(self.most, len(pictures))
        for place in pictures:
            self.pictures.extend(place)
        self.places.append(one.place)
        self.first.append(self.first[-1] + len(pictures))
        if self.packed:
            self.texts.append(b"" if fault else one.text)

    def tables(self, source: SourceIdentity, shown: int) -> ShardTables:
        """Tables for an index, of a dataset that shows so many pictures of a record."""
        records, columns = len(self.first) - 1, _COLUMNS if self.codec is not None else _COLUMNS[:2]
        damage = dict(self.damage)
        if more := int((np.diff(self.first) > shown).sum()) if shown else 0:
            few = f"{more} records have more pictures than the {shown} that are shown"
            damage[FIRST_NOTE] = f"{few} (up to {self.most})"
        steps = np.ones(records, np.int32)
        steps[list(self.damage)] = -1
        places = np.frombuffer(self.pictures, np.int64).reshape(-1, len(columns)).T
        sections = {(kind, NO_FEATURE): own.astype(kind.dtype)
                    for kind, own in zip(columns, places, strict=True)}  # fmt: skip
        sections[Section.PICTURE_FIRST, NO_FEATURE] = np.frombuffer(self.first, np.int32)
        own, none = np.frombuffer(self.places, np.int64), np.empty(0, np.int64)
        if self.packed:
            texts = [*self.texts, (self.codec or "").encode()]
            return ShardTables(source, none, none, steps, damage, sections, texts)
        return ShardTables(source, own, none, steps, damage, sections)


_COLUMNS = (
    Section.FRAME_OFFSETS,
    Section.FRAME_LENGTHS,
    Section.UNPACKED_BYTES,
    Section.PICTURE_STARTS,
    Section.PICTURE_BYTES,
)


def _look_within(file: int, places: Sequence[tuple[int, ...]]) -> None:
    """Check pictures that lie in a file. Raises UnreadableError."""
    for begin, size in places:
        if size > MOST_PICTURE_BYTES:
            raise UnreadableError(
                f"a picture has {size:,} bytes; the limit is {MOST_PICTURE_BYTES:,}"
            )
        with naming("a picture"):
            check_picture(partial(_within, file, begin, size))


def _within(file: int, begin: int, size: int, count: int, at: int) -> bytes:
    return os.pread(file, max(0, min(count, size - at)), begin + at)


def _packed_places(
    table: PictureTable, named: NDArray[np.bool_], data: memoryview, row: int
) -> list[tuple[int, ...]]:
    """Place of the picture in a row, its header looked at, if any. Raises UnreadableError."""
    if table.size[row] <= 0 and not named[row]:
        return []
    with naming("its picture"):
        if table.size[row] <= 0:
            raise UnreadableError("only its path is stored; write its bytes into the Parquet file")
        (picture,) = table.pictures(data, slice(row, row + 1))
        found = picture.picture()
        check_picture(lambda n, at: bytes(found[at : at + n]))
    columns = (table.offset, table.length, table.unpacked, table.start, table.size)
    return [tuple(int(one[row]) for one in columns)]


def record_files(root: str) -> list[str]:
    """The files of records at a path, in the order of their numbers."""
    if os.path.isfile(root):
        return [root] if root.endswith(RECORDS) else []
    found = [str(one) for end in RECORDS for one in Path(root).glob(f"*{end}")]
    found = found or [str(one) for one in Path(root).rglob("*.parquet")]
    return sorted(found, key=natural)


def _split_of(path: str, root: str) -> str:
    """The split of a file: by its shard's name, else by a word in its folders' names or its own."""
    if match := _OF_SPLIT.fullmatch(Path(path).stem):
        return match[1]
    parts = Path(path).relative_to(root).parts  # none of a single file
    told = (NAMES_SPLIT.search(part) for part in parts)
    return next((one.lastgroup or "" for one in told if one), "train")


def _count(path: str, dataset: str) -> list[Any]:
    """[number of a file's records, name of its column of pictures]. Raises SourceError."""
    try:
        if path.endswith(".parquet"):
            return list(rows_of_parquet(path))
        return [sum(1 for _ in records_in(path)), ""]
    except UnreadableError as error:
        told = files.told_stand_in(path) or str(error)
        raise SourceError(
            f"dataset {dataset}: {path}: {told}",
            remedy="repair the file, or move it out of the folder",
        ) from error


# -- the plain reader ---------------------------------------------------------------------------


class ImageTextReader(PlainReader[ImageTextDirectory]):
    """See ``PlainReader``: json, tarfile, pyarrow and Pillow read whole files.

    Only the rules for turns are the loader's.
    """

    reads_by = "Pillow"

    def steps(self, piece: ShardSlice, record: int) -> list[Step]:
        """See ``PlainReader``."""
        raw, pictures = _loaded(piece.path, self.directory.packed.get(piece.path, ""))[record]
        found = Record.parse(raw) if isinstance(raw, bytes) else raw
        if not pictures:
            root = Path(self.directory.media)
            pictures = [(root / one).read_bytes() for one in found.pictures]
        shown = [pixels_of(one, white=True) for one in pictures]
        step: dict[str, Any] = {k: getattr(found, k).encode(errors="replace") for k in TEXTS}
        for number in range(MOST_PICTURES):
            there = number < len(shown)
            step[image(number)] = shown[number] if there else np.zeros((1, 1, 3), np.uint8)
            step[f"has_{image(number)}"] = there
        return [step]


@lru_cache(maxsize=2)
def _loaded(path: str, column: str) -> list[tuple[Any, list[bytes]]]:
    """(text of a record, its pictures where they lie in the file) of every record of a file."""
    if path.endswith(".parquet"):
        from pyarrow import parquet

        rows = parquet.read_table(path).to_pylist()
        packed = [(row.pop(column) or {}) if column else {} for row in rows]
        return [
            (json.dumps(row, default=str).encode(), [one["bytes"]] if one.get("bytes") else [])
            for row, one in zip(rows, packed, strict=True)
        ]
    if not path.endswith(".tar"):
        text = Path(path).read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("["):
            return [(json.dumps(one).encode(), []) for one in json.loads(text)]
        return [(line.encode(), []) for line in text.split("\n") if line.strip()]
    samples: dict[str, dict[str, bytes]] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member)
            folder, _, name = member.name.rpartition("/")
            stem, _, suffix = name.partition(".")
            if file is not None:
                samples.setdefault(f"{folder}/{stem}", {})[suffix.lower()] = file.read()
    return [(_told(one), _shown(one)) for one in samples.values()]


def _told(members: dict[str, bytes]) -> Any:
    told = next((one for key, one in members.items() if key.endswith("json")), None)
    if told is not None:
        return told
    return Record.parse(
        next(one for key, one in members.items() if key.endswith("txt")), caption=True
    )


def _shown(members: dict[str, bytes]) -> list[bytes]:
    return [members[key] for key in sorted(members) if key.rpartition(".")[2] in PICTURES]
