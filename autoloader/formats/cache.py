"""Small JSON documents kept in the user's cache directory, and what is found out once a file.

Not here: where it is (``storage.places``), indexes, which are shared among hosts
(``index.shard``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from autoloader.formats import files
from autoloader.host.files import read_own, write_whole
from autoloader.storage.places import cache_root

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

_MOST_BYTES = 16 * 2**20
_unread: set[Path] = set()
"""Folders of which it was said that a document is not read."""


class JsonCache:
    """JSON documents in one folder of the cache directory, one file for each key.

    Args:
        folder: below the cache directory.
        version: of the documents' layout; documents of another version are not found.
    """

    def __init__(self, folder: str, *, version: int) -> None:
        self._folder = folder
        self._version = version

    def load(self, key: object) -> Any:
        """The document saved under ``key``; ``None`` where there is none that can be read.

        One that is damaged, or that another user may have written, is none.
        """
        path = self._path(key)
        try:
            checksum, _, text = read_own(path, _MOST_BYTES).partition(b"\n")
            return json.loads(text) if checksum == _checksum(text) else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            first = path.parent not in _unread
            _unread.add(path.parent)
            logger.log(logging.WARNING if first else logging.DEBUG, "%s is not read: %s", path,
                       getattr(error, "strerror", None) or error)  # fmt: skip
            return None

    def save(self, key: object, document: Any) -> None:
        """Save a document under ``key``, where the directory can be written to.

        The file is replaced in one step: a reader sees the old document or the new one.

        Args:
            key: its ``repr`` says all that the document depends on.
            document: values that JSON can hold.
        """
        path, text = self._path(key), json.dumps(document).encode()
        try:
            write_whole(path, _checksum(text) + b"\n" + text, mode=0o600)
        except OSError as error:
            logger.debug("%s cannot be written: %s", path, error)

    def _path(self, key: object) -> Path:
        text = repr((self._version, key)).encode(errors="surrogateescape")
        return cache_root() / self._folder / f"{hashlib.sha256(text).hexdigest()[:40]}.json"


def _checksum(text: bytes) -> bytes:
    """The first line of a document's file."""
    return b"%08x" % zlib.crc32(text)


class FileFindings(Generic[Found]):
    """Facts that are found out once about a file as it is, by this process or another of the host.

    Thread-safe; one thing is found out at a time.

    Args:
        cache: where findings are kept for other processes.
        plain: a finding as JSON can hold it.
        read: the finding of such a document; ValueError, TypeError or KeyError where it is none.
    """

    def __init__(
        self,
        cache: JsonCache,
        plain: Callable[[Found], Any],
        read: Callable[[Any], Found],
    ) -> None:
        self._cache = cache
        self._plain = plain
        self._read = read
        self._known: dict[object, Found] = {}
        self._finding = threading.Lock()

    def of(
        self,
        path: str,
        about: tuple[object, ...],
        find: Callable[[], Found],
        *,
        dataset: str,
        shared: bool = True,
    ) -> Found:
        """The result of ``find``, or an earlier one if the file is unchanged since.

        Args:
            path: the file, local or remote.
            about: all else that the finding depends on; its ``repr`` says it.
            find: reads the file; what it raises is raised.
            dataset: whose file, for messages.
            shared: whether what another process found is taken.

        Raises:
            SourceError: the file cannot be read.
        """
        try:
            key = (*about, *files.version_of(path))
            with self._finding:
                if key not in self._known:
                    found = self._saved(key) if shared else None
                    if found is None:
                        found = find()
                        self._cache.save(key, self._plain(found))
                    self._known[key] = found
                return self._known[key]
        except OSError as error:
            raise files.unreadable(error, error.filename or path, dataset=dataset) from error

    def _saved(self, key: object) -> Found | None:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            return self._read(self._cache.load(key))
        return None
