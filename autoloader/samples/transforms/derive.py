"""The spec's own pass over an episode before samples are drawn: its steps, derived columns.

Theory of operation. ``steps`` and ops that see a whole episode (``FieldOp.whole``) run in one pass
over each episode, behind the user's function where there is one:

1. ``drop_first`` steps are taken away, and of the rest every ``every``-th is taken;
2. the ops run over what is left, and each term with such an op becomes a feature of its own;
3. ``keep.moving`` bars steps from being t;
4. ``drop_last`` steps are taken away.

So ops look at an episode as far as it goes, whatever windows, strides and rules take of it later.
Tensors that are stored compressed are unpacked by the same pass.

Not here: the ops' arithmetic (``episode_ops``), user functions and who calls the pass
(``transform``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SpecError
from autoloader.formats import Feature
from autoloader.formats.features import JOINED, RAGGED
from autoloader.samples.draws import Floats
from autoloader.samples.transforms import episode_ops
from autoloader.samples.transforms.fields import (
    PACKED,
    FieldName,
    find_feature,
    is_several,
    numeric_field,
)
from autoloader.samples.transforms.rlds import Transformed, nothing
from autoloader.spec import DatasetSpec, FieldExpression, FieldTerm, MovingSpec, StepsSpec

ARITHMETIC = 1
"""Raised where what the pass gives changes, so that indexes of another one are not taken."""
_PREFIX = "autoloader"
_AS_IT_IS = StepsSpec().model_dump()


@dataclass(frozen=True, slots=True)
class DerivedColumns:
    """A term that is worked out for whole episodes: a feature of its own, and how it is made.

    Attributes:
        feature: the derived feature of the steps.
        term: term that computes it.
        source: the feature that it reads.
        field: path of its field in the spec.
    """

    feature: Feature
    term: FieldTerm
    source: Feature
    field: str

    @property
    def has_domain(self) -> bool:
        """True if one of its ops refuses some values."""
        return any(op.name in _DOMAINS for op in self.term.ops)

    def values(self, rows: Floats) -> Floats:
        """[T, width] of an episode's source [T, source width]."""
        found = rows[:, self.term.slice()]
        for op in self.term.ops:
            found = episode_ops.apply_op(op, found)
        return found


@dataclass(frozen=True, slots=True)
class Derivation:
    """The pass over each episode of one dataset; immutable.

    Attributes:
        steps: which of them there are.
        columns: terms that become features.
        moving: the rule that bars steps, with the feature that it reads, or ``None``.
        ragged: texts of which every step has its own number, to be stored as one a step.
    """

    steps: StepsSpec
    columns: tuple[DerivedColumns, ...]
    moving: tuple[MovingSpec, FieldTerm, Feature] | None = None
    ragged: tuple[Feature, ...] = ()

    def __str__(self) -> str:
        """Describe the pass for people."""
        said = [f"{key} {value}" for key, value in self.steps if value != _AS_IT_IS[key]]
        names: list[str] = [op.name for one in self.columns for op in one.term.ops if op.whole]
        if any(one.source.encoding in PACKED for one in self.columns):
            names.append("unpacked tensors")
        if self.ragged:
            names.append("lists of texts")
        if self.moving is not None:
            names.append("keep.moving")
        return ", ".join([*said, *dict.fromkeys(names)])

    @property
    def plain(self) -> dict[str, Any]:
        """All that decides what it gives, as plain values."""
        rows = [[one.feature.key, one.term.plain(), _plain(one.source)] for one in self.columns]
        moving = None
        if self.moving is not None:
            moving = [self.moving[0].model_dump(mode="json"), _plain(self.moving[2])]
        steps = self.steps.model_dump(mode="json")
        plain = {"arithmetic": ARITHMETIC, "steps": steps, "columns": rows, "moving": moving}
        return {**plain, "ragged": [one.key for one in self.ragged]} if self.ragged else plain

    def features(self, given: Mapping[str, Feature]) -> dict[str, Feature]:
        """The features of the episodes that it makes of those with ``given`` ones."""
        texts = {one.path: replace(one, encoding=JOINED, shape=(None,)) for one in self.ragged}
        return {**given, **texts, **{one.feature.path: one.feature for one in self.columns}}

    def sources(self, only: Collection[str] | None) -> set[str] | None:
        """Keys that it reads to give the keys ``only``."""
        if only is None:
            return None
        own = {one.feature.key: one.source.key for one in self.columns}
        moving = set() if self.moving is None else {self.moving[2].key}
        return {own.get(key, key) for key in only} | moving

    @property
    def has_domain(self) -> bool:
        """True if an op refuses some values."""
        return any(one.has_domain for one in self.columns)

    def left_of(self, frames: int) -> int:
        """Steps that it leaves of so many."""
        strided = -(-max(0, frames - self.steps.drop_first) // self.steps.every)
        return max(0, strided - self.steps.drop_last)

    def apply(
        self, found: Transformed, given: Mapping[str, Feature], only: Collection[str] | None
    ) -> Transformed:
        """The episode as it leaves it.

        Args:
            found: the episode, with the keys of ``sources``.
            given: its features, by path.
            only: keys that are wanted; default: all.
        """
        left = self.left_of(found.steps)
        if not left:
            return nothing(self.features(given), only)
        before = slice(self.steps.drop_first, None, self.steps.every)
        after = slice(0, left)
        by_key = {feature.key: feature for feature in given.values()}
        values: dict[str, Any] = {}
        for key, value in found.values.items():
            if only is not None and key not in only:
                continue
            values[key] = value
            if by_key[key].per_step:
                values[key] = _taken(value, by_key[key], before, after)
        for column in self.columns:
            if only is None or column.feature.key in only:
                rows = _rows(found.values[column.source.key], column.source)[before]
                values[column.feature.key] = column.values(rows)[after].reshape(-1)
        valid = found.valid[before][after]
        if self.moving is not None:
            spec, term, feature = self.moving
            rows = _rows(found.values[feature.key], feature)[before][after][:, term.slice()]
            valid = valid & (np.abs(rows) > np.asarray(spec.above, np.float32)).any(axis=1)
        return Transformed(left, values, valid)


def plan_derivation(
    declared: DatasetSpec, given: Mapping[str, Feature], *, where: str
) -> tuple[Derivation | None, dict[FieldName, FieldExpression]]:
    """(the pass that a dataset needs, if any; its numeric fields over the features that it gives).

    Args:
        declared: the dataset as the spec declares it.
        given: its features, or those that its function gives.
        where: its path in the spec.

    Raises:
        SpecError: a field cannot be had of these features.
    """
    columns: list[DerivedColumns] = []
    fields: dict[FieldName, FieldExpression] = {}
    declared_fields: tuple[tuple[FieldName, FieldExpression | None], ...] = (
        ("action", declared.action),
        ("state", declared.state),
    )
    for name, expression in declared_fields:
        if expression is None:
            continue
        field, terms = f"{where}.{name}", []
        bound = numeric_field(expression, given, field=field)
        for number, (term, width) in enumerate(zip(bound.terms, bound.widths, strict=True)):
            source = None
            if term.path is not None:
                source = find_feature(given, term.path, field=field)
            if source is None or not (term.whole or source.encoding in PACKED):
                terms.append(term)
                continue
            key = f"{_PREFIX}/{name}/{number}"
            feature = Feature(key, key, "tensor", "float32", (width,), None, per_step=True)
            columns.append(DerivedColumns(feature, term, source, field))
            terms.append(FieldTerm(key))
        fields[name] = FieldExpression(tuple(terms))
    moving = _moving(declared, given, where)
    words = declared.language.paths if declared.language is not None else ()
    found = (given[path] for path in words if path in given)
    ragged = tuple(one for one in found if is_several(one) and one.encoding == RAGGED)
    if not columns and not ragged and declared.steps.takes_all and moving is None:
        return None, fields
    return Derivation(declared.steps, tuple(columns), moving, ragged), fields


def _moving(
    declared: DatasetSpec, given: Mapping[str, Feature], where: str
) -> tuple[MovingSpec, FieldTerm, Feature] | None:
    spec = declared.keep.moving if declared.keep is not None else None
    if spec is None:
        return None
    field, (term,) = f"{where}.keep.moving", spec.path.terms
    bound = numeric_field(spec.path, given, field=f"{field}.path")
    if isinstance(spec.above, tuple) and len(spec.above) != bound.width:
        raise SpecError(
            f"{field}.above: {len(spec.above)} bounds for the {bound.width} columns of "
            f"{term.text()!r}",
            remedy=f"give one number, or {bound.width}",
        )
    feature = find_feature(given, term.path or "", field=field)
    return spec, term, feature


def check_domain(derivation: Derivation, found: Transformed, place: str) -> None:
    """Hold an episode against what its gripper ops take.

    Args:
        derivation: the pass of the values' dataset.
        found: the episode before the pass.
        place: where it lies, for the message.

    Raises:
        SpecError: a value lies outside an op's domain.
    """
    taken = slice(derivation.steps.drop_first, None, derivation.steps.every)
    for column in derivation.columns:
        if not column.has_domain:
            continue
        rows = _rows(found.values[column.source.key], column.source)[taken, column.term.slice()]
        for op in column.term.ops if len(rows) else ():
            low, high, meant, other = _DOMAINS.get(op.name, (-math.inf, math.inf, "", ""))
            outside = rows[(rows < low) | (rows > high)]
            if len(outside):
                raise SpecError(
                    f"{column.field}: {op.name} of {column.term.text()!r}: {place} has the value "
                    f"{float(outside[0]):g}, and {op.name} takes {meant}",
                    remedy=other,
                )
            rows = episode_ops.apply_op(op, rows)


_DOMAINS = {
    "binarise": (
        -0.1,
        1.5,
        "an absolute gripper: 0 closed to 1 open",
        "use rel2abs for a relative gripper (+1 closes, -1 opens, 0 holds), or bring it to 0…1 "
        "first: {clip: [0, 1]}",
    ),
    "rel2abs": (
        -1.5,
        1.5,
        "a relative one: +1 closes, -1 opens, 0 holds",
        "use binarise for an absolute gripper, or {scale: factor} before it",
    ),
}


def _rows(value: NDArray[Any], feature: Feature) -> Floats:
    """[T, width] float32 of a numeric feature's flat values."""
    width = math.prod(size or 1 for size in feature.shape)
    return value.reshape(-1, width).astype(np.float32, copy=False)


def _taken(value: Any, feature: Feature, before: slice, after: slice) -> Any:
    """Steps of a feature that the slices take, flat as it was."""
    one_a_step = feature.kind == "image" or feature.encoding == RAGGED
    width = 1 if one_a_step else math.prod(size or 1 for size in feature.shape)
    if isinstance(value, list):
        rows = [value[at : at + width] for at in range(0, len(value), width)][before][after]
        return [one for row in rows for one in row]
    return value.reshape(-1, width)[before][after].reshape(-1)


def _plain(feature: Feature) -> list[Any]:
    return [feature.key, feature.dtype, list(feature.shape), feature.encoding]
