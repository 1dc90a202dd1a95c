"""Weights of single samples, from a Parquet or npz file: given with the batch, or drawn by.

A row of the file names an episode and a step. Episodes have LeRobot's own numbers. Those of TFDS
count in their split, in the order of its files; those of other formats over all files. LeRobot's
files may have the number of a frame over all episodes instead (``index``). A sample without a row
weighs 1, as in LeRobot.

Columns that begin with ``progress_`` are those of LeRobot's RA-BC files. They hold progress, and
the weight of a step follows from the progress over the horizon of actions.

Drawn samples: of a pass every sample comes as often as the largest remainders say. A pass has as
many samples as have a weight above zero, so weights of 0 and 1 choose samples.

Not here: where a sample lies (``index``), which sample a position is (``sampling.plan``).
"""

from __future__ import annotations

import hashlib
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SourceError, SpecError, nearest
from autoloader.formats import DatasetFormat, ShardSlice
from autoloader.formats.files import opened_regular
from autoloader.host.extras import needs
from autoloader.samples.draws import Ints
from autoloader.spec.sample import SampleWeightSpec

EPISODES, STEPS, FRAMES = ("episode_index", "episode"), ("frame_index", "step"), ("index",)
"""Names of columns: number of the episode, step in it, number over all episodes."""
PROGRESS = "progress_"
KAPPA = 0.01
"""Progress above which RA-BC gives the whole weight."""
_SMALL = 1e-6
_STEP_BITS = 32


@dataclass(frozen=True, slots=True, eq=False)
class SampleWeights:
    """The weights of a dataset's samples.

    Attributes:
        use: "batch", given with each sample, or "draw", samples are drawn by them.
        digest: hash of all weights.
        keys: [K] int64 episode and step of each row, ascending.
        values: [K] float32 weights.
        episodes: by slice of the split, the number of each of its file's records.
    """

    use: str
    digest: str
    keys: Ints
    values: NDArray[np.float32]
    episodes: Sequence[Ints]

    def at(self, slices: NDArray[Any], records: NDArray[Any], steps: Ints) -> NDArray[np.float32]:
        """[n] the weight of each step, before the stride, of a record of a slice."""
        episode = np.empty(len(records), np.int64)
        for number in np.unique(slices).tolist():
            own = slices == number
            episode[own] = self.episodes[number][records[own]]
        key = episode << _STEP_BITS | steps
        at = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return np.where(self.keys[at] == key, self.values[at], np.float32(1))


def read_weights(
    how: SampleWeightSpec,
    directory: DatasetFormat,
    slices: Sequence[ShardSlice],
    horizon: int,
    *,
    where: str,
) -> SampleWeights:
    """The weights in a file.

    Args:
        how: the dataset's ``sample_weight``.
        directory: the dataset on disk.
        slices: records of the split.
        horizon: steps over which progress is counted.
        where: path of the dataset in the spec.

    Raises:
        SpecError: the file cannot be read, or has no such column.
        SourceError: a weight is negative or no number, or a step has two; says which row.
        MissingExtraError: pyarrow, which reads Parquet, is not installed.
    """
    field = f"{where}.sample_weight"
    try:
        stat = os.stat(how.file)  # noqa: PTH116
        columns = _columns(how.file, stat.st_size, stat.st_mtime_ns)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        told = getattr(error, "strerror", None) or str(error)[:200]
        raise SpecError(
            f"{field}.file: {how.file} cannot be read: {told}",
            remedy="give the path of a Parquet or npz file, relative to the spec's folder",
        ) from error
    if how.key not in columns:
        raise SpecError(
            f"{field}.key: {how.file} has no column {how.key!r}", remedy=nearest(how.key, columns)
        )
    episode, step = _places(columns, directory, f"{field}.file: {how.file}")
    values = np.array(columns[how.key], np.float64)  # a copy: the columns are kept
    if how.key.startswith(PROGRESS):
        order = np.argsort(episode << _STEP_BITS | step, kind="stable")
        values[order] = rabc(values[order], episode[order], step[order], horizon)
    fit = (values >= 0) & (values <= np.finfo(np.float32).max)  # neither is true of NaN
    wrong = ~fit | (episode < 0) | (step < 0)
    keys = episode << _STEP_BITS | np.where(wrong, 0, step)
    order = np.argsort(keys, kind="stable")
    twice = np.zeros_like(wrong)
    twice[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    if len(rows := np.flatnonzero(wrong | twice)):
        row = int(rows[0])
        fault = f"{how.key} is {values[row]:g}" if wrong[row] else "the step has a weight already"
        raise SourceError(
            f"dataset {directory.dataset}: {how.file}, row {row} (episode {episode[row]}, step "
            f"{step[row]}): {fault}",
            remedy="write one weight for each step, from 0 to 3.4e38 (float32)",
        )
    weights = values[order].astype(np.float32)
    digest = hashlib.blake2b(keys[order].tobytes() + weights.tobytes(), digest_size=8)
    numbers = tuple(directory.numbers_of(piece) for piece in slices)
    return SampleWeights(how.use, digest.hexdigest(), keys[order], weights, numbers)


@lru_cache(maxsize=4)
def _columns(path: str, size: int, mtime_ns: int) -> Mapping[str, NDArray[Any]]:
    """The columns of numbers of a file; read once as long as the file stays as it is."""
    if path.endswith(".npz"):
        with opened_regular(path) as source, np.load(source, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    else:
        with needs("a file of weights", extra="lerobot"):
            from pyarrow import parquet, types

            from autoloader.formats.lerobot.parquet import values_of  # brings the reader of LeRobot
        with opened_regular(path) as source, parquet.ParquetFile(source) as file:
            names = [
                one.name
                for one in file.schema_arrow
                if types.is_integer(one.type) or types.is_floating(one.type)
            ]
            table = file.read(names)
        found = {name: values_of(table.column(name)) for name in names}
    numbers = {k: v for k, v in found.items() if v.ndim == 1 and v.dtype.kind in "fiu" and len(v)}
    if len({len(one) for one in numbers.values()}) != 1:
        raise ValueError("its columns of numbers are missing, or differ in length")
    return numbers


def _places(
    columns: Mapping[str, NDArray[Any]], directory: DatasetFormat, where: str
) -> tuple[Ints, Ints]:
    """(episode, step) of each row. Raises SpecError."""
    episode, step, frame = (
        next((columns[name].astype(np.int64) for name in names if name in columns), None)
        for names in (EPISODES, STEPS, FRAMES)
    )
    if episode is not None and step is not None:
        return episode, step
    if frame is not None and directory.numbered and directory.steps:
        every = [(ShardSlice(p, 0, 0, len(n), ""), n) for p, n in directory.steps.items()]
        numbers = np.concatenate([directory.numbers_of(piece) for piece, _ in every])
        lengths = np.concatenate([steps for _, steps in every])[np.argsort(numbers)]
        numbers, ends = np.sort(numbers), np.cumsum(lengths)
        of = np.minimum(np.searchsorted(ends, frame, side="right"), len(numbers) - 1)
        if (frame < ends[-1]).all() and (episode is None or np.array_equal(numbers[of], episode)):
            return numbers[of], frame - (ends - lengths)[of]
    raise SpecError(
        f"{where} does not say which step each row is for",
        remedy="write columns episode and step, from 0 (or episode_index and frame_index; for "
        "LeRobot data, index is enough)",
    )


def rabc(
    progress: NDArray[np.float64], episode: Ints, step: Ints, horizon: int
) -> NDArray[np.float32]:
    """LeRobot's weights by progress, before a batch is scaled to its size.

    Args:
        progress: [K] progress of each step, NaN where there is none, by episode and step.
        episode: [K] episode of each.
        step: [K] step of each.
        horizon: steps over which progress counts; it ends at the episode's last step.
    """
    keys = episode << _STEP_BITS | step
    last = step[np.searchsorted(episode, episode, side="right") - 1]
    later = episode << _STEP_BITS | np.minimum(step + horizon, last)
    at = np.searchsorted(keys, later)
    at = np.minimum(at, len(keys) - 1)
    change = np.where(keys[at] == later, progress[at], np.nan) - progress
    told = change[~np.isnan(change)]
    middle = math.fsum(told) / max(1, len(told))
    mean = max(middle, 0.0)
    spread = max(math.sqrt(math.fsum((told - middle) ** 2) / max(1, len(told))), _SMALL)
    delta = change.astype(np.float32)
    soft = np.clip((delta - (mean - 2 * spread)) / (4 * spread + _SMALL), 0, 1)
    found = np.where(delta > KAPPA, np.float32(1), np.where(delta >= 0, soft, np.float32(0)))
    return np.where(np.isnan(delta), np.float32(1), found)


def drawn_by(weights: NDArray[np.float32]) -> NDArray[np.int32]:
    """[N] which sample each of a pass's samples is, ascending; N have a weight above zero.

    Every sample's share of the pass is rounded down, and the largest remainders get one more; of
    equal ones the first.
    """
    exact = weights.astype(np.float64)
    wanted = int(np.count_nonzero(exact))
    if not wanted:
        return np.empty(0, np.int32)
    share = exact * (wanted / math.fsum(exact))  # the same on every processor
    counts = np.floor(share).astype(np.int64)
    left = max(0, wanted - int(counts.sum()))
    counts[np.argsort(np.where(exact > 0, counts - share, 1), kind="stable")[:left]] += 1
    return np.repeat(np.arange(len(counts), dtype=np.int32), counts)
