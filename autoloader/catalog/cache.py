"""The user's cache directory, and small JSON documents kept in it.

Not here: indexes, which are shared among hosts (``index.index_paths``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import platformdirs

from autoloader.units import expanded

logger = logging.getLogger(__name__)


def cache_root() -> Path:
    """``AUTOLOADER_CACHE_DIR`` if set, else the user's cache directory."""
    own = os.environ.get("AUTOLOADER_CACHE_DIR")
    return expanded(own) if own else platformdirs.user_cache_path("autoloader")


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
        """The document saved under ``key``; ``None`` where there is none that can be read."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads(self._path(key).read_text(encoding="utf-8"))
        return None

    def save(self, key: object, document: Any) -> None:
        """Save a document under ``key``, where the directory can be written to.

        The file is replaced in one step: a reader sees the old document or the new one.

        Args:
            key: its ``repr`` says all that the document depends on.
            document: plain values.
        """
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{self._folder}-")
            try:
                with os.fdopen(fd, "w", encoding="utf-8") as file:
                    json.dump(document, file)
                Path(temporary).replace(path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            logger.debug("%s cannot be written: %s", path, error)

    def _path(self, key: object) -> Path:
        text = repr((self._version, key)).encode(errors="surrogateescape")
        return cache_root() / self._folder / f"{hashlib.sha256(text).hexdigest()[:40]}.json"
