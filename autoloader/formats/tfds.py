"""TFDS version directories: finding them, their metadata in plain JSON, their shard files.

A version directory holds ``dataset_info.json``, ``features.json`` and the shard files, and lies at
``<data_dir>/<name>[/<config>]/<major.minor.patch>``. The number of shards of a split is the number
of its ``shardLengths``; a shard's file name comes from the split's ``filepathTemplate``.

A directory may lie far away (``gs://…``); all access is through ``autoloader.formats.files``.

Not here: folders around a version (``autoloader.formats.places``), the feature tree
(``autoloader.formats.features``), split expressions (``autoloader.formats.dataset``), records
(``autoloader.formats.records``).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from autoloader.errors import SourceError, SpecError, nearest
from autoloader.formats import files, places
from autoloader.formats.dataset import DatasetFormat, PlainReader, ShardSlice, broken, read_json
from autoloader.formats.features import parse_features
from autoloader.formats.plain import Step
from autoloader.formats.records import (
    FOOTER_BYTES,
    HEADER_BYTES,
    WRONG_CHECKSUM,
    FileChangedError,
    MalformedRecordError,
    RecordPlace,
    RecordReader,
    read_records,
    walk_records,
)
from autoloader.formats.tables import (
    REST_OF_FILE,
    ReadRecord,
    Section,
    ShardTables,
    SourceIdentity,
    TableBuilder,
    Wanted,
)
from autoloader.host.extras import quiet, require
from autoloader.host.files import kind_of
from autoloader.spec.model import Timestamps

FEATURES_FILE = "features.json"
MOST_RECORDS = 10**8
"""In one shard; what says more is damaged."""
_FEW_RECORDS = 10_000
_LONGEST_NAME = 255
_DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"

INFO_FILE = "dataset_info.json"

_TFDS_NAME = re.compile(
    r"(?P<name>\w[\w-]*)(/(?P<config>[\w.+=-]+(/[\w.+=-]+)*?))?(:(?P<version>[\d.*]+))?"
)


def locate_version(tfds_name: str, data_dir: str | Path, *, dataset: str) -> str:
    """The version directory of a TFDS name below ``data_dir``.

    Args:
        tfds_name: "name", "name:1.0.0", "name/config" or "name/config:1.0.0". Without a version,
            or with one like "1.*.*", the newest that fits.
        data_dir: the directory that holds the datasets.
        dataset: the name that the spec gives this dataset, for messages.

    Raises:
        SpecError: the name is not a TFDS name.
        SourceError: there is no such dataset, config or version.
    """
    match = _TFDS_NAME.fullmatch(tfds_name)
    if match is None or ".." in tfds_name:
        field = f"datasets[{dataset}].tfds"
        raise SpecError(
            f"{field}: {tfds_name!r} is not a TFDS name",
            remedy='write "name", "name:1.0.0" or "name/config:1.0.0"',
        )
    home = places.existing_directory(data_dir, dataset=dataset, holds=INFO_FILE)
    for what, name in (("dataset ", match["name"]), ("config ", match["config"])):
        if name and not places.directory_exists(files.join(home, name), dataset=dataset):
            raise SourceError(
                f"dataset {dataset}: {home} has no {what}{name!r}",
                remedy=nearest(name, places.directories(home)),
            )
        home = files.join(home, name) if name else home
    versions = places.versions_in(home)
    if not versions:
        raise not_a_version(home, dataset=dataset)
    wanted = match["version"] or "*.*.*"
    pattern = re.compile(re.escape(wanted).replace(r"\*", r"\d+"))
    fitting = [name for name in versions if pattern.fullmatch(name)]
    if not fitting:
        raise SourceError(
            f"dataset {dataset}: {home} has no version {wanted}",
            remedy=f"choose one of: {', '.join(versions)}",
        )
    return files.join(home, fitting[-1])


def not_a_version(directory: str, *, dataset: str) -> SourceError:
    """The error for a directory without metadata; names version directories near it, if any."""
    below = [files.join(directory, name) for name in places.versions_in(directory)]
    if around := places.dataset_around(directory):
        what = f"dataset {dataset}: {directory} is a folder inside a dataset"
        return SourceError(what, remedy=f"give the dataset's folder: {around}")
    if not files.is_remote(directory) and (of := places.hub_revision(Path(directory))) is not None:
        below = [str(of[1])]
    if not below:
        for child in places.directories(directory)[: 10 if files.is_remote(directory) else 100]:
            inner = files.join(directory, child)
            below += [files.join(inner, name) for name in places.versions_in(inner)]
    if len(below) == 1:
        remedy = f"give the version directory: {below[0]}"
    elif below:
        shown = ", ".join(below[:8]) + (", ..." if len(below) > 8 else "")
        remedy = f"give one of the version directories below it: {shown}"
    else:
        remedy = (
            "give the directory that holds dataset_info.json and features.json, "
            "such as .../my_dataset/1.0.0; or the folder of a LeRobot dataset, which holds meta"
        )
    return SourceError(
        f"dataset {dataset}: {directory} is not a TFDS version directory (no {INFO_FILE})",
        remedy=remedy,
    )


# -- metadata -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TfdsDirectory(DatasetFormat):
    """A TFDS version directory, whose records are ``tf.train.Example``; see ``DatasetFormat``."""

    title: ClassVar[str] = "TFDS"
    marker: ClassVar[str] = INFO_FILE
    read_first: ClassVar[tuple[str, ...]] = (INFO_FILE, FEATURES_FILE)

    @classmethod
    def open(cls, path: str, *, dataset: str) -> TfdsDirectory:
        """See ``DatasetFormat``."""
        info_file, features_file = (files.join(path, name) for name in cls.read_first)
        try:
            info = read_json(info_file, dataset=dataset)
        except SourceError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                places.existing_directory(path, dataset=dataset, holds=INFO_FILE)
                raise not_a_version(path, dataset=dataset) from error
            raise
        features = parse_features(
            read_json(features_file, dataset=dataset), source=f"dataset {dataset}: {features_file}"
        )
        _check_format(info, path, dataset=dataset)
        name = str(info.get("name") or files.name_of(files.parent_of(path)))
        config = info.get("configName")
        version = str(info.get("version") or files.name_of(path))
        if places.VERSION.fullmatch(files.name_of(path)) and version != files.name_of(path):
            raise SourceError(
                f"dataset {dataset}: {info_file} says version {version[:40]}, and its directory "
                f"is named {files.name_of(path)}",
                remedy=f"rename the directory to {version[:40]}, or copy the {INFO_FILE} of "
                f"version {files.name_of(path)} into it",
            )
        entries = info.get("splits")
        if not isinstance(entries, list):
            raise broken(info_file, "it lists no splits", dataset=dataset)
        splits: dict[str, tuple[ShardSlice, ...]] = {}
        sizes: dict[str, int] = {}
        for entry in entries:
            if not isinstance(entry, Mapping) or not entry.get("name"):
                raise broken(info_file, "a split has no name", dataset=dataset)
            split = str(entry["name"])
            splits[split] = _shards(entry, directory=path, name=name, dataset=dataset)
            records = sum(shard.records for shard in splits[split])
            with contextlib.suppress(ValueError):  # a hint, for which there is a substitute
                if records and (size := _whole(entry.get("numBytes") or 0)) > 0:
                    sizes[split] = size // records
        return cls(
            name=f"{name}/{config}" if config else name,
            version=version,
            path=path,
            features=features,
            splits=splits,
            record_bytes=sizes,
            dataset=dataset,
        )

    @classmethod
    def check(cls, path: str | Path, *, dataset: str) -> str:
        """See ``DatasetFormat``; the error names version directories near the folder."""
        if files.is_remote(path):
            return files.normal(path)
        directory = places.existing_directory(path, dataset=dataset, holds=INFO_FILE)
        with files.reading(str(path), dataset=dataset):
            there = Path(directory, INFO_FILE).is_file()
        if not there:
            raise not_a_version(directory, dataset=dataset)
        return directory

    def plain_reader(self, timestamps: Timestamps = "check") -> TfdsReader:
        """See ``DatasetFormat``."""
        return TfdsReader(self, timestamps)

    def identity(self, path: str, wanted: Wanted) -> SourceIdentity:
        """See ``DatasetFormat``; of a remote file its generation."""
        if not files.is_remote(path):
            return SourceIdentity.of(os.stat(path))  # noqa: PTH116
        from autoloader.storage.shards import shard_cache  # local data goes without

        identity = shard_cache().current(path).identity
        return SourceIdentity(identity.size, identity.number)

    def tables(self, path: str, wanted: Wanted, read: ReadRecord) -> ShardTables:
        """See ``DatasetFormat``; a remote file is read when all of it lies in the cache."""
        if not files.is_remote(path):
            return read_tables(path, wanted, read)
        from autoloader.storage.shards import shard_cache  # local data goes without

        shard = shard_cache().shard(path)
        tables = read_tables(str(shard.fetch_whole()), wanted, read)
        return replace(tables, source=SourceIdentity(shard.identity.size, shard.identity.number))

    def records(self, slices: Sequence[ShardSlice]) -> Iterator[tuple[RecordPlace, bytes]]:
        """See ``DatasetFormat``."""
        for piece in slices:
            for one in read_records(piece.path, piece.start, piece.stop):
                if one.number is not None and one.payload is not None:
                    yield RecordPlace(piece.path, one.number), one.payload

    def require(self, slices: Sequence[ShardSlice]) -> None:
        """See ``DatasetFormat``.

        Raises:
            SourceError: a file is missing, or never held as many records as the metadata says.
        """
        dataset, missing = self.dataset or self.name, []
        if files.is_remote(self.path):
            try:
                there = set(files.file_names(self.path))  # one question for all of them
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:  # a web server lists nothing; ask each file
                    return
                raise files.unreadable(error, self.path, dataset=dataset) from error
            missing = [part.path for part in slices if files.name_of(part.path) not in there]
        else:
            missing = [part.path for part in slices if not _holds(part, dataset, self.path)]
        if missing:
            more, why = f" (and {len(missing) - 1} more)" if len(missing) > 1 else "", "is missing"
            with contextlib.suppress(OSError):
                why = f"is a {kind_of(os.stat(missing[0]).st_mode)}"  # noqa: PTH116
            raise SourceError(
                f"dataset {dataset}: shard file {missing[0]} {why}{more}",
                remedy=f"finish the copy of {self.path}"
                + ", or choose a split of the shards that are there, such as train[:1shard]"
                * (len(missing) < len(slices)),
            )


def _check_format(info: Mapping[str, Any], directory: str, *, dataset: str) -> None:
    """Refuse records that are no TFRecords."""
    found = str(info.get("fileFormat") or "tfrecord").lower()
    others = info.get("alternativeFileFormats") or []
    if found == "tfrecord" or "tfrecord" in [str(other).lower() for other in others]:
        return
    raise SourceError(
        f"dataset {dataset}: the records in {directory} are {found}, not tfrecord",
        remedy="write it again with tfds, by download_and_prepare(file_format='tfrecord'); "
        "or name another version of the dataset",
    )


def _shards(
    entry: Mapping[str, Any], *, directory: str, name: str, dataset: str
) -> tuple[ShardSlice, ...]:
    """Shards of a split, with their numbers of records."""
    split = str(entry["name"])
    info_file = files.join(directory, INFO_FILE)
    try:
        lengths = [_whole(length) for length in entry.get("shardLengths") or []]
    except (TypeError, ValueError) as error:
        message = f"shardLengths of split {split!r} are not all whole numbers"
        raise broken(info_file, message, dataset=dataset) from error
    for records in lengths:
        if not 0 <= records <= MOST_RECORDS:
            message = f"shardLengths of split {split!r}: no file holds {records:.3g} records"
            raise broken(info_file, message, dataset=dataset)
    template = str(entry.get("filepathTemplate") or _DEFAULT_TEMPLATE)
    shards = []
    for index, records in enumerate(lengths):
        file = _shard_file(template, name, split, index, len(lengths))
        if not _is_file_name(file):
            message = f"filepathTemplate of split {split!r} is not a file name: {template[:80]!r}"
            raise broken(info_file, message, dataset=dataset)
        shards.append(ShardSlice(files.join(directory, file), index, 0, records, split))
    return tuple(shards)


def _shard_file(template: str, name: str, split: str, index: int, count: int) -> str:
    """File name of a shard, with a NUL where the template has a variable that is not known."""
    digits = max(len(str(count)), 5)
    values = {
        "DATASET": name,
        "SPLIT": split,
        "FILEFORMAT": "tfrecord",
        "SHARD_INDEX": f"{index:0{digits}d}",
        "NUM_SHARDS": f"{count:0{digits}d}",
        "SHARD_X_OF_Y": f"{index:0{digits}d}-of-{count:0{digits}d}",
    }
    return re.sub(r"\{(.*?)\}", lambda match: values.get(match[1], "\0"), template)


def _whole(value: object) -> int:
    """A whole number as it stands in JSON, or in a string there. Raises ValueError."""
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return int(value)
    raise ValueError(f"{value!r} is not a whole number")


def _is_file_name(file: str) -> bool:
    """True if a name of the metadata may be opened: it leads below the directory."""
    try:
        fits = all(len(os.fsencode(part)) <= _LONGEST_NAME for part in file.split("/"))
    except UnicodeEncodeError:
        return False
    return fits and "\0" not in file and not {"", ".", ".."} & set(file.split("/"))


def _holds(part: ShardSlice, dataset: str, directory: str) -> bool:
    """True if the slice's file is there.

    Raises:
        SourceError: the file never held as many records as the metadata says. A few that are
            missing at its end, as of a copy that broke off, are quarantined instead.
    """
    try:
        found = os.stat(part.path)  # noqa: PTH116  (a path is text here)
    except OSError:
        return False
    most = found.st_size // (HEADER_BYTES + FOOTER_BYTES)
    if stat.S_ISREG(found.st_mode) and part.stop > max(most, _FEW_RECORDS):
        message = f"it counts {part.stop} records in {part.path}, but that file has "
        message += f"{found.st_size} bytes, room for {most}"
        raise broken(files.join(directory, INFO_FILE), message, dataset=dataset)
    return stat.S_ISREG(found.st_mode)


# -- tables -------------------------------------------------------------------------------------


def read_tables(path: str, wanted: Wanted, read: ReadRecord) -> ShardTables:
    """The tables of one local shard file.

    Reading releases the interpreter's lock, the walk does not. The walk takes about half a
    microsecond a frame, and reading a frame of 24 kB three to four: two threads index faster than
    one.

    A record is indexed whole or not at all: one feature amiss, and it is quarantined with a reason.
    The tables are a function of the file's bytes and the wanted features alone.

    Args:
        path: path of the file.
        wanted: features that are indexed of each record.
        read: reads one record for the tables.

    Raises:
        FileChangedError: the file was written to meanwhile.
        OSError: the file cannot be opened or read.
    """
    builder = TableBuilder(wanted.features)
    with files.opened(path) as file:
        source = SourceIdentity.of(os.fstat(file))
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        reader = RecordReader(file)
        for start, length, lost in walk_records(file, source.size):
            if lost is not None:
                builder.damage[REST_OF_FILE] = (not start and files.told_stand_in(path)) or lost
                break
            offset = start + HEADER_BYTES
            with reader.record(offset, length) as payload:
                if payload is None:
                    builder.leave_out(offset, length, WRONG_CHECKSUM)
                    continue
                try:
                    steps, values, texts = read(payload, length)
                except MalformedRecordError as error:
                    builder.leave_out(offset, length, str(error))
                    continue
                for (kind, _), part in values.items():
                    if kind is Section.FRAME_OFFSETS:
                        part += offset
                builder.add(offset, length, steps, values, texts)
        if SourceIdentity.of(os.fstat(file)) != source:
            raise FileChangedError(f"{path} was written to")
    return builder.tables(source)


# -- the plain reader ---------------------------------------------------------------------------


class TfdsReader(PlainReader[TfdsDirectory]):
    """See ``PlainReader``: TFDS finds, parses and decodes the record, and no code of ours."""

    reads_by = "plain TFDS"
    faults = (Exception,)  # TFDS and TensorFlow raise errors of any kind

    def __init__(self, directory: TfdsDirectory, timestamps: Timestamps = "check") -> None:
        super().__init__(directory, timestamps)
        require("tensorflow_datasets", "the comparison with plain TFDS")
        with quiet():
            import tensorflow  # noqa: F401
        logging.getLogger("tensorflow").setLevel(logging.ERROR)  # not "retracing"

    @cached_property
    def _info(self) -> Any:
        import tensorflow_datasets as tfds

        return tfds.builder_from_directory(self.directory.path).info

    @cached_property
    def _decoded(self) -> Any:
        """TFDS's parsing and decoding of a record, traced once."""
        import tensorflow as tf

        record = tf.TensorSpec([], tf.string)
        return tf.function(self._info.features.deserialize_example, input_signature=[record])

    def steps(self, piece: ShardSlice, record: int) -> list[Step]:
        """See ``PlainReader``."""
        import tensorflow as tf
        import tensorflow_datasets as tfds

        file = os.fspath(self._info.splits[piece.split].filepaths[piece.index])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (stored,) = tf.data.TFRecordDataset(file).skip(record).take(1)
            episode = self._decoded(stored)
            above = {key: _plain(value) for key, value in episode.items() if key != "steps"}
            return [{**above, **step} for step in tfds.as_numpy(episode["steps"])]


def _plain(value: Any) -> Any:
    """Values with arrays in place of tensors."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return value.numpy() if hasattr(value, "numpy") else value
