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
from autoloader.sampling import draws, windows
from autoloader.sampling.draws import PURPOSE_CAMERA, PURPOSE_LANGUAGE
from autoloader.sampling.episode import EpisodeSamples, Place, build_samples, episode_key
from autoloader.sampling.fields import is_text, text_of_points
from autoloader.sampling.layout import BatchLayout
from autoloader.sampling.resolve import ResolvedDataset
from autoloader.sampling.transform import VALID_KEY
from autoloader.sampling.windows import valid_range


def samples_of_record(
    dataset: ResolvedDataset, layout: BatchLayout, place: Place, payload: bytes
) -> EpisodeSamples | None:
    """The samples of one record, or ``None`` where no window fits.

    Raises:
        MalformedRecordError: the payload is no Example with the features the spec names.
    """
    numeric = dataset.numeric_features()
    cameras = dataset.cameras
    keys = {feature.key for feature in (*numeric.values(), *dataset.language)}
    keys |= {feature.key for features in cameras.values() for feature in features}
    if dataset.transform is not None:
        payload, _ = dataset.transform.rewritten(payload, keys, dataset.keep)
        keys.add(VALID_KEY)
    values = parse_example(payload, only=keys)
    arrays = {
        path: numbers_of(values.get(feature.key), feature) for path, feature in numeric.items()
    }
    pictures = {
        feature.key: _ranges(values.get(feature.key))
        for features in cameras.values()
        for feature in features
    }
    counts = {len(array) for array in arrays.values()}
    counts |= {len(spans) for spans in pictures.values()}
    if len(counts) != 1:
        raise MalformedRecordError(f"features differ in length: {sorted(counts)} steps")
    steps = -(-counts.pop() // dataset.stride)
    key = episode_key(dataset, place)
    valid = values.get(VALID_KEY) if dataset.transform is not None else None
    t = draw_t(dataset, place, steps, None if valid is None else valid.values)
    if not len(t):
        return None
    drawn = np.full(len(t), key, dtype=np.uint64)
    index = windows.frame_rows(t, steps, dataset.sample, drawn).index
    used, row = np.unique(index, return_inverse=True)
    frames = {}
    for number, (camera, choices) in enumerate(sorted(cameras.items())):
        feature = choices[draw_choice(key, PURPOSE_CAMERA, number, len(choices))]
        spans = pictures[feature.key]
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
        valid: [T] which steps before the stride may be t, rules included; default: as these say.
    """
    first, stop = valid_range(dataset.sample, steps)
    key = episode_key(dataset, place)
    if valid is not None:
        allowed = np.arange(first, stop, dtype=np.int64)
        t = draws.ordered(key, allowed[valid[allowed * dataset.stride] != 0])
    elif dataset.keep is None:
        t = draws.order(key, first, stop)
    else:
        kept = dataset.keep.numbers(place.shard, place.record, first, stop, dataset.stride)
        t = draws.ordered(key, kept)
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
    if value is None or value.values is None:
        raise MalformedRecordError(f"{feature.path!r} is missing or holds no numbers")
    width = int(np.prod([size or 1 for size in feature.shape], dtype=np.int64))
    if len(value.values) % width:
        raise MalformedRecordError(f"{feature.path!r} holds {len(value.values)} values of {width}")
    return value.values.reshape(-1, width).astype(np.float32, copy=False)


def _ranges(value: FeatureValue | None) -> list[tuple[int, int]]:
    if value is None or value.kind not in ("bytes", "missing"):
        raise MalformedRecordError("an image feature is missing or holds no bytes")
    return value.ranges


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
    value = values.get(feature.key)
    if is_text(feature):
        spans = [] if value is None else value.ranges
        if feature.per_step:
            if len(spans) <= int(step.max()):
                raise MalformedRecordError(f"{feature.path!r} has {len(spans)} texts")
            return [payload[slice(*spans[at])] for at in step.tolist()]
        return [payload[slice(*spans[0])]] if spans else [b""]
    if value is None or value.values is None:
        raise MalformedRecordError(f"{feature.path!r} is missing or holds no code points")
    points = value.values.astype(np.int64, copy=False).reshape(-1, int(feature.shape[0] or 1))
    rows = points[step] if feature.per_step else points[:1]
    return [text_of_points(row) for row in rows]
