"""Finds the datasets below a folder: TFDS version directories, the newest of each, and LeRobot's.

A dataset counts once: folders that links lead to, and of a cache of the Hugging Face Hub every
revision but one, are told and left out.

Not here: what such a directory says (``formats.metadata``), what is taken of it (``cli.init``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from autoloader.cli.output import note
from autoloader.formats.directories import INFO_FILE, VERSION, HubRepository, version_order
from autoloader.formats.files import (
    directory_names,
    file_names,
    is_remote,
    normal,
    unreadable,
)
from autoloader.formats.sources import is_lerobot

DEEPEST = 5
"""Folders below the one that is named, or below a snapshot of the Hub, that are looked into."""


def newest_versions(root: str | Path) -> list[Path]:
    """Of every dataset below ``root`` the newest version; arguments and errors as below."""
    return [versions[0] for versions in dataset_versions(root)]


def dataset_versions(root: str | Path) -> list[list[Path]]:
    """The versions of every dataset below ``root``, the newest first; of remote data that alone.

    Says which folders may not be read, and which are left out.

    Raises:
        SourceError: ``root`` is remote and cannot be read.
    """
    if is_remote(root):
        return _by_dataset(sorted(_remote_versions(Path(root), DEEPEST)))
    real = os.path.realpath(root)
    found: dict[str, Path] = {}

    def order(place: Path) -> tuple[bool, Path]:
        """Places that no link leads to come first."""
        return os.path.realpath(place) != os.path.normpath(real / place.relative_to(root)), place

    for place in sorted(_version_directories(Path(root), DEEPEST), key=order):
        kept = found.setdefault(os.path.realpath(place), place)
        if kept is not place:
            note(f"{place}: left out: a link to {kept}")
    return _by_dataset(sorted(found.values()))


def _version_directories(folder: Path, depth: int) -> Iterator[Path]:
    """Folders that hold a dataset's version; says which may not be looked into."""
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError as error:
        note(f"{folder}: left out: {error.strerror or error}")
        return
    repository = HubRepository.at(folder)
    if INFO_FILE in names or ("meta" in names and is_lerobot(folder)):
        yield folder
    elif repository is not None:
        taken, others = repository.taken()
        if others:
            note(f"{repository.name}: takes revision {taken.name}; also there: {', '.join(others)}")
        yield from _version_directories(taken, DEEPEST)
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
    if INFO_FILE in files:
        yield folder
    elif depth:
        children = [folder / name for name in below if not name.startswith(".")]
        for versions in _by_dataset(children):
            yield from _remote_versions(versions[0], depth - 1)


def _by_dataset(paths: list[Path]) -> list[list[Path]]:
    """The versions of each dataset, the newest first."""
    found: dict[Path, list[Path]] = {}
    for path in paths:
        key = path.parent if VERSION.fullmatch(path.name) else path
        found.setdefault(key, []).append(path)
    return [
        sorted(versions, key=lambda path: version_order(path.name), reverse=True)
        for versions in found.values()
    ]
