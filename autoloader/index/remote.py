"""Remote TFRecord files: indexed through the cache of shards, or by index files beside them.

Theory of operation. An index file names the version of the shard that it was made of: size and
generation, or whatever number the store tells versions apart by. One of another version is not
used. A server of plain files tells times in whole seconds: there an index file that was made of the
local copy of the same time and size is one of this version.

Not here: what is in an index file (``index.format``), where it lies (``index.shard``),
fetching (``storage``).
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace

import google_crc32c

from autoloader.errors import SourceError
from autoloader.formats import files
from autoloader.index.build import index_shard
from autoloader.index.dataset import DatasetIndex
from autoloader.index.format import ShardTables, SourceIdentity, source_of, with_source
from autoloader.index.shard import beside_data
from autoloader.samples.schema import RecordSchema
from autoloader.storage.identity import RemoteIdentity
from autoloader.storage.shards import shard_cache
from autoloader.storage.store import store

_SECOND_NS = 10**9
_PIECE_BYTES = 2**20

logger = logging.getLogger(__name__)


class RemoteShards:
    """TFRecord files far away: indexed when all of one has arrived in the cache of shards."""

    def identity(self, path: str, schema: RecordSchema) -> SourceIdentity:
        """See ``ShardFormat``."""
        del schema
        identity = shard_cache().current(path).identity
        return SourceIdentity(identity.size, identity.number)

    def tables(self, path: str, schema: RecordSchema) -> ShardTables:
        """See ``ShardFormat``."""
        shard = shard_cache().shard(path)
        tables = index_shard(str(shard.fetch_whole()), schema)
        return replace(tables, source=SourceIdentity(shard.identity.size, shard.identity.number))


def fetch_beside(shard: str, fingerprint: bytes, identity: SourceIdentity) -> bytes | None:
    """The index file beside a remote shard, of this version of it; ``None`` where there is none.

    Raises:
        OSError: the store does not answer, or refuses.
    """
    address = beside_data(shard, fingerprint)
    try:
        content = store.read_all(address, most="list_bytes")
    except FileNotFoundError:
        return None
    found = source_of(content)
    if found == identity:
        return content
    if _is_copy(found, identity, files.scheme_of(shard)):
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
    fingerprint, put = index.schema.fingerprint, 0
    for path, content in index.contents():
        address = files.join(out, files.name_of(path)) if out else path
        try:
            identity = store.identity(address)
            if address != path:
                _check_copy(path, address, identity, dataset=index.dataset.name)
            source = SourceIdentity(identity.size, identity.number)
            if fetch_beside(address, fingerprint, source) is None:
                beside = beside_data(address, fingerprint)
                store.write(beside, with_source(content, source))
                put += 1
        except OSError as error:
            raise files.unreadable(error, address, dataset=index.dataset.name) from error
    return put


def _check_copy(path: str, address: str, identity: RemoteIdentity, *, dataset: str) -> None:
    """Refuse a shard that is no copy of one that was indexed: by size, and checksum if there is."""
    size, _ = files.version_of(path)
    same = size == identity.size
    if same and identity.crc32c is not None and not files.is_remote(path):
        same = _crc_of(path) == identity.crc32c
    if not same:
        raise SourceError(
            f"dataset {dataset}: {address} is no copy of {path}, which was indexed",
            remedy="copy the dataset there anew, or index what lies there (path: in the spec)",
            dataset=dataset,
        )


def _crc_of(path: str) -> int:
    crc, at = 0, 0
    with files.opened(path) as descriptor:
        while piece := os.pread(descriptor, _PIECE_BYTES, at):
            crc, at = google_crc32c.extend(crc, piece), at + len(piece)
    return crc


def _is_copy(found: SourceIdentity, identity: SourceIdentity, scheme: str) -> bool:
    """True if an index file is of a copy of the shard, by its time."""
    if scheme not in ("http", "https"):
        return False
    return found.size == identity.size and found.stamp // _SECOND_NS * _SECOND_NS == (
        identity.stamp
    )
