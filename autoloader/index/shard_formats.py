"""How the files of a dataset become index tables, by its format.

Not here: remote files (``index.remote``), TFRecords (``index.build``), LeRobot's files
(``index.lerobot``).
"""

from __future__ import annotations

import os
from typing import Protocol

from autoloader.formats.files import unreadable
from autoloader.formats.metadata import LEROBOT
from autoloader.index.build import index_shard
from autoloader.index.format import ShardTables, SourceIdentity
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import RecordSchema


class ShardFormat(Protocol):
    """What the index asks of a format; for any number of threads."""

    def identity(self, path: str, schema: RecordSchema) -> SourceIdentity:
        """What a shard file, and all that belongs to it, looks like now."""
        ...

    def tables(self, path: str, schema: RecordSchema) -> ShardTables:
        """The tables of a shard file."""
        ...


class RldsShards:
    """TFRecord files."""

    def identity(self, path: str, schema: RecordSchema) -> SourceIdentity:
        """See ``ShardFormat``."""
        del schema
        return SourceIdentity.of(os.stat(path))  # noqa: PTH116

    def tables(self, path: str, schema: RecordSchema) -> ShardTables:
        """See ``ShardFormat``."""
        return index_shard(path, schema)


def versions_of(dataset: ResolvedDataset) -> list[SourceIdentity]:
    """Of each shard file of a local dataset what it, and all that belongs to it, looks like now.

    Raises:
        SourceError: one of them cannot be asked for.
    """
    if dataset.remote:
        return []
    format_, schema = format_of(dataset), RecordSchema.of(dataset)
    try:
        return [
            format_.identity(path, schema) for path in sorted({one.path for one in dataset.slices})
        ]
    except OSError as error:
        raise unreadable(error, error.filename or "", dataset=dataset.name) from error


def format_of(dataset: ResolvedDataset) -> ShardFormat:
    """The format of a dataset's files."""
    if dataset.remote:
        from autoloader.index.remote import RemoteShards  # others start without it

        return RemoteShards()
    if dataset.directory.file_format == LEROBOT:
        from autoloader.formats.lerobot.metadata import metadata_of  # others start without it
        from autoloader.index.lerobot import LeRobotShards

        return LeRobotShards(metadata_of(dataset.directory))
    return RldsShards()
