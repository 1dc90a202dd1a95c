"""Episodes as a transform sees them: a nested dict of arrays; and what it gives back, as features.

Theory of operation. A record becomes a nested dict: per-step features by their path, each with a
leading axis T, and ``episode_metadata`` with what the episode has once. Texts are objects (bytes),
numbers have the dataset's own types. Pictures are not decoded: in their place a function gets one
int64 number a step, which encodes the camera and the step (``STAND_IN`` + camera · 2³² + step).
A function may slice, stride, reorder, mix and rename these numbers like rows of pictures, and they
still say which frames are meant. Arithmetic on them is refused.

What comes back is flattened again. The first episode's result decides the features (paths, types,
shapes); later ones must agree with it.

Not here: calling the function, records and files (``transform``).
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.formats import Feature
from autoloader.formats.features import (
    JOINED,
    RAGGED,
    RAGGED_LENGTHS,
    RAGGED_VALUES,
    STEPS,
    list_frames,
)
from autoloader.formats.records import FeatureValue, MalformedRecordError, parse_example
from autoloader.host.frozen import frozen
from autoloader.samples.draws import Bools, Ints
from autoloader.samples.transforms.fields import BETWEEN

METADATA = "episode_metadata"
VALID = "valid"
STAND_IN = 1 << 50
_CAMERA = 1 << 32

Spans = dict[int, Ints]
"""Camera number → [T, 2] first byte and the byte behind it of each frame."""


class FunctionFailedError(Exception):
    """A transform cannot be found, raised, or gave no episode; the message says why. Internal."""


@frozen
class Transformed:
    """One record after its transform.

    Attributes:
        steps: number of steps T'; 0 where the episode is dropped.
        values: feature key → stand-ins [T'], float32 or int64 numbers (flat), or byte strings.
        valid: [T'] bool, which steps may be t.
    """

    steps: int
    values: Mapping[str, Any]
    valid: Bools


def camera_numbers(features: Mapping[str, Feature]) -> dict[str, int]:
    """Key of every picture of the steps → its number in ``Spans``."""
    keys = sorted(one.key for one in features.values() if one.kind == "image" and one.per_step)
    return {key: number for number, key in enumerate(keys)}


def _walk(
    payload: Any,
    features: Mapping[str, Feature],
    spans: Spans,
    stop: int | None,
    only: Collection[str] | None = None,
) -> Iterator[tuple[str, Feature, FeatureValue | None, NDArray[Any] | None]]:
    """Each wanted feature of a record: path, feature, stored value, and rows of some kinds.

    The value is ``None`` where the record lacks it. Rows are the stand-ins of a camera, which also
    puts the places of its frames into ``spans``, or those of a ragged feature.

    Args:
        payload: the record, from its first byte on.
        features: features of the dataset, by path.
        spans: filled with the places of frames.
        stop: number of bytes of the record; ``None``: all.
        only: keys of the features that are wanted; default: all.
    """
    wanted = {path: one for path, one in features.items() if only is None or one.key in only}
    keys = {one.key for one in wanted.values()}
    for one in wanted.values():
        if one.encoding == RAGGED:
            keys |= {f"{one.key}/{RAGGED_VALUES}", f"{one.key}/{RAGGED_LENGTHS}"}
    found = parse_example(payload, stop=stop, only=keys, stretches=list_frames(wanted.values()))
    cameras = camera_numbers(features)
    for path, feature in wanted.items():
        value, rows = found.get(feature.key), None
        if value is not None and value.kind == "missing":
            value = None
        if feature.encoding == RAGGED:
            rows = _ragged_rows(payload, found, feature)
        elif value is not None and feature.key in cameras:
            number = cameras[feature.key]
            spans[number] = np.asarray(value.ranges, dtype=np.int64).reshape(-1, 2)
            rows = STAND_IN + number * _CAMERA + np.arange(len(spans[number]))
        yield path, feature, value, rows


def read_rows(
    payload: Any, features: Mapping[str, Feature], *, stop: int | None = None
) -> tuple[dict[str, NDArray[Any]], int, Spans]:
    """(path → rows [T, ...], the steps T, where frames lie in ``payload``) of a record.

    What the episode has once is one row. Features that the record lacks, and those of kinds that no
    array holds, are left out.

    Raises:
        MalformedRecordError: the payload is no such record, or its features differ in length.
    """
    found: dict[str, NDArray[Any]] = {}
    spans: Spans = {}
    for path, feature, value, rows in _walk(payload, features, spans, stop):
        if rows is None and value is not None:
            rows = _rows(payload, value, feature)
        if rows is not None and (feature.per_step or len(rows) == 1):
            found[path] = rows
    per_step = ((path, len(rows)) for path, rows in found.items() if features[path].per_step)
    return found, agreed_steps(per_step), spans


def read_episode(
    payload: Any, features: Mapping[str, Feature], *, stop: int | None = None
) -> tuple[dict[str, Any], int, Spans]:
    """(the episode, its steps T, where its frames lie in ``payload``); as ``read_rows``."""
    found, steps, spans = read_rows(payload, features, stop=stop)
    episode: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    for path, rows in found.items():
        if features[path].per_step:
            _put(episode, path, rows)
        else:
            _put(metadata, path.removeprefix(f"{METADATA}/"), rows[0])
    return {**episode, METADATA: metadata}, steps, spans


def agreed_steps(counts: Iterable[tuple[str, int]]) -> int:
    """Steps of a record, from (path, number of steps) of its features.

    Raises:
        MalformedRecordError: there are no features of the steps, or they differ in length.
    """
    first, steps = "", -1
    for path, count in counts:
        if steps < 0:
            first, steps = path, count
        elif count != steps:
            raise MalformedRecordError(
                f"its features differ in their number of steps: {first} has {steps}, "
                f"{path} has {count}"
            )
    if steps < 0:
        raise MalformedRecordError("it has none of the features of the steps")
    return steps


def _rows(payload: Any, value: FeatureValue, feature: Feature) -> NDArray[Any] | None:
    """[T, ...] values of a feature; an episode's own has T = 1. ``None``: no array holds it."""
    if feature.kind == "text" or (feature.kind == "tensor" and feature.dtype == "string"):
        rows = np.empty(len(value.ranges), dtype=object)
        rows[:] = [bytes(payload[first:stop]) for first, stop in value.ranges]
        shape = feature.shape
    elif feature.kind == "tensor" and feature.encoding is None and value.values is not None:
        rows, shape = value.values.astype(_dtype(feature.dtype)), feature.shape
    elif feature.kind == "tensor" and feature.encoding is not None and value.kind == "bytes":
        rows = _unpacked(payload, value, feature).astype(_dtype(feature.dtype))
        shape = feature.shape
    else:
        return None
    shape = tuple(-1 if size is None else size for size in shape)
    try:
        if not feature.per_step:
            return rows.reshape(1, *shape)
        if -1 not in shape:
            return rows.reshape(-1, *shape)
    except ValueError as error:
        raise MalformedRecordError(
            f"{feature.path} has {len(rows)} values: no whole steps"
        ) from error
    return None


def _ragged_rows(
    payload: Any, found: Mapping[str, FeatureValue], feature: Feature
) -> NDArray[Any] | None:
    """[T] arrays of a feature of which every step has its own number, or [T, ...] of a fixed one.

    Raises:
        MalformedRecordError: the values are not as many as the steps say.
    """
    value, counts = (found.get(f"{feature.key}/{part}") for part in (RAGGED_VALUES, RAGGED_LENGTHS))
    if counts is None or counts.values is None:
        return None
    value = value or FeatureValue("missing")
    inner = tuple(size or 1 for size in feature.shape[1:])
    alone = replace(feature, shape=inner, encoding=None, kind="tensor" if inner else feature.kind)
    dtype: Any = object if feature.dtype == "string" else _dtype(feature.dtype)
    rows = _rows(payload, value, alone) if len(value) else np.empty((0, *inner), dtype)
    ends = np.cumsum(counts.values)
    if rows is None or len(rows) != (int(ends[-1]) if len(ends) else 0):
        raise MalformedRecordError(
            f"{feature.path} holds {len(value)} values, which do not fill its {len(ends)} steps"
        )
    parts = np.split(rows, ends[:-1]) if len(ends) else []
    if feature.shape[0] is not None:
        if any(len(part) != feature.shape[0] for part in parts):
            raise MalformedRecordError(
                f"a step of {feature.path} does not have {feature.shape[0]} values"
            )
        return np.asarray(parts).reshape(-1, *feature.shape)
    listed = np.empty(len(parts), dtype=object)
    for number, part in enumerate(parts):
        listed[number] = part
    return listed


def _unpacked(payload: Any, value: FeatureValue, feature: Feature) -> NDArray[Any]:
    """The numbers of a tensor that is stored as one byte string a step, flat.

    Raises:
        MalformedRecordError: a string does not hold what the feature says.
    """
    dtype = np.dtype(_dtype(feature.dtype)).newbyteorder("<")
    nbytes = dtype.itemsize * feature.step_numbers
    parts = []
    for first, stop in value.ranges:
        packed = bytes(payload[first:stop])
        if feature.encoding == "zlib":
            try:
                packed = zlib.decompressobj().decompress(packed, nbytes + 1)
            except zlib.error as error:
                raise MalformedRecordError(
                    f"{feature.path} is not valid zlib data: {error}"
                ) from error
        if len(packed) != nbytes:
            told = f"has {len(packed)} bytes instead of {nbytes}"
            raise MalformedRecordError(f"a step of {feature.path} {told}")
        parts.append(packed)
    return np.frombuffer(b"".join(parts), dtype)


def read_values(
    payload: Any,
    features: Mapping[str, Feature],
    only: Collection[str] | None,
    *,
    stop: int | None = None,
) -> tuple[Transformed, Spans]:
    """A record as it lies in its file, and where its frames lie, where no function looks at it.

    Args:
        payload: the record, from its first byte on.
        features: features of the dataset, by path.
        only: keys of the features that are wanted; default: all that the record has.
        stop: number of bytes of the record; ``None``: all.

    Raises:
        MalformedRecordError: a wanted feature is missing, or they differ in length.
    """
    spans: Spans = {}
    values: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for path, feature, value, rows in _walk(payload, features, spans, stop, only):
        text, ragged = feature.dtype == "string", feature.encoding == RAGGED
        if rows is None and value is None:
            if only is None:
                continue
            if ragged or not text:
                raise MalformedRecordError(f"{path} is missing")
            value = FeatureValue("bytes")
        width = feature.step_numbers
        if rows is not None:
            if ragged and not text:
                continue  # of numbers only functions know what to do with them
            found = [BETWEEN.join(texts) for texts in rows.tolist()] if ragged else rows
            count = len(found)
        elif value is not None and text:
            found = [bytes(payload[first:stop]) for first, stop in value.ranges]
            count = len(found) // width
        elif value is not None:
            found = _numbers(payload, value, feature)
            count, rest = divmod(len(found), width)
            if rest:
                raise MalformedRecordError(
                    f"{path} has {len(found)} values, not a multiple of {width}"
                )
            found = found.astype(np.float32 if "float" in feature.dtype else np.int64, copy=False)
        values[feature.key] = found
        if feature.per_step:
            counts[path] = count
    steps = agreed_steps(counts.items())
    return Transformed(steps, values, np.ones(steps, dtype=np.bool_)), spans


def _numbers(payload: Any, value: FeatureValue, feature: Feature) -> NDArray[Any]:
    """Numbers of a feature, flat; unpacked where they are stored as bytes."""
    if feature.encoding is not None and value.kind == "bytes":
        return _unpacked(payload, value, feature)
    wanted = "float" if "float" in feature.dtype else "int64"
    if value.values is None or value.kind != wanted:
        raise MalformedRecordError(f"{feature.path} is stored as {value.kind}, not as {wanted}")
    return value.values


def _dtype(name: str) -> Any:
    """NumPy's type of a name; bfloat16 is float32."""
    try:
        return np.dtype(name)
    except TypeError:  # bfloat16
        return np.dtype(np.float32)


def _put(holder: dict[str, Any], path: str, value: Any) -> None:
    """Nest a value by its path; where a leaf is in the way, the rest of the path is one name."""
    parts = path.split("/")
    for at, part in enumerate(parts[:-1]):
        inner = holder.setdefault(part, {})
        if not isinstance(inner, dict):
            holder["/".join(parts[at:])] = value
            return
        holder = inner
    holder[parts[-1]] = value


# -- what comes back ----------------------------------------------------------------------------


def leaves_of(result: Any) -> dict[str, NDArray[Any]]:
    """Path → array of everything in an episode that a function gave.

    Raises:
        FunctionFailedError: the result is no dict of arrays.
    """
    if not isinstance(result, Mapping):
        raise FunctionFailedError(f"it returned {type(result).__name__}, not a dict or None")
    return dict(_leaves(result, ""))


def _leaves(holder: Mapping[Any, Any], path: str) -> Iterator[tuple[str, NDArray[Any]]]:
    """(path, array) of each leaf of nested mappings."""
    for name, value in holder.items():
        here = f"{path}/{name}" if path else str(name)
        if isinstance(value, Mapping):
            yield from _leaves(value, here)
        elif value is not None:
            try:
                yield here, np.asarray(value)
            except ValueError as error:
                raise FunctionFailedError(f"{here!r} is not an array: {error}") from error


def describe(
    leaves: Mapping[str, NDArray[Any]], sources: Mapping[str, Feature]
) -> dict[str, Feature]:
    """The features of an episode that a function gave.

    Args:
        leaves: arrays by path, from ``leaves_of``.
        sources: the dataset's own features.
    """
    by_number = {number: key for key, number in camera_numbers(sources).items()}
    by_key = {feature.key: feature for feature in sources.values()}
    found = {}
    for path, leaf in leaves.items():
        if path == VALID:
            continue
        once = path.startswith(f"{METADATA}/")
        shape = leaf.shape if once else leaf.shape[1:]
        kind: Any = "tensor" if leaf.dtype.kind in "biuf" else "other"
        dtype = "float32" if leaf.dtype.kind == "f" else str(leaf.dtype)
        encoding: Any = None
        if not once and _are_stand_ins(leaf):
            source = by_key[by_number[int(leaf[0] - STAND_IN) // _CAMERA]]
            kind, dtype, shape, encoding = "image", source.dtype, source.shape, source.encoding
        elif shape == () and leaf.dtype.kind in "OSU" and _are_lists(leaf):
            shape, texts = (None,), _hold_texts(leaf)
            kind, dtype, encoding = ("tensor", "string", JOINED) if texts else ("other", "", None)
        elif leaf.dtype.kind in "OSU":
            shape = (None,) if once and len(shape) == 1 else shape
            kind, dtype = "tensor" if shape else "text", "string"
        key = path if once else f"{STEPS}/{path}"
        found[path] = Feature(path, key, kind, dtype, shape, encoding, not once)
    return found


def _are_lists(leaf: NDArray[Any]) -> bool:
    """True if every step has a list of its own, of any length."""
    return leaf.ndim == 1 and len(leaf) > 0 and isinstance(leaf[0], (list, tuple, np.ndarray))


def _hold_texts(leaf: NDArray[Any]) -> bool:
    every = [np.asarray(one) for one in leaf.tolist()]
    return all(one.dtype.kind in "OSU" or not one.size for one in every)


def _are_stand_ins(leaf: NDArray[Any]) -> bool:
    whole = leaf.dtype == np.int64 and leaf.ndim == 1 and len(leaf) > 0
    return bool(whole and (leaf >= STAND_IN).all() and (leaf < 2 * STAND_IN).all())


def read_result(
    result: Any, features: Mapping[str, Feature], spans: Spans, only: Collection[str] | None = None
) -> Transformed:
    """Result of a function for a record, checked against the features of its first result.

    Args:
        result: an episode, or ``None``.
        features: features by path, from ``describe``.
        spans: frames of the record, as ``read_episode`` gives them.
        only: keys to take; all per-step arrays must agree in length all the same.

    Raises:
        FunctionFailedError: the result does not fit.
    """
    leaves = {} if result is None else leaves_of(result)
    steps = steps_of(leaves)
    if not steps:
        return nothing(features, only)
    valid = leaves.get(VALID)
    if valid is None:
        valid = np.ones(steps, dtype=np.bool_)
    elif valid.dtype != np.bool_ or valid.ndim != 1:
        raise FunctionFailedError(
            f"'valid' is {valid.dtype} of shape {list(valid.shape)}, not bool of [{steps}]"
        )
    values = {}
    for path, feature in features.items():
        if feature.kind == "other" or (only is not None and feature.key not in only):
            continue
        leaf = leaves.get(path)
        if leaf is None:
            raise FunctionFailedError(f"no {path!r} in its result: {', '.join(sorted(leaves))}")
        values[feature.key] = _checked(path, leaf, feature, spans)
    return Transformed(steps, values, valid)


def nothing(features: Mapping[str, Feature], only: Collection[str] | None = None) -> Transformed:
    """A dropped episode: no step of any feature."""
    values = {
        feature.key: _empty(feature)
        for feature in features.values()
        if only is None or feature.key in only
    }
    return Transformed(0, values, np.empty(0, dtype=np.bool_))


def _empty(feature: Feature) -> Any:
    """Values of a feature in an episode without steps."""
    if feature.kind == "text" or feature.dtype == "string":
        return []
    floating = feature.kind != "image" and "float" in feature.dtype
    count = 0 if feature.per_step else int(np.prod(feature.shape, dtype=np.int64))  # type: ignore[arg-type]
    return np.zeros(count, np.float32 if floating else np.int64)


def steps_of(leaves: Mapping[str, NDArray[Any]]) -> int:
    """T', on which all per-step arrays agree; 0 of an episode without any.

    Raises:
        FunctionFailedError: the features differ from the first result's.
    """
    steps, first = 0, ""
    for path, leaf in leaves.items():
        if path.startswith(f"{METADATA}/"):
            continue
        if not leaf.ndim:
            raise FunctionFailedError(f"{path!r} is a single value, without an axis of steps")
        if first and len(leaf) != steps:
            raise FunctionFailedError(
                f"its arrays differ in their number of steps: {first!r} has {steps}, "
                f"{path!r} has {len(leaf)}"
            )
        steps, first = len(leaf), path
    return steps


def _checked(path: str, leaf: NDArray[Any], feature: Feature, spans: Spans) -> Any:
    """A leaf as the index takes it; ``FunctionFailedError`` where it is not as described."""
    shape = leaf.shape[1:] if feature.per_step else leaf.shape
    if feature.kind == "image":
        _check_frames(path, leaf, spans)
        return leaf
    if feature.shape == (None,):
        rows = leaf.tolist()
        if not feature.per_step:
            return [_bytes(path, one) for one in rows]
        if not (_are_lists(leaf) and _hold_texts(leaf)):
            raise FunctionFailedError(f"{path!r} is no longer a list of texts for each step")
        return [BETWEEN.join(_bytes(path, one) for one in row) for row in rows]
    if shape != feature.shape:
        raise FunctionFailedError(
            f"{path!r} has shape {list(shape)}, but {list(feature.shape)} in the first episode"
        )
    kind = leaf.dtype.kind
    if feature.dtype == "string":
        if kind not in "OSU":
            raise FunctionFailedError(f"{path!r} is {leaf.dtype}, and text in the first episode")
        return [_bytes(path, one) for one in leaf.reshape(-1).tolist()]
    floating = "float" in feature.dtype
    if kind not in ("biuf" if floating else "biu"):
        raise FunctionFailedError(
            f"{path!r} is {leaf.dtype} here, and was {feature.dtype} in the first episode: give "
            "one type for every episode"
        )
    return leaf.reshape(-1).astype(np.float32 if floating else np.int64)


def _check_frames(path: str, leaf: NDArray[Any], spans: Spans) -> None:
    """Refuse pictures that the record does not hold."""
    if not _are_stand_ins(leaf):
        raise FunctionFailedError(
            f"{path!r} holds {leaf.dtype} numbers in place of the pictures that the function was "
            "given; pictures may be sliced, dropped and renamed, not computed with"
        )
    cameras, steps = np.divmod(leaf - STAND_IN, _CAMERA)
    for camera in np.unique(cameras).tolist():
        there = len(spans.get(camera, ()))
        if int(steps[cameras == camera].max()) >= there:
            raise FunctionFailedError(f"{path!r} names pictures that the episode does not have")


def spans_of(stand_ins: Ints, spans: Spans) -> Ints:
    """[T', 2] where the pictures lie that checked stand-ins [T'] name."""
    cameras, steps = np.divmod(stand_ins - STAND_IN, _CAMERA)
    found = np.empty((len(stand_ins), 2), dtype=np.int64)
    for camera in np.unique(cameras).tolist():
        mine = cameras == camera
        found[mine] = spans[camera][steps[mine]]
    return found


def _bytes(path: str, value: Any) -> bytes:
    """A text as bytes; ``FunctionFailedError`` where it is no text."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode(errors="replace")
    raise FunctionFailedError(f"{path!r} holds {type(value).__name__} where text should be")
