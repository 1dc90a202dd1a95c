"""Small JSON documents kept in the user's cache directory, and what is found out once a file.

Not here: where it is (``storage.places``), indexes, which are shared among hosts
(``index.shard``).
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoloader.formats import files
from autoloader.host.files import read_own, remove_leftovers, write_whole
from autoloader.host.threads import free_in_forks
from autoloader.storage.places import cache_root

logger = logging.getLogger(__name__)

_MOST_BYTES = 16 * 2**20
_unread: set[Path] = set()
"""Folders of which it was said that a document is not read."""
_sweep = functools.cache(functools.partial(remove_leftovers, pattern="*.json"))


class JsonCache:
    """JSON documents in one folder of the cache directory, one file for each key.

    Args:
        folder: below the cache directory.
        version: version of the documents' layout; documents of another version are not found.
    """

    def __init__(self, folder: str, *, version: int) -> None:
        self._folder = folder
        self._version = version
        self._known: dict[object, Any] = {}
        self._finding = free_in_forks(threading.Lock())

    def load(self, key: object) -> Any:
        """The document saved under ``key``; ``None`` where there is none that can be read.

        A document that is damaged, or that another user may have written, counts as none.
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
            key: values whose ``repr`` says all that the document depends on.
            document: values that JSON can hold.
        """
        path, text = self._path(key), json.dumps(document).encode()
        _sweep(path.parent)
        try:
            write_whole(path, _checksum(text) + b"\n" + text, mode=0o600)
        except OSError as error:
            logger.debug("%s cannot be written: %s", path, error)

    def of_file(
        self,
        path: str,
        about: tuple[object, ...],
        find: Callable[[], Any],
        *,
        dataset: str,
        shared: bool = True,
    ) -> Any:
        """The document that ``find`` gives of a file, found once for the file as it is.

        Thread-safe; one thing is found at a time.

        Args:
            path: the file, local or remote.
            about: all else that the document depends on; its ``repr`` says it.
            find: reads the file and gives the document; what it raises is raised.
            dataset: name of the file's dataset, for messages.
            shared: whether a document that another process saved is taken.

        Raises:
            SourceError: the file cannot be read.
        """
        with files.reading(path, dataset=dataset):
            key = (*about, *files.version_of(path))
            with self._finding:
                if key not in self._known:
                    found = self.load(key) if shared else None
                    if found is None:
                        found = find()
                        self.save(key, found)
                    self._known[key] = found
                return self._known[key]

    def _path(self, key: object) -> Path:
        text = repr((self._version, key)).encode(errors="surrogateescape")
        return cache_root() / self._folder / f"{hashlib.sha256(text).hexdigest()[:40]}.json"


def _checksum(text: bytes) -> bytes:
    """The first line of a document's file."""
    return b"%08x" % zlib.crc32(text)
