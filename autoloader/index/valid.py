"""The samples of indexed episodes: which t are valid, what left out the others, and their plan.

Windows, a transform and the rules of ``keep`` decide which t are valid. An episode that a transform
drops has no step in the index, and a column (``VALID_KEY``) says which steps the transform allows.
The index does not hold the rules but the texts that they look at, so that changing a rule builds no
index anew.

Not here: running the transform (``index.records``, ``samples.transforms.transform``), what one rule
leaves (``samples.transforms.keep``), the arithmetic of the plan (``sampling.plan``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SourceError
from autoloader.formats import Feature
from autoloader.index.dataset import DatasetIndex
from autoloader.index.shard import VERSION
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture
from autoloader.samples.schema import held_role
from autoloader.samples.transforms import keep
from autoloader.samples.transforms.fields import is_text
from autoloader.samples.weights import drawn_by
from autoloader.samples.windows import valid_ranges
from autoloader.sampling.episodes import DatasetTable
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec.sample import EdgesSpec, matcher


def valid_t(index: DatasetIndex) -> keep.Ranges | None:
    """The valid t of each episode, or ``None`` where windows alone decide."""
    left = None if index.dataset.transform is None else _allowed_by_function(index)
    return left if index.dataset.keep is None else _left_by_rules(index, left)[0]


def remaining_episodes(index: DatasetIndex) -> NDArray[np.bool_]:
    """[E] of which episodes the transform and the rules leave a step, whatever windows need."""
    wholes = replace(index.dataset, sample=index.dataset.sample.having(edges=EdgesSpec()))
    left = valid_t(index.of(wholes))
    return np.asarray(index.steps > 0 if left is None else left.counts() > 0)


def count_indexed(index: DatasetIndex) -> keep.DatasetCount:
    """Counts of the episodes and samples of an index."""
    dataset, strided = index.dataset, index.strided
    every = keep.samples_per_episode(dataset.sample, strided)
    dropped, left, lost = 0, every, []
    allowed = None
    if dataset.transform is not None:
        allowed = _allowed_by_function(index)
        drops, bars = dataset.transform.rules
        dropped = int((index.steps == 0).sum())
        if dropped:
            lost.append(keep.RuleLoss(drops, dropped, 0))
    if allowed is not None:
        left = keep.samples_per_episode(dataset.sample, strided, allowed)
        whole = int(((every > 0) & (left == 0)).sum())
        lost.append(keep.RuleLoss(bars, whole, int((every - left).sum())))
    if dataset.keep is not None:
        allowed, by_rule = _left_by_rules(index, allowed)
        left = keep.samples_per_episode(dataset.sample, strided, allowed)
        lost += by_rule
    drawn = _drawn(index, allowed)
    return keep.DatasetCount(
        episodes=index.episodes,
        frames=int(index.steps.sum(dtype=np.int64)),
        samples=int(left.sum()) if drawn is None else len(drawn),
        size=int(keep.valid_per_episode(dataset.sample, strided, allowed).sum()),
        short_episodes=int((every == 0).sum()) - dropped,
        damaged=index.damage_reasons(),
        estimated=False,
        lost=tuple(lost),
        blanks=blanks(index),
        bad_episodes=index.bad_episodes,
        notes=index.notes,
        files=(f"{VERSION}-{index.schema.fingerprint.hex()[:8]}", index.digest()),
    )


def blanks(index: DatasetIndex) -> tuple[tuple[str, str], ...]:
    """(clause, remedy) of each text and camera that all episodes of an indexed dataset lack.

    Image–text records often lack some, and their texts are not in the index.
    """
    dataset = index.dataset
    if dataset.directory.still:
        return ()
    speaks = {one: matcher(r"\S") for one in dataset.held.values() if is_text(one)}
    speaks |= {one: dataset.words.speaks(one.path) for one in dataset.language}
    silent = [one.path for one, says in speaks.items() if not _speaks(index, one, says)]
    every = f"all {index.episodes} episodes"
    remedy = "name another feature as language, or leave the text out if that is meant"
    texts = [(f"{path} is empty in {every}: its samples have no such text", remedy)
             for path in silent]  # fmt: skip
    absent = [
        (
            f"camera {camera} is absent in {every} ({flag.path} is 0): its frames are zeros",
            'take out "present", or choose another camera',
        )
        for camera, flag in dataset.present.items()
        if not any(part.any() for part in index.values(held_role(flag), flag.path))
    ]
    return (*texts, *absent)


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _speaks(index: DatasetIndex, feature: Feature, says: Callable[[str], bool]) -> bool:
    """True if a text of an indexed dataset says anything in any of its episodes."""
    for _, ids, text_of in index.text_ids(feature.path):
        if len(ids) and says(_decoded(text_of(int(ids[0])))):
            return True  # mostly so, and the others need not be sorted
        if any(says(_decoded(text_of(one))) for one in np.unique(ids).tolist()):
            return True
    return False


def _allowed_by_function(index: DatasetIndex) -> keep.Ranges | None:
    """The valid t of each episode, or ``None`` where the transform bars no step."""
    valid = index.valid_steps()
    if valid.all():
        return None
    steps = index.steps.astype(np.int64)
    first = np.cumsum(steps) - steps
    edges = np.zeros(len(valid) + 1, dtype=np.bool_)
    edges[first] = True  # runs end with their episode
    edges[-1] = True
    before = np.concatenate([[False], valid[:-1]])
    begins = np.flatnonzero(valid & (edges[:-1] | ~before))
    after = np.concatenate([valid[1:], [False]])
    ends = np.flatnonzero(valid & (edges[1:] | ~after)) + 1
    episode = np.searchsorted(first, begins, side="right") - 1
    allowed = keep.Ranges.of(len(steps), episode, begins - first[episode], ends - first[episode])
    windows = keep.Ranges.spans(*valid_ranges(index.dataset.sample, index.strided))
    return windows.both(allowed.strided(index.dataset.stride))


def _left_by_rules(
    index: DatasetIndex, allowed: keep.Ranges | None
) -> tuple[keep.Ranges, tuple[keep.RuleLoss, ...]]:
    """(ranges of steps that ``keep`` leaves, the losses by each rule)."""
    dataset = index.dataset
    assert dataset.keep is not None
    texts = {one.key: _texts_of(index, one) for one in dataset.keep.features}
    sets = dataset.keep.sets_of(index.episodes, texts)
    if allowed is None:
        allowed = keep.Ranges.spans(*valid_ranges(dataset.sample, index.strided))
    return keep.left_by_rules(allowed, sets, dataset.stride)


def _texts_of(index: DatasetIndex, feature: Feature) -> keep.TextRuns:
    """An indexed text of every episode."""
    known: dict[bytes, int] = {}
    parts = [np.empty((0, 4), dtype=np.int64)]
    for mine, ids, text_of in index.text_ids(feature.path):
        steps = index.steps[mine].astype(np.int64)
        if feature.per_step:
            episode = np.repeat(np.arange(mine.start, mine.stop), steps)
            step = np.arange(len(ids)) - np.repeat(np.cumsum(steps) - steps, steps)
            begins = np.ones(len(ids), dtype=np.bool_)
            begins[1:] = (ids[1:] != ids[:-1]) | (step[1:] == 0)
            at = np.flatnonzero(begins)
            length = np.diff(at, append=len(ids))
            part = np.stack([episode[at], step[at], step[at] + length, ids[at]], axis=1)
        else:
            whole = np.full(len(ids), keep.ALL_STEPS)
            part = np.stack([np.arange(mine.start, mine.stop), 0 * whole, whole, ids], axis=1)
        different, which = np.unique(part[:, 3], return_inverse=True)
        new = [known.setdefault(text_of(one), len(known)) for one in different.tolist()]
        part[:, 3] = np.asarray(new, dtype=np.int64)[which]
        parts.append(part)
    return keep.TextRuns(np.concatenate(parts), tuple(known))


def _drawn(index: DatasetIndex, kept: keep.Ranges | None) -> NDArray[np.int32] | None:
    """[N] which valid t each sample of a pass is, by weights; ``None``: each once.

    Raises:
        SourceError: all weights are 0.
    """
    dataset, weights = index.dataset, index.dataset.weights
    if weights is None or not dataset.drawn_by_weight:
        return None
    first, stop = valid_ranges(dataset.sample, index.strided)
    ranges = keep.Ranges.spans(first, stop) if kept is None else kept
    counts = ranges.counts()
    episode = np.repeat(np.arange(index.episodes), counts)
    place = np.arange(len(episode)) - np.repeat(np.cumsum(counts) - counts, counts)
    steps = ranges.nth(episode, place) * dataset.stride
    of = weights.at(index.slice_of[episode], index.record_of[episode], steps)
    found = drawn_by(of)
    if len(of) and not len(found):
        raise SourceError(
            f"dataset {dataset.name!r}: sample_weight is 0 for each of its {len(of)} samples",
            remedy="give at least one sample a weight above 0, or remove the dataset",
        )
    return found


def table_of(dataset: ResolvedDataset, index: DatasetIndex) -> DatasetTable:
    """Episode table of a dataset, for the plan."""
    kept = valid_t(index)
    return DatasetTable(
        key=dataset.key,
        sample=dataset.sample,
        stride=dataset.stride,
        steps=index.steps,
        slice_of=index.slice_of,
        record_of=index.record_of,
        kept=kept,
        drawn=_drawn(index.of(dataset), kept),
    )


def tables_of(
    mixture: ResolvedMixture, order: MixtureOrder, indexes: Sequence[DatasetIndex]
) -> list[DatasetTable]:
    """The table of every dataset.

    Raises:
        SourceError: the tables are not of the files that ``order`` was made of.
    """
    tables = [table_of(d, index) for d, index in zip(mixture.datasets, indexes, strict=True)]
    if order.pass_samples is not None:
        for dataset, table, counted in zip(
            mixture.datasets, tables, order.pass_samples, strict=True
        ):
            if counted:  # one of weight 0 has no pass
                check_count(dataset, table.samples, counted)
    return tables


def check_count(dataset: ResolvedDataset, samples: int, counted: int) -> None:
    """Refuse to go on with a pass of another length than the run was begun with.

    Args:
        dataset: dataset that the pass is of.
        samples: that its files give now.
        counted: that they gave when the run was planned.

    Raises:
        SourceError: the files were changed in between.
    """
    if samples != counted:
        raise SourceError(
            f"dataset {dataset.name!r}: its files have {samples} samples now, and had {counted} "
            "when this run was planned",
            remedy="put the files back as they were, or start the run again",
        )
