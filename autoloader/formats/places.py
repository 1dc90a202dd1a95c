"""Folders that datasets lie in: their names, versions side by side, caches of the Hub.

In a cache of the Hugging Face Hub each repository has a folder. In that lies a folder for each
revision, named by the hash of its commit.

Not here: finding datasets below a folder (``sources``), opening files (``files``).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from autoloader.errors import SourceError, nearest
from autoloader.formats import files
from autoloader.storage.places import CLIENTS

NAMES_SPLIT = re.compile(
    r"(?<![^-._ 0-9])(?:(?P<train>train(?:ing)?)|(?P<validation>valid(?:ation)?|val|dev)|"
    r"(?P<test>test(?:ing)?|eval(?:uation)?))(?![^-._ 0-9])"
)
"""A word in a name by which a file is of a split, as for Hugging Face datasets."""
VERSION = re.compile(r"\d+\.\d+\.\d+")
_REPOSITORY = re.compile(r"(?:dataset|model|space)s--(?:.*--)?(?P<name>.+)")
_COMMIT_CHARACTERS = 100
RECORDS = (".jsonl", ".ndjson", ".json", ".parquet", ".tar")
"""Endings of files of image–text records."""


def existing_directory(path: str | Path, *, dataset: str, holds: str) -> str:
    """The normal form of a directory's path.

    Args:
        path: path or URL of the directory.
        dataset: the name that the spec gives this dataset, for messages.
        holds: file that the directory should hold, for messages.

    Raises:
        SourceError: there is no such directory, or the system refuses to tell.
    """
    text = files.normal(path)
    if directory_exists(text, dataset=dataset):
        return text
    what = f"there is nothing at {text}"
    remedy = (
        f"check the bucket and the spelling; give a directory, below {files.parent_of(text)} or "
        f"elsewhere, that holds {holds}"
    )
    if not files.is_remote(text):
        there = next(parent for parent in Path(text).parents if os.path.isdir(parent))
        missing = Path(text).relative_to(there).parts[0]
        what = f"{text} does not exist ({there} has no {missing!r})"
        names = directories(str(there))
        remedy = f"{nearest(missing, names)} (in {there})" if names else f"{there} has no folders"
        if missing.startswith("$"):
            remedy = f"write the folder that {missing} stands for: no variable is replaced"
        if (address := address_meant(text.removeprefix(f"{there}/"))) is not None:
            remedy = f"did you mean the address {address}?"
        if os.path.exists(text):
            what, remedy = (
                f"{text} is a file, not a directory",
                f"give the directory, such as {(around := dataset_around(text)) or there}",
            )
            if text.endswith(RECORDS) and not around:
                remedy += "; a spec reads image-text data with kind: image_text"
    raise SourceError(f"dataset {dataset}: {what}", remedy=remedy)


def dataset_around(path: str | Path) -> str | None:
    """The folder of the local TFDS or LeRobot dataset that ``path`` lies in, if one."""
    above = () if files.is_remote(path) else Path(files.normal(path)).parents
    markers = ("dataset_info.json", "meta/info.json")
    return next((str(p) for p in above if any(os.path.isfile(p / one) for one in markers)), None)


def address_meant(path: str) -> str | None:
    """The address of a bucket or server that lost its "://", such as ``s3/bucket/oxe``, if one."""
    scheme, slash, rest = path.partition("/")
    known = slash and scheme.removesuffix(":") in CLIENTS and rest.strip("/")
    return f"{scheme.removesuffix(':')}://{rest.strip('/')}" if known else None


def directory_exists(path: str, *, dataset: str) -> bool:
    """True if ``path`` is a directory; False where nothing is there, or a file.

    Args:
        path: path of the directory, or its URL.
        dataset: the name that the spec gives this dataset, for messages.

    Raises:
        SourceError: the system, or the store, refuses to tell.
    """
    with files.reading(path, dataset=dataset):
        return files.is_directory(path)


def directories(directory: str) -> list[str]:
    """Names of the directories right in ``directory``; none where it cannot be read."""
    try:
        return files.directory_names(directory)
    except OSError:
        return []


def versions_in(directory: str) -> list[str]:
    """Names of the version directories ("1.0.0") right in ``directory``, lowest version first.

    Empty where there is none, or where ``directory`` cannot be read.
    """
    found = [name for name in directories(directory) if VERSION.fullmatch(name)]
    return sorted(found, key=version_order)


def version_order(name: str) -> tuple[int, ...]:
    """Sort key of a version's name; () of any other name."""
    return tuple(int(part) for part in name.split(".")) if VERSION.fullmatch(name) else ()


def folder_name(path: str | Path) -> str:
    """Name of a dataset by its folder: "droid" of ".../droid/1.0.1"."""
    place = Path(files.normal(path)) if not files.is_remote(path) else Path(path)
    if VERSION.fullmatch(place.name):
        place = place.parent
    if place.parent.name == "snapshots" and (found := _REPOSITORY.fullmatch(place.parts[-3])):
        return found["name"]
    return place.name


def hub_revision(folder: Path, wanted: str | None = None) -> tuple[str, Path] | None:
    """(name, snapshot that its refs point to) of a repository of the Hub.

    ``main`` comes first, then any other ref, then the snapshot that was written last.

    Args:
        folder: the repository's folder in a cache of the Hugging Face Hub, or the one of its
            snapshots; ``None`` is the answer for any other.
        wanted: ref or commit of the snapshot; ``None`` is the answer where it is not there.
    """
    home = folder.parent if folder.name == "snapshots" else folder
    found = _REPOSITORY.fullmatch(home.name)
    if found is None or not os.path.isdir(home / "snapshots"):
        return None
    snapshots = {one.name: one for one in (home / "snapshots").iterdir() if one.is_dir()}
    refs: dict[str, str] = {}
    for file in sorted((home / "refs").rglob("*")):
        if file.is_file():
            with file.open(encoding="utf-8", errors="replace") as text:
                refs[str(file.relative_to(home / "refs"))] = text.read(_COMMIT_CHARACTERS).strip()
    named = [refs[one] for one in sorted(refs, key=lambda ref: (ref != "main", ref))]
    latest = sorted(snapshots, key=lambda one: snapshots[one].stat().st_mtime, reverse=True)
    first = [*named, *latest] if wanted is None else [refs.get(wanted, wanted)]
    commit = next((one for one in first if one in snapshots), "")
    if wanted is not None and not commit:
        return None
    return found["name"], home / "snapshots" / commit
