"""One dataset as a stream of single encoded samples with their numbers, the same shape for all.

Theory of operation. Records are parsed in the graph, and their samples made there, so that samples
of all datasets have one signature and can be mixed there. Windows, fields and normalisation are
TensorFlow operations, tested equal to ``samples``::

    numbers of files ─ interleave(records) ─ map(parse, windows) ─ prefetch ─ flat_map(samples)

Parsing touches only the features that the spec names. Images stay compressed, and only frames that
some drawn t needs leave it. A dataset's transform rewrites the record first, in Python.

File number n stands for the pass n ÷ files, and in it for the (n mod files)-th of that pass's keyed
order. So tf.data service can deal files, of all passes, to its workers, each to one of them.

An episode's frames are held once; a sample takes copies of its own when it leaves.

Not here: mixing and decoding (``integrations.tfdata.mixture``), the language of fields
(``spec.fields``), binding it to features (``samples.transforms.fields``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoloader.formats.records import MalformedRecordError
from autoloader.pipeline.graph import user_functions
from autoloader.pipeline.graph.reader import RECORDS, numbered_records
from autoloader.pipeline.graph.tensorflow import by_draw, choose, drawn_order, fold, splitmix64, tf
from autoloader.samples import draws
from autoloader.samples.block import field_offsets
from autoloader.samples.layout import BatchLayout
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import RecordSchema
from autoloader.samples.statistics import Scaling
from autoloader.samples.transforms.fields import FieldName, NumericField, feature_width
from autoloader.samples.transforms.keep import Keep
from autoloader.samples.transforms.rlds import read_values
from autoloader.samples.transforms.transform import VALID_KEY, Transform
from autoloader.samples.windows import dropped_edges
from autoloader.spec import SampleSpec
from autoloader.spec.knobs import Knobs
from autoloader.spec.sample import PLAIN, Finish

_DTYPES = {"bytes": tf.string, "float": tf.float32, "int64": tf.int64}

_ENDLESS = 2**62


def sample_stream(
    dataset: ResolvedDataset,
    layout: BatchLayout,
    knobs: Knobs,
    *,
    passes: int | None,
    shard: tuple[int, int] | None,
) -> Any:
    """The tf.data dataset of one dataset's samples; arguments as of ``as_dataset``.

    An element has ``provenance`` [5] int64, ``frames`` [C, F] string, ``frame_mask`` and
    ``frame_zeroed`` [F] bool, ``frame_offset`` [F] int32, ``action`` [H, A] and ``state`` [Fs, S]
    float32 with their masks, and the string ``language``.
    """
    sampler = _Sampler(dataset, layout)
    episodes = _records(dataset, knobs, passes, shard).map(
        sampler.samples_of, num_parallel_calls=knobs.parse_parallel_calls, deterministic=True
    )
    if knobs.stream_prefetch:
        episodes = episodes.prefetch(knobs.stream_prefetch)
    return episodes.flat_map(_one_by_one)


def _records(
    dataset: ResolvedDataset, knobs: Knobs, passes: int | None, shard: tuple[int, int] | None
) -> Any:
    """(number, record bytes) of every record, pass after pass; see ``numbered_records``."""
    slices = dataset.slices
    paths = tf.constant([piece.path for piece in slices])
    starts = tf.constant([piece.start for piece in slices], tf.int64)
    stops = tf.constant([piece.stop for piece in slices], tf.int64)
    key, count = tf.constant(dataset.key, tf.uint64), len(slices)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def of_file(number: Any) -> Any:
        pass_ = number // count
        which = drawn_order(fold(key, draws.PURPOSE_SHARDS, pass_), 0, count)[number % count]
        base = RECORDS * (pass_ * count + which)
        ahead = None if dataset.remote else 0
        return numbered_records(paths[which], starts[which], stops[which], base, ahead)

    numbers = tf.data.Dataset.range(_ENDLESS if passes is None else passes * count)
    if shard is not None:
        numbers = numbers.shard(*shard)
    return numbers.interleave(
        of_file,
        cycle_length=knobs.cycle_length,
        block_length=1,
        num_parallel_calls=knobs.num_parallel_calls if knobs.num_parallel_calls > 1 else None,
        deterministic=True if knobs.num_parallel_calls > 1 else None,
    )


class _Sampler:
    """Computes all samples of a record, as operations."""

    def __init__(self, dataset: ResolvedDataset, layout: BatchLayout) -> None:
        self._dataset = dataset
        self._layout = layout
        self._numeric = dataset.numeric_features()

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def samples_of(self, number: Any, raw: Any) -> dict[str, Any]:
        """All samples of an episode: columns [n, ...], and ``used`` [C, U] its frames."""
        dataset = self._dataset
        of_pass, shards = number // RECORDS, len(dataset.slices)
        place = [of_pass // shards, of_pass % shards, number % RECORDS]
        key = fold(tf.constant(dataset.key, tf.uint64), draws.PURPOSE_ORDER, *place)
        parsed, valid = self._parsed(raw)
        steps = self._steps(parsed)
        t = self._draw_t(key, steps, valid)
        window = frame_rows(t, steps, dataset.sample, key)
        used, row = tf.unique(tf.reshape(window.index, [-1]), out_idx=tf.int64)
        columns = {
            path: as_columns(
                parsed[feature.key][:: dataset.stride], feature_width(feature, field=path)
            )
            for path, feature in self._numeric.items()
        }
        action, action_mask = self._field("action", t, steps, columns)
        state, state_mask = self._field("state", t, steps, columns)
        own = tf.stack([tf.constant(dataset.index, tf.int64), *place])
        places = tf.broadcast_to(own[None], tf.stack([tf.size(t), 4]))
        return {
            "provenance": tf.concat([places, t[:, None]], axis=1),
            "used": self._frames(key, parsed, used),
            "frame_row": tf.reshape(row, [-1, dataset.sample.frames]),
            "frame_mask": window.inside,
            "frame_zeroed": window.zeroed,
            "frame_offset": window.offset,
            "action": action,
            "action_mask": action_mask,
            "state": state,
            "state_mask": state_mask,
            "language": self._language(key, parsed, t),
        }

    def _parsed(self, raw: Any) -> tuple[dict[str, Any], Any]:
        """(features of a record by key, [T] which steps may be t; ``None``: all)."""
        dataset, wanted = self._dataset, self._wanted()
        if dataset.transform is not None:
            keys = [key for key in wanted if key != VALID_KEY]
            raw = _transformed(dataset.transform, raw, keys, dataset.keep)
        parsed = tf.io.parse_single_example(raw, wanted)
        if VALID_KEY in parsed or dataset.keep is None:
            return parsed, parsed.get(VALID_KEY)
        return parsed, self._kept(raw, dataset.keep)

    def _steps(self, parsed: Mapping[str, Any]) -> Any:
        """Number of steps that the stride leaves; an error where features differ in theirs."""
        dataset = self._dataset
        per_step = [*chain(*dataset.cameras.values()), *self._numeric.values()]
        per_step += [feature for feature in dataset.language if feature.per_step]
        steps = _agreed_steps([parsed[feature.key] for feature in per_step])
        return (steps + dataset.stride - 1) // dataset.stride

    def _kept(self, raw: Any, keep: Keep) -> Any:
        """[T] int64 which steps of a record rules leave; an error where it is damaged."""
        keys = RecordSchema.of(self._dataset).keys

        def kept(record: bytes) -> NDArray[np.int64]:
            found, _ = read_values(record, self._dataset.features, keys)
            return keep.allows(found.steps, found.values).astype(np.int64)

        return tf.ensure_shape(tf.numpy_function(kept, [raw], tf.int64), [None])

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

    def _draw_t(self, key: Any, steps: Any, valid: Any) -> Any:
        sample = self._dataset.sample
        first, end = dropped_edges(sample)
        stop = tf.maximum(steps - end, first)
        if valid is None:
            t = drawn_order(key, first, stop)
        else:
            allowed = tf.range(tf.cast(first, tf.int64), stop)
            may = tf.gather(valid, allowed * self._dataset.stride) != 0
            t = by_draw(key, tf.boolean_mask(allowed, may))
        return t if sample.per_episode == "all" else t[: sample.per_episode]

    def _field(
        self, name: FieldName, t: Any, steps: Any, columns: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        sample, layout, bound = self._dataset.sample, self._layout, self._dataset.bound(name)
        width = layout.action_width if name == "action" else layout.state_width
        values = tf.ensure_shape(tf.zeros(tf.stack([steps, 0])), [None, 0])  # no columns
        if bound is not None:
            values = evaluate(bound, columns, steps)
        window = window_rows(t, tf.constant(field_offsets(sample, name)), steps, sample)
        finish, base = sample.finish(name), None
        if finish.relative and self._dataset.state is not None:
            base = tf.gather(evaluate(self._dataset.state, columns, steps), t)
        found, mask = window_values(values, window, width, finish, base)
        scaling = self._dataset.scaling.get(name)
        if scaling is not None:
            found = scaled(scaling, found, ~mask[..., 0] if finish.summed else window.zeroed)
        return found, mask

    def _language(self, key: Any, parsed: Mapping[str, Any], t: Any) -> Any:
        """[n] string: UTF-8 of each sample."""
        choices = []
        for feature in self._dataset.language:
            texts = parsed[feature.key]
            texts = tf.gather(texts, t * self._dataset.stride) if feature.per_step else texts[None]
            if texts.dtype != tf.string:
                texts = text_of_points(texts)
            choices.append(tf.broadcast_to(texts, tf.shape(t)))
        return _choose(key, (draws.PURPOSE_LANGUAGE,), choices or [tf.fill(tf.shape(t), "")])

    def _frames(self, key: Any, parsed: Mapping[str, Any], used: Any) -> Any:
        """[C, U] string: the frames [U] of every camera of the mixture."""
        every = dict.fromkeys(self._layout.cameras, tf.fill(tf.shape(used), ""))
        for number, (camera, features) in enumerate(sorted(self._dataset.cameras.items())):
            choices = [parsed[feature.key] for feature in features]
            chosen = _choose(key, (draws.PURPOSE_CAMERA, number), choices)
            every[camera] = tf.gather(chosen, used * self._dataset.stride)
        return tf.stack(list(every.values()))


def _transformed(transform: Transform, raw: Any, keys: list[str], keep: Keep | None) -> Any:
    """The record as the transform leaves it, without a step where it fails or drops the episode.

    Which steps rules leave is in the record too, since the texts are that they look at.
    """
    user_functions.enter()

    def rewrite(record: bytes) -> bytes:
        try:
            return transform.rewritten(record, keys, keep)
        except MalformedRecordError:
            return transform.dropped(keys)

    return tf.ensure_shape(tf.numpy_function(rewrite, [raw], tf.string), [])


def _agreed_steps(per_step: list[Any]) -> Any:
    """Number of steps that all features have; an error in the graph where they differ."""
    steps = tf.shape(per_step[0], out_type=tf.int64)[0]
    if len(per_step) == 1:
        return steps
    others = tf.stack([tf.shape(other, out_type=tf.int64)[0] for other in per_step[1:]])
    agreed = tf.debugging.Assert(
        tf.reduce_all(tf.equal(others, steps)), ["features differ in length", steps, others]
    )
    with tf.control_dependencies([agreed]):
        return tf.identity(steps)


def _choose(key: Any, purpose: tuple[int, ...], choices: list[Any]) -> Any:
    """One of the choices, drawn by the key for a purpose."""
    if len(choices) == 1:
        return choices[0]
    drawn = choose(fold(key, *purpose), len(choices))
    return tf.switch_case(drawn, [lambda c=choice: c for choice in choices])


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _one_by_one(episode: Mapping[str, Any]) -> Any:
    """An episode's samples; frames are copied only when a sample leaves."""
    rows = dict(episode)
    used = rows.pop("used")

    def sample(row: Mapping[str, Any]) -> dict[str, Any]:
        left = dict(row)
        return {**left, "frames": tf.gather(used, left.pop("frame_row"), axis=1)}

    return tf.data.Dataset.from_tensor_slices(rows).map(sample)


class WindowTensors(NamedTuple):
    """Rows of an episode for each of n samples, as ``samples.windows.WindowRows`` has them.

    Attributes:
        index: [n, R] int64, inside the episode.
        inside: [n, R] bool.
        zeroed: [n, R] bool.
        offset: [n, R] int32.
    """

    index: Any
    inside: Any
    zeroed: Any
    offset: Any


def window_rows(t: Any, offsets: Any, steps: Any, sample: SampleSpec) -> WindowTensors:
    """The rows at ``t[:, None] + offsets`` under the sample's edges.

    Args:
        t: [n] int64 steps of the strided episode.
        offsets: [R] int64 offsets of the window, in strided steps.
        steps: int64 scalar, frames of the (strided) episode.
        sample: the sample block whose edges apply.
    """
    wanted = t[:, None] + offsets[None, :]
    index = tf.maximum(tf.minimum(wanted, steps - 1), 0)
    before, after = wanted < 0, wanted >= steps
    zeroed = tf.zeros_like(before)
    if sample.edges.start == "zero":
        zeroed = zeroed | before
    if sample.edges.end == "zero":
        zeroed = zeroed | after
    realised = tf.where(zeroed, wanted, index) - t[:, None]
    return WindowTensors(index, ~(before | after), zeroed, tf.cast(realised, tf.int32))


def frame_rows(t: Any, steps: Any, sample: SampleSpec, key: Any) -> WindowTensors:
    """The rows of a sample's frames: at its offsets, then the goal's where there is one.

    Args:
        t: [n] int64 steps of the strided episode.
        steps: int64 scalar, frames of the (strided) episode.
        sample: offsets, edges and goal.
        key: uint64 scalar, of the episode in its pass.
    """
    window = window_rows(t, tf.constant(sample.frame_offsets, tf.int64), steps, sample)
    if sample.goal == "none":
        return window
    hashes = splitmix64(fold(fold(key, draws.PURPOSE_GOAL), t))
    left = steps - 1 - t
    drawn = hashes % tf.bitcast(tf.maximum(left, 1), tf.uint64)
    goal = tf.where(left > 0, t + 1 + tf.bitcast(drawn, tf.int64), t)[:, None]
    none = tf.zeros_like(goal, tf.bool)
    return WindowTensors(
        tf.concat([window.index, goal], 1),
        tf.concat([window.inside, ~none], 1),
        tf.concat([window.zeroed, none], 1),
        tf.concat([window.offset, tf.cast(goal - t[:, None], tf.int32)], 1),
    )


def evaluate(field: NumericField, columns: Mapping[str, Any], steps: Any) -> Any:
    """The field's values [steps, width] float32.

    Args:
        field: a bound field.
        columns: feature path → [steps, feature width] float32.
        steps: int64 scalar, frames of the (strided) episode.
    """
    parts = []
    for term, width in zip(field.terms, field.widths, strict=True):
        if term.path is None:
            parts.append(tf.fill(tf.stack([steps, width]), np.float32(term.value)))
            continue
        part = columns[term.path][:, term.slice()]
        for op in term.ops:
            if op.name == "clip":
                # Not clip_by_value: a NaN stays one, as in NumPy.
                low, high = np.float32(op.values[0]), np.float32(op.values[1])
                part = tf.where(part < low, low, part)
                part = tf.where(part > high, high, part)
            elif op.name == "invert":
                part = np.float32(1) - part
            else:
                part = part * np.float32(op.values[0])
        parts.append(part)
    return tf.ensure_shape(tf.concat(parts, axis=1), [None, field.width])


def as_columns(values: Any, width: int) -> Any:
    """A per-step feature [T, ...] as [T, width] float32."""
    return tf.cast(tf.reshape(values, [-1, width]), tf.float32)


def window_values(
    column: Any, window: WindowTensors, width: int, finish: Finish = PLAIN, base: Any = None
) -> tuple[Any, Any]:
    """``samples.windows.finished_values``: a column [T, w] at a window's rows, and the mask."""
    own = int(column.shape[1])
    taken = tf.gather(column, window.index)
    dims = [d in finish.relative for d in range(own)]
    if any(dims) and base is not None:
        columns = [base[:, d] if dims[d] else tf.zeros_like(base[:, 0]) for d in range(own)]
        taken = tf.where(tf.constant(dims), taken - tf.stack(columns, axis=1)[:, None], taken)
    blank = tf.constant([d in finish.zero_outside for d in range(own)], tf.bool)
    blank = blank & ~window.inside[:, :, None]
    taken = tf.where(window.zeroed[:, :, None] | blank, tf.zeros_like(taken), taken)
    mask = tf.broadcast_to(window.inside[:, :, None], tf.shape(taken))
    padding = [[0, 0], [0, 0], [0, width - own]]
    values, mask = tf.pad(taken, padding), tf.pad(mask, padding)
    if not finish.summed:
        return values, mask
    values = tf.where(mask, values, tf.zeros_like(values))
    total = values[:, 0]
    for row in range(1, int(window.index.shape[1])):  # one after the other, as NumPy adds them
        total = total + values[:, row]
    return total[:, None], tf.reduce_any(mask, axis=1, keepdims=True)


def scaled(scaling: Scaling, values: Any, nothing: Any) -> Any:
    """``Scaling.apply`` of [n, R, W] float32 with rows [n, R] bool that hold nothing."""
    width = len(scaling.active)
    own = values[..., :width]
    found = (own - scaling.centre) * scaling.factor + scaling.shift
    if scaling.bound is not None:
        found = tf.where(found < -scaling.bound, -scaling.bound, found)
        found = tf.where(found > scaling.bound, scaling.bound, found)
    if scaling.binary is not None:
        large = tf.where(tf.math.is_nan(own), own, tf.cast(own > np.float32(0.5), tf.float32))
        found = tf.where(scaling.binary, large, found)
    active = tf.constant(scaling.active) & ~nothing[..., None]
    return tf.concat([tf.where(active, found, own), values[..., width:]], axis=-1)


def text_of_points(points: Any) -> Any:
    """[m] UTF-8 of [m, L] code points: zeros and what is no character are left out.

    Where ``samples.transforms.fields`` keeps a noncharacter (U+FFFE and its like), TensorFlow's
    encoder puts U+FFFD; no instruction has one.
    """
    points = tf.cast(points, tf.int64)
    surrogate = (points >= 0xD800) & (points <= 0xDFFF)
    valid = (points > 0) & (points < 0x110000) & ~surrogate
    kept = tf.ragged.boolean_mask(tf.cast(points, tf.int32), valid)
    return tf.strings.unicode_encode(kept, "UTF-8")
