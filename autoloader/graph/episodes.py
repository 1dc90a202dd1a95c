"""One dataset as a stream of episodes: shards in keyed order, interleaved, parsed, sampled.

Theory of operation. The graph is, for passes first_pass, first_pass + 1, …::

    shards in the pass's keyed order ─ interleave(cycle_length) ─ records
        ─ map(parse, parse_parallel_calls) ─ prefetch(stream_prefetch)

``parse`` touches only the features that the spec names. Images stay compressed, and only frames
that some drawn t needs leave it. It is traced once for a dataset, for all its splits; the stages
before it are traced once for all datasets. Place and knobs are tensors, so that opening a stream
again costs no trace. tf.data's autotuning is off: the knobs set the parallelism.

A dataset's transform rewrites the record before it is parsed (``transforms.transform``).

Each element carries its place: pass, shard, record. Its ``steps`` are -1 where a transform dropped
the episode, 0 where it may be a broken record. Runs in whichever thread iterates; TensorFlow
releases the interpreter while it waits.

Not here: numeric windows of the samples (``samples.block``).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.catalog import Feature
from autoloader.catalog.example import encode_varints
from autoloader.catalog.features import JOINED
from autoloader.catalog.tfrecord import MalformedRecordError
from autoloader.graph import draws, user_functions, windows
from autoloader.graph.records import STRUCTURE, record_stream
from autoloader.graph.tensorflow import tf
from autoloader.knobs import ResolvedDatasetKnobs
from autoloader.samples.block import Place, ReaderStart, SampleBlock, build_samples, episode_key
from autoloader.samples.draws import PURPOSE_CAMERA, PURPOSE_LANGUAGE, choose, fold
from autoloader.samples.layout import BatchLayout
from autoloader.samples.record import kept_steps, told_language
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import RecordSchema
from autoloader.samples.windows import dropped_edges
from autoloader.transforms.fields import BETWEEN, is_several, is_text, texts_a_step, texts_of
from autoloader.transforms.keep import Keep
from autoloader.transforms.transform import VALID_KEY, Transform

_DTYPES = {"bytes": tf.string, "float": tf.float32, "int64": tf.int64}

converting = threading.Lock()
"""Turning an element into samples is Python too. A mixture drains its queues evenly, so many
readers wake together: one at a time, they leave the interpreter to the decode pool in between."""
compiling = threading.Lock()
"""Tracing is Python: one at a time it takes half as long, and the first streams start early."""


class _Parse:
    """``parse`` as a traced function over a variant of records, and what its elements are."""

    def __init__(self, stream: EpisodeGraph) -> None:
        self._stream: EpisodeGraph | None = stream
        self.structure: Any = None
        self.function = tf.function(
            self._variant,
            input_signature=[tf.TensorSpec([], tf.variant), tf.TensorSpec([], tf.int64)],
            autograph=False,
        )
        self.function.get_concrete_function()
        self._stream = None

    def _variant(self, records: Any, parse_calls: Any) -> Any:
        assert self._stream is not None, "traced twice"
        stream = tf.data.experimental.from_variant(records, STRUCTURE).map(
            self._stream.parse, num_parallel_calls=parse_calls, deterministic=True
        )
        self.structure = stream.element_spec
        return tf.data.experimental.to_variant(stream)


_traced: weakref.WeakValueDictionary[Hashable, _Parse] = weakref.WeakValueDictionary()
"""By what they were traced from: the splits of a dataset share theirs."""


class EpisodeGraph:
    """The compiled stream of one dataset; thread-safe, opened any number of times."""

    def __init__(
        self, dataset: ResolvedDataset, layout: BatchLayout, *, ordered: bool = False
    ) -> None:
        self._dataset = dataset
        self._layout = layout
        self._ordered = ordered
        self._numeric = dataset.numeric_features()
        self._parse: _Parse | None = None

    def open(self, start: ReaderStart, knobs: ResolvedDatasetKnobs) -> Iterator[Mapping[str, Any]]:
        """Raw elements from ``start`` on, without end; see ``samples_of``."""
        return iter(self.dataset(start, knobs))

    def dataset(self, start: ReaderStart, knobs: ResolvedDatasetKnobs) -> Any:
        """The tf.data dataset of raw elements from ``start`` on."""
        with compiling:
            if self._parse is None:
                self._parse = self._traced()
        with tf.device("/CPU:0"):
            variant = self._parse.function(
                record_stream(self._dataset, start, knobs, ordered=self._ordered),
                tf.constant(knobs.parse_parallel_calls, tf.int64),
            )
            stream = tf.data.experimental.from_variant(variant, self._parse.structure)
        if knobs.stream_prefetch:
            stream = stream.prefetch(knobs.stream_prefetch)
        return stream.with_options(still_options())

    def samples_of(self, element: Mapping[str, Any]) -> SampleBlock | None:
        """The samples of one raw element, or ``None`` where it has none (its place is in it)."""
        with converting:
            return self._samples_of(element)

    def _samples_of(self, element: Mapping[str, Any]) -> SampleBlock | None:
        place = self.place_of(element)
        t = element["t"].numpy()
        if not len(t):
            return None
        columns = {path: _as_columns(element[f"column/{path}"].numpy()) for path in self._numeric}
        return build_samples(
            self._dataset,
            self._layout,
            place,
            steps=int(element["steps"].numpy()),
            t=t,
            frames={
                camera: _as_frames(element[f"frames/{camera}"].numpy())
                for camera in self._dataset.cameras
            },
            frame_row=element["frame_row"].numpy(),
            columns=columns,
            language=self._language_of(element, place, t),
            features={
                name: _as_held(element[f"feature/{name}"].numpy(), feature)
                for name, feature in self._dataset.held.items()
            },
            present={
                camera: _as_held(element[f"present/{camera}"].numpy(), feature)
                for camera, feature in self._dataset.present.items()
            },
        )

    def place_of(self, element: Mapping[str, Any]) -> Place:
        """Where a raw element lies."""
        pass_, shard, record = element["place"].numpy().tolist()
        return Place(self._dataset.index, pass_, shard, record)

    def _language_of(
        self, element: Mapping[str, Any], place: Place, t: NDArray[np.int64]
    ) -> list[bytes]:
        choices = self._dataset.language
        if not choices:
            return []
        several = len(choices) > 1 or bool(self._dataset.words)
        key = episode_key(self._dataset, place) if several else 0
        feature = choices[choose(fold(key, PURPOSE_LANGUAGE), len(choices)) if several else 0]
        value = element["language"].numpy()
        if value.dtype == object:
            value = value.reshape(-1).tolist()
        # One stored text for each sample, or one alone.
        form = feature.encoding if texts_a_step(feature) else JOINED
        alike = replace(feature, per_step=True, encoding=form)
        return told_language(self._dataset, feature, texts_of(value, alike), key, t)

    def _traced(self) -> _Parse:
        dataset = self._dataset
        if dataset.keep is not None or dataset.transform is not None:
            return _Parse(self)  # hangs on this dataset's rules, or on a user's function
        cameras = tuple((name, tuple(features)) for name, features in dataset.cameras.items())
        numeric = tuple(self._numeric.items())
        what = (cameras, numeric, tuple(dataset.language), tuple(dataset.held.items()),
                tuple(dataset.present.items()))  # fmt: skip
        key = (what, dataset.sample, dataset.stride, dataset.turn)
        if (parse := _traced.get(key)) is None:
            parse = _traced[key] = _Parse(self)
        return parse

    def parse(self, pass_: Any, shard: Any, record: Any, key: Any, raw: Any) -> dict[str, Any]:
        """The raw element of one record, as operations: its drawn t and what they need."""
        dataset = self._dataset
        wanted = self._wanted()
        dropped = tf.zeros([], tf.bool)
        if dataset.transform is not None:
            keys = [key for key in wanted if key != VALID_KEY]
            raw, dropped = self._transformed(dataset.transform, raw, keys, dataset.keep)
        parsed = tf.io.parse_single_example(raw, wanted)
        cameras = {
            camera: [parsed[feature.key] for feature in features]
            for camera, features in dataset.cameras.items()
        }
        columns = {path: parsed[feature.key] for path, feature in self._numeric.items()}
        texts = [parsed[feature.key] for feature in dataset.language if feature.per_step]
        asked = {f"feature/{name}": feature for name, feature in dataset.held.items()}
        asked |= {f"present/{camera}": feature for camera, feature in dataset.present.items()}
        texts += [parsed[feature.key] for feature in asked.values() if feature.per_step]
        pictures = [choice for choices in cameras.values() for choice in choices]
        steps = self._agreed_steps([*pictures, *columns.values(), *texts])
        strided = self._strided_count(steps)
        valid = parsed.get(VALID_KEY)
        if valid is None and dataset.keep is not None:
            valid = self._kept(raw)
        t = self._draw_t(key, strided, valid)
        row, used = self._frames_used(t, strided, key)
        element: dict[str, Any] = {
            "place": tf.stack([pass_, shard, record]),
            "steps": tf.where(dropped, tf.constant(-1, tf.int64), strided),
            "t": t,
            "frame_row": row,
        }
        for number, (camera, choices) in enumerate(sorted(cameras.items())):
            chosen = self._choose(key, (PURPOSE_CAMERA, number), choices)
            element[f"frames/{camera}"] = tf.gather(chosen, self._step_of(used))
        for path, column in columns.items():
            element[f"column/{path}"] = column if dataset.stride == 1 else column[:: dataset.stride]
        for name, feature in asked.items():
            values = parsed[feature.key]
            strided = feature.per_step and dataset.stride > 1
            element[name] = values[:: dataset.stride] if strided else values
        if dataset.language:
            element["language"] = self._language(key, parsed, self._step_of(t))
        return element

    @staticmethod
    def _transformed(
        transform: Transform, raw: Any, keys: list[str], keep: Keep | None
    ) -> tuple[Any, Any]:
        """(the record as the transform leaves it, whether it is dropped).

        Which steps rules leave is in the record too, since the texts are that they look at.
        A record on which it fails has no step either, and is looked at with the missing ones.
        """
        user_functions.enter()

        def rewrite(record: bytes) -> tuple[bytes, bool]:
            try:
                return transform.rewritten(record, keys, keep)
            except MalformedRecordError:
                return transform.dropped(keys), False

        written, dropped = tf.numpy_function(rewrite, [raw], [tf.string, tf.bool])
        return tf.ensure_shape(written, []), tf.ensure_shape(dropped, [])

    def _kept(self, raw: Any) -> Any:
        """[T] int64 which steps of a record rules leave; an error where it is damaged."""

        def kept(record: bytes) -> NDArray[np.int64]:
            return kept_steps(self._dataset, record).astype(np.int64)

        return tf.ensure_shape(tf.numpy_function(kept, [raw], tf.int64), [None])

    def _strided_count(self, steps: Any) -> Any:
        stride = self._dataset.stride
        return steps if stride == 1 else (steps + stride - 1) // stride

    def _step_of(self, t: Any) -> Any:
        return t if self._dataset.stride == 1 else t * self._dataset.stride

    def _wanted(self) -> dict[str, Any]:
        """Every feature that samples need, as ``tf.io.parse_single_example`` asks for it."""
        wanted: dict[str, Any] = {}
        for one in RecordSchema.of(replace(self._dataset, keep=None)).features:
            dtype = _DTYPES[one.list_kind]
            many = one.width > 1 or (one.role in ("points", "texts") and one.width)
            shape = [one.width] if many else []
            if one.per_step or not one.width:
                wanted[one.key] = tf.io.FixedLenSequenceFeature(shape, dtype, allow_missing=True)
            else:
                empty = "" if one.role == "text" else None
                wanted[one.key] = tf.io.FixedLenFeature(shape, dtype, default_value=empty)
        return wanted

    def _agreed_steps(self, per_step: list[Any]) -> Any:
        steps = tf.shape(per_step[0], out_type=tf.int64)[0]
        if len(per_step) == 1:
            return steps
        others = tf.stack([tf.shape(other, out_type=tf.int64)[0] for other in per_step[1:]])
        agreed = tf.debugging.Assert(
            tf.reduce_all(tf.equal(others, steps)), ["features differ in length", steps, others]
        )
        with tf.control_dependencies([agreed]):
            return tf.identity(steps)

    def _draw_t(self, key: Any, steps: Any, valid: Any) -> Any:
        sample = self._dataset.sample
        first, end = dropped_edges(sample)
        stop = tf.maximum(steps - end, first)
        if valid is None:
            t = draws.order(key, first, stop)
        else:
            allowed = tf.range(tf.cast(first, tf.int64), stop)
            may = tf.gather(valid, self._step_of(allowed)) != 0
            t = draws.ordered(key, tf.boolean_mask(allowed, may))
        t = t if sample.per_episode == "all" else t[: sample.per_episode]
        first, every = self._dataset.turn
        return t if every == 1 else t[first::every]

    def _frames_used(self, t: Any, steps: Any, key: Any) -> tuple[Any, Any]:
        """([n, F] int64 rows, [U] int64 frames): which each sample has, and which are kept."""
        sample = self._dataset.sample
        index = windows.frame_rows(t, steps, sample, key).index
        used, row = tf.unique(tf.reshape(index, [-1]), out_idx=tf.int64)
        return tf.reshape(row, [-1, sample.frames]), used

    @staticmethod
    def _choose(key: Any, purpose: tuple[int, ...], choices: list[Any]) -> Any:
        if len(choices) == 1:
            return choices[0]
        drawn = draws.choose(draws.fold(key, *purpose), len(choices))
        return tf.switch_case(drawn, [lambda c=choice: c for choice in choices])

    def _language(self, key: Any, parsed: Mapping[str, Any], step: Any) -> Any:
        choices = []
        for feature in self._dataset.language:
            value = parsed[feature.key]
            if is_several(feature) and not texts_a_step(feature):
                value = tf.strings.reduce_join(value, separator=BETWEEN)
            choices.append(tf.gather(value, step) if feature.per_step else value[None])
        if len({(is_text(f), f.per_step) for f in self._dataset.language}) > 1:
            choices = [
                tf.broadcast_to(choice, tf.concat([tf.shape(step), tf.shape(choice)[1:]], 0))
                for choice in choices
            ]
        return self._choose(key, (PURPOSE_LANGUAGE,), choices)


def still_options() -> Any:
    """tf.data options under which nothing tunes itself: the knobs rule."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_warm_start = False
    return options


def _as_held(values: Any, feature: Feature) -> Any:
    """What ``build_samples`` takes: [T, width] numbers, or T texts; T is 1 of an episode's own."""
    if is_text(feature):
        return values.tolist() if feature.per_step else [values]
    return values.reshape(len(values) if feature.per_step else 1, -1)


def _as_frames(values: NDArray[Any]) -> list[bytes]:
    """Encoded frames: strings, or rows [U, n] of numbers as a record's list holds them."""
    if values.dtype == object:
        return list(values.tolist())
    if values.dtype == np.int64:
        return [encode_varints(row) for row in values.reshape(len(values), -1)]
    return [row.tobytes() for row in values.astype("<f4", copy=False)]


def _as_columns(values: NDArray[Any]) -> NDArray[np.float32]:
    return values.reshape(len(values), -1).astype(np.float32, copy=False)
