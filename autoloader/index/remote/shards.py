"""How remote TFRecord files become index tables: through the cache of shards.

Not here: index files that lie beside them (``index.remote.beside``), fetching (``remote``).
"""

from __future__ import annotations

from dataclasses import replace

from autoloader.index.build import index_shard
from autoloader.index.format import ShardTables, SourceIdentity
from autoloader.remote.shards import shard_cache
from autoloader.samples.schema import RecordSchema


class RemoteShards:
    """TFRecord files far away: indexed when all of one has arrived in the cache of shards."""

    def identity(self, path: str, schema: RecordSchema) -> SourceIdentity:
        """See ``ShardFormat``."""
        del schema
        return remote_source(path)

    def tables(self, path: str, schema: RecordSchema) -> ShardTables:
        """See ``ShardFormat``."""
        shard = shard_cache().shard(path)
        tables = index_shard(str(shard.fetch_whole()), schema)
        return replace(tables, source=SourceIdentity(shard.identity.size, shard.identity.number))


def remote_source(path: str) -> SourceIdentity:
    """What a remote file is, as an index file says it. Raises OSError."""
    identity = shard_cache().current(path).identity
    return SourceIdentity(identity.size, identity.number)
