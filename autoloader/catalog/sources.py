"""Opens a dataset whatever its format: TFDS/RLDS or LeRobot, told apart by what lies there.

Not here: what either says about itself (``metadata``, ``lerobot.metadata``).
"""

from __future__ import annotations

from pathlib import Path

from autoloader.catalog import files
from autoloader.catalog.directories import check_version
from autoloader.catalog.metadata import LEROBOT_INFO, VersionDirectory, open_version


def open_source(path: str | Path, *, dataset: str) -> VersionDirectory:
    """Reads the metadata of a TFDS version directory or a LeRobot dataset.

    Args:
        path: the directory.
        dataset: the name that the spec gives this dataset, for messages.

    Raises:
        SourceError: it does not exist, is neither, or is broken.
        MissingExtraError: it needs a package of the extra ``lerobot``.
    """
    if is_lerobot(path):
        from autoloader.catalog.lerobot.metadata import open_lerobot  # others start without it

        return open_lerobot(path, dataset=dataset)
    return open_version(path, dataset=dataset)


def check_source(path: str | Path, *, dataset: str) -> str:
    """``path``, normal; where it is local, after a look that costs next to nothing.

    Raises:
        SourceError: it is local, and is no dataset.
    """
    if is_lerobot(path):
        return files.normal(path)
    return check_version(path, dataset=dataset)


def is_lerobot(path: str | Path) -> bool:
    """Whether a path is a LeRobot dataset; false of what is remote or cannot be looked into."""
    try:
        return not files.is_remote(path) and Path(files.normal(path), LEROBOT_INFO).is_file()
    except OSError:
        return False  # whoever opens it says why
