"""A dataset on disk, whatever its format; and split expressions, resolved as TFDS resolves them.

A format is a subclass of ``DatasetFormat``: its metadata, the state of its files, the tables of an
index, and its episodes as records. Beside it, ``sources.open_source`` has to know its name.

Not here: TFDS (``tfds``), LeRobot (``lerobot.metadata``), telling them apart (``sources``).

Grammar of a split, as in https://www.tensorflow.org/datasets/splits:

    expression = term {"+" term}
    term       = "all" | name | name "[" [from] ":" [to] "]" | name "[" integer "shard]"
    from, to   = number | number "%" | number "shard"     (negative: counted from the end)

Percentages are turned into records by rounding to the closest, halves to even. Either side's unit
counts for both. A term that would start before the first or end behind the last record is
refused; so is an expression that holds no record at all. Two quirks of TFDS are kept, since the
same string must mean the same records. A start that rounds to zero from below is the start of the
split: ``train[-1%:]`` of 25 is all of it. And ``train[:0shard]`` is the whole split.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import AutoloaderError, SourceError, SpecError, UnsupportedError, nearest
from autoloader.formats import files
from autoloader.formats.features import Feature
from autoloader.formats.frames import Encoded
from autoloader.formats.places import existing_directory
from autoloader.formats.plain import PlainVideos, Step
from autoloader.formats.records import RecordPlace
from autoloader.formats.registry import KnownDataset
from autoloader.formats.tables import ReadRecord, ShardTables, SourceIdentity, Wanted
from autoloader.host.frozen import frozen
from autoloader.spec.model import Timestamps

_TERM = re.compile(r"(?P<name>[\w-]+)(\[(?P<slice>[^\[\]]*)\])?")
_BOUND = re.compile(r"(?P<value>-?[\d_.]+)(?P<unit>%|shard)?")
_REMEDY = (
    'write a split as TFDS does, such as "train", "train[:90%]", "train[10:20]", '
    '"train[-5:]", "train[:2shard]" or "train+val"'
)


@frozen
class ShardSlice:
    """Records [``start``, ``stop``) of one shard file; ``index`` is the shard's in its split."""

    path: str
    index: int
    start: int
    stop: int
    split: str

    @property
    def records(self) -> int:
        """Number of records, which is the number of episodes."""
        return self.stop - self.start


class MissingVideos(NamedTuple):
    """Videos that are not there.

    Attributes:
        example: path of one missing video.
        missing, named: number of videos that are not there, and that the metadata names.
        without: numbers of the episodes that lack a video.
        episodes: number of all episodes.
    """

    example: str
    missing: int
    named: int
    without: tuple[int, ...]
    episodes: int

    def told(self, named: str) -> str:
        """Sentence about them; ``named`` says who names the videos: "the metadata names"."""
        return (
            f"{self.missing} of {self.named} videos that {named} are not there, such as "
            f"{self.example}: {len(self.without)} of {self.episodes} episodes cannot be read"
        )


Format = TypeVar("Format", bound="DatasetFormat")


class PlainReader(ABC, Generic[Format]):
    """Reads the episodes of a dataset, one by one.

    Args:
        directory: dataset that is read.
        timestamps: rule by which rows of the dataset get their frames.

    Attributes:
        directory, timestamps: as given.
        videos: frames of the dataset's videos.
        reads_by: program that reads, for messages.
        faults: errors of damaged files.
    """

    reads_by: ClassVar[str]
    faults: ClassVar[tuple[type[Exception], ...]] = (OSError, ValueError, LookupError)

    def __init__(self, directory: Format, timestamps: Timestamps = "check") -> None:
        self.directory, self.timestamps = directory, timestamps
        self.videos = PlainVideos()

    @abstractmethod
    def steps(self, piece: ShardSlice, record: int) -> list[Step]:
        """The steps of an episode of a shard file; raises ``faults`` of a damaged one.

        Raises:
            MissingExtraError: a package that reads it is not installed.
        """

    def episode(self, piece: ShardSlice, record: int) -> list[Step]:
        """See ``steps``.

        Raises:
            SourceError: the episode cannot be read.
            MissingExtraError: a package that reads it is not installed.
        """
        try:
            return self.steps(piece, record)
        except AutoloaderError:
            raise
        except self.faults as error:
            raise SourceError(
                f"{self.reads_by} cannot read episode {record} of {piece.path}: "
                f"{type(error).__name__}: {error}",
                remedy="download or copy the file again",
                dataset=self.directory.dataset,
            ) from error


@dataclass(frozen=True)
class DatasetFormat(ABC):
    """A dataset on disk: its metadata, and what an index asks of its files.

    Attributes:
        name: TFDS's name of the dataset, with "/config" where it has one; else the directory's.
        version: "major.minor.patch"; of LeRobot "v2.1" and the like.
        path: absolute path of the directory, or its URL.
        features: features by path, see :class:`Feature`.
        splits: whole shards of every split, in the metadata's order, with the records that it says.
        dataset: the name that the spec gives this dataset, for messages.
        record_bytes: mean bytes of a record, by split, as the metadata says; absent where it does
            not.
        steps: shard path → frames of each of its records, where the metadata says; else empty.
        notes: facts that a person should know, a clause each, such as episodes in no split.
        title: name of the format, for messages.
        marker: file that every dataset of the format has, below its folder, or a pattern of such
            files ("*.csv"); by it a dataset is recognised.
        read_first: files below the folder that ``open`` reads.
        hub_folders: folders that are fetched with the marker from the Hugging Face Hub before a
            dataset is read; (): it is read at its address.
        streamable: whether its records can be read as a stream, from anywhere; else they are read
            by index alone, from local disks.
        numbered: path of the feature that is an episode's number, where its episodes have numbers
            and its rows have times; else "".
        still: whether each record is an episode of one step without an action (image–text).
    """

    title: ClassVar[str]
    marker: ClassVar[str]
    read_first: ClassVar[tuple[str, ...]] = ()
    hub_folders: ClassVar[tuple[str, ...]] = ()
    streamable: ClassVar[bool] = True
    numbered: ClassVar[str] = ""
    still: ClassVar[bool] = False

    name: str
    version: str
    path: str
    features: Mapping[str, Feature]
    splits: Mapping[str, tuple[ShardSlice, ...]]
    dataset: str = ""
    record_bytes: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    # -- what every format has ------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def open(cls, path: str, *, dataset: str) -> DatasetFormat:
        """Reads the metadata of the dataset in a folder.

        Args:
            path: path of the folder, or its URL, as ``check`` gives it.
            dataset: the name that the spec gives this dataset, for messages.

        Raises:
            SourceError: the dataset is not there, is no such dataset, or is broken.
            MissingExtraError: a package that reads it is not installed.
        """

    @abstractmethod
    def identity(self, path: str, wanted: Wanted) -> SourceIdentity:
        """Present state of a shard file, and of all that its tables are made from.

        Raises:
            OSError: the file is not there, or cannot be asked.
        """

    @abstractmethod
    def tables(self, path: str, wanted: Wanted, read: ReadRecord) -> ShardTables:
        """The tables of a shard file, for an index; any thread may ask.

        Raises:
            FileChangedError: the file was written to meanwhile.
            OSError: the file cannot be read.
        """

    @abstractmethod
    def plain_reader(self, timestamps: Timestamps = "check") -> PlainReader[Any]:
        """The slow reader of single episodes that ``autoloader verify`` compares with.

        Args:
            timestamps: rule of the spec's dataset; of use where ``numbered``.

        Raises:
            MissingExtraError: a package that reads them is not installed.
        """

    @cached_property
    def cameras(self) -> tuple[str, ...]:
        """Features that are pictures, in the order of their names."""
        return tuple(sorted(path for path, one in self.features.items() if one.kind == "image"))

    # -- what some formats have -----------------------------------------------------------------

    def records(self, slices: Sequence[ShardSlice]) -> Iterator[tuple[RecordPlace, bytes]]:
        """(place, ``tf.train.Example``) of each whole episode of a split; damaged ones are missing.

        None where episodes are no such records.

        Raises:
            OSError: a file cannot be opened.
        """
        return iter(())

    @classmethod
    def check(cls, path: str | Path, *, dataset: str) -> str:
        """``path``, normal; where it is local, after a look that costs next to nothing.

        Raises:
            SourceError: the path is local, and is no dataset of this format.
            UnsupportedError: the path is remote, and the format is read by index alone.
        """
        if files.is_remote(path):
            if not cls.streamable:
                raise UnsupportedError(
                    f"dataset {dataset}: {path} is remote; {cls.title} data is read from local "
                    "disks",
                    remedy="mount the bucket, or copy the files here",
                )
            return files.normal(path)
        folder = existing_directory(path, dataset=dataset, holds=cls.marker)
        if not has_file(folder, cls.marker):
            raise SourceError(
                f"dataset {dataset}: {folder} holds no {cls.title} dataset: it has no {cls.marker}",
                remedy=f"give the folder that holds {cls.marker}, or correct kind in the spec",
            )
        return folder

    def require(self, slices: Sequence[ShardSlice]) -> None:  # noqa: B027 most need no more
        """Refuse shard files that are not there, where a run cannot go without them."""

    def first_frames(self, path: str, record: int, camera: str, count: int) -> Sequence[Encoded]:
        """The first frames of an episode, encoded; asked where not ``streamable``.

        Args:
            path: path of the shard file.
            record: number of the episode in it.
            camera: key of the feature that shows them.
            count: number of frames; fewer come where the episode is shorter.

        Raises:
            OSError, ValueError, LookupError: the frames cannot be read.
        """
        raise NotImplementedError(f"frames {count} of {camera}, {path}, record {record}")

    @property
    def fps(self) -> float | None:
        """Frames a second, where the metadata says; else ``None``."""
        return None

    @property
    def known(self) -> KnownDataset | None:
        """Fields that ``init`` takes by the layout of the files; ``None``: it goes by names."""
        return None

    @property
    def episode_numbers(self) -> Sequence[int]:
        """The number of every episode, where ``numbered``; else none."""
        return ()

    @cached_property
    def _first_numbers(self) -> Mapping[tuple[str, str], int]:
        """(split, shard file) → number of its first episode; the split is "" over all files."""
        each = {"": {path: len(steps) for path, steps in self.steps.items()}}
        if not self.steps:
            splits = self.splits.items()
            each = {name: {one.path: one.records for one in shards} for name, shards in splits}
        return {
            (split, path): before
            for split, own in each.items()
            for path, before in zip(own, accumulate(own.values(), initial=0), strict=False)
        }

    def numbers_of(self, piece: ShardSlice) -> NDArray[np.int64]:
        """[``stop``] number of each episode of a slice's file, up to the slice's last.

        They count over all files where the metadata lists them (``steps``), else in the split.
        """
        first = self._first_numbers["" if self.steps else piece.split, piece.path]
        return np.arange(first, first + piece.stop, dtype=np.int64)

    def with_episodes(self, numbers: Sequence[int]) -> DatasetFormat:
        """The dataset, whose splits have these episodes alone; asked where ``numbered``."""
        raise NotImplementedError(f"episodes {numbers} of a format without numbers")

    def with_media(self, media: str) -> DatasetFormat:
        """The dataset, whose pictures lie below another folder; asked of image–text data."""
        raise NotImplementedError(f"media {media} of a format without pictures in files")

    def check_first(  # noqa: B027 most find it as they read
        self, slices: Sequence[ShardSlice], cameras: Collection[str], texts: Iterable[Feature]
    ) -> None:
        """Refuse, before anything is read, what would be amiss in every episode.

        Args:
            slices: stretches of files of the split; there are some where there are cameras.
            cameras: features that are shown.
            texts: features whose texts are taken.

        Raises:
            SourceError: the first or last file cannot be used, or texts are not told.
        """

    def missing_videos(
        self, cameras: Collection[str] | None = None, slices: Sequence[ShardSlice] | None = None
    ) -> MissingVideos | None:
        """The videos of cameras (default: all) that the metadata names and that are not there.

        Args:
            cameras: features that are shown; default: all.
            slices: stretches of files whose episodes are read; default: all episodes.
        """
        return None

    def resolve(self, split: str, *, field: str = "split") -> tuple[ShardSlice, ...]:
        """The slices of shard files that a split expression names, in TFDS's order.

        Only the files that are named need to be there: a directory of which a few shards were
        copied serves ``train[:3shard]``.

        Args:
            split: a split expression, such as "train[:90%]" or "train+val".
            field: path of the spec field that holds it, for messages.

        Raises:
            SpecError: the expression is wrong, or holds no episode.
            SourceError: a shard file that it names is missing, or the first or last is something
                else.
        """
        slices = resolve_split(split, self.splits, field=field)
        self.require(slices)
        files.refuse_stand_ins([slices[0].path, slices[-1].path], dataset=self.dataset or self.name)
        return slices


# -- splits -------------------------------------------------------------------------------------


def resolve_split(
    expression: str, splits: Mapping[str, Sequence[ShardSlice]], *, field: str
) -> tuple[ShardSlice, ...]:
    """The records that ``expression`` names, in TFDS's order, without empty slices.

    Args:
        expression: split expression of the spec.
        splits: whole shards of every split, in the metadata's order.
        field: path of the spec field that holds the expression, for messages.

    Raises:
        SpecError: the expression cannot be parsed, names an unknown split, reaches outside of
            it, or holds no record.
    """
    slices: list[ShardSlice] = []
    sizes: dict[str, int] = {}
    text = expression.strip()
    terms = [text]  # a name wins over the grammar, also a split named "all"
    if text not in splits:
        parts = re.split(r"\s*\+\s*", text)
        terms = [one for part in parts for one in (splits if part == "all" else [part])]
    for term in terms:
        try:
            name, inside = _term(term, splits)
            records = [shard.records for shard in splits.get(name, ())]
            base, total = 0, sum(records)
            start, stop = (0, total) if inside is None else _range(inside, records)
        except ValueError as error:
            raise SpecError(
                f"{field}: {expression!r} cannot be read as a split: {error}", remedy=_REMEDY
            ) from error
        if name not in splits:
            raise SpecError(
                f"{field}: the dataset has no split {name!r}",
                remedy=nearest(name, [*splits, "all"]),
            )
        if abs(start) > total or abs(stop) > total:
            raise SpecError(
                f"{field}: {term} goes beyond the split {name}, which has {total} episodes",
                remedy=f"use numbers from -{total} to {total}, or percentages such as {name}[:90%]"
                if total
                else "choose another split",
            )
        start, stop = (one + total if one < 0 else one for one in (start, stop))
        sizes[name] = total
        for shard in splits[name]:
            first, last = max(start - base, 0), min(stop - base, shard.records)
            if first < last:
                begin = shard.start
                slices.append(replace(shard, start=begin + first, stop=begin + last))
            base += shard.records
    if not slices:
        each = ", ".join(f"{name} has {count} episodes" for name, count in sizes.items())
        short = f"of {next(iter(sizes.values()))} episodes" if len(sizes) == 1 else f"({each})"
        raise SpecError(
            f"{field}: {expression.strip()} {short} is empty"
            if terms
            else f"{field}: the dataset has no splits",
            remedy=f'take at least one episode, such as "{next(iter(sizes))}[:1]", or another split'
            if terms
            else "check that all its files are there, or give another dataset",
            path=field,
        )
    return tuple(slices)


def _term(text: str, names: Collection[str]) -> tuple[str, str | None]:
    """(name of the split, what stands in brackets behind it) of a term. Raises ValueError."""
    if text in names:
        return text, None
    match = _TERM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a split")
    if match["slice"] is not None and match["name"] == "all":
        raise ValueError('"all" cannot have a slice')
    return match["name"], match["slice"]


def _range(inside: str, records: Sequence[int]) -> tuple[int, int]:
    """(first record, the one behind the last) of a slice; a negative one counts from the end."""
    sides, total = inside.split(":"), sum(records)
    bounds = [_BOUND.fullmatch(side) if side else None for side in sides]
    broken = any(side and bound is None for side, bound in zip(sides, bounds, strict=True))
    unit = next((bound["unit"] for bound in bounds if bound is not None and bound["unit"]), "")
    odd = (len(sides) == 1 and unit != "shard") or ("." in inside and unit != "%")
    if broken or odd or len(sides) > 2 or not any(bounds):
        raise ValueError(f"[{inside}] is not a slice")
    number = float if unit == "%" else int
    values = [None if bound is None else number(bound["value"]) for bound in bounds]
    if len(values) == 1:
        values = [values[0], None if values[0] is None else values[0] + 1]
    if any(unit == "%" and value is not None and abs(value) > 100 for value in values):
        raise ValueError(f"[{inside}] is outside of -100% to 100%")
    start, stop = values
    if unit == "%":
        start, stop = (None if one is None else round(one * total / 100.0) for one in values)
    elif unit == "shard":
        if stop is not None:
            stop = sum(records[: int(stop if stop > 0 else stop + len(records))])
        start = None if start is None else sum(records[: int(start)])
    return int(start or 0), total if stop is None else int(stop)


# -- metadata files -----------------------------------------------------------------------------


def has_file(folder: str, marker: str) -> bool:
    """True if a folder has a file of this name, or a file fits the pattern or lies there."""
    try:
        if glob.has_magic(marker):
            if os.path.isfile(folder):
                return fnmatch.fnmatch(os.path.basename(folder), marker)  # noqa: PTH119
            return any(one.is_file() for one in Path(folder).glob(marker))
        return os.path.isfile(f"{folder}/{marker}")
    except OSError:
        return False  # whoever opens it says why


def read_json(path: str, *, dataset: str) -> Mapping[str, Any]:
    """The JSON object in a metadata file.

    Raises:
        SourceError: the file is missing, cannot be read, or holds no JSON object.
    """
    try:
        document = json.loads(files.read_text(path))
    except FileNotFoundError as error:
        raise SourceError(
            f"dataset {dataset}: {files.parent_of(path)} has no {files.name_of(path)}",
            remedy="copy the file there, or write the dataset again with tfds 4.0 or newer",
        ) from error
    except OSError as error:
        raise files.unreadable(error, path, dataset=dataset) from error
    except (ValueError, RecursionError) as error:
        raise broken(path, f"it is not JSON: {error}", dataset=dataset) from error
    if not isinstance(document, Mapping):
        raise broken(path, "it does not hold a JSON object", dataset=dataset)
    return document


def broken(path: str, why: str, *, dataset: str, remedy: str = "") -> SourceError:
    """The error for a metadata file that does not hold what it should."""
    if found := None if files.is_remote(path) else files.stand_in(path):
        why, remedy = f"it is {found[0]}", found[1]
    return SourceError(
        f"dataset {dataset}: {path} is broken: {why}",
        remedy=remedy or "download or copy the file again, or write the dataset again",
    )
