"""A dataset's transform, bound: which features it gives, and a record as it leaves it.

A transform is the user's function, or the spec's own pass over an episode (``derive``), or both:
the function comes first.

A record on which the function fails is quarantined like a damaged one.

Both readers ask for the same thing: the record's values after the function, by feature, and which
frames its pictures are. TensorFlow's own graph (``integrations.tfdata``) has the record written
anew (``rewritten``), so that what parses it knows nothing of transforms. Which steps may be t goes
along as a feature of its own (``VALID_KEY``).

Not here: calling the function (``user_function``), what an episode is (``rlds``), trying a
transform before anything starts (``trial``, ``binding``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from autoloader.formats import Feature
from autoloader.formats.records import MalformedRecordError, write_example
from autoloader.samples.transforms import user_function
from autoloader.samples.transforms.derive import Derivation
from autoloader.samples.transforms.keep import Keep
from autoloader.samples.transforms.rlds import (
    FunctionResultError,
    Spans,
    Transformed,
    nothing,
    read_episode,
    read_result,
    read_values,
    spans_of,
)
from autoloader.samples.transforms.user_function import Caller, FunctionFailedError
from autoloader.spec import TransformSpec

VALID_KEY = "autoloader/valid"


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
    def given_types(self) -> str:
        """Hash of the types in which the function, or the pass, is given the episodes."""
        return types_of(self.sources)

    @property
    def framework(self) -> str:
        """Which the function is written for; "numpy" where there is none."""
        return "numpy" if self.spec is None else self.spec.framework

    @property
    def rules(self) -> tuple[str, str]:
        """Names of the rules that drop episodes and that bar steps, by their paths in the spec."""
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
            MalformedRecordError: the record is damaged, or the function fails.
        """
        if self.spec is None:
            return read_values(payload, self.sources, only, stop=stop)
        caller = user_function.CALLERS.get(self.spec.framework)
        try:
            if caller is not None:
                return apply_here(self.spec, caller, self.sources, self.given, payload, stop, only)
            record = bytes(memoryview(payload)[:stop])
            return answer("apply", self.spec, self.sources, self.given, record, None, only)  # type: ignore[no-any-return]
        except (FunctionFailedError, FunctionResultError) as error:
            raise MalformedRecordError(f"transform: {error}") from error

    def rewritten(self, payload: bytes, keys: Collection[str], keep: Keep | None = None) -> bytes:
        """The record as the function leaves it; without a step where it drops the episode.

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
        return write_example({**values, VALID_KEY: valid.astype(np.int64)})

    def dropped(self, keys: Collection[str]) -> bytes:
        """A record without a step."""
        pictures = {feature.key for feature in self.features.values() if feature.kind == "image"}
        empty = nothing(self.features, keys).values
        values = {key: [] if key in pictures else value for key, value in empty.items()}
        return write_example({**values, VALID_KEY: np.empty(0, np.int64)})


def types_of(features: Mapping[str, Feature]) -> str:
    """Hash of features, whose order does not count."""
    return hashlib.sha256(repr(sorted(features.items())).encode()).hexdigest()


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


def answer(question: str, spec: TransformSpec, *arguments: Any) -> Any:
    """Answer of the process for other frameworks (``pipeline.graph.user_functions.answered``).

    Raises:
        MalformedRecordError, FunctionFailedError, FunctionResultError: it failed there.
    """
    answer = user_function.ask_elsewhere((question, spec.model_dump(mode="json"), arguments))
    if isinstance(answer, Exception):
        raise answer
    return answer
