"""Parses one record into its samples without TensorFlow: the reference the graphs are held to.

Used where a record must be read on its own: records behind a damaged one, ``verify``, tests.

Not here: finding and reading the record's bytes (``catalog``), whole streams (``graph``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.catalog import Feature
from autoloader.catalog.example import FeatureValue, parse_example
from autoloader.catalog.tfrecord import MalformedRecordError
from autoloader.samples import draws, windows
from autoloader.samples.block import Place, SampleBlock, build_samples, episode_key
from autoloader.samples.draws import PURPOSE_CAMERA, PURPOSE_LANGUAGE
from autoloader.samples.layout import BatchLayout
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import RecordSchema
from autoloader.samples.windows import valid_range
from autoloader.transforms.fields import is_text, text_of_points
from autoloader.transforms.transform import VALID_KEY


def samples_of_record(
    dataset: ResolvedDataset, layout: BatchLayout, place: Place, payload: bytes
) -> SampleBlock | None:
    """The samples of one record, or ``None`` where no window fits.

    Raises:
        MalformedRecordError: the payload is no Example with the features the spec names.
    """
    numeric, cameras = dataset.numeric_features(), dataset.cameras
    schema = RecordSchema.of(dataset)
    if dataset.transform is not None:
        keys = schema.keys - {VALID_KEY}
        payload, _ = dataset.transform.rewritten(payload, keys, dataset.keep)
    values = parse_example(payload, only=schema.keys)
    raw_steps = schema.steps(values)
    arrays = {
        path: numbers_of(values.get(feature.key), feature) for path, feature in numeric.items()
    }
    steps = -(-raw_steps // dataset.stride)
    key = episode_key(dataset, place)
    valid: NDArray[Any] | None = None
    if dataset.transform is not None:
        valid = values[VALID_KEY].values
    elif dataset.keep is not None:
        valid = _kept(dataset, raw_steps, values, payload)
    t = draw_t(dataset, place, steps, valid)
    if not len(t):
        return None
    drawn = np.full(len(t), key, dtype=np.uint64)
    index = windows.frame_rows(t, steps, dataset.sample, drawn).index
    used, row = np.unique(index, return_inverse=True)
    frames = {}
    for number, (camera, choices) in enumerate(sorted(cameras.items())):
        feature = choices[draw_choice(key, PURPOSE_CAMERA, number, len(choices))]
        spans = values[feature.key].ranges
        frames[camera] = [payload[slice(*spans[step * dataset.stride])] for step in used.tolist()]
    return build_samples(
        dataset,
        layout,
        place,
        steps=steps,
        t=t,
        frames=frames,
        frame_row=row.reshape(index.shape),
        columns={path: array[:: dataset.stride] for path, array in arrays.items()},
        language=_language(dataset, key, values, payload, t * dataset.stride),
    )


def draw_t(
    dataset: ResolvedDataset, place: Place, steps: int, valid: NDArray[Any] | None = None
) -> NDArray[np.int64]:
    """[n] int64 drawn t of an episode of ``steps`` (strided) frames, in the order they come.

    Args:
        dataset: whose episode.
        place: where it lies.
        steps: strided frames.
        valid: [T] which steps before the stride may be t; default: all.
    """
    first, stop = valid_range(dataset.sample, steps)
    key = episode_key(dataset, place)
    if valid is None:
        t = draws.order(key, first, stop)
    else:
        allowed = np.arange(first, stop, dtype=np.int64)
        t = draws.ordered(key, allowed[valid[allowed * dataset.stride] != 0])
    per_episode = dataset.sample.per_episode
    t = t if per_episode == "all" else t[:per_episode]
    return t[dataset.turn[0] :: dataset.turn[1]]


def draw_choice(key: int, purpose: int, number: int, count: int) -> int:
    """Which of ``count`` alternatives an episode has for its ``number``-th camera."""
    if count == 1:
        return 0
    parts = (purpose, number) if purpose == PURPOSE_CAMERA else (purpose,)
    return draws.choose(draws.fold(key, *parts), count)


def numbers_of(value: FeatureValue | None, feature: Feature) -> NDArray[np.float32]:
    """[steps, width] a numeric feature of a parsed record.

    Raises:
        MalformedRecordError: it is missing, or holds something else.
    """
    kind = "float" if "float" in feature.dtype else "int64"
    if value is None or value.values is None:
        raise MalformedRecordError(f"{feature.path!r} is missing or holds no numbers")
    if value.kind != kind:
        raise MalformedRecordError(f"{feature.path!r} is stored as {value.kind}, not as {kind}")
    width = int(np.prod([size or 1 for size in feature.shape], dtype=np.int64))
    if len(value.values) % width:
        raise MalformedRecordError(f"{feature.path!r} holds {len(value.values)} values of {width}")
    return value.values.reshape(-1, width).astype(np.float32, copy=False)


def kept_steps(dataset: ResolvedDataset, payload: bytes) -> NDArray[np.bool_]:
    """[T] which steps of a record, before the stride, the rules of ``keep`` leave.

    Raises:
        MalformedRecordError: the payload is no Example with the features the spec names.
    """
    schema = RecordSchema.of(dataset)
    values = parse_example(payload, only=schema.keys)
    return _kept(dataset, schema.steps(values), values, payload)


def _kept(
    dataset: ResolvedDataset, steps: int, values: Mapping[str, FeatureValue], payload: bytes
) -> NDArray[np.bool_]:
    assert dataset.keep is not None
    found = {
        one.key: _stored_texts(values.get(one.key), one, payload) for one in dataset.keep.features
    }
    return dataset.keep.allows(steps, found)


def _stored_texts(value: FeatureValue | None, feature: Feature, payload: bytes) -> Any:
    """Byte strings or integers, as a record that was checked holds them."""
    if is_text(feature):
        return [payload[slice(*span)] for span in (value.ranges if value is not None else ())]
    assert value is not None
    return value.values


def _language(
    dataset: ResolvedDataset,
    key: int,
    values: Mapping[str, FeatureValue],
    payload: bytes,
    step: NDArray[np.int64],
) -> list[bytes]:
    if not dataset.language:
        return []
    chosen = draw_choice(key, PURPOSE_LANGUAGE, 0, len(dataset.language))
    feature = dataset.language[chosen]
    stored = _stored_texts(values.get(feature.key), feature, payload)
    if is_text(feature):
        return [stored[at] for at in step.tolist()] if feature.per_step else stored or [b""]
    points = stored.astype(np.int64, copy=False).reshape(-1, int(feature.shape[0] or 1))
    return [text_of_points(row) for row in (points[step] if feature.per_step else points)]
