"""A TFDS version directory: its name, features, splits and shard files, read from plain JSON.

Not here: finding the directory (``autoloader.formats.directories``), the feature tree
(``autoloader.formats.features``), split expressions (``autoloader.formats.splits``), what is in the
shards (``index.build``).

A version directory holds ``dataset_info.json``, ``features.json`` and the shard files, and lies at
``<data_dir>/<name>[/<config>]/<major.minor.patch>``. The number of shards of a split is the number
of its ``shardLengths``; a shard's file name comes from the split's ``filepathTemplate``. Very old
metadata has ``numShards`` alone: there the records are counted by walking the record headers.

A directory may lie far away (``gs://…``); all access is through ``autoloader.formats.files``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from autoloader.errors import SourceError
from autoloader.formats import files
from autoloader.formats.directories import (
    INFO_FILE,
    VERSION,
    check_version,
    existing_directory,
    not_a_version,
)
from autoloader.formats.features import Feature, parse_features
from autoloader.formats.splits import resolve_split
from autoloader.formats.tfrecord import FOOTER_BYTES, HEADER_BYTES, walk_records
from autoloader.spec.regular_files import kind_of

FEATURES_FILE = "features.json"
MOST_RECORDS = 10**8
"""In one shard; what says more is damaged."""
_FEW_RECORDS = 10_000
_LONGEST_NAME = 255
TFRECORD = "tfrecord"
LEROBOT = "lerobot"
"""Values of ``VersionDirectory.file_format``."""
LEROBOT_INFO = "meta/info.json"
"""The file that a LeRobot dataset has."""
DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


@dataclass(frozen=True, slots=True)
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
        missing, named: how many are not there, and how many the metadata names.
        without, episodes: how many episodes lack one, and how many there are.
    """

    example: str
    missing: int
    named: int
    without: int
    episodes: int


@dataclass(frozen=True, slots=True)
class VersionDirectory:
    """Metadata of a dataset's directory: of TFDS, or of LeRobot.

    Attributes:
        name: TFDS's name of the dataset, with "/config" where it has one; else the directory's.
        version: "major.minor.patch"; of LeRobot "v2.1" and the like.
        path: absolute path of the directory, or its URL.
        features: by path, see :class:`Feature`.
        splits: whole shards of every split, in the metadata's order, with the records that it says.
        record_bytes: mean bytes of a record, by split, as the metadata says; absent where it does
            not.
        file_format: ``TFRECORD``; a subclass has its own.
        dataset: the name that the spec gives this dataset, for messages.
        steps: shard path → frames of each of its records, where the metadata says; else empty.
        notes: what a person should know of it, a clause each, such as episodes in no split.

    What differs from format to format is a method or a class attribute; here they speak of TFDS.

    Attributes:
        streamable: whether its records can be read as a stream; else by index alone.
        numbered: whether its episodes have numbers, and its rows have times.
        texts_only: whether only texts and single integers are read as language.
    """

    streamable: ClassVar[bool] = True
    numbered: ClassVar[bool] = False
    texts_only: ClassVar[bool] = False

    name: str
    version: str
    path: str
    features: Mapping[str, Feature]
    splits: Mapping[str, tuple[ShardSlice, ...]]
    record_bytes: Mapping[str, int]
    file_format: str
    dataset: str = ""
    steps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def fps(self) -> float | None:
        """Frames a second, where the metadata says; else ``None``."""
        return None

    @property
    def episode_numbers(self) -> Sequence[int]:
        """The number of every episode, where ``numbered``; else none."""
        return ()

    @property
    def cameras_without_files(self) -> tuple[str, ...]:
        """Cameras that the metadata lists, and of which no file is there."""
        return ()

    def episode_number(self, shard: str, record: int) -> int | None:
        """The number of the episode that a shard's record is; ``None`` where it has none."""
        del shard, record
        return None

    def with_episodes(self, numbers: Sequence[int]) -> VersionDirectory:
        """The directory, whose splits have the episodes of these numbers alone."""
        raise NotImplementedError(f"episodes {numbers} of a format without numbers")

    def check_first(
        self, slices: Sequence[ShardSlice], cameras: Collection[str], texts: Iterable[Feature]
    ) -> None:
        """Refuse, before anything is read, what would be amiss in every episode.

        Args:
            slices: stretches of files of the split.
            cameras: features that are shown.
            texts: features whose texts are taken.

        Raises:
            SourceError: something is.
        """

    def check_texts(self, texts: Iterable[Feature]) -> None:
        """Refuse features whose texts cannot be told. Raises SourceError."""

    def missing_videos(self) -> MissingVideos | None:
        """The videos that the metadata names and that are not there; ``None`` where none is."""
        return None

    def _require(self, slices: Sequence[ShardSlice]) -> None:
        """Refuse shard files that are not there, where a run cannot go without them."""
        _require_files(slices, dataset=self.dataset or self.name, directory=self.path)

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
        counts = {name: [shard.records for shard in shards] for name, shards in self.splits.items()}
        slices = []
        for part in resolve_split(split, counts, field=field):
            shard = self.splits[part.split][part.shard]
            if part.stop - part.start < shard.records:
                first = shard.start
                shard = replace(shard, start=first + part.start, stop=first + part.stop)
            slices.append(shard)
        self._require(slices)
        files.refuse_stand_ins([slices[0].path, slices[-1].path], dataset=self.dataset or self.name)
        return tuple(slices)


def open_version(path: str | Path, *, dataset: str) -> VersionDirectory:
    """Reads the metadata of a TFDS version directory.

    Args:
        path: the directory that holds ``dataset_info.json`` and ``features.json``.
        dataset: the name that the spec gives this dataset, for messages.

    Raises:
        SourceError: it does not exist, is not a TFDS version directory, is broken, or its
            records are not TFRecords.
    """
    directory = check_version(path, dataset=dataset)
    info_file, features_file = (files.join(directory, name) for name in (INFO_FILE, FEATURES_FILE))
    try:
        info = read_json(info_file, dataset=dataset)
    except SourceError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            existing_directory(directory, dataset=dataset)
            raise not_a_version(directory, dataset=dataset) from error
        raise
    features = parse_features(
        read_json(features_file, dataset=dataset), source=f"dataset {dataset}: {features_file}"
    )
    file_format = _file_format(info, directory, dataset=dataset)
    name = str(info.get("name") or files.name_of(files.parent_of(directory)))
    config = info.get("configName")
    version = str(info.get("version") or files.name_of(directory))
    if VERSION.fullmatch(files.name_of(directory)) and version != files.name_of(directory):
        raise SourceError(
            f"dataset {dataset}: {info_file} is of version {version[:40]}, not of the one that its "
            "directory names",
            remedy="restore the file, or give the directory the name of the version that it holds",
            dataset=dataset,
        )
    entries = info.get("splits")
    if not isinstance(entries, list):
        raise broken(info_file, "it lists no splits", dataset=dataset)
    splits: dict[str, tuple[ShardSlice, ...]] = {}
    sizes: dict[str, int] = {}
    for entry in entries:
        if not isinstance(entry, Mapping) or not entry.get("name"):
            raise broken(info_file, "a split has no name", dataset=dataset)
        splits[str(entry["name"])] = _shards(
            entry, directory=directory, name=name, suffix=file_format, dataset=dataset
        )
        records = sum(shard.records for shard in splits[str(entry["name"])])
        with contextlib.suppress(ValueError):  # a hint, for which there is a substitute
            if records and (size := _whole(entry.get("numBytes") or 0)) > 0:
                sizes[str(entry["name"])] = size // records
    return VersionDirectory(
        name=f"{name}/{config}" if config else name,
        version=version,
        path=directory,
        features=features,
        splits=splits,
        record_bytes=sizes,
        file_format=file_format,
        dataset=dataset,
    )


# -- reading ------------------------------------------------------------------------------------


def read_json(path: str, *, dataset: str) -> Mapping[str, Any]:
    """The JSON object in a metadata file.

    Raises:
        SourceError: it is missing, cannot be read, or holds no JSON object.
    """
    try:
        document = json.loads(files.read_text(path))
    except FileNotFoundError as error:
        raise SourceError(
            f"dataset {dataset}: {files.parent_of(path)} has no {files.name_of(path)}",
            remedy="restore the file, or write the dataset again: tfds 4.0 or newer writes one",
            dataset=dataset,
        ) from error
    except OSError as error:
        raise files.unreadable(error, path, dataset=dataset) from error
    except (ValueError, RecursionError) as error:
        raise broken(path, str(error), dataset=dataset) from error
    if not isinstance(document, Mapping):
        raise broken(path, "it holds no JSON object", dataset=dataset)
    return document


def broken(path: str, why: str, *, dataset: str, remedy: str = "") -> SourceError:
    """The error for a metadata file that does not hold what it should."""
    if found := None if files.is_remote(path) else files.stand_in(path):
        why, remedy = f"it is {found[0]}", found[1]
    return SourceError(
        f"dataset {dataset}: {path} is broken: {why}",
        remedy=remedy or "restore the file from where the dataset came, or write the dataset again",
        dataset=dataset,
    )


# -- meaning ------------------------------------------------------------------------------------


def _file_format(info: Mapping[str, Any], directory: str, *, dataset: str) -> str:
    found = str(info.get("fileFormat") or "tfrecord").lower()
    others = info.get("alternativeFileFormats") or []
    if found == "tfrecord" or "tfrecord" in [str(other).lower() for other in others]:
        return TFRECORD
    raise SourceError(
        f"dataset {dataset}: the records in {directory} are {found}, not tfrecord",
        remedy="write it as TFRecords: tfds's download_and_prepare takes file_format='tfrecord'; "
        "or name another version of the dataset",
        dataset=dataset,
    )


def _shards(
    entry: Mapping[str, Any], *, directory: str, name: str, suffix: str, dataset: str
) -> tuple[ShardSlice, ...]:
    split = str(entry["name"])
    info_file = files.join(directory, INFO_FILE)
    try:
        lengths = [_whole(length) for length in entry.get("shardLengths") or []]
        count = len(lengths) or _whole(entry.get("numShards") or 0)
    except (TypeError, ValueError) as error:
        message = f"the shard lengths of split {split!r} are no whole numbers"
        raise broken(info_file, message, dataset=dataset) from error
    if min([count, *lengths]) < 0:
        raise broken(info_file, f"a shard of split {split!r} is negative", dataset=dataset)
    if max(lengths, default=0) > MOST_RECORDS:
        message = f"a shard of split {split!r} has {max(lengths):.3g} records, which no file holds"
        raise broken(info_file, message, dataset=dataset)
    template = str(entry.get("filepathTemplate") or DEFAULT_TEMPLATE)
    shards = []
    for index in range(count):
        file = _shard_file(template, name, split, suffix, index, count)
        if file is None or not _is_file_name(file):
            message = f"the file names of split {split!r} are none: {(file or template)[:80]!r}"
            raise broken(info_file, message, dataset=dataset)
        path = files.join(directory, file)
        records = lengths[index] if lengths else _count_records(path, dataset=dataset)
        shards.append(ShardSlice(path, index, 0, records, split))
    return tuple(shards)


def _shard_file(
    template: str, name: str, split: str, suffix: str, index: int, count: int
) -> str | None:
    """File name of a shard, or None where the template has a variable that is not known."""
    digits = max(len(str(count)), 5)
    values = {
        "DATASET": name,
        "SPLIT": split,
        "FILEFORMAT": suffix,
        "SHARD_INDEX": f"{index:0{digits}d}",
        "NUM_SHARDS": f"{count:0{digits}d}",
        "SHARD_X_OF_Y": f"{index:0{digits}d}-of-{count:0{digits}d}",
    }
    if any(variable not in values for variable in re.findall(r"\{(.*?)\}", template)):
        return None
    return re.sub(r"\{(.*?)\}", lambda match: values[match[1]], template)


def _whole(value: object) -> int:
    """A whole number as it stands in JSON, or in a string there. Raises ValueError."""
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return int(value)
    raise ValueError(f"{value!r} is no whole number")


def _is_file_name(file: str) -> bool:
    """True of a name from metadata that may be opened: it leads below the directory."""
    try:
        fits = all(len(os.fsencode(part)) <= _LONGEST_NAME for part in file.split("/"))
    except UnicodeEncodeError:
        return False
    return fits and "\0" not in file and not {"", ".", ".."} & set(file.split("/"))


def _count_records(path: str, *, dataset: str) -> int:
    try:
        with files.opened_anywhere(path) as file:
            walk = walk_records(file, files.source_bytes(file), verify=False)
            return sum(lost is None for _, _, lost in walk)
    except OSError as error:
        if files.is_remote(path) and not isinstance(error, FileNotFoundError):
            raise files.unreadable(error, path, dataset=dataset) from error
        raise _missing(path, 1, dataset=dataset, directory=files.parent_of(path)) from error


def _require_files(slices: Sequence[ShardSlice], *, dataset: str, directory: str) -> None:
    if files.is_remote(directory):
        try:
            there = set(files.file_names(directory))  # one question for all of them
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # a web server lists nothing; each file is asked
                return
            raise files.unreadable(error, directory, dataset=dataset) from error
        missing = [part.path for part in slices if files.name_of(part.path) not in there]
    else:
        missing = [part.path for part in slices if not _holds(part, dataset, directory)]
    if missing:
        raise _missing(missing[0], len(missing), dataset=dataset, directory=directory)


def _holds(part: ShardSlice, dataset: str, directory: str) -> bool:
    """True if the slice's file is there.

    Raises:
        SourceError: it never held as many records as the metadata says. Of a few that are missing
            at its end, as of a copy that broke off, each is quarantined.
    """
    try:
        found = os.stat(part.path)  # noqa: PTH116  (a path is text here)
    except OSError:
        return False
    most = found.st_size // (HEADER_BYTES + FOOTER_BYTES)
    if stat.S_ISREG(found.st_mode) and part.stop > max(most, _FEW_RECORDS):
        message = f"it has {part.stop} records in {part.path}, whose {found.st_size} bytes "
        message += f"hold {most} at most"
        raise broken(files.join(directory, INFO_FILE), message, dataset=dataset)
    return stat.S_ISREG(found.st_mode)


def _missing(first: str, count: int, *, dataset: str, directory: str) -> SourceError:
    more = f" (and {count - 1} more)" if count > 1 else ""
    why = "is missing"
    with contextlib.suppress(OSError):
        why = f"is a {kind_of(os.stat(first).st_mode)}"  # noqa: PTH116  (a path is text here)
    return SourceError(
        f"dataset {dataset}: shard file {first} {why}{more}",
        remedy=f"finish the copy of {directory}, or choose a split over the shards that are there",
        dataset=dataset,
    )
