"""Who can be measured: each module here gives batches of one mixture in its own way.

A contender is made from a mixture file and settings, iterated for batches (a mapping with at least
``images`` ``[B, F, H, W, 3] uint8`` and ``dataset_index`` ``[B]``), and closed. It runs in a
process of its own; frameworks are imported when it is made, not before.

Not here: when and how long it runs (``bench.window``, ``bench.runner``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

KINDS: Mapping[str, str] = {
    "autoloader": "bench.peers.autoloader:Loader",
    "plain_tfdata": "bench.peers.plain_tfdata:PlainTfData",
    "decode_alone": "bench.peers.decode_alone:DecodeAlone",
}
"""What a scenario may name as ``kind``, and the class behind it."""


class Contender(Protocol):
    """What a class of this package offers."""

    datasets: int

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Batches without end."""
        ...

    def close(self) -> None:
        """End what it started."""
        ...


def open_contender(kind: str, spec: Path, settings: Mapping[str, Any]) -> Contender:
    """The contender ``kind`` over the mixture in ``spec``."""
    made: Contender = contender_class(kind)(spec, settings)
    return made


def contender_class(kind: str) -> Callable[[Path, Mapping[str, Any]], Contender]:
    """The class behind ``kind``, imported."""
    module, _, name = KINDS[kind].partition(":")
    found: Callable[[Path, Mapping[str, Any]], Contender] = getattr(
        importlib.import_module(module), name
    )
    return found
