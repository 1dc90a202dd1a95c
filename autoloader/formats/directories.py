"""Finds TFDS version directories: whether a path is one, and which one a TFDS name means.

Here is also what a dataset is called by where it lies: a cache of the Hugging Face Hub has a folder
for each repository, and in it one for each revision, whose name is a commit's.

Not here: what a version directory says about itself (``autoloader.formats.metadata``).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from autoloader.errors import SourceError, SpecError, nearest
from autoloader.formats import files

_COMMIT_CHARACTERS = 100

INFO_FILE = "dataset_info.json"

VERSION = re.compile(r"\d+\.\d+\.\d+")
_TFDS_NAME = re.compile(
    r"(?P<name>\w[\w-]*)(/(?P<config>[\w.+=-]+(/[\w.+=-]+)*?))?(:(?P<version>[\d.*]+))?"
)

_REPOSITORY = re.compile(r"(?:dataset|model|space)s--(?:.*--)?(?P<name>.+)")


def check_version(path: str | Path, *, dataset: str) -> str:
    """``path``, normal; where it is local, after a look that costs next to nothing.

    Raises:
        SourceError: it is local, and does not exist, may not be read or is not a TFDS version
            directory.
    """
    if files.is_remote(path):
        return files.normal(path)
    try:
        directory = existing_directory(path, dataset=dataset)
        there = Path(files.join(directory, INFO_FILE)).is_file()
    except OSError as error:
        raise files.unreadable(error, error.filename or str(path), dataset=dataset) from error
    if not there:
        raise not_a_version(directory, dataset=dataset)
    return directory


def locate_version(tfds_name: str, data_dir: str | Path, *, dataset: str) -> str:
    """The version directory of a TFDS name below ``data_dir``.

    Args:
        tfds_name: "name", "name:1.0.0", "name/config" or "name/config:1.0.0". Without a version,
            or with one like "1.*.*", the newest that fits.
        data_dir: the directory that holds the datasets.
        dataset: the name that the spec gives this dataset, for messages.

    Raises:
        SpecError: the name is not a TFDS name.
        SourceError: there is no such dataset, config or version.
    """
    match = _TFDS_NAME.fullmatch(tfds_name)
    if match is None or ".." in tfds_name:
        field = f"datasets.{dataset}.tfds"
        raise SpecError(
            f"{field}: {tfds_name!r} is not a TFDS name",
            remedy='write "name", "name:1.0.0" or "name/config:1.0.0"',
            path=field,
        )
    home = existing_directory(data_dir, dataset=dataset)
    for what, name in (("", match["name"]), ("config ", match["config"])):
        if name and not _is_directory(files.join(home, name), dataset=dataset):
            raise SourceError(
                f"dataset {dataset}: {home} has no {what}{name!r}",
                remedy=nearest(name, _directories(home)),
                dataset=dataset,
            )
        home = files.join(home, name) if name else home
    versions = versions_in(home)
    if not versions:
        raise not_a_version(home, dataset=dataset)
    wanted = match["version"] or "*.*.*"
    pattern = re.compile(re.escape(wanted).replace(r"\*", r"\d+"))
    fitting = [name for name in versions if pattern.fullmatch(name)]
    if not fitting:
        raise SourceError(
            f"dataset {dataset}: {home} has no version {wanted}",
            remedy=f"choose one of: {', '.join(versions)}",
            dataset=dataset,
        )
    return files.join(home, fitting[-1])


def existing_directory(path: str | Path, *, dataset: str) -> str:
    """The normal form of a directory's path.

    Raises:
        SourceError: there is no such directory.
    """
    text = files.normal(path)
    if files.is_remote(text):
        if not _is_directory(text, dataset=dataset):
            raise SourceError(
                f"dataset {dataset}: there is nothing at {text}",
                remedy=f"check the bucket and the spelling; name a directory, below "
                f"{files.parent_of(text)} or elsewhere, that holds {INFO_FILE}",
                dataset=dataset,
            )
        return text
    try:
        return _local_directory(Path(text), dataset=dataset)
    except OSError as error:
        raise SourceError(
            f"dataset {dataset}: {text}: {error.strerror or error}",
            remedy="check the path, and that this user may enter every directory on it",
            dataset=dataset,
        ) from error


def _local_directory(directory: Path, *, dataset: str) -> str:
    if directory.is_dir():
        return str(directory)
    if directory.exists():
        raise SourceError(
            f"dataset {dataset}: {directory} is a file",
            remedy=f"name the directory, such as {directory.parent}",
            dataset=dataset,
        )
    there = directory.parent
    while not there.is_dir():
        there = there.parent
    missing = directory.relative_to(there).parts[0]
    raise SourceError(
        f"dataset {dataset}: {directory} does not exist ({there} has no {missing!r})",
        remedy=f"in {there}: {nearest(missing, _directories(str(there)))}",
        dataset=dataset,
    )


def _is_directory(path: str, *, dataset: str) -> bool:
    try:
        return files.is_directory(path)
    except OSError as error:
        raise files.unreadable(error, path, dataset=dataset) from error


def _directories(directory: str) -> list[str]:
    try:
        return files.directory_names(directory)
    except OSError:
        return []


def versions_in(directory: str) -> list[str]:
    """Version directories below ``directory``, oldest first."""
    found = [name for name in _directories(directory) if VERSION.fullmatch(name)]
    return sorted(found, key=version_order)


def version_order(name: str) -> tuple[int, ...]:
    """Sort key of a version's name; () of any other name."""
    return tuple(int(part) for part in name.split(".")) if VERSION.fullmatch(name) else ()


def not_a_version(directory: str, *, dataset: str) -> SourceError:
    """The error for a directory without metadata; names version directories near it, if any."""
    below = [files.join(directory, name) for name in versions_in(directory)]
    if not files.is_remote(directory) and (of := HubRepository.at(Path(directory))) is not None:
        below = [str(of.taken()[0])]
    if not below:
        for child in _directories(directory)[: 10 if files.is_remote(directory) else 100]:
            inner = files.join(directory, child)
            below += [files.join(inner, name) for name in versions_in(inner)]
    if len(below) == 1:
        remedy = f"name the version directory: {below[0]}"
    elif below:
        shown = ", ".join(below[:8]) + (", ..." if len(below) > 8 else "")
        remedy = f"name one of the version directories below it: {shown}"
    else:
        remedy = (
            "name the directory that holds dataset_info.json and features.json, "
            "such as .../my_dataset/1.0.0"
        )
    return SourceError(
        f"dataset {dataset}: {directory} is not a TFDS version directory (no {INFO_FILE})",
        remedy=remedy,
        dataset=dataset,
    )


def folder_name(path: str | Path) -> str:
    """Name of a dataset by its place: "droid" of ".../droid/1.0.1"."""
    place = Path(files.normal(path)) if not files.is_remote(path) else Path(path)
    if VERSION.fullmatch(place.name):
        place = place.parent
    if place.parent.name == "snapshots" and (found := _REPOSITORY.fullmatch(place.parts[-3])):
        return found["name"]
    return place.name


@dataclass(frozen=True, slots=True)
class HubRepository:
    """A repository's folder in a cache of the Hugging Face Hub.

    Attributes:
        path: the folder; holds ``refs`` and ``snapshots``.
        name: of the repository, without its owner.
    """

    path: Path
    name: str

    @classmethod
    def at(cls, folder: Path) -> HubRepository | None:
        """The one whose folder, or whose folder of snapshots, this is; else ``None``."""
        path = folder.parent if folder.name == "snapshots" else folder
        found = _REPOSITORY.fullmatch(path.name)
        there = found is not None and os.path.isdir(path / "snapshots")  # noqa: PTH112
        return cls(path, found["name"]) if found is not None and there else None

    def taken(self) -> tuple[Path, list[str]]:
        """(the snapshot that its refs point to, names of the others).

        ``main`` comes first, then any other ref, then the snapshot that was written last.
        """
        snapshots = {one.name: one for one in (self.path / "snapshots").iterdir() if one.is_dir()}
        refs: dict[str, str] = {}
        for file in sorted((self.path / "refs").rglob("*")):
            if file.is_file():
                with file.open(encoding="utf-8", errors="replace") as text:
                    commit = text.read(_COMMIT_CHARACTERS).strip()
                refs[str(file.relative_to(self.path / "refs"))] = commit
        named = [refs[one] for one in sorted(refs, key=lambda ref: (ref != "main", ref))]
        latest = sorted(snapshots, key=lambda one: snapshots[one].stat().st_mtime, reverse=True)
        there = [one for one in [*named, *latest] if one in snapshots]
        if not there:
            return self.path / "snapshots", []
        commit = there[0]
        by_commit = {of: ref for ref, of in refs.items()}
        others = [f"{by_commit[one]} ({one})" if one in by_commit else one for one in latest]
        del others[latest.index(commit)]
        return snapshots[commit], others
