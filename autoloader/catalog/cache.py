"""Files in a cache directory: where they lie, and how one is written whole.

Not here: what is kept, its name and its check (whoever keeps it).
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import platformdirs

from autoloader.units import expanded

logger = logging.getLogger(__name__)


def cache_root() -> Path:
    """``AUTOLOADER_CACHE_DIR`` if set, else the user's cache directory."""
    own = os.environ.get("AUTOLOADER_CACHE_DIR")
    return expanded(own) if own else platformdirs.user_cache_path("autoloader")


def keep_whole(place: Path, write: Callable[[BinaryIO], object], *, what: str) -> None:
    """Write a file in one step: a reader sees the old one or the new one. Not writable is no error.

    Args:
        place: the file; its directory is made.
        write: writes to the open file.
        what: for the debug message, where it cannot be written.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.parent.name}-")
        try:
            with os.fdopen(fd, "wb") as file:
                write(file)
            Path(temporary).replace(place)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        logger.debug("%s not kept: %s", what, error)
