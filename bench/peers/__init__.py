"""Who can be measured: each module here gives batches of one mixture in its own way.

A contender is made from a mixture file and settings, iterated for batches, and closed. A batch is a
mapping with ``images`` ``[B, F, H, W, 3] uint8`` (but for limits that have no frames) and
``dataset_index`` ``[B]``; where it can say so also ``episode_index`` ``[B]`` (rising as a dataset's
episodes are stored) and ``step`` ``[B]``. It runs in a process of its own; frameworks are imported
when it is made, not before.

Packages that only a peer needs live in an environment of their own (``make peers``), laid over the
one that everything else runs in: with pandas beside it, TensorFlow imports pandas, and every other
contender would pay for that.

Not here: when and how long it runs (``bench.window``, ``bench.runner``).
"""

from __future__ import annotations

import importlib.util
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from bench.child import environment

KINDS: Mapping[str, str] = {
    "autoloader": "bench.peers.autoloader:Loader",
    "plain_tfdata": "bench.peers.tfdata:PlainTfData",
    "divided_tfdata": "bench.peers.tfdata:Divided",
    "sqrt_tfdata": "bench.peers.tfdata:Sqrt",
    "octo_style": "bench.peers.tfdata:OctoStyle",
    "torch_workers": "bench.peers.torch_workers:TorchWorkers",
    "grain": "bench.peers.grain_records:GrainRecords",
    "map_dataset": "bench.peers.map_dataset:MapDataset",
    "decode_alone": "bench.peers.limits:DecodeAlone",
    "copy_alone": "bench.peers.limits:CopyAlone",
    "read_alone": "bench.peers.limits:ReadAlone",
}
"""What a scenario may name as ``kind``, and the class behind it."""

LIMITS: Mapping[str, str] = {"decode_alone": "decode", "copy_alone": "copy", "read_alone": "disk"}
"""Kinds that are no loaders but what no loader could exceed, and their short names."""

NEEDS: Mapping[str, tuple[str, ...]] = {
    "grain": ("grain", "array_record"),
    "map_dataset": ("datasets",),
}
"""Packages that only this kind needs."""

ENVIRONMENT = Path(__file__).parents[2] / ".venv-peers"


class Contender(Protocol):
    """What a class of this package offers; ``prepare(spec)`` too, where data must be converted."""

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
    return pkgutil.resolve_name(KINDS[kind])  # type: ignore[no-any-return]


def settled(kind: str, known: Mapping[str, int], settings: Mapping[str, int]) -> dict[str, int]:
    """Every setting of ``kind``, with its default where a scenario does not say.

    Raises:
        ValueError: a setting that ``kind`` does not have.
    """
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ValueError(f"{kind} has no setting {unknown[0]!r}; it has {', '.join(known)}")
    return {**known, **settings}


def interpreter(kind: str) -> str | None:
    """The Python that has what ``kind`` needs, or ``None``."""
    names = NEEDS.get(kind, ())
    if all(importlib.util.find_spec(name) for name in names):
        return sys.executable
    own = ENVIRONMENT / "bin/python"
    places = list(ENVIRONMENT.glob("lib/python*/site-packages"))
    if own.exists() and all(
        any((place / name).is_dir() for place in places) or importlib.util.find_spec(name)
        for name in names
    ):
        return str(own)
    return None


def missing(kind: str) -> str | None:
    """Why ``kind`` cannot run here, in a line, or ``None``."""
    if interpreter(kind) is not None:
        return None
    names = " and ".join(name for name in NEEDS[kind] if not importlib.util.find_spec(name))
    return f"{kind} is not measured: it needs {names}; `make peers` installs it"


def prepare(kind: str, spec: Path) -> None:
    """Converts the mixture into the files that ``kind`` reads, where it reads files of its own.

    Raises:
        subprocess.CalledProcessError: the conversion failed; what it said is on stderr.
    """
    python = interpreter(kind)
    if kind in NEEDS and python is not None:
        command = [python, "-m", "bench.peers", kind, str(spec)]
        subprocess.run(command, check=True, env=environment())
