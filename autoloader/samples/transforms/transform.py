"""A dataset's transform: the user's function, the spec's own pass, and the episodes they give.

A transform is the user's function, or the spec's own pass over an episode (``Derivation``), or
both: the function comes first. A record on which the function fails is quarantined like a damaged
one.

A function is named ``module:function``. It is imported in the process that calls it, on the import
path of the trainer's process. The command line adds the working directory and the spec's folder to
that path (``permit``), only once a spec declares a transform: with a spec without one, nothing that
lies beside it is ever imported. ``refuse`` has every transform refused. A function is identified by
a hash of its module's file, its arguments and the version that the spec gives it. So nothing has to
be imported to tell whether saved results are still valid. Functions are called one at a time: they
need not be thread-safe.

A caller turns the library's episode (NumPy arrays) into what the framework's functions take, and
their result back. The caller for NumPy is here. The one for TensorFlow is in
``pipeline.graph.user_functions`` and registers itself in ``CALLERS`` where a graph is built.
Elsewhere ``formats.tensorflow_process`` runs such functions, so that indexing and planning import
no TensorFlow.

Both readers ask for the record's values after the function, by feature, and which frames its
pictures are. TensorFlow's own graph (``integrations.tfdata``) has the record written anew
(``rewritten``), so that the code that parses it knows nothing of transforms. A feature of its own
says which steps may be t (``VALID_KEY``).

Binding a transform is a planning step. It refuses, before a process starts, a function that cannot
be found or gives no episode, and an op that does not take the values. The function is called on the
first episode that it does not drop, of at most ``MOST_TRIAL_EPISODES``. Its result decides the
features that the spec's fields are held against. The ops of the spec's own pass are held against
the first ``MOST_CHECKED_EPISODES``. Each is tried once, and again when the file, the function or
what the spec says of it changes. A process that does not call such functions itself takes the trial
run that another one saved in the user's cache directory.

The spec's own pass (``Derivation``) holds ``steps`` and ops that see a whole episode
(``FieldOp.whole``). It runs over each episode, behind the user's function where there is one:

1. ``drop_first`` steps are taken away, and of the rest every ``every``-th is taken;
2. the ops run over what is left, and each term with such an op becomes a feature of its own;
3. ``keep.moving`` bars steps from being t;
4. ``drop_last`` steps are taken away.

So ops look at an episode as far as it goes, whatever windows, strides and rules take of it later.
Tensors that are stored compressed are unpacked by the same pass.

Not here: what an episode is (``rlds``), the ops' arithmetic (``fields``), binding cameras and
language (``binding``).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import math
import operator
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SourceError, SpecError, many
from autoloader.formats import DatasetFormat, Feature, ShardSlice, tensorflow_process
from autoloader.formats.cache import JsonCache
from autoloader.formats.features import JOINED, RAGGED
from autoloader.formats.records import MalformedRecordError, RecordPlace, write_example
from autoloader.host.frozen import frozen
from autoloader.host.supervision import extend_import_path
from autoloader.host.threads import free_in_forks
from autoloader.samples.draws import Bools, Floats
from autoloader.samples.transforms.fields import (
    FIELDS,
    PACKED,
    FieldName,
    apply_op,
    find_feature,
    is_several,
    numeric_field,
)
from autoloader.samples.transforms.keep import Keep
from autoloader.samples.transforms.rlds import (
    FunctionFailedError,
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
from autoloader.spec import DatasetSpec, FieldExpression, FieldTerm, TransformSpec
from autoloader.spec.block import adapter
from autoloader.spec.sample import MovingSpec, StepsSpec

ARITHMETIC = 1
"""Raised where what the pass gives changes, so that indexes of another one are not taken."""
_PREFIX = "autoloader"


@frozen
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


@frozen
class Derivation:
    """The pass over each episode of one dataset; immutable.

    Attributes:
        steps: the spec's choice of steps.
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
        as_it_is = StepsSpec().model_dump()
        said = [f"{key} {value}" for key, value in self.steps if value != as_it_is[key]]
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
        """All that decides the pass's result, as plain values."""
        rows = [[one.feature.key, one.term.plain(), _plain(one.source)] for one in self.columns]
        moving = None
        if self.moving is not None:
            moving = [self.moving[0].model_dump(mode="json"), _plain(self.moving[2])]
        steps = self.steps.model_dump(mode="json")
        plain = {"arithmetic": ARITHMETIC, "steps": steps, "columns": rows, "moving": moving}
        return {**plain, "ragged": [one.key for one in self.ragged]} if self.ragged else plain

    def features(self, given: Mapping[str, Feature]) -> dict[str, Feature]:
        """Features of the pass's episodes, made of episodes with the features ``given``."""
        texts = {one.path: replace(one, encoding=JOINED, shape=(None,)) for one in self.ragged}
        return {**given, **texts, **{one.feature.path: one.feature for one in self.columns}}

    def sources(self, only: Collection[str] | None) -> set[str] | None:
        """Keys that the pass reads to give the keys ``only``; ``None``: all."""
        if only is None:
            return None
        own = {one.feature.key: one.source.key for one in self.columns}
        moving = set() if self.moving is None else {self.moving[2].key}
        return {own.get(key, key) for key in only} | moving

    @property
    def has_domain(self) -> bool:
        """True if an op refuses some values."""
        return any(op.name in _DOMAINS for one in self.columns for op in one.term.ops)

    def left_of(self, frames: int) -> int:
        """Steps that the pass leaves of ``frames`` steps."""
        strided = -(-max(0, frames - self.steps.drop_first) // self.steps.every)
        return max(0, strided - self.steps.drop_last)

    def apply(
        self, found: Transformed, given: Mapping[str, Feature], only: Collection[str] | None
    ) -> Transformed:
        """An episode after the pass.

        Args:
            found: the episode, with the keys of ``sources``.
            given: features of the episode, by path.
            only: keys that are wanted; ``None``: all.
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
                rows = _rows(found.values[column.source.key], column.source)
                rows = rows[before, column.term.slice()]
                for op in column.term.ops:
                    rows = apply_op(op, rows)
                values[column.feature.key] = rows[after].reshape(-1)
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
        given: features of the dataset, or those that its function gives.
        where: path of the dataset in the spec.

    Raises:
        SpecError: a field cannot be had of these features.
    """
    columns: list[DerivedColumns] = []
    fields: dict[FieldName, FieldExpression] = {}
    for name in FIELDS:
        expression: FieldExpression | None = getattr(declared, name)
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
    """The rule ``keep.moving``, its term and its feature; ``None``: there is no such rule."""
    spec = declared.keep.moving if declared.keep is not None else None
    if spec is None:
        return None
    field, (term,) = f"{where}.keep.moving", spec.path.terms
    bound = numeric_field(spec.path, given, field=f"{field}.path")
    if isinstance(spec.above, tuple) and len(spec.above) != bound.width:
        raise SpecError(
            f"{field}.above: {many(len(spec.above), 'bound')} for "
            f"{many(bound.width, 'column')} of {term.text()!r}",
            remedy=f"give one number for all columns, or a list of {bound.width}",
        )
    return spec, term, find_feature(given, term.path or "", field=field)


def check_domain(derivation: Derivation, found: Transformed, place: RecordPlace) -> None:
    """Hold an episode against what its gripper ops take.

    Args:
        derivation: the pass of the values' dataset.
        found: the episode before the pass.
        place: place of the episode, for the message.

    Raises:
        SpecError: a value lies outside an op's domain.
    """
    taken = slice(derivation.steps.drop_first, None, derivation.steps.every)
    for column in derivation.columns:
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
            rows = apply_op(op, rows)


_DOMAINS = {
    "binarise": (
        -0.1,
        1.5,
        "an absolute gripper: 0 closed to 1 open",
        "if the column is no gripper, name another; for a relative gripper (+1 closes, -1 opens, "
        "0 holds) use rel2abs instead; else write {clip: [0, 1]} before binarise",
    ),
    "rel2abs": (
        -1.5,
        1.5,
        "a relative gripper: +1 closes, -1 opens, 0 holds",
        "if the column is no gripper, name another; for an absolute gripper use binarise instead; "
        "for another scale write {scale: FACTOR} before rel2abs",
    ),
}


def _rows(value: NDArray[Any], feature: Feature) -> Floats:
    """[T, width] float32 of a numeric feature's flat values."""
    return value.reshape(-1, feature.step_numbers).astype(np.float32, copy=False)


def _taken(value: Any, feature: Feature, before: slice, after: slice) -> Any:
    """Steps of a feature that the slices take, flat as it was."""
    one_a_step = feature.kind == "image" or feature.encoding == RAGGED
    width = 1 if one_a_step else feature.step_numbers
    if isinstance(value, list):
        rows = [value[at : at + width] for at in range(0, len(value), width)][before][after]
        return [one for row in rows for one in row]
    return value.reshape(-1, width)[before][after].reshape(-1)


def _plain(feature: Feature) -> list[Any]:
    return [feature.key, feature.dtype, list(feature.shape), feature.encoding]


Caller = Callable[[Callable[..., Any], dict[str, Any], int, Mapping[str, Any]], Any]
"""(function, episode, its steps, keyword arguments) → what the function gave, as NumPy arrays."""


def _call_numpy(
    function: Callable[..., Any], episode: dict[str, Any], steps: int, kwargs: Mapping[str, Any]
) -> Any:
    return function(episode, **kwargs)


CALLERS: dict[str, Caller] = {"numpy": _call_numpy}
calling = free_in_forks(threading.RLock())
_folders: tuple[str, ...] = ()
_refused = False


def permit(*folders: str) -> None:
    """Let transforms run, and find their modules in these folders too, behind all others."""
    global _folders, _refused
    _folders, _refused = folders, False


def refuse() -> None:
    """Have no function that a spec names imported or called in this process."""
    global _refused
    _refused = True


def function_identity(spec: TransformSpec, *, field: str) -> str:
    """A hash of all that decides what a transform gives for a record; imports nothing of it.

    Args:
        spec: the dataset's ``transform`` block.
        field: path of the function in the spec.

    Raises:
        SpecError: its module cannot be found, or has no source, or transforms are refused.
    """
    module = spec.call.partition(":")[0]
    if _refused:
        raise SpecError(
            f"{field}: the spec runs the function {spec.call!r}, and --no-transforms forbids it",
            remedy="leave --no-transforms out once you trust that function, or remove it from the "
            "spec",
        )
    extend_import_path(_folders)
    try:
        importlib.invalidate_caches()
        found = importlib.util.find_spec(module)
    except (Exception, SystemExit) as error:  # the package above it is the user's code
        raise _not_found(spec, field, f"{type(error).__name__}: {error}") from error
    if found is None or found.origin is None:
        raise _not_found(spec, field, f"there is no module {module!r}")
    try:
        source = Path(found.origin).read_bytes()
    except OSError as error:
        raise _not_found(spec, field, f"{found.origin}: {error.strerror or error}") from error
    return _identity(spec, source)


def imported_identity(spec: TransformSpec) -> str:
    """``function_identity`` of a function that was called here, by the source that was imported."""
    return _identity(spec, _imported[spec.call.partition(":")[0]][1])


def _identity(spec: TransformSpec, source: bytes) -> str:
    said = json.dumps(spec.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(said.encode() + b"\0" + source).hexdigest()


def _not_found(spec: TransformSpec, field: str, reason: str) -> SpecError:
    """The error for a function whose module cannot be imported."""
    return SpecError(
        f"{field}: {spec.call!r} cannot be imported: {reason}",
        remedy="put its file where Python finds it: a folder in PYTHONPATH, an installed package, "
        "or the folder of the script",
    )


def call_here(spec: TransformSpec, episode: dict[str, Any], steps: int) -> Any:
    """Call a function on an episode in this process; its result as NumPy arrays.

    Raises:
        FunctionFailedError: the function cannot be found, or raised.
    """
    with calling:
        function = _function(spec.call)
        try:
            kwargs = json.loads(json.dumps(dict(spec.kwargs)))
            return CALLERS[spec.framework](function, episode, steps, kwargs)
        except BaseException as error:  # the user's: one bad episode is that episode's
            _let_signals_through(error)
            raise FunctionFailedError(f"{spec.call} raised {_told(error)}") from error


_imported: dict[str, tuple[Any, bytes]] = {}
"""Module → (its ``ModuleSpec``, of which a reload makes another; its source when first seen)."""


def _function(call: str) -> Callable[..., Any]:
    """The function of a name "module:function"; ``FunctionFailedError`` where there is none."""
    module, _, name = call.partition(":")
    try:
        loaded = importlib.import_module(module)
        if _imported.get(module, (None,))[0] is not loaded.__spec__:
            _imported[module] = loaded.__spec__, Path(str(loaded.__file__)).read_bytes()
        found = operator.attrgetter(name)(loaded)
    except BaseException as error:  # importing runs the user's code
        _let_signals_through(error)
        raise FunctionFailedError(f"{call} cannot be imported: {_told(error)}") from error
    if not callable(found):
        raise FunctionFailedError(f"{call} is {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _let_signals_through(error: BaseException) -> None:
    """Raise what a signal may have raised, which is in the main thread alone."""
    of_a_signal = not isinstance(error, (Exception, SystemExit))
    if of_a_signal and threading.current_thread() is threading.main_thread():
        raise error


def _told(error: BaseException) -> str:
    """Class, words and last line of an error in the user's code."""
    words = " ".join(str(error).split())[:300]
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename != __file__]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {words}{place}"


def ask_elsewhere(question: object) -> Any:
    """Ask the process that runs TensorFlow.

    Raises:
        FunctionFailedError: the process ended before it answered.
    """
    try:
        return tensorflow_process.process.ask(question)
    except EOFError as error:
        raise FunctionFailedError("the process that runs TensorFlow transforms ended") from error


def prepare(framework: str) -> None:
    """Have the process started that functions of ``framework`` need, if they need one.

    Raises:
        FunctionFailedError: the process ended before it answered.
    """
    if framework not in CALLERS:
        ask_elsewhere(("prepare", None, ()))


VALID_KEY = "autoloader/valid"


@dataclass(frozen=True)
class Transform:
    """One dataset's transform; thread-safe.

    Attributes:
        spec: the user's function, or ``None``.
        identity: hash of all that decides its results.
        sources: the dataset's own features, by path.
        given: features that the function gives, by path; without a function, ``sources``.
        cost_s: seconds that the function took for the episode it was tried on.
        kept_ratio: share of that episode's steps that the function left, 0 to 1.
        derivation: the pass that follows the function, or ``None``.
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
        """Features of the transformed episodes, by path."""
        return self.given if self.derivation is None else self.derivation.features(self.given)

    @property
    def input_types(self) -> str:
        """Hash of ``sources``: the types of the episodes before function and pass."""
        return types_of(self.sources)

    @property
    def framework(self) -> str:
        """Framework that the function is written for; "numpy" where there is no function."""
        return "numpy" if self.spec is None else self.spec.framework

    @property
    def rules(self) -> tuple[str, str]:
        """Names of the rules that drop episodes and that bar steps, by their paths in the spec."""
        if self.spec is not None:
            return "transform", "transform.valid"
        return "steps", "keep.moving"

    def frames_left(self, frames: int) -> int:
        """Steps that the transform leaves of ``frames`` steps: an estimate, at least one."""
        left = round(frames * self.kept_ratio)
        return max(1, left if self.derivation is None else self.derivation.left_of(left))

    def apply(
        self, payload: Any, *, stop: int | None = None, only: Collection[str] | None = None
    ) -> tuple[Transformed, Spans]:
        """A record's values after function and pass, and where its frames lie in ``payload``.

        Args:
            payload: the record, from its first byte on.
            stop: number of bytes of the record; ``None``: all of ``payload``.
            only: keys of the features that are wanted; ``None``: all.

        Raises:
            MalformedRecordError: the record is damaged, or the function fails on it.
        """
        pass_ = self.derivation
        if pass_ is None:
            return self.by_function(payload, stop, only)
        found, spans = self.by_function(payload, stop, pass_.sources(only))
        return pass_.apply(found, self.given, only), spans

    def by_function(
        self, payload: Any, stop: int | None, only: Collection[str] | None
    ) -> tuple[Transformed, Spans]:
        """A record's values after the function alone; as stored where there is no function.

        Args:
            payload: the record, from its first byte on.
            stop: number of bytes of the record; ``None``: all of ``payload``.
            only: keys of the features that are wanted; ``None``: all.

        Raises:
            MalformedRecordError: the record is damaged, or the function fails.
        """
        if self.spec is None:
            return read_values(payload, self.sources, only, stop=stop)
        if self.spec.framework not in CALLERS:  # another process gets the record alone
            payload, stop = bytes(memoryview(payload)[:stop]), None
        try:
            return answer("apply", self.spec, self.sources, self.given, payload, stop, only)  # type: ignore[no-any-return]
        except FunctionFailedError as error:
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
        valid = found.valid
        if keep is not None and found.steps:
            valid = valid & keep.allows(found.steps, found.values)
        return self._written(found, spans, payload, keys, valid)

    def dropped(self, keys: Collection[str]) -> bytes:
        """A record without a step."""
        empty = nothing(self.features, keys)
        return self._written(empty, {}, b"", keys, empty.valid)

    def _written(
        self, found: Transformed, spans: Spans, payload: bytes, keys: Collection[str], valid: Bools
    ) -> bytes:
        pictures = {feature.key for feature in self.features.values() if feature.kind == "image"}
        values = {
            key: [payload[a:b] for a, b in spans_of(value, spans).tolist()]
            if key in pictures
            else value
            for key, value in found.values.items()
            if key in keys
        }
        return write_example({**values, VALID_KEY: valid.astype(np.int64)})


def types_of(features: Mapping[str, Feature]) -> str:
    """Hash of features, whose order does not count."""
    return hashlib.sha256(repr(sorted(features.items())).encode()).hexdigest()


def _apply(
    spec: TransformSpec,
    sources: Mapping[str, Feature],
    features: Mapping[str, Feature],
    payload: Any,
    stop: int | None,
    only: Collection[str] | None,
) -> tuple[Transformed, Spans]:
    """``Transform.by_function`` in this process."""
    episode, steps, spans = read_episode(payload, sources, stop=stop)
    if not steps:
        return nothing(features, only), spans
    return read_result(call_here(spec, episode, steps), features, spans, only), spans


def _describe(spec: TransformSpec, sources: Mapping[str, Feature], payload: Any) -> TrialRun | None:
    """Features that the function gives for a record, called in this process; ``None``: dropped."""
    episode, steps, spans = read_episode(payload, sources)
    if not steps:
        return None
    began = time.perf_counter()
    result = call_here(spec, episode, steps)
    cost_s = time.perf_counter() - began
    module, source = _imported[spec.call.partition(":")[0]]
    if Path(module.origin).read_bytes() != source:
        raise FunctionFailedError(
            f"{module.origin} was changed since this process imported it: start the process again, "
            f"or call importlib.reload({module.name})"
        )
    leaves = {} if result is None else leaves_of(result)
    kept = steps_of(leaves)
    if not kept:
        return None
    features = describe(leaves, sources)
    read_result(result, features, spans)
    return TrialRun(features, cost_s, kept / steps)


def answer(question: Literal["apply", "describe"], spec: TransformSpec, *arguments: Any) -> Any:
    """Result of the user's function for a record, from the process that calls such functions.

    Raises:
        MalformedRecordError, FunctionFailedError: the function failed.
    """
    if spec.framework in CALLERS:
        return (_apply if question == "apply" else _describe)(spec, *arguments)
    found = ask_elsewhere((question, spec.model_dump(mode="json"), arguments))
    if isinstance(found, Exception):
        raise found
    return found


MOST_TRIAL_EPISODES = 16
"""Episodes that a trial run may see dropped before it gives up."""
MOST_CHECKED_EPISODES = 4
"""Episodes that are held against what ops along the episode take."""


class TrialRun(NamedTuple):
    """Result of a transform for the one episode that it was tried on.

    Attributes:
        features: features of the result, by path.
        cost_s: seconds that the function took.
        kept_ratio: share of the episode's steps that the function left, 0 to 1.
    """

    features: Mapping[str, Feature]
    cost_s: float
    kept_ratio: float


_cache = JsonCache("transforms", version=4)


def _try_function(
    spec: TransformSpec, directory: DatasetFormat, slices: Sequence[ShardSlice], *, where: str
) -> Any:
    """Try a function on the first episode that it does not drop; a plain ``TrialRun``."""
    field_, sources = f"{where}.transform", directory.features
    reason, count = "its files hold no whole record", 0
    for place, payload in directory.records(slices):
        if count == MOST_TRIAL_EPISODES:
            break
        count += 1
        try:
            found = answer("describe", spec, sources, payload)
        except MalformedRecordError as error:
            reason = f"{place}: {error}"
            continue
        except FunctionFailedError as error:
            given = ", ".join(sorted(sources))
            tried, remedy = f"tried on {place}: ", f"fix the function; it is given {given}"
            if "cannot be imported" in str(error):
                module = spec.call.partition(":")[0]
                tried, remedy = "", f"correct the name, or make {module} import and define it"
            raise SpecError(f"{field_}: {tried}{error}", remedy=remedy) from error
        if found is not None:
            return adapter(TrialRun).dump_python(found, mode="json")
        reason = f"{spec.call} drops every one of the first {count} episodes"
    raise SourceError(
        f"dataset {directory.dataset!r}: its transform cannot be tried: {reason}",
        remedy="let the function return some episode of the split, or remove the dataset from "
        "the spec",
    )


def _check_first_episodes(
    transform: Transform, derivation: Derivation, records: Iterable[tuple[RecordPlace, bytes]]
) -> int:
    """Check the first episodes, and return how many were looked at."""
    keys = {one.source.key for one in derivation.columns}
    count = 0
    for place, payload in records:
        if count == MOST_CHECKED_EPISODES:
            break
        count += 1
        with contextlib.suppress(MalformedRecordError):  # quarantined when it is read
            found, _ = transform.by_function(payload, None, keys)
            if found.steps:
                check_domain(derivation, found, place)
    return count


class BoundEpisodes(NamedTuple):
    """The episodes of a dataset as samples are drawn from them.

    Attributes:
        transform: transform of each of them, or ``None``.
        features: features of the transformed episodes, by path.
        fields: "action" and "state" over these features, where the dataset has them.
    """

    transform: Transform | None
    features: Mapping[str, Feature]
    fields: Mapping[FieldName, FieldExpression]


def bind_episodes(
    declared: DatasetSpec, directory: DatasetFormat, slices: Sequence[ShardSlice], *, where: str
) -> BoundEpisodes:
    """Bind the transform, steps and ops of a dataset: the episodes that come of them.

    Args:
        declared: the dataset as the spec declares it.
        directory: the dataset on disk.
        slices: records of the split.
        where: path of the dataset in the spec.

    Raises:
        SpecError: the function cannot be found, fails on an episode, or gives none; a field cannot
            be had of these features; an episode lies outside of what an op takes.
        SourceError: no record can be read, or the function drops every one of the first.
    """
    function, stored = declared.transform, directory.features
    transform = None
    if function is not None:
        identity = function_identity(function, field=f"{where}.transform.call")
        pictures = tuple(sorted(one.path for one in stored.values() if one.kind == "image"))
        found = _cache.of_file(
            slices[0].path,
            (identity, slices[0], pictures, types_of(stored)),
            partial(_try_function, function, directory, slices, where=where),
            dataset=directory.dataset,
            shared=function.framework not in CALLERS,
        )
        transform = Transform(function, identity, stored, *adapter(TrialRun).validate_python(found))
    given = stored if transform is None else transform.features
    derivation, fields = plan_derivation(declared, given, where=where)
    if derivation is None:
        return BoundEpisodes(transform, given, fields)
    before = transform or Transform(None, "", stored, stored)
    said = json.dumps(derivation.plain, sort_keys=True)
    identity = hashlib.sha256(f"{before.identity}\0{said}".encode()).hexdigest()
    derived = replace(before, identity=identity, derivation=derivation)
    if derivation.has_domain:
        _cache.of_file(
            slices[0].path,
            ("derived", derived.identity, derived.input_types, slices[0]),
            lambda: _check_first_episodes(derived, derivation, directory.records(slices)),
            dataset=directory.dataset,
        )
    return BoundEpisodes(derived, derived.features, fields)
