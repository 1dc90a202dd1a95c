"""A part of this environment's packages as an environment of its own, made of links.

What an extra needs is what the metadata of installed packages say: its requirements, and theirs.
An interpreter that sees these alone shows what ``pip install 'autoloader-rlds[tune]'`` would be,
without the minutes and gigabytes that it takes.
"""

import collections
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path

from installation import ROOT, requirements
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@cache
def installed() -> dict[str, Distribution]:
    """Every package of this environment, by its canonical name; the first on the path counts."""
    found: dict[str, Distribution] = {}
    for one in distributions():
        found.setdefault(canonicalize_name(one.metadata["Name"]), one)
    return found


def closure(*extras: str) -> set[str]:
    """Names of the packages that the core with these extras brings.

    Raises:
        KeyError: one that is asked for is not installed here.
    """
    left = [Requirement(one) for one in requirements(*extras)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while left:
        wanted = left.pop()
        name, asked = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, asked) in seen:
            continue
        seen.add((name, asked))
        theirs = map(Requirement, installed()[name].requires or ())
        left += [one for one in theirs if _applies(one, asked)]
    return {name for name, _ in seen}


def _applies(one: Requirement, asked: frozenset[str]) -> bool:
    marker = one.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in asked or {""})


def make_view(folder: Path, packages: set[str]) -> Path:
    """The interpreter of an environment with these packages, and this checkout."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True)
    (place,) = folder.glob("lib/python*/site-packages")
    for source, target in _links({name: installed()[name] for name in packages}):
        (place / target).parent.mkdir(parents=True, exist_ok=True)
        (place / target).symlink_to(source)
    (place / "checkout.pth").write_text(f"{ROOT}\n")
    return folder / "bin/python"


def _links(packages: dict[str, Distribution]) -> Iterator[tuple[Path, Path]]:
    """What is linked, and where to: whole folders, or each file where packages share one."""
    owners = collections.Counter(top for name in installed() for top in _tops(name))
    for name, one in packages.items():
        for top in _tops(name):
            if owners[top] == 1:
                yield Path(str(one.locate_file(top))).resolve(), Path(top)
        if all(owners[top] == 1 for top in _tops(name)):
            continue
        for file in one.files or ():
            if owners[file.parts[0]] > 1 and file.suffix != ".pyc":
                yield Path(str(one.locate_file(file))).resolve(), Path(file)


@cache
def _tops(name: str) -> set[str]:
    """Entries of ``site-packages`` that hold a package's files."""
    files = installed()[name].files or ()
    return {file.parts[0] for file in files} - {"..", "__pycache__"}
