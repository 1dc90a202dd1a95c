"""A dataset's transform, bound: which features it gives, and a record as it leaves it.

A transform is the user's function, or the spec's own pass over an episode (``derive``), or both:
the function comes first.

Theory of operation. Binding makes a trial run: the function is called on the first episode that it
does not drop, of at most ``MOST_TRIAL_EPISODES``. Its result decides the features that the spec's
fields are held against. It is a planning step: a function that cannot be found, or does not give an
episode, is refused before a process starts. A process that does not call such functions itself
takes the trial run that another one saved in the user's cache directory. Later, a record on which
the function fails is quarantined like a damaged one.

Both readers ask for the same thing: the record's values after the function, by feature, and which
frames its pictures are. The index keeps numbers, texts and byte ranges of frames; the stream reader
has the record written anew (``rewritten``), so that what parses it knows nothing of transforms.
Which steps may be t goes along as a feature of its own (``VALID_KEY``).

Not here: calling the function (``user_function``), what an episode is (``rlds``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from autoloader.catalog import Feature, ShardSlice, files
from autoloader.catalog.cache import JsonCache
from autoloader.catalog.example import write_example
from autoloader.catalog.tfrecord import (
    HEADER_BYTES,
    MalformedRecordError,
    read_record,
    walk_records,
)
from autoloader.errors import SourceError, SpecError
from autoloader.spec import TransformSpec
from autoloader.transforms import user_function
from autoloader.transforms.derive import Derivation, check_domain
from autoloader.transforms.keep import Keep
from autoloader.transforms.rlds import (
    FunctionResultError,
    Spans,
    Transformed,
    describe,
    leaves_of,
    nothing,
    read_episode,
    read_result,
    read_values,
    spans_of,
    steps_of,
)
from autoloader.transforms.user_function import Caller, FunctionFailedError

VALID_KEY = "autoloader/valid"
MOST_TRIAL_EPISODES = 16
"""Episodes that a trial run may see dropped before it gives up."""
MOST_CHECKED_EPISODES = 4
"""Episodes that are held against what ops along the episode take."""
_checked_domains: set[tuple[object, ...]] = set()
_trials: dict[tuple[object, ...], TrialRun] = {}
_binding = threading.Lock()
_cache = JsonCache("transforms", version=2)


class TrialRun(NamedTuple):
    """What a transform gave for the one episode that it was tried on.

    Attributes:
        features: of the result, by path.
        cost_s: seconds that the function took.
        kept_ratio: share of the episode's steps that it left.
    """

    features: Mapping[str, Feature]
    cost_s: float
    kept_ratio: float


@dataclass(frozen=True)
class Transform:
    """One dataset's transform; thread-safe.

    Attributes:
        spec: the user's function, or ``None``.
        identity: hash of all that decides its results.
        sources: the dataset's own features, by path.
        given: those that the function gives, by path; without one, the sources.
        cost_s: what the function took for the episode it was tried on.
        kept_ratio: steps that it left of that episode.
        derivation: the pass that follows, or ``None``.
    """

    spec: TransformSpec | None
    identity: str
    sources: Mapping[str, Feature] = field(repr=False)
    given: Mapping[str, Feature] = field(repr=False)
    cost_s: float = 0.0
    kept_ratio: float = 1.0
    derivation: Derivation | None = None

    @cached_property
    def features(self) -> Mapping[str, Feature]:
        """Those of the transformed episodes, by path."""
        return self.given if self.derivation is None else self.derivation.features(self.given)

    @property
    def framework(self) -> str:
        """Which the function is written for; "numpy" where there is none."""
        return "numpy" if self.spec is None else self.spec.framework

    @property
    def rules(self) -> tuple[str, str]:
        """What drops episodes, and what bars steps, by their paths in the dataset's spec."""
        if self.spec is not None:
            return "transform", "transform.valid"
        return "steps", "keep.moving"

    def frames_left(self, frames: int) -> int:
        """About how many steps it leaves of an episode of so many; at least one."""
        left = round(frames * self.kept_ratio)
        return max(1, left if self.derivation is None else self.derivation.left_of(left))

    def apply(
        self, payload: Any, *, stop: int | None = None, only: Collection[str] | None = None
    ) -> tuple[Transformed, Spans]:
        """A record's values after the function, and where its frames lie in ``payload``.

        Args:
            payload: the record, from its first byte on.
            stop: its bytes; default: all.
            only: keys of the features that are wanted.

        Raises:
            MalformedRecordError: the record is damaged, or the function fails on it.
        """
        pass_ = self.derivation
        if pass_ is None:
            return self.before_pass(payload, stop, only)
        found, spans = self.before_pass(payload, stop, pass_.sources(only))
        return pass_.apply(found, self.given, only), spans

    def before_pass(
        self, payload: Any, stop: int | None, only: Collection[str] | None
    ) -> tuple[Transformed, Spans]:
        """A record's values as the function gives them; arguments as of ``apply``.

        Raises:
            MalformedRecordError: as of ``apply``.
        """
        if self.spec is None:
            return read_values(payload, self.sources, only, stop=stop)
        caller = user_function.CALLERS.get(self.spec.framework)
        try:
            if caller is not None:
                return apply_here(self.spec, caller, self.sources, self.given, payload, stop, only)
            record = bytes(memoryview(payload)[:stop])
            return _answer("apply", self.spec, self.sources, self.given, record, None, only)  # type: ignore[no-any-return]
        except (FunctionFailedError, FunctionResultError) as error:
            raise MalformedRecordError(f"transform: {error}") from error

    def rewritten(
        self, payload: bytes, keys: Collection[str], keep: Keep | None = None
    ) -> tuple[bytes, bool]:
        """(the record as the function leaves it, whether it is dropped).

        It holds these keys of the transformed features, and ``VALID_KEY``: which steps may be t, by
        the function and by the rules of ``keep``.

        Raises:
            MalformedRecordError: as ``apply``, or a text that the rules look at is missing.
        """
        asked = {feature.key for feature in keep.features} if keep is not None else set()
        found, spans = self.apply(payload, only={*keys, *asked})
        pictures = {feature.key for feature in self.features.values() if feature.kind == "image"}
        values = {
            key: [payload[a:b] for a, b in spans_of(value, spans).tolist()]
            if key in pictures
            else value
            for key, value in found.values.items()
            if key in keys
        }
        valid = found.valid
        if keep is not None and found.steps:
            valid = valid & keep.allows(found.steps, found.values)
        return write_example({**values, VALID_KEY: valid.astype(np.int64)}), not found.steps

    def dropped(self, keys: Collection[str]) -> bytes:
        """A record without a step."""
        pictures = {feature.key for feature in self.features.values() if feature.kind == "image"}
        empty = nothing(self.features, keys).values
        values = {key: [] if key in pictures else value for key, value in empty.items()}
        return write_example({**values, VALID_KEY: np.empty(0, np.int64)})


def bind_transform(
    spec: TransformSpec,
    sources: Mapping[str, Feature],
    slices: Sequence[ShardSlice],
    *,
    where: str,
    dataset: str,
) -> Transform:
    """The transform of a dataset, tried on one episode.

    Args:
        spec: what the user says.
        sources: the dataset's features.
        slices: records of the split.
        where: path of the dataset in the spec.
        dataset: its name.

    Raises:
        SpecError: the function cannot be found, fails on the episode, or gives none.
        SourceError: no record can be read, or it drops every one of the first.
    """
    identity = user_function.function_identity(spec, where=where)
    try:
        key = (identity, slices[0], *files.version_of(slices[0].path))
        with _binding:
            if key not in _trials:
                elsewhere = spec.framework not in user_function.CALLERS
                trial = _saved_trial(key) if elsewhere else None
                if trial is None:
                    trial = _try(spec, sources, slices, where=where, dataset=dataset)
                    described = [asdict(one) for one in trial.features.values()]
                    _cache.save(key, {**trial._asdict(), "features": described})
                _trials[key] = trial
            return Transform(spec, identity, sources, *_trials[key])
    except OSError as error:
        path = error.filename or slices[0].path
        raise files.unreadable(error, path, dataset=dataset) from error


def with_derivation(
    transform: Transform | None,
    derivation: Derivation,
    sources: Mapping[str, Feature],
    slices: Sequence[ShardSlice],
    *,
    dataset: str,
) -> Transform:
    """A dataset's transform with the spec's own pass behind it, tried on one episode.

    Args:
        transform: of the user's function, or ``None``.
        derivation: the pass.
        sources: the dataset's features.
        slices: records of the split.
        dataset: its name.

    Raises:
        SpecError: the episode lies outside of what an op takes.
        SourceError: no file can be read.
    """
    own = json.dumps(derivation.plain, sort_keys=True)
    before = "" if transform is None else transform.identity
    identity = hashlib.sha256(f"{before}\0{own}".encode()).hexdigest()
    if transform is None:
        transform = Transform(None, identity, sources, sources)
    found = replace(transform, identity=identity, derivation=derivation)
    try:
        key = ("derived", identity, slices[0], *files.version_of(slices[0].path))
        with _binding:
            if derivation.has_domain and key not in _checked_domains:
                if _cache.load(key) is None:  # once for a host: its other processes need not look
                    _check_domain(found, derivation, slices)
                    _cache.save(key, {"checked": MOST_CHECKED_EPISODES})
                _checked_domains.add(key)
    except OSError as error:
        path = error.filename or slices[0].path
        raise files.unreadable(error, path, dataset=dataset) from error
    return found


def _check_domain(
    transform: Transform, derivation: Derivation, slices: Sequence[ShardSlice]
) -> None:
    keys = {one.source.key for one in derivation.columns if one.has_domain}
    for count, (place, payload) in enumerate(records(slices)):
        if count == MOST_CHECKED_EPISODES:
            return
        with contextlib.suppress(MalformedRecordError):  # quarantined when it is read
            found, _ = transform.before_pass(payload, None, keys)
            if found.steps:
                check_domain(derivation, found, place)


def _saved_trial(key: tuple[object, ...]) -> TrialRun | None:
    """The trial run that another process saved, so that this one starts no framework for it."""
    try:
        found = _cache.load(key)
        features = [Feature(**{**one, "shape": tuple(one["shape"])}) for one in found["features"]]
        described = {one.path: one for one in features}
        return TrialRun(described, float(found["cost_s"]), float(found["kept_ratio"]))
    except (ValueError, TypeError, KeyError):
        return None


def _try(
    spec: TransformSpec,
    sources: Mapping[str, Feature],
    slices: Sequence[ShardSlice],
    *,
    where: str,
    dataset: str,
) -> TrialRun:
    """What it gives for the first episode that it does not drop."""
    field_ = f"{where}.transform"
    reason, count = "its files hold no whole record", 0
    for place, payload in records(slices):
        if count == MOST_TRIAL_EPISODES:
            break
        count += 1
        caller = user_function.CALLERS.get(spec.framework)
        try:
            found = (
                describe_here(spec, caller, sources, payload)
                if caller is not None
                else _answer("describe", spec, sources, payload)
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
        f"dataset {dataset!r}: its transform cannot be tried: {reason}",
        remedy="let the function return some episode of the split, or take the dataset out",
        dataset=dataset,
    )


def records(slices: Sequence[ShardSlice]) -> Iterator[tuple[str, bytes]]:
    """(where it lies, payload) of the records of a split."""
    for piece in slices:
        with files.opened_anywhere(piece.path) as file:
            walk = walk_records(file, files.source_bytes(file), verify=True)
            for record, (start, length, lost) in enumerate(walk):
                if lost is not None or record >= piece.stop:
                    break
                if record >= piece.start:
                    payload = read_record(file, start + HEADER_BYTES, length)
                    yield f"{piece.path}, record {record}", payload


def describe_here(
    spec: TransformSpec, caller: Caller, sources: Mapping[str, Feature], payload: Any
) -> TrialRun | None:
    """What the function gives for a record, called in this process; ``None``: it drops it.

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


def apply_here(
    spec: TransformSpec,
    caller: Caller,
    sources: Mapping[str, Feature],
    features: Mapping[str, Feature],
    payload: Any,
    stop: int | None,
    only: Collection[str] | None,
) -> tuple[Transformed, Spans]:
    """``Transform.apply`` in this process.

    Raises:
        MalformedRecordError, FunctionFailedError, FunctionResultError: it failed.
    """
    episode, steps, spans = read_episode(payload, sources, stop=stop)
    if not steps:
        return nothing(features, only), spans
    return read_result(
        user_function.call_here(spec, caller, episode, steps), features, spans, only
    ), spans


def _answer(question: str, spec: TransformSpec, *arguments: Any) -> Any:
    """What the process for other frameworks answers.

    Raises:
        MalformedRecordError, FunctionFailedError, FunctionResultError: it failed there.
    """
    answer = user_function.ask_elsewhere((question, spec.model_dump(mode="json"), arguments))
    if isinstance(answer, Exception):
        raise answer
    return answer
