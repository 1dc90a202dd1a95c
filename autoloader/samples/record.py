"""Parses one record into its samples without TensorFlow: the reference the graphs are held to.

Used where a record must be read on its own: records behind a damaged one, ``verify``, tests.

Not here: finding and reading the record's bytes (``catalog``), whole streams (``graph``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.catalog import Feature
from autoloader.catalog.example import FeatureValue, parse_example
from autoloader.samples import draws, windows
from autoloader.samples.block import Place, SampleBlock, build_samples, episode_key
from autoloader.samples.draws import PURPOSE_CAMERA, PURPOSE_LANGUAGE
from autoloader.samples.layout import BatchLayout
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import RecordSchema
from autoloader.samples.windows import valid_range
from autoloader.transforms.fields import is_several, is_text, texts_of
from autoloader.transforms.transform import VALID_KEY


def samples_of_record(
    dataset: ResolvedDataset, layout: BatchLayout, place: Place, payload: bytes
) -> SampleBlock | None:
    """The samples of one record, or ``None`` where no window fits.

    Raises:
        MalformedRecordError: the payload is no Example with the features the spec names.
    """
    schema = RecordSchema.of(dataset)
    if dataset.transform is not None:
        keys = schema.keys - {VALID_KEY}
        payload, _ = dataset.transform.rewritten(payload, keys, dataset.keep)
    values = parse_example(payload, only=schema.keys, stretches=schema.stretches)
    raw_steps = schema.steps(values)
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
    for number, (camera, choices) in enumerate(sorted(dataset.cameras.items())):
        feature = _drawn(choices, key, PURPOSE_CAMERA, number)
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
        columns={
            path: _column(values[feature.key], feature)[:: dataset.stride]
            for path, feature in dataset.numeric_features().items()
        },
        language=_language(dataset, key, values, payload, t),
        features={
            name: _held(dataset, values.get(feature.key), feature, payload)
            for name, feature in dataset.held.items()
        },
        present={
            camera: _held(dataset, values.get(feature.key), feature, payload)
            for camera, feature in dataset.present.items()
        },
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


def _drawn(choices: Sequence[Feature], key: int, *purpose: int) -> Feature:
    """The feature that an episode has of several, by its key."""
    if len(choices) == 1:
        return choices[0]
    return choices[draws.choose(draws.fold(key, *purpose), len(choices))]


def _column(value: FeatureValue, feature: Feature) -> NDArray[np.float32]:
    """[steps, width] a numeric feature of a record that the schema has checked."""
    assert value.values is not None
    width = math.prod(size or 1 for size in feature.shape)
    return value.values.reshape(-1, width).astype(np.float32, copy=False)


def _held(
    dataset: ResolvedDataset, value: FeatureValue | None, feature: Feature, payload: bytes
) -> Any:
    """What ``build_samples`` takes of a feature that samples hold."""
    every = slice(None, None, dataset.stride if feature.per_step else None)
    if is_text(feature):
        texts = _stored_texts(value, feature, payload)
        return texts[every] if feature.per_step else texts or [b""]
    assert value is not None
    assert value.values is not None
    width = math.prod(size or 1 for size in feature.shape)
    return value.values.reshape(-1, width)[every]


def kept_steps(dataset: ResolvedDataset, payload: bytes) -> NDArray[np.bool_]:
    """[T] which steps of a record, before the stride, the rules of ``keep`` leave.

    Raises:
        MalformedRecordError: the payload is no Example with the features the spec names.
    """
    schema = RecordSchema.of(dataset)
    values = parse_example(payload, only=schema.keys, stretches=schema.stretches)
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
    if is_text(feature) or is_several(feature):
        return [payload[slice(*span)] for span in (value.ranges if value is not None else ())]
    assert value is not None
    return value.values


def _language(
    dataset: ResolvedDataset,
    key: int,
    values: Mapping[str, FeatureValue],
    payload: bytes,
    t: NDArray[np.int64],
) -> list[bytes]:
    if not dataset.language:
        return []
    feature = _drawn(dataset.language, key, PURPOSE_LANGUAGE)
    stored = texts_of(_stored_texts(values.get(feature.key), feature, payload), feature)
    if feature.per_step:
        stored = [stored[at] for at in (t * dataset.stride).tolist()]
    return told_language(dataset, feature, stored, key, t)


def told_language(
    dataset: ResolvedDataset, feature: Feature, stored: list[bytes], key: int, t: NDArray[np.int64]
) -> list[bytes]:
    """The texts of an episode's samples at ``t`` [n], or one for all of them.

    Args:
        dataset: whose language it is.
        feature: the one that the episode has.
        stored: its stored texts, one for each sample or one for all.
        key: of the episode, see ``episode_key``.
        t: of the samples.
    """
    if not dataset.words:
        return stored
    drawn = draws.words_drawn(np.full(len(t), key, np.uint64), t)
    return dataset.words.told(feature.path, stored, drawn)
