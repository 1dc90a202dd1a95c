"""A mixture of datasets as one tf.data graph.

Theory of operation::

    samples of dataset 0 ─┐
    samples of dataset 1 ─┼─ choose_from_datasets(choices) ─ map(decode) ─ [batch ─ prefetch]
    …                    ─┘

Each dataset has a stream of its own with its own parallelism; samples wait encoded, and are decoded
after the mix. The graph holds no Python (but for a dataset's ``transform``), so that it can be sent
to the workers of tf.data service.

The datasets' turns follow the low-discrepancy schedule of ``sampling.schedule``: all blocks in the
order in which they are due. A chunk is what is due within ``_CHUNK`` units of time (about as many
blocks), computed whole in the graph, so that no Python runs while samples flow. Drawn turns are
keyed hashes of the block's number, so that their shares are exact in expectation only.

JPEG is decoded with the fast integer DCT. Pictures are resized by TensorFlow's kernels (bilinear
with half-pixel centres and not antialiased, area, or one of the antialiased methods) and rounded to
uint8. Frames agree with the decode pool's within about 2 grey levels.

Not here: a dataset's samples (``integrations.tfdata.samples``), the schedule in NumPy
(``sampling.schedule``, tested equal), the decode pool (``decode.jobs``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from autoloader.errors import SourceError, UnsupportedError, UsageError
from autoloader.index.counting import count_mixture
from autoloader.index.statistics import statistics_of, with_recorded_sizes
from autoloader.integrations.tfdata.samples import sample_stream
from autoloader.pipeline.graph import files
from autoloader.pipeline.graph.tensorflow import splitmix64, tf
from autoloader.process.arguments import spec_of
from autoloader.samples.resolve import ResolvedMixture, normalised, resolve
from autoloader.sampling.mixture import MixtureOrder, mixture_order
from autoloader.spec import CameraSpec, CurriculumSpec, SpecSource
from autoloader.spec.knobs import Knobs


def as_dataset(
    spec: SpecSource,
    *,
    split: str = "train",
    seed: int | None = None,
    batched: bool = False,
    passes: int | None = None,
    shard: tuple[int, int] | None = None,
    knobs: Mapping[str, Any] | None = None,
) -> Any:
    """A mixture's decoded samples as a ``tf.data.Dataset``.

    The datasets' turns follow ``mixing.strategy``: evenly by weight, or drawn by weight with
    ``sample``. A dataset begins its next pass when one is done. ``mixing.epoch`` has no say here.

    Args:
        spec: the mixture, as for ``AutoLoader``.
        split: name of the split that the datasets read.
        seed: seed of all draws and orders; ``None``: the spec's.
        batched: give batches of ``batch.size`` samples.
        passes: passes of every dataset, after which it gives nothing more and the others go on;
            without end where not given.
        shard: (of how many, which): take every n-th file of each dataset's passes, the i-th first.
            ``(SHARD_HINT, SHARD_HINT)`` of ``tf.data.experimental`` leaves both to tf.data service.
        knobs: stream knobs, ``dataset.knob`` for one dataset's; ``decode_threads``, which
            TensorFlow tunes where it is not given; ``ring_slots``, batches that wait decoded.

    Returns:
        Elements with the keys of a loader's batch: ``images`` and ``frame_mask`` by camera,
        ``frame_offset``, ``action``, ``action_mask``, ``state``, ``state_mask``, ``language`` (a
        string). ``metadata`` adds ``dataset_index`` and ``provenance``. ``docs/howto/tfdata.md``
        has the shapes.

    Raises:
        SpecError, SourceError, KnobError: as their input deserves.
        UsageError: ``passes`` is below 1.
    """
    if passes is not None and passes < 1:
        raise UsageError(
            f"passes={passes} is not allowed", remedy="give 1 or more, or leave passes out"
        )
    spec = spec_of(spec)
    if seed is not None:
        spec = spec.having(seed=seed)
    mixture = resolve(spec, split)
    if field := next(_unsupported(mixture), ""):
        raise UnsupportedError(
            f"{field}: as_dataset does not support this",
            remedy="remove it from the spec, or use AutoLoader",
        )
    statistics = None if spec.normalize is None else statistics_of(spec, split)
    if statistics is not None:
        mixture = normalised(mixture, statistics)
    if any(dataset.remote for dataset in mixture.datasets):
        files.enter()
    counts = with_recorded_sizes(count_mixture(mixture), spec, statistics)
    samples = {name: count.samples for name, count in counts.items()}
    for name, count in samples.items():
        if not count:
            raise SourceError(
                f"dataset {name!r} gives no sample",
                remedy="widen its split, keep or window, or remove the dataset from the spec",
            )
    given = dict(knobs or {})
    chosen = Knobs.build(given)
    decode_calls = chosen.decode_threads if "decode_threads" in given else tf.data.AUTOTUNE
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False  # the knobs rule
    with tf.device("/CPU:0"):
        streams = [
            sample_stream(
                dataset,
                mixture.layout,
                chosen.for_dataset(dataset.name),
                passes=passes,
                shard=shard,
            )
            for dataset in mixture.datasets
        ]
        choices = turns(mixture_order(mixture, samples, {n: one.size for n, one in counts.items()}))
        mixed = tf.data.Dataset.choose_from_datasets(streams, choices, stop_on_empty_dataset=False)
        found = mixed.map(_finishing(mixture), num_parallel_calls=decode_calls, deterministic=True)
        if batched:
            found = found.batch(spec.batch.size, drop_remainder=spec.batch.drop_last)
            found = found.prefetch(chosen.ring_slots)
        return found.with_options(options)


def _unsupported(mixture: ResolvedMixture) -> Iterator[str]:
    """Fields of the spec that a loader heeds and the graph does not."""
    spec = mixture.spec
    if isinstance(spec.weights, CurriculumSpec):
        yield "weights: a schedule (from, to, over)"
    if spec.mixing.unit == "batch":
        yield "mixing.unit: batch"
    if spec.batch.call is not None:
        yield f"batch.call: {spec.batch.call}"
    yield from (f"cameras.{camera}.depth" for camera in mixture.layout.depth)
    for dataset in mixture.datasets:
        where = f"datasets[{dataset.name}]"
        if not dataset.streamable:
            yield f"{where}: {dataset.directory.title} data"
        if dataset.sample.action_steps:
            yield f"{where}.sample.action_per: step"
        yield from (f"{where}.features.{name}" for name in dataset.held)
        yield from (f"{where}.images.{camera}.present" for camera in dataset.present)
        if dataset.weights:
            yield f"{where}.sample_weight"
        if dataset.words.names or dataset.words.several:
            yield f"{where}.language"


_SAME = ("frame_offset", "action", "action_mask", "state", "state_mask", "language")


def _finishing(mixture: ResolvedMixture) -> Any:
    """Function that makes an element of an encoded sample."""
    cameras, metadata = mixture.spec.cameras, mixture.spec.metadata
    has = [[camera in one.cameras for camera in cameras] for one in mixture.datasets]
    reverses = [[camera in one.reversed for camera in cameras] for one in mixture.datasets]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def finish(sample: Mapping[str, Any]) -> dict[str, Any]:
        place = sample["provenance"]
        present, turned = (tf.gather(tf.constant(of), place[0]) for of in (has, reverses))
        images, masks = {}, {}
        for number, (name, camera) in enumerate(cameras.items()):
            encoded = tf.unstack(sample["frames"][number])
            wanted = tf.unstack(present[number] & ~sample["frame_zeroed"])
            frames = [_frame_or_black(*one, camera) for one in zip(encoded, wanted, strict=True)]
            images[name] = tf.stack(frames)
            if any(of[number] for of in reverses):
                images[name] = tf.where(turned[number], images[name][..., ::-1], images[name])
            masks[name] = present[number] & sample["frame_mask"]
        element = {"images": images, "frame_mask": masks} | {key: sample[key] for key in _SAME}
        if metadata != "none":
            element["dataset_index"] = place[0]
        if metadata == "full":
            element["provenance"] = place
        return element

    return finish


_CHUNK = 1024


def turns(order: MixtureOrder) -> Any:
    """Index of each sample's dataset, without end."""
    chunk = _scheduled(order) if order.draw_key is None else _drawn(order, order.draw_key)
    plain = tf.autograph.experimental.do_not_convert(chunk)
    return tf.data.Dataset.range(2**40).map(plain).prefetch(1).unbatch()


def _drawn(order: MixtureOrder, key: int) -> Any:
    """Function that maps a chunk's number to its samples' datasets, drawn by weight."""
    bounds = np.cumsum(order.shares)

    def chunk(number: Any) -> Any:
        first = number * _CHUNK
        blocks = tf.bitcast(tf.range(first, first + _CHUNK), tf.uint64)
        hashes = splitmix64(tf.bitwise.bitwise_xor(blocks, tf.constant(key, tf.uint64)))
        top = tf.bitcast(tf.bitwise.right_shift(hashes, tf.constant(11, tf.uint64)), tf.int64)
        units = tf.cast(top, tf.float64) * 2.0**-53
        drawn = tf.searchsorted(tf.constant(bounds), units, side="right", out_type=tf.int64)
        return tf.repeat(tf.minimum(drawn, len(bounds) - 1), order.block_length)

    return chunk


def _scheduled(order: MixtureOrder) -> Any:
    """Function that maps a chunk's number to its samples' datasets, by the exact schedule."""
    live = np.flatnonzero(order.shares)
    weights, phases = np.asarray(order.shares)[live], np.asarray(order.phases)[live]

    def due(k: Any) -> Any:
        return (tf.cast(k, tf.float64) + phases) / weights

    def counts(v: Any) -> Any:
        """Blocks due before time v, per live dataset, as ``Schedule`` counts them."""
        k = tf.cast(tf.maximum(tf.math.ceil(v * weights - phases), 0.0), tf.int64)
        k = k + tf.cast(due(k) < v, tf.int64)
        return k - tf.cast((k > 0) & (due(k - 1) >= v), tf.int64)

    def chunk(number: Any) -> Any:
        low = tf.cast(number * _CHUNK, tf.float64)
        before, after = counts(low), counts(low + _CHUNK)
        each = after - before
        dataset = tf.repeat(tf.range(len(live)), each)
        first = tf.gather(tf.cumsum(each, exclusive=True), dataset)
        k = tf.range(tf.reduce_sum(each)) - first + tf.gather(before, dataset)
        own = tf.gather(tf.constant(phases), dataset), tf.gather(tf.constant(weights), dataset)
        ordered = tf.gather(
            dataset, tf.argsort((tf.cast(k, tf.float64) + own[0]) / own[1], stable=True)
        )
        return tf.repeat(tf.gather(tf.constant(live, tf.int64), ordered), order.block_length)

    return chunk


def decode_frame(encoded: Any, camera: CameraSpec) -> Any:
    """[H, W, 3] uint8 of one encoded frame, resized and fitted as ``camera`` says."""
    picture = tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_FAST")
    height, width = camera.size
    shape = tf.shape(picture)
    fitted = tf.cond(
        tf.reduce_all(shape[:2] == [height, width]),
        lambda: picture,
        lambda: _fit(picture, shape, camera),
    )
    return tf.ensure_shape(fitted, camera.shape)


def _frame_or_black(encoded: Any, wanted: Any, camera: CameraSpec) -> Any:
    """A decoded frame where it is wanted, else black."""
    return tf.cond(
        wanted, lambda: decode_frame(encoded, camera), lambda: tf.zeros(camera.shape, tf.uint8)
    )


def _fit(picture: Any, shape: Any, camera: CameraSpec) -> Any:
    """[H, W, 3] uint8 of a picture of this ``shape``, as operations."""
    height, width = camera.size
    if camera.fit == "stretch":
        return _resize(picture, tf.constant([height, width]), camera.resize)
    wanted = tf.constant([height, width], tf.float64)
    found = tf.cast(shape[:2], tf.float64)
    if camera.fit == "crop":
        scale = tf.reduce_max(wanted / found)
        inner = tf.minimum(shape[:2], _at_least_one(wanted / scale))
        at = (shape[:2] - inner) // 2
        cut = picture[at[0] : at[0] + inner[0], at[1] : at[1] + inner[1]]
        return _resize(cut, tf.constant([height, width]), camera.resize)
    if camera.upstream:
        # A graph's optimiser turns a division by a constant into a product with its reciprocal,
        # which rounds otherwise: 80 / (60 / 90) would be 119. This maximum is no constant to it.
        divisor = tf.maximum(wanted, tf.minimum(found, wanted))
        inner = tf.maximum(tf.cast(found / tf.reduce_max(found / divisor), tf.int32), 1)
    else:
        scale = tf.reduce_min(wanted / found)
        inner = tf.minimum([height, width], _at_least_one(found * scale))
    before = ([height, width] - inner) // 2
    after = [height, width] - inner - before
    resized = _resize(picture, inner, camera.resize)
    return tf.pad(resized, [[before[0], after[0]], [before[1], after[1]], [0, 0]])


def _at_least_one(sizes: Any) -> Any:
    return tf.maximum(tf.cast(tf.round(sizes), tf.int32), 1)


def _resize(picture: Any, size: Any, how: str) -> Any:
    """A picture at another size, by TensorFlow's method of the same name."""
    method = how.removeprefix("tf_").removeprefix("pillow_")
    antialias = how not in ("bilinear", "area")
    resized = tf.image.resize(picture, size, method=method, antialias=antialias)
    return tf.saturate_cast(tf.round(resized), tf.uint8)
