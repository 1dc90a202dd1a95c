"""What a spec makes of a dataset's first episodes: numbers op by op, and steps that rules remove.

Reads records as they lie, and does to them what a loader does, one op at a time.

Not here: samples (a loader gives them), drawing (``cli.contact_sheet``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.catalog import Feature
from autoloader.catalog.tfrecord import MalformedRecordError
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.windows import valid_range
from autoloader.spec import DatasetSpec, FieldExpression, FieldTerm
from autoloader.transforms.episode_ops import apply_op
from autoloader.transforms.fields import find_feature
from autoloader.transforms.keep import runs_of_episode
from autoloader.transforms.ranges import Ranges
from autoloader.transforms.rlds import Transformed, read_values
from autoloader.transforms.trial import records

STORED = "stored"
"""The stage before any op."""
_GRIPPER_WORDS = ("gripper", "grasp", "open", "close")
_GRIPPER_OPS = ("rel2abs", "binarise")
_ARM_WIDTH = 7


@dataclass
class TermLook:
    """One term of a field.

    Attributes:
        text: as the spec writes it.
        stages: (what was done, values [n, width]), as stored first; an op may change the width.
        is_gripper: whether its name or its ops say so.
    """

    text: str
    stages: list[tuple[str, NDArray[np.float32]]]
    is_gripper: bool

    @property
    def width(self) -> int:
        """Columns behind all ops."""
        return int(self.stages[-1][1].shape[1])


@dataclass
class FilteredEpisode:
    """What rules leave of one episode.

    Attributes:
        number: which of those that were looked at.
        steps: as they lie in the file, or as the transform leaves them.
        removed: rule → steps that it removes; a step stands under the first that does.
    """

    number: int
    steps: int
    removed: dict[str, list[int]]


@dataclass
class DatasetLook:
    """The first episodes of one dataset.

    Attributes:
        fields: "action" and "state" → their terms.
        episodes: what rules leave of each.
    """

    fields: dict[str, list[TermLook]] = field(default_factory=dict)
    episodes: list[FilteredEpisode] = field(default_factory=list)

    def removed(self) -> dict[str, int]:
        """Rule → how many steps it removes of the episodes that were looked at."""
        found: dict[str, int] = {}
        for episode in self.episodes:
            for rule, steps in episode.removed.items():
                found[rule] = found.get(rule, 0) + len(steps)
        return found


def gripper_columns(terms: Sequence[TermLook], masked: Sequence[bool] | None) -> set[int]:
    """Columns of an action that are a gripper's, as far as names, ops and masks tell.

    Args:
        terms: of the action.
        masked: of each column whether it is normalised; ``None`` where nothing is.
    """
    found, at = set(), 0
    width = sum(term.width for term in terms)
    for term in terms:
        columns = range(at, at + term.width)
        found |= set(columns) if term.is_gripper and term.width <= 2 else set()
        at += term.width
    if masked is not None and any(masked):
        found |= {column for column, normalised in enumerate(masked) if not normalised}
    return found or ({width - 1} if width >= _ARM_WIDTH else set())


def look_at(dataset: ResolvedDataset, declared: DatasetSpec, episodes: int) -> DatasetLook:
    """The first ``episodes`` episodes of a dataset that are whole and not dropped.

    Raises:
        SourceError: a file cannot be read.
    """
    given: Mapping[str, Feature] = dataset.directory.features
    if dataset.transform is not None:
        given = dataset.transform.given
    expressions = {"action": declared.action, "state": declared.state}
    parts: dict[str, list[list[list[NDArray[np.float32]]]]] = {}
    look = DatasetLook()
    for _, payload in records(dataset.slices):
        if len(look.episodes) == episodes:
            break
        try:
            found = _episode(dataset, payload, given, expressions)
            filtered = _filtered(dataset, declared, payload, found.steps, len(look.episodes))
        except MalformedRecordError:
            continue
        look.episodes.append(filtered)
        for name, expression in expressions.items():
            if expression is not None and found.steps:
                stages = [_stages(term, found, given, declared) for term in expression.terms]
                parts.setdefault(name, []).append(stages)
    for name, of_episodes in parts.items():
        expression = expressions[name]
        assert expression is not None
        look.fields[name] = [
            TermLook(
                _text(term),
                [
                    (label, np.concatenate([one[number][stage] for one in of_episodes]))
                    for stage, label in enumerate([STORED, *(_named(op) for op in term.ops)])
                ],
                _is_gripper(term),
            )
            for number, term in enumerate(expression.terms)
        ]
    return look


def _episode(
    dataset: ResolvedDataset,
    payload: bytes,
    given: Mapping[str, Feature],
    expressions: Mapping[str, FieldExpression | None],
) -> Transformed:
    """The episode as the user's function leaves it, before the spec's own pass."""
    paths = {path for one in expressions.values() if one is not None for path in one.paths()}
    keys = {find_feature(given, path, field="", dataset=dataset.name).key for path in paths}
    keys = keys or {_any_key(given)}
    if dataset.transform is None:
        return read_values(payload, given, keys)[0]
    return dataset.transform.before_pass(payload, None, keys)[0]


def _stages(
    term: FieldTerm, found: Transformed, given: Mapping[str, Feature], declared: DatasetSpec
) -> list[NDArray[np.float32]]:
    """[T', width] of a term as stored, then behind each of its ops."""
    said = declared.steps
    taken = slice(said.drop_first, None, said.every)
    steps = len(range(found.steps)[taken])
    left = slice(0, max(0, steps - said.drop_last))
    if term.path is None:
        return [np.full((steps, term.constants), term.value, np.float32)[left]]
    feature = find_feature(given, term.path, field="", dataset=declared.name)
    values = np.asarray(found.values[feature.key], np.float32).reshape(found.steps, -1)
    stages = [values[taken, term.slice()]]
    for op in term.ops:
        stages.append(apply_op(op, stages[-1]) if steps else stages[-1])
    return [one[left] for one in stages]


def _filtered(
    dataset: ResolvedDataset, declared: DatasetSpec, payload: bytes, steps: int, number: int
) -> FilteredEpisode:
    said, stride = declared.steps, dataset.stride
    place = np.arange(steps)
    why = np.full(steps, "", object)

    def remove(rule: str, gone: NDArray[np.bool_]) -> None:
        why[gone & (why == "")] = rule

    taken = place[said.drop_first :: said.every]
    left = taken[: max(0, len(taken) - said.drop_last)]
    remove("steps.drop_first", place < said.drop_first)
    remove("steps.drop_last", np.isin(place, taken[len(left) :]))
    remove("steps.every", ~np.isin(place, left))
    keys = [] if dataset.keep is None else [one.key for one in dataset.keep.features]
    if dataset.transform is not None:
        asked = set(keys) or {_any_key(dataset.transform.given)}
        found = dataset.transform.apply(payload, only=asked)[0]
        remove(dataset.transform.rules[1], _at(left, ~found.valid, steps))
    elif keys:
        found = read_values(payload, dataset.directory.features, set(keys))[0]
    if dataset.keep is not None:
        texts = {one.key: runs_of_episode(found.values[one.key], one)
                 for one in dataset.keep.features}  # fmt: skip
        whole = Ranges.spans(np.zeros(1, np.int64), np.full(1, len(left), np.int64))
        for rule, ranges in dataset.keep.sets_of(1, texts):
            kept = np.zeros(len(left), np.bool_)
            kept[ranges.both(whole).numbers(0)] = True
            remove(rule, _at(left, ~kept, steps))
    remove("stride", np.isin(place, np.delete(left, np.s_[::stride])))
    strided = left[::stride]
    first, stop = valid_range(dataset.sample, len(strided))
    remove("sample.edges", np.isin(place, np.delete(strided, np.s_[first:stop])))
    rules = dict.fromkeys(rule for rule in why.tolist() if rule)
    return FilteredEpisode(
        number, steps, {rule: np.flatnonzero(why == rule).tolist() for rule in rules}
    )


def _any_key(features: Mapping[str, Feature]) -> str:
    """The key of a feature that tells how many steps there are."""
    steps = [one for one in features.values() if one.per_step and one.kind != "other"]
    return min(steps, key=lambda one: one.kind != "tensor").key


def _at(left: NDArray[np.int64], which: NDArray[np.bool_], steps: int) -> NDArray[np.bool_]:
    """[T] where ``which`` of the steps ``left`` lie in the episode."""
    found = np.zeros(steps, np.bool_)
    found[left[which[: len(left)]]] = True
    return found


def _is_gripper(term: FieldTerm) -> bool:
    words = (term.path or "").lower()
    named = any(word in words for word in _GRIPPER_WORDS)
    return named or any(op.name in _GRIPPER_OPS for op in term.ops)


def _text(term: FieldTerm) -> str:
    if term.path is None:
        return f"{'ones' if term.value else 'zeros'}: {term.constants}"
    return term.text()


def _named(op: Any) -> str:
    plain = op.plain()
    if isinstance(plain, str):
        return plain
    ((name, value),) = plain.items()
    return f"{name} {value}"
