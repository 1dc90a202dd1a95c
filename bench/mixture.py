"""Reads a ``mix.yaml`` for the peers: which files, features, weights, without the library.

Only what the bench's own mixtures use: TFDS version directories, splits such as ``train``,
``train[:95%]`` and ``train[:-1]``, one camera, fields with slices, ``clip`` and ``invert``.

Not here: reading the files (``bench.records``, ``bench.peers``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML


@dataclass(frozen=True, slots=True)
class Term:
    """One piece of an action or a state: feature, columns of it, and what is done to them.

    Attributes:
        feature: key in the Example, such as ``steps/action``.
        start, stop: columns taken, Python's slice.
        ops: ``("clip", low, high)`` or ``("invert",)``.
    """

    feature: str
    start: int | None
    stop: int | None
    ops: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class MixedDataset:
    """One dataset of a mixture, as a peer needs it.

    Attributes:
        name: its name.
        weight: relative.
        files: TFRecord shards with how many of their records belong to the split.
        image: the camera's feature.
        action, state: pieces that are concatenated.
        language: features of which one is drawn per episode; empty where there is none.
    """

    name: str
    weight: float
    files: tuple[tuple[str, int], ...]
    image: str
    action: tuple[Term, ...]
    state: tuple[Term, ...]
    language: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture file.

    Attributes:
        datasets: in order.
        frame_offsets: relative to t.
        size: height and width of a frame in the batch.
        batch: samples.
        seed: of what is drawn.
    """

    datasets: tuple[MixedDataset, ...]
    frame_offsets: tuple[int, ...]
    size: tuple[int, int]
    batch: int
    seed: int


def read_mixture(path: Path) -> Mixture:
    """The mixture that ``path`` declares, its train split."""
    raw = YAML(typ="safe").load(path)
    default = raw.get("defaults", {}).get("split", "train")
    datasets = tuple(_dataset(one, default, path.parent) for one in raw["datasets"])
    (camera,) = raw["cameras"].values()
    height, width = camera["size"]
    offsets = tuple(raw["sample"]["frame_offsets"])
    return Mixture(datasets, offsets, (height, width), raw["batch"]["size"], raw.get("seed", 0))


def _dataset(raw: Mapping[str, Any], default: Any, root: Path) -> MixedDataset:
    split = raw.get("split", default)
    train = split if isinstance(split, str) else split["train"]
    language = raw.get("language", ())
    if isinstance(language, Mapping):
        language = language["any_of"]
    elif isinstance(language, str):
        language = (language,)
    return MixedDataset(
        name=raw["name"],
        weight=float(raw["weight"]),
        files=_files(root / raw["path"], train),
        image=_key(raw["images"]["primary"]),
        action=_terms(raw["action"]),
        state=_terms(raw.get("state", [])),
        language=tuple(_key(name) for name in language),
    )


def _key(feature: str) -> str:
    return feature if feature.startswith("episode_metadata/") else f"steps/{feature}"


def _terms(raw: Any) -> tuple[Term, ...]:
    return tuple(_term(one) for one in (raw if isinstance(raw, list) else [raw]))


def _term(raw: Any) -> Term:
    ops: list[tuple[Any, ...]] = []
    if isinstance(raw, Mapping):
        ops += [
            ("clip", *op["clip"]) if isinstance(op, Mapping) else (op,) for op in raw.get("ops", ())
        ]
        raw = raw["path"]
    found = re.fullmatch(r"([^\[]+)(?:\[(-?\d*):(-?\d*)\])?", raw)
    if found is None:
        raise ValueError(f"{raw!r} is no field that the peers can read")
    feature, start, stop = found.groups()
    first, end = (int(edge) if edge else None for edge in (start, stop))
    return Term(_key(feature), first, end, tuple(ops))


def _files(directory: Path, split: str) -> tuple[tuple[str, int], ...]:
    found = re.fullmatch(r"(\w+)(?:\[:(-?\d+)(%?)\])?", split)
    if found is None:
        raise ValueError(f"{split!r} is no split that the peers can read")
    name, end, percent = found.groups()
    info = json.loads((directory / "dataset_info.json").read_text())
    (entry,) = [one for one in info["splits"] if one["name"] == name]
    lengths = [int(length) for length in entry["shardLengths"]]
    paths = sorted(directory.glob(f"*-{name}.tfrecord*"))
    return _taken([str(path) for path in paths], lengths, end, bool(percent))


def _taken(
    paths: Sequence[str], lengths: Sequence[int], end: str | None, percent: bool
) -> tuple[tuple[str, int], ...]:
    total = sum(lengths)
    left = total
    if end is not None:
        left = round(total * int(end) / 100) if percent else range(total)[: int(end)].stop
    taken = []
    for path, length in zip(paths, lengths, strict=True):
        if left > 0:
            taken.append((path, min(length, left)))
        left -= length
    return tuple(taken)
