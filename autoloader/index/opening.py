"""Opens the index files of datasets, and builds those that are missing or stale.

Theory of operation. Every shard file has an index file of its own: an interrupted build continues
where it stopped, and a changed shard costs one build. A few threads build the missing
ones of all datasets. Each process shuffles them and looks again before it builds one, so that
several builders of one cache share the work instead of repeating it.

An index file beside a remote shard names the version of the shard that it was made of: size and
generation, or whatever number the store tells versions apart by. One of another version is not
used. A server of plain files tells times in whole seconds: there an index file that was made of the
local copy of the same time and size is one of this version.

Not here: the open index (``index.dataset``), one shard's tables (``formats``), an index file's
bytes, place and publication (``index.shard``).
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from autoloader.errors import SourceError, SpecError
from autoloader.formats import DatasetFormat
from autoloader.formats.files import is_remote, join, name_of, opened, reading, version_of
from autoloader.formats.records import FileChangedError
from autoloader.formats.tables import FIRST_NOTE, REST_OF_FILE, SourceIdentity
from autoloader.host.files import remove_leftovers
from autoloader.index.dataset import DatasetIndex
from autoloader.index.records import read_record
from autoloader.index.shard import (
    SUFFIX,
    Front,
    ShardIndex,
    UnusableIndexError,
    beside_data,
    cached_path,
    crc_of,
    front_of,
    index_directory,
    lie_beside,
    pack,
    publish,
    source_of,
    usable_front,
    with_source,
)
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import RecordSchema
from autoloader.telemetry.progress import doing, shard_words

DEFAULT_THREADS = 2
_ASKING_THREADS = 16
"""Threads that open index files: they hide the latency of networks."""
_MANY_FILES = 256
"""From so many local files on threads open them; fewer are opened sooner without."""
_SECOND_NS = 10**9

logger = logging.getLogger(__name__)


Progress = Callable[[int, int], None]
"""Called with shard files indexed and shard files to index."""


def open_dataset_index(dataset: ResolvedDataset) -> DatasetIndex:
    """The index of a dataset; see ``open_indexes``."""
    return open_indexes([dataset])[0]


def open_indexes(
    datasets: Sequence[ResolvedDataset],
    *,
    beside: bool = False,
    keep: bool = False,
    progress: Progress | None = None,
    threads: int = DEFAULT_THREADS,
) -> tuple[DatasetIndex, ...]:
    """The indexes of datasets; builds what is missing or stale, one file a shard.

    Any number of processes may do so at a time. An index that cannot be written serves this
    process from memory, unless it is to be kept.

    Args:
        datasets: resolved against what is on disk.
        beside: write index files beside local data instead, and copy those of the cache there.
            Where they lie beside the data, they are used in any case.
        keep: an index that cannot be written is an error.
        progress: called from this thread whenever a shard file is done; not called where nothing
            needs to be built.
        threads: shard files that are built at a time.

    Raises:
        SourceError: a shard file cannot be read, or is written to while it is indexed; or its index
            cannot be kept.
        SpecError: a dataset is remote, and no client that gives ranges of its files is installed.
    """
    for dataset in datasets:
        if not dataset.indexable:
            raise SpecError(
                f"dataset {dataset.name!r} is remote ({dataset.directory.path}), and nothing is "
                "installed that can fetch parts of its files",
                remedy="pip install 'autoloader-rlds[remote]', read it as a stream (reader: auto "
                "does), or copy it to a local disk",
                path=f"datasets[{dataset.name}].path",
            )
    files = _opened_files(datasets, beside=beside, keep=keep)
    _build([file for file in files.values() if file.index is None], progress, max(1, threads))
    return tuple(index for index in _joined(datasets, files) if index is not None)


def find_indexes(datasets: Sequence[ResolvedDataset]) -> tuple[DatasetIndex | None, ...]:
    """The indexes of datasets; ``None`` where one is missing or stale. Builds nothing.

    Raises:
        SourceError: a shard file is not there, or cannot be asked for.
    """
    return tuple(_joined(datasets, _opened_files(datasets)))


_Files = dict[tuple[str, bytes], "_ShardFile"]
"""Shard files by path and fingerprint of their features."""


def _opened_files(
    datasets: Sequence[ResolvedDataset], *, beside: bool = False, keep: bool = False
) -> _Files:
    """The shard files of datasets, with the indexes that are there; arguments as above."""
    home, files = index_directory(), dict[tuple[str, bytes], _ShardFile]()
    for dataset in datasets:
        schema = RecordSchema.of(dataset)
        folders = {piece.path.rpartition("/")[0] for piece in dataset.slices}
        data = {one: _data_of(one, dataset.name) for one in folders}
        near = not dataset.remote and (beside or lie_beside(folders))
        for path in dict.fromkeys(piece.path for piece in dataset.slices):
            asked = [cached_path(path, schema.fingerprint, home)]
            if near:
                asked.insert(0, Path(beside_data(path, schema.fingerprint)))
            place, folder = asked[0 if beside else -1], data[path.rpartition("/")[0]]
            files.setdefault(
                (path, schema.fingerprint),
                _ShardFile(path, schema, dataset.directory, asked, place, keep, folder),
            )
    if len(files) < _MANY_FILES and not any(is_remote(file.path) for file in files.values()):
        for file in files.values():
            file.open()
    else:
        with ThreadPoolExecutor(_ASKING_THREADS, "autoloader-index") as pool:
            list(pool.map(_ShardFile.open, files.values()))
    doing("")
    return files


def _build(missing: list[_ShardFile], progress: Progress | None, threads: int) -> None:
    """Build indexes that are missing; arguments as above."""
    if not missing:
        return
    for place in {file.place.parent for file in missing}:
        remove_leftovers(place, f"*{SUFFIX}")
    secrets.SystemRandom().shuffle(missing)
    logger.info("indexing %d shard files; whoever else needs them builds a part", len(missing))
    done = 0

    def build(file: _ShardFile) -> None:
        file.open()  # another builder may have made it meanwhile
        if file.index is None:
            which = f"{file.dataset}, {shard_words(file.path)}"
            doing(f"indexing {which} ({done} of {len(missing)} shard files are done)")
            file.build()

    with ThreadPoolExecutor(min(threads, len(missing)), "autoloader-index") as pool:
        try:
            for job in as_completed([pool.submit(build, file) for file in missing]):
                job.result()
                done += 1
                if progress is not None:
                    progress(done, len(missing))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    doing("")


def _joined(datasets: Sequence[ResolvedDataset], files: _Files) -> Iterator[DatasetIndex | None]:
    """The index of each dataset; ``None`` where a shard file's is missing."""
    for dataset in datasets:
        schema = RecordSchema.of(dataset)
        shards = [files[one.path, schema.fingerprint].index for one in dataset.slices]
        there = [shard for shard in shards if shard is not None]
        make = DatasetIndex
        if dataset.directory.still:
            from autoloader.index.still import StillIndex  # few need it

            make = StillIndex
        yield make(dataset, schema, there) if len(there) == len(shards) else None


def _data_of(folder: str, dataset: str) -> os.stat_result | None:
    """Owner and mode of a folder with data; ``None`` of a remote one."""
    if is_remote(folder):
        return None
    with reading(folder, dataset=dataset):
        return os.stat(folder)  # noqa: PTH116


@dataclass
class _ShardFile:
    """A shard file to be opened or indexed.

    Attributes:
        path: local path or URL of the shard file.
        schema: features that are indexed.
        directory: dataset that the file belongs to.
        asked: paths at which an index may lie, the first that can be used wins.
        place: path of a new index.
        keep: whether a new index must be written.
        data: stat of the folder that the file lies in; ``None`` of a remote one.
        index: the file's index; ``None`` where there is none that can be used.
    """

    path: str
    schema: RecordSchema
    directory: DatasetFormat
    asked: Sequence[Path]
    place: Path
    keep: bool
    data: os.stat_result | None
    index: ShardIndex | None = None

    @property
    def dataset(self) -> str:
        """Name of the dataset, for messages."""
        return self.directory.dataset

    def open(self) -> None:
        """Open the index that is there, if it can be used."""
        doing(f"opening the index of {self.dataset}, {shard_words(self.path)}")
        with reading(self.path, dataset=self.dataset):
            identity = self.directory.identity(self.path, self.schema)
            for place in self.asked:
                front = usable_front(place, identity, self.schema.fingerprint, self.data)
                if front is not None:
                    wanted = place != self.place == self.asked[0]  # beside the data, from the cache
                    if wanted and self._publish(place.read_bytes(), self.place, identity):
                        place = self.place
                    self._open(front, place, place, identity)
                    return
            if is_remote(self.path):  # the one beside it, from now on in the cache too
                try:
                    if content := fetch_beside(self.path, self.schema.fingerprint, identity):
                        self._keep(content, identity, self.asked[-1])
                except UnusableIndexError as error:
                    logger.info("the index beside %s is not used: %s", self.path, error)

    def build(self) -> None:
        """Make a new index."""
        identity, content = self._content()
        self._keep(content, identity, self.place)

    def _keep(self, content: bytes, identity: SourceIdentity, place: Path) -> None:
        """Open an index file that was made or fetched, at its place or in memory."""
        front = front_of(content, identity, self.schema.fingerprint)
        source = place if self._publish(content, place, identity) else content
        self._open(front, source, place, identity)

    def _open(
        self, front: Front, source: Path | bytes, place: Path, identity: SourceIdentity
    ) -> None:
        # Of a copy: an index that is dropped lets go of its map, without a circle.
        rebuild = partial(replace(self, index=None).rebuilt, place, identity)
        self.index = ShardIndex(self.path, front, source, rebuild)

    def rebuilt(self, place: Path, identity: SourceIdentity, held: bytes | None) -> bytes:
        """The content of an index anew: the one at ``place`` is damaged, or ``held`` by it."""
        if held is None:
            logger.warning("the index %s is damaged and is built anew", place)
        found, content = self._content()
        if found != identity:
            raise _changed(self.path, self.dataset)
        if content != held:
            self._publish(content, place, identity, replace=True)
        return content

    def _content(self) -> tuple[SourceIdentity, bytes]:
        """(state of the shard file, content of its index)."""
        read = partial(read_record, self.schema)
        try:
            with reading(self.path, dataset=self.dataset):
                tables = self.directory.tables(self.path, self.schema, read)
        except FileChangedError as error:
            raise _changed(self.path, self.dataset) from error
        for record, reason in tables.damage.items():
            which = "the rest" if record == REST_OF_FILE else f"record {record}"
            words = reason if record <= FIRST_NOTE else f"{which} cannot be read: {reason}"
            logger.info("%s: %s", self.path, words)
        return tables.source, pack(tables, self.schema)

    def _publish(
        self, content: bytes, place: Path, identity: SourceIdentity, *, replace: bool = False
    ) -> bool:
        """Write an index file at its place; false where it cannot be written, and need not be."""

        def keep(there: Path) -> bool:
            fingerprint = self.schema.fingerprint
            return not replace and usable_front(there, identity, fingerprint, self.data) is not None

        try:
            publish(content, place, keep=keep, data=self.data)
        except OSError as error:
            why = error.strerror or error
            if self.keep:
                home = self.asked[-1]
                beside = f"; or leave --beside out, to use {home.parent}" * (home != self.place)
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                raise SourceError(
                    f"dataset {self.dataset}: its index cannot be written to {place.parent}: {why}",
                    remedy=f"{'make room' if full else 'let this user write'} there, or set the "
                    f"environment variable AUTOLOADER_CACHE_DIR to another folder{beside}",
                ) from error
            _warn_unwritable(place.parent, str(why))
            return False
        return True


_unwritable: dict[tuple[Path, str], object] = {}
"""Folders that indexes cannot be written to, with the reason, that were told."""


def _warn_unwritable(folder: Path, why: str) -> None:
    """Warn once that indexes cannot be written to a folder; any thread."""
    mine = object()
    if _unwritable.setdefault((folder, why), mine) is mine:
        logger.warning(
            "indexes cannot be kept in %s, and are built at every start: %s", folder, why
        )


def _changed(path: str, dataset: str) -> SourceError:
    """The error for a file that was written to meanwhile."""
    return SourceError(
        f"dataset {dataset}: {path} was written to while it was indexed or read",
        remedy="wait until the dataset is written, then start again",
    )


def versions_of(dataset: ResolvedDataset) -> list[SourceIdentity]:
    """Present state of each shard file of a local dataset, and of all that belongs to it.

    Raises:
        SourceError: a file cannot be asked for.
    """
    if dataset.remote:
        return []
    schema, paths = RecordSchema.of(dataset), sorted({one.path for one in dataset.slices})
    with reading("", dataset=dataset.name):
        return [dataset.directory.identity(path, schema) for path in paths]


def digest_of_sizes(dataset: ResolvedDataset) -> str:
    """Hash of the sizes of a local dataset's files; "" of a remote one.

    Raises:
        SourceError: a file cannot be asked for.
    """
    sizes = [one.size for one in versions_of(dataset)]
    return hashlib.blake2b(repr(sizes).encode(), digest_size=8).hexdigest() if sizes else ""


# -- index files beside remote data -------------------------------------------------------------


def fetch_beside(shard: str, fingerprint: bytes, identity: SourceIdentity) -> bytes | None:
    """The index file beside a remote shard, of this version of it; ``None`` where there is none.

    Raises:
        OSError: the store does not answer, or refuses.
    """
    from autoloader.storage.store import store  # local data goes without

    address = beside_data(shard, fingerprint)
    try:
        content = store.read_all(address, most="list_bytes")
    except FileNotFoundError:
        return None
    found = source_of(content)
    if found == identity:
        return content
    # A server of plain files tells whole seconds, of the copy's time.
    if found._replace(stamp=found.stamp // _SECOND_NS * _SECOND_NS) == identity:
        return with_source(content, identity)
    logger.warning("%s is not used: it is of another version of the shard", address)
    return None


def put_beside(index: DatasetIndex, out: str = "") -> int:
    """Put a dataset's index files beside a remote copy of it, where they are not there already.

    Args:
        index: open, of local or remote data.
        out: the version directory of the copy; "" is where the dataset itself lies.

    Returns:
        How many were put.

    Raises:
        SourceError: a shard there is another one, or the index files cannot be written.
    """
    from autoloader.storage.store import store  # local data goes without

    fingerprint, put = index.schema.fingerprint, 0
    for path, shard in index.shards.items():
        address = join(out, name_of(path)) if out else path
        with reading(address, dataset=index.dataset.name):
            identity = store.identity(address)
            if address != path:
                _check_copy(path, address, identity.size, identity.crc32c, index.dataset.name)
            source = SourceIdentity(identity.size, identity.number)
            if fetch_beside(address, fingerprint, source) is None:
                store.write(beside_data(address, fingerprint), with_source(shard.content(), source))
                put += 1
    return put


def _check_copy(path: str, address: str, size: int, crc32c: int | None, dataset: str) -> None:
    """Refuse a shard that is no copy of one that was indexed: by size, and checksum if there is."""
    same = version_of(path)[0] == size
    if same and crc32c is not None and not is_remote(path):
        with opened(path) as descriptor:
            same = crc_of(descriptor, 0, size) == crc32c
    if not same:
        raise SourceError(
            f"dataset {dataset}: {address} is not a copy of {path}, which was indexed",
            remedy="copy the dataset there again, or set path in the spec to that copy",
        )
