"""Binds what rewrites the episodes of a dataset: its function, and the spec's own pass behind it.

Theory of operation. Binding is a planning step: a function that cannot be found, or does not give
an episode, and an op that does not take the values, are refused before a process starts.

Not here: trying it (``trial``, imported where there is something to try), what a transform does to
every episode (``transform``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from autoloader.catalog import Feature, ShardSlice, VersionDirectory
from autoloader.spec import DatasetSpec, FieldExpression, TransformSpec
from autoloader.transforms import user_function
from autoloader.transforms.derive import plan_derivation
from autoloader.transforms.fields import FieldName
from autoloader.transforms.transform import Transform


class BoundEpisodes(NamedTuple):
    """The episodes of a dataset as samples are drawn from them.

    Attributes:
        transform: what rewrites each of them, or ``None``.
        features: that they have then, by path.
        fields: "action" and "state" over these features, where the dataset has them.
    """

    transform: Transform | None
    features: Mapping[str, Feature]
    fields: Mapping[FieldName, FieldExpression]


def bind_episodes(
    declared: DatasetSpec,
    directory: VersionDirectory,
    slices: Sequence[ShardSlice],
    *,
    where: str,
) -> BoundEpisodes:
    """What the transform, steps and ops of a dataset make of its episodes.

    Args:
        declared: the dataset.
        directory: what lies on disk.
        slices: records of the split.
        where: its path in the spec.

    Raises:
        SpecError: the function cannot be found, fails on an episode, or gives none; a field cannot
            be had of these features; an episode lies outside of what an op takes.
        SourceError: no record can be read, or the function drops every one of the first.
    """
    function, stored, dataset = declared.transform, directory.features, declared.name
    transform = None
    if function is not None:
        transform = _tried(function, stored, slices, where=where, dataset=dataset)
    given = stored if transform is None else transform.features
    derivation, fields = plan_derivation(declared, given, where=where)
    if derivation is None:
        return BoundEpisodes(transform, given, fields)
    before = transform or Transform(None, "", stored, stored)
    said = json.dumps(derivation.plain, sort_keys=True)
    identity = hashlib.sha256(f"{before.identity}\0{said}".encode()).hexdigest()
    derived = replace(before, identity=identity, derivation=derivation)
    if derivation.has_domain:
        from autoloader.transforms.trial import check_values  # most datasets have no such op

        check_values(derived, derivation, slices, dataset=dataset)
    return BoundEpisodes(derived, derived.features, fields)


def _tried(
    function: TransformSpec,
    stored: Mapping[str, Feature],
    slices: Sequence[ShardSlice],
    *,
    where: str,
    dataset: str,
) -> Transform:
    from autoloader.transforms.trial import try_function  # most datasets have no function

    identity = user_function.function_identity(function, where=where)
    trial = try_function(function, identity, stored, slices, where=where, dataset=dataset)
    return Transform(function, identity, stored, *trial)
