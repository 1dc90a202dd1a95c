"""Compares two specs value by value, over the same steps of the same episodes.

Theory of operation. Both specs get one more split that names the same few episodes of each dataset
that both have, and are read through once, each by a loader of its own; statistics stay those of
their ``train``. Samples are matched by episode and step. Draws (of a goal, of one of several
features) hang on seed and names, so the second spec takes those of the first.

Not here: values against plain TFDS (``cli.comparison``).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoloader.catalog import ShardSlice, VersionDirectory
from autoloader.cli.output import Advance

SPLIT = "compared"
TOLERANCE = 1e-6
"""Absolute, and relative to the value: numbers that differ by no more are equal."""
_BATCH = 16
_NUMBERS = ("action", "action_mask", "state", "state_mask", "frame_offset")

Key = tuple[int, int, int]
"""Place of a dataset in both specs, episode of the metadata's split, step."""


@dataclass
class FieldDifference:
    """How one part of the samples differs.

    Attributes:
        samples: in how many it differs.
        largest: greatest absolute difference of two numbers (of pictures: grey levels); ``None``
            where none can be told, as of texts or of other shapes.
        columns: of numbers, the columns that differ.
        first: where it differs first, with both values.
    """

    samples: int = 0
    largest: float | None = None
    columns: list[int] = field(default_factory=list)
    first: str = ""


@dataclass
class DatasetComparison:
    """One dataset that both specs have.

    Attributes:
        other_name: what the second spec calls it.
        samples: steps that both give.
        only_here, only_there: steps that one alone gives, as (episode, t).
        equal: parts that are the same in all samples.
        differing: part → how.
    """

    other_name: str
    samples: int = 0
    only_here: list[tuple[int, int]] = field(default_factory=list)
    only_there: list[tuple[int, int]] = field(default_factory=list)
    equal: list[str] = field(default_factory=list)
    differing: dict[str, FieldDifference] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.differing or self.only_here or self.only_there)


@dataclass
class SpecComparison:
    """What was found.

    Attributes:
        datasets: by the name in the first spec.
        only_here, only_there: datasets that one spec alone has.
    """

    datasets: dict[str, DatasetComparison] = field(default_factory=dict)
    only_here: list[str] = field(default_factory=list)
    only_there: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.only_here or self.only_there) and all(
            one.same for one in self.datasets.values()
        )


def compare_specs(
    here: Any, there: Any, *, split: str, samples: int, ram_floor: str | None, advance: Advance
) -> SpecComparison:
    """Compare two specs.

    Args:
        here: a ``PipelineSpec``, the first.
        there: the second.
        split: of both; episodes are taken from what both mean by it.
        samples: about how many steps to compare, shared over all datasets.
        ram_floor: as for ``AutoLoader``.
        advance: told of samples read.

    Raises:
        UsageError: they have no dataset, or of one no episode, in common.
    """
    from autoloader.errors import UsageError
    from autoloader.samples.resolve import resolve

    first, second = resolve(here, split), resolve(there, split)
    by_path = {dataset.directory.path: dataset for dataset in second.datasets}
    pairs = [
        (dataset, by_path[dataset.directory.path])
        for dataset in first.datasets
        if dataset.directory.path in by_path
    ]
    taken = {one.name for _, one in pairs}
    found = SpecComparison(
        only_here=[one.name for one in first.datasets if one.directory.path not in by_path],
        only_there=[one.name for one in second.datasets if one.name not in taken],
    )
    if not pairs:
        raise UsageError(
            "the two specs have no version directory in common",
            remedy="compare specs of the same data; name the same versions in both",
        )
    wanted = math.ceil(samples / len(pairs))
    splits = [_common_episodes(one, other, wanted) for one, other in pairs]
    names = [one.name for one, _ in pairs]
    found.datasets = {one.name: DatasetComparison(other.name) for one, other in pairs}
    total = 2 * samples
    ours = _read(
        _limited(here, names, names, splits, here.seed), ram_floor, _Steps(first, names), advance,
        (0, total),
    )  # fmt: skip
    theirs_names = [other.name for _, other in pairs]
    theirs = _read(
        _limited(there, theirs_names, names, splits, here.seed), ram_floor,
        _Steps(second, theirs_names), advance, (len(ours), total),
    )  # fmt: skip
    for key in sorted(set(ours) | set(theirs)):
        told = found.datasets[names[key[0]]]
        if key not in theirs:
            told.only_here.append(key[1:])
        elif key not in ours:
            told.only_there.append(key[1:])
        else:
            told.samples += 1
            _compare(ours[key], theirs[key], told, f"episode {key[1]}, t {key[2]}")
    return found


def _common_episodes(one: Any, other: Any, samples: int) -> str:
    """A split expression of the first episodes that both take, for about so many samples."""
    from autoloader.catalog.lengths import mean_frames
    from autoloader.errors import UsageError

    numbers = _numbers(one.slices, one.directory)
    both = sorted(set(numbers) & set(_numbers(other.slices, other.directory)))
    if not both:
        raise UsageError(
            f"dataset {one.name!r}: the two specs have no episode of the split in common",
            remedy="give both the same split, or name one that both have with --split",
        )
    frames = mean_frames(one.slices, one.directory.features, dataset=one.name) / one.stride
    chosen = both[: max(1, math.ceil(samples / max(1.0, frames)))]
    return "+".join(f"{split}[{number}:{number + 1}]" for split, number in chosen)


def _numbers(
    slices: Sequence[ShardSlice], directory: VersionDirectory
) -> Iterator[tuple[str, int]]:
    """(split of the metadata, number of the episode in it) of every episode of some slices."""
    for piece in slices:
        before = sum(shard.records for shard in directory.splits[piece.split][: piece.index])
        for record in range(piece.start, piece.stop):
            yield piece.split, before + record


def _limited(
    spec: Any, chosen: Sequence[str], names: Sequence[str], splits: Sequence[str], seed: int
) -> Any:
    """``spec`` with the chosen datasets alone, under ``names``, read through once."""
    datasets = tuple(
        spec.dataset(own).model_copy(
            update={
                "name": name,
                "weight": 1.0,
                "split": {**spec.dataset(own).split, SPLIT: split},
                "sample": spec.dataset(own).sample.model_copy(update={"per_episode": "all"}),
                "num_samples": None,
            }
        )
        for own, name, split in zip(chosen, names, splits, strict=True)
    )
    return spec.model_copy(
        update={
            "datasets": datasets,
            "seed": seed,
            "weights": "explicit",
            "metadata": "full",
            "augment": {},
            "batch": spec.batch.model_copy(update={"size": _BATCH, "drop_last": False}),
            "mixing": spec.mixing.model_copy(
                update={
                    "epoch": "pass",
                    "block_length": 1,
                    "chain": False,
                    "locality": None,
                    "on_stall": "wait",
                }
            ),
        }
    )


class _Steps:
    """Where samples of a limited spec lie: episodes by the metadata, steps as stored."""

    def __init__(self, mixture: Any, names: Sequence[str]) -> None:
        declared = [mixture.spec.dataset(name) for name in names]
        self._every = [one.stride * one.steps.every for one in declared]
        self._first = [one.steps.drop_first for one in declared]

    def key(self, provenance: Sequence[int], pieces: Sequence[Sequence[ShardSlice]],
            directories: Sequence[VersionDirectory]) -> Key:  # fmt: skip
        """The key of one sample."""
        index, _, shard, record, t = provenance
        piece = pieces[index][shard]
        before = sum(one.records for one in directories[index].splits[piece.split][: piece.index])
        return index, before + record, self._first[index] + t * self._every[index]


def _read(
    spec: Any, ram_floor: str | None, steps: _Steps, advance: Advance, progress: tuple[int, int]
) -> dict[Key, dict[str, Any]]:
    """Every sample of split ``SPLIT``, once, by its key; arrays of their own."""
    from autoloader.loader import AutoLoader

    found: dict[Key, dict[str, Any]] = {}
    with AutoLoader(
        spec, split=SPLIT, ram_floor=ram_floor, output="numpy", rank=0, world_size=1
    ) as loader:
        datasets = loader.plan.mixture.datasets
        pieces = [one.slices for one in datasets]
        directories = [one.directory for one in datasets]
        for batch in loader:
            arrays: Mapping[str, Any] = batch
            for k, provenance in enumerate(batch["provenance"].tolist()):
                row: dict[str, Any] = {name: arrays[name][k].copy() for name in _NUMBERS}
                for camera, frames in batch["images"].items():
                    row[f"images/{camera}"] = frames[k].copy()
                    row[f"frame_mask/{camera}"] = batch["frame_mask"][camera][k].copy()
                row["language"] = batch["language"][k]
                for name, values in batch.get("features", {}).items():
                    row[f"features/{name}"] = copy.copy(values[k])
                    row[f"feature_mask/{name}"] = batch["feature_mask"][name][k].copy()
                found[steps.key(provenance, pieces, directories)] = row
            done, total = progress
            advance(min(done + len(found), total), total)
    return found


def _compare(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], told: DatasetComparison, where: str
) -> None:
    for part in dict.fromkeys([*ours, *theirs]):
        if part in ours and part in theirs:
            difference = _difference(ours[part], theirs[part])
        else:
            difference = (None, [], f"only {'here' if part in ours else 'there'}")
        if difference is None:
            if part not in told.differing and part not in told.equal:
                told.equal.append(part)
            continue
        if part in told.equal:
            told.equal.remove(part)
        largest, columns, values = difference
        entry = told.differing.setdefault(part, FieldDifference(first=f"{where}: {values}"))
        entry.samples += 1
        entry.columns = sorted({*entry.columns, *columns})
        if largest is not None:
            entry.largest = max(entry.largest or 0.0, largest)


def _difference(a: Any, b: Any) -> tuple[float | None, list[int], str] | None:
    """(largest difference, columns that differ, both values in words), or ``None``."""
    if isinstance(a, (str, list)):
        return None if a == b else (None, [], f"{a!r} here, {b!r} there")
    if a.shape != b.shape:
        return None, [], f"shape {list(a.shape)} here, {list(b.shape)} there"
    if a.dtype == np.uint8:
        off = np.abs(a.astype(np.int16) - b.astype(np.int16))
        levels = float(off.max(initial=0))
        mean = float(off.mean()) if off.size else 0.0
        return (levels, [], f"{mean:.2f} grey levels in the mean") if levels else None
    left, right = a.astype(np.float64), b.astype(np.float64)
    same = np.isclose(left, right, TOLERANCE, TOLERANCE, equal_nan=True)
    if same.all():
        return None
    columns = np.unique(np.nonzero(~same)[-1]).tolist() if a.ndim > 1 else []
    at = tuple(int(axis[0]) for axis in np.nonzero(~same))
    off = np.abs(left - right)[~same]
    largest = float(off.max()) if np.isfinite(off).all() else None
    return largest, columns, f"{left[at]:g} here, {right[at]:g} there at {list(at)}"
