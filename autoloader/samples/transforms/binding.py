"""Binds what rewrites the episodes of a dataset: its function, and the spec's own pass behind it.

Binding is a planning step: a function that cannot be found, or does not give an episode, and an op
that does not take the values, are refused before a process starts.

A function is called on the first episode that it does not drop, of at most
``MOST_TRIAL_EPISODES``. Its result decides the features that the spec's fields are held against.
The ops of the spec's own pass are held against the first ``MOST_CHECKED_EPISODES``. Each is tried
once, and again when the file, the function or what the spec says of it changes. A process that does
not call such functions itself takes the trial run that another one saved in the user's cache
directory.

Not here: what a transform does to every episode (``transform``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from autoloader.errors import SourceError, SpecError
from autoloader.formats import DatasetFormat, Feature, ShardSlice
from autoloader.formats.cache import FileFindings, JsonCache
from autoloader.formats.records import MalformedRecordError
from autoloader.samples.transforms import user_function
from autoloader.samples.transforms.derive import Derivation, check_domain, plan_derivation
from autoloader.samples.transforms.fields import FieldName
from autoloader.samples.transforms.rlds import (
    FunctionResultError,
    describe,
    leaves_of,
    read_episode,
    read_result,
    steps_of,
)
from autoloader.samples.transforms.transform import Transform, answer, types_of
from autoloader.samples.transforms.user_function import Caller, FunctionFailedError
from autoloader.spec import DatasetSpec, FieldExpression, TransformSpec

MOST_TRIAL_EPISODES = 16
"""Episodes that a trial run may see dropped before it gives up."""
MOST_CHECKED_EPISODES = 4
"""Episodes that are held against what ops along the episode take."""


class TrialRun(NamedTuple):
    """Result of a transform for the one episode that it was tried on.

    Attributes:
        features: of the result, by path.
        cost_s: seconds that the function took.
        kept_ratio: share of the episode's steps that it left.
    """

    features: Mapping[str, Feature]
    cost_s: float
    kept_ratio: float

    @property
    def plain(self) -> dict[str, Any]:
        """As a cache holds it."""
        return {**self._asdict(), "features": [asdict(one) for one in self.features.values()]}

    @classmethod
    def from_plain(cls, found: Any) -> TrialRun:
        """Read what ``plain`` gave; ValueError, TypeError or KeyError of anything else."""
        features = [Feature(**{**one, "shape": tuple(one["shape"])}) for one in found["features"]]
        described = {one.path: one for one in features}
        return cls(described, float(found["cost_s"]), float(found["kept_ratio"]))


_cache = JsonCache("transforms", version=2)
_trials = FileFindings(_cache, lambda trial: trial.plain, TrialRun.from_plain)
checks: FileFindings[int] = FileFindings(
    _cache, lambda count: {"checked": count}, lambda document: int(document["checked"])
)
"""How many episodes were held against what ops take."""


def try_function(
    spec: TransformSpec,
    identity: str,
    directory: DatasetFormat,
    slices: Sequence[ShardSlice],
    *,
    where: str,
) -> TrialRun:
    """Try a function on the first episode that it does not drop.

    Args:
        spec: what the user says.
        identity: hash of all that decides what the function gives.
        directory: dataset on disk.
        slices: records of the split.
        where: path of the dataset in the spec.

    Raises:
        SpecError: the function cannot be found, fails on the episode, or gives none.
        SourceError: no record can be read, or it drops every one of the first.
    """
    sources = directory.features
    pictures = tuple(sorted(one.path for one in sources.values() if one.kind == "image"))
    return _trials.of(
        slices[0].path,
        (identity, slices[0], pictures, types_of(sources)),
        lambda: _try_function(spec, directory, slices, where=where),
        dataset=directory.dataset,
        shared=spec.framework not in user_function.CALLERS,
    )


def check_values(
    transform: Transform,
    derivation: Derivation,
    directory: DatasetFormat,
    slices: Sequence[ShardSlice],
) -> None:
    """Hold the first episodes of a split against what the ops of a pass take.

    Args:
        transform: of the dataset, with the pass behind it.
        derivation: ops of the pass, bound.
        directory: dataset on disk.
        slices: records of the split.

    Raises:
        SpecError: an episode lies outside of it.
        SourceError: no record can be read.
    """
    checks.of(
        slices[0].path,
        ("derived", transform.identity, transform.given_types, slices[0]),
        lambda: _check_first_episodes(transform, derivation, directory.records(slices)),
        dataset=directory.dataset,
    )


def _try_function(
    spec: TransformSpec, directory: DatasetFormat, slices: Sequence[ShardSlice], *, where: str
) -> TrialRun:
    field_, sources = f"{where}.transform", directory.features
    reason, count = "its files hold no whole record", 0
    for place, payload in directory.records(slices):
        if count == MOST_TRIAL_EPISODES:
            break
        count += 1
        caller = user_function.CALLERS.get(spec.framework)
        try:
            found = (
                describe_here(spec, caller, sources, payload)
                if caller is not None
                else answer("describe", spec, sources, payload)
            )
        except MalformedRecordError as error:
            reason = f"{place}: {error}"
            continue
        except (FunctionFailedError, FunctionResultError) as error:
            raise SpecError(
                f"{field_}: tried on {place}: {error}",
                remedy="mend the function; it is given " + ", ".join(sorted(sources)),
                path=field_,
            ) from error
        if found is not None:
            return TrialRun(*found)
        reason = f"{spec.call} drops every one of the first {count} episodes"
    raise SourceError(
        f"dataset {directory.dataset!r}: its transform cannot be tried: {reason}",
        remedy="let the function return some episode of the split, or take the dataset out",
        dataset=directory.dataset,
    )


def describe_here(
    spec: TransformSpec, caller: Caller, sources: Mapping[str, Feature], payload: Any
) -> TrialRun | None:
    """Features that the function gives for a record, called in this process; ``None``: dropped.

    Raises:
        MalformedRecordError, FunctionFailedError, FunctionResultError: it failed.
    """
    episode, steps, spans = read_episode(payload, sources)
    if not steps:
        return None
    began = time.perf_counter()
    result = user_function.call_here(spec, caller, episode, steps)
    cost_s = time.perf_counter() - began
    if result is None:
        return None
    leaves = leaves_of(result)
    kept = steps_of(leaves)
    if not kept:
        return None
    features = describe(leaves, sources)
    read_result(result, features, spans)
    return TrialRun(features, cost_s, kept / steps)


def _check_first_episodes(
    transform: Transform, derivation: Derivation, records: Iterable[tuple[str, bytes]]
) -> int:
    """Check the first episodes, and return how many were looked at."""
    keys = {one.source.key for one in derivation.columns if one.has_domain}
    count = 0
    for place, payload in records:
        if count == MOST_CHECKED_EPISODES:
            break
        count += 1
        with contextlib.suppress(MalformedRecordError):  # quarantined when it is read
            found, _ = transform.before_pass(payload, None, keys)
            if found.steps:
                check_domain(derivation, found, place)
    return count


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
    directory: DatasetFormat,
    slices: Sequence[ShardSlice],
    *,
    where: str,
) -> BoundEpisodes:
    """Bind the transform, steps and ops of a dataset: the episodes that come of them.

    Args:
        declared: the dataset as the spec declares it.
        directory: what lies on disk.
        slices: records of the split.
        where: its path in the spec.

    Raises:
        SpecError: the function cannot be found, fails on an episode, or gives none; a field cannot
            be had of these features; an episode lies outside of what an op takes.
        SourceError: no record can be read, or the function drops every one of the first.
    """
    function, stored = declared.transform, directory.features
    transform = None
    if function is not None:
        identity = user_function.function_identity(function, where=where)
        trial = try_function(function, identity, directory, slices, where=where)
        transform = Transform(function, identity, stored, *trial)
    given = stored if transform is None else transform.features
    derivation, fields = plan_derivation(declared, given, where=where)
    if derivation is None:
        return BoundEpisodes(transform, given, fields)
    before = transform or Transform(None, "", stored, stored)
    said = json.dumps(derivation.plain, sort_keys=True)
    identity = hashlib.sha256(f"{before.identity}\0{said}".encode()).hexdigest()
    derived = replace(before, identity=identity, derivation=derivation)
    if derivation.has_domain:
        check_values(derived, derivation, directory, slices)
    return BoundEpisodes(derived, derived.features, fields)
