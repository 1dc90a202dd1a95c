"""What two hosts must have in common to fill the same batch: code, libraries, spec and data.

A helper on another host says the same of itself when it joins (``cluster.actor``), and every field
that differs is named. Modification times are no part of it: a copy of the data is as good.

Not here: values of frames, which are compared batch by batch (``cluster.comparison``).
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from autoloader.index.dataset import DatasetIndex
from autoloader.samples.resolve import ResolvedMixture

_PACKAGES = {
    "numpy": "numpy",
    "OpenCV": "opencv-python-headless",
    "simplejpeg": "simplejpeg",
    "av": "av",
}
NOT_INSTALLED = "not installed"


def identity_of(
    mixture: ResolvedMixture, order: Mapping[str, Any], indexes: Sequence[DatasetIndex]
) -> dict[str, str]:
    """Field → value, of this host.

    Args:
        mixture: as it was resolved here.
        order: the mixture's order, as plain values.
        indexes: of every dataset, as they are open here.
    """
    spec = json.dumps([mixture.plain(), order], sort_keys=True)
    return {
        **packages(),
        "spec": _digest([spec.encode(), repr(mixture.layout).encode()]),
        **{f"index of {one.dataset.name}": one.digest() for one in indexes},
    }


def packages() -> dict[str, str]:
    """Field → value, of what is installed on this host."""
    return {
        "autoloader": _version("autoloader-rlds"),
        "code": _code_digest(),
        "python": platform.python_version(),
        **{name: _version(package) for name, package in _PACKAGES.items()},
    }


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Every field that differs, for people: "numpy: 2.4.6 here, 2.2.6 there"."""
    return [
        f"{name}: {ours.get(name, 'nothing')} here, {theirs.get(name, 'nothing')} there"
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED


@functools.cache
def _code_digest() -> str:
    """Of the source of this package: one version may be two checkouts."""
    return _digest(_sources(Path(__file__).parents[1]))


def _sources(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.rglob("*.py")):
        yield str(path.relative_to(folder)).encode()
        yield path.read_bytes()


def _digest(parts: Sequence[bytes] | Iterator[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
