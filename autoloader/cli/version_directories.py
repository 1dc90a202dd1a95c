"""Finds the datasets below a folder: TFDS version directories, the newest of each, and LeRobot's.

Not here: what such a directory says (``catalog.metadata``), what is taken of it (``cli.init``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from autoloader.catalog.files import (
    directory_names,
    file_names,
    is_remote,
    normal,
    unreadable,
)
from autoloader.catalog.sources import is_lerobot
from autoloader.cli.output import note

DEEPEST = 5
"""Folders below the one that is named that are looked into."""

_VERSION = re.compile(r"\d+\.\d+\.\d+")


def newest_versions(root: str | Path) -> list[Path]:
    """Of every dataset below ``root`` the newest version; says which folders may not be read.

    Raises:
        SourceError: ``root`` is remote and cannot be read.
    """
    look = _remote_versions if is_remote(root) else _version_directories
    return _newest(sorted(look(Path(root), DEEPEST)))


def _version_directories(folder: Path, depth: int) -> Iterator[Path]:
    """Folders that hold a dataset's version; says which may not be looked into."""
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError as error:
        note(f"{folder}: left out: {error.strerror or error}")
        return
    if {"dataset_info.json", "features.json"} <= set(names) or (
        "meta" in names and is_lerobot(folder)
    ):
        yield folder
    elif depth:
        for name in names:
            if not name.startswith(".") and os.path.isdir(folder / name):  # noqa: PTH112 False of any error
                yield from _version_directories(folder / name, depth - 1)


def _remote_versions(folder: Path, depth: int) -> Iterator[Path]:
    """The same of a remote folder; each folder is a question, so old versions are not asked."""
    from autoloader.errors import SourceError

    place = normal(folder)
    try:
        files, below = file_names(place), directory_names(place)
    except OSError as error:
        if depth < DEEPEST:
            note(f"{place}: left out: {error.strerror or error}")
            return
        told = unreadable(error, place, dataset="")
        raise SourceError(f"{place}: {error.strerror or error}", remedy=told.remedy) from error
    if {"dataset_info.json", "features.json"} <= set(files):
        yield folder
    elif depth:
        for child in _newest([folder / name for name in below if not name.startswith(".")]):
            yield from _remote_versions(child, depth - 1)


def _newest(paths: list[Path]) -> list[Path]:
    """Of several versions of one dataset the newest."""
    best: dict[Path, Path] = {}
    for path in paths:
        key = path.parent if _VERSION.fullmatch(path.name) else path
        if key not in best or _order(path) > _order(best[key]):
            best[key] = path
    return list(best.values())


def _order(path: Path) -> tuple[int, ...]:
    return (
        tuple(int(part) for part in path.name.split(".")) if _VERSION.fullmatch(path.name) else ()
    )
