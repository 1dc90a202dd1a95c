"""The mixture written plainly in tf.data, as its public guides would have it.

TFRecord shards interleaved, ``parse_single_example`` of the same features, one element a sample
(frames still encoded), ``sample_from_datasets``, then one parallel map that decodes and resizes,
``batch``, ``prefetch``. In its favour: frames are decoded after the mix and once per use, with the
fast integer DCT; a frame that has the wanted size is not resized; nothing has to be deterministic;
every count is a setting (-1 is AUTOTUNE).

It gives what the loader gives, but for provenance and exact places: the same frames, action, state,
masks, language and dataset index, in the same shapes. The mixture is drawn at random by weight.

Not here: which settings are compared (``bench/scenarios``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.mixture import MixedDataset, Mixture, Term, read_mixture
from bench.records import parse_example, read_records

SETTINGS: Mapping[str, int] = {
    "cycle_length": 1,
    "interleave_calls": 0,
    "parse_calls": 0,
    "stream_prefetch": 0,
    "decode_calls": 2,
    "batch_calls": 0,
    "prefetch": 2,
    "threads": 0,
    "autotune": 1,
    "ram_budget_bytes": 0,
}
"""Every setting with its value where a scenario does not say; 0 calls are tf.data's ``None``
(sequential), -1 is AUTOTUNE, 0 threads is TensorFlow's shared pool."""


class PlainTfData:
    """The peer; see the module."""

    def __init__(self, spec: Path, settings: Mapping[str, int]) -> None:
        import tensorflow as tf

        unknown = sorted(set(settings) - set(SETTINGS))
        if unknown:
            raise ValueError(f"plain_tfdata has no setting {unknown[0]!r}; it has {list(SETTINGS)}")
        self._settings = {**SETTINGS, **settings}
        self._tf = tf
        self._mixture = read_mixture(spec)
        self.datasets = len(self._mixture.datasets)
        self._samples = _Samples(tf, self._mixture)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._build().as_numpy_iterator())

    def close(self) -> None:
        """Nothing to end: the graph goes with the process."""

    def _build(self) -> Any:
        tf, chosen = self._tf, self._settings
        mixture = self._mixture
        streams = [self._stream(number, one) for number, one in enumerate(mixture.datasets)]
        weights = np.array([one.weight for one in mixture.datasets])
        mixed = streams[0]
        if len(streams) > 1:
            mixed = tf.data.Dataset.sample_from_datasets(
                streams, weights=weights / weights.sum(), seed=mixture.seed
            )
        batches = mixed.map(
            self._samples.decode, num_parallel_calls=chosen["decode_calls"], deterministic=False
        ).batch(
            mixture.batch,
            drop_remainder=True,
            num_parallel_calls=chosen["batch_calls"] or None,
            deterministic=False if chosen["batch_calls"] else None,
        )
        options = tf.data.Options()
        options.deterministic = False
        options.autotune.enabled = bool(chosen["autotune"])
        if chosen["ram_budget_bytes"]:
            options.autotune.ram_budget = chosen["ram_budget_bytes"]
        if chosen["threads"]:
            options.threading.private_threadpool_size = chosen["threads"]
        return batches.prefetch(chosen["prefetch"]).with_options(options)

    def _stream(self, number: int, dataset: MixedDataset) -> Any:
        tf, chosen = self._tf, self._settings
        paths = [path for path, _ in dataset.files]
        counts = [count for _, count in dataset.files]
        files = tf.data.Dataset.from_tensor_slices((paths, np.array(counts, np.int64)))
        records = (
            files.shuffle(len(paths), seed=number)
            .repeat()
            .interleave(
                lambda path, count: tf.data.TFRecordDataset(path).take(count),
                cycle_length=chosen["cycle_length"],
                num_parallel_calls=chosen["interleave_calls"] or None,
                deterministic=False if chosen["interleave_calls"] else None,
            )
        )
        parse = self._samples.parser(number, dataset)
        episodes = records.map(
            parse,
            num_parallel_calls=chosen["parse_calls"] or None,
            deterministic=False if chosen["parse_calls"] else None,
        )
        samples = episodes.unbatch()
        if chosen["stream_prefetch"]:
            samples = samples.prefetch(chosen["stream_prefetch"])
        return samples


class _Samples:
    """An episode's Example into samples, and a sample's frames into pixels."""

    def __init__(self, tf: Any, mixture: Mixture) -> None:
        self._tf = tf
        self._offsets = mixture.frame_offsets
        self._height, self._width = mixture.size
        looks = [self._look(dataset) for dataset in mixture.datasets]
        self._integers = [integers for integers, _, _ in looks]
        self._action_width = max(action for _, action, _ in looks)
        self._state_width = max(state for _, _, state in looks)

    @staticmethod
    def _look(dataset: MixedDataset) -> tuple[bool, int, int]:
        """From the first record: whether language is code points, and the widths of the fields."""
        example = parse_example(next(read_records(Path(dataset.files[0][0]))))
        steps = len(example[dataset.image])

        def width(terms: tuple[Term, ...]) -> int:
            columns = (range(len(example[term.feature]) // steps) for term in terms)
            return sum(
                len(own[term.start : term.stop]) for term, own in zip(terms, columns, strict=True)
            )

        words = isinstance(example[dataset.language[0]], np.ndarray) if dataset.language else False
        return words, width(dataset.action), width(dataset.state)

    def parser(self, number: int, dataset: MixedDataset) -> Any:
        """The function that makes an episode's samples, frames still encoded."""
        tf, integers = self._tf, self._integers[number]
        per_step = tf.io.FixedLenSequenceFeature
        wanted: dict[str, Any] = {dataset.image: per_step([], tf.string, allow_missing=True)}
        for term in (*dataset.action, *dataset.state):
            wanted[term.feature] = per_step([], tf.float32, allow_missing=True)
        for feature in dataset.language:
            kind = tf.int64 if integers else tf.string
            wanted[feature] = (
                per_step([], kind, allow_missing=True)
                if feature.startswith("steps/")
                else tf.io.FixedLenFeature([], kind)
            )

        def parse(record: Any) -> dict[str, Any]:
            example = tf.io.parse_single_example(record, wanted)
            images = example[dataset.image]
            steps = tf.size(images)
            t = tf.range(steps)
            places = t[:, None] + tf.constant(self._offsets)
            inside = (places >= 0) & (places < steps)
            action, action_mask = self._field(dataset.action, example, steps, self._action_width)
            state, state_mask = self._field(dataset.state, example, steps, self._state_width)
            return {
                "encoded": tf.gather(images, tf.clip_by_value(places, 0, steps - 1)),
                "frame_mask": inside,
                "action": action,
                "action_mask": action_mask,
                "state": state,
                "state_mask": state_mask,
                "language": self._language(dataset, integers, example, steps),
                "dataset_index": tf.fill([steps], tf.constant(number, tf.int64)),
            }

        return parse

    def _field(
        self, terms: tuple[Term, ...], example: Mapping[str, Any], steps: Any, width: int
    ) -> tuple[Any, Any]:
        tf = self._tf
        pieces = []
        for term in terms:
            piece = tf.reshape(example[term.feature], tf.stack([steps, -1]))
            piece = piece[:, term.start : term.stop]
            for name, *arguments in term.ops:
                piece = tf.clip_by_value(piece, *arguments) if name == "clip" else 1.0 - piece
            pieces.append(piece)
        if not pieces:
            values = tf.zeros(tf.stack([steps, 0]))
        else:
            values = tf.concat(pieces, 1) if len(pieces) > 1 else pieces[0]
        room = [[0, 0], [0, width - tf.shape(values)[1]]]
        mask = tf.pad(tf.ones_like(values, tf.bool), room)
        padded = tf.pad(values, room)
        shape = tf.stack([steps, 1, width])
        return (
            tf.ensure_shape(tf.reshape(padded, shape), [None, 1, width]),
            tf.ensure_shape(tf.reshape(mask, shape), [None, 1, width]),
        )

    def _language(
        self, dataset: MixedDataset, integers: bool, example: Mapping[str, Any], steps: Any
    ) -> Any:
        tf = self._tf
        if not dataset.language:
            return tf.fill([steps], "")
        choices = [example[feature] for feature in dataset.language]
        words = choices[0]
        if len(choices) > 1:
            drawn = tf.random.uniform([], 0, len(choices), tf.int32)
            words = tf.switch_case(drawn, [lambda one=choice: one for choice in choices])
        if integers:
            points = tf.cast(tf.reshape(words, tf.stack([steps, -1])), tf.int32)
            kept = tf.ragged.boolean_mask(points, points > 0)
            return tf.strings.unicode_encode(kept, "UTF-8")
        return words if dataset.language[0].startswith("steps/") else tf.fill([steps], words)

    def decode(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """A sample with its frames as ``[F, H, W, 3] uint8``."""
        tf = self._tf
        batch = {name: value for name, value in sample.items() if name != "encoded"}
        frames = [self._frame(sample["encoded"][f]) for f in range(len(self._offsets))]
        batch["images"] = tf.stack(frames)
        return batch

    def _frame(self, encoded: Any) -> Any:
        tf = self._tf
        size = (self._height, self._width)
        # This kernel reads PNG too, and is the only one that takes a DCT method.
        picture = tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_FAST")

        def resized() -> Any:
            return tf.cast(tf.round(tf.image.resize(picture, size, "bilinear")), tf.uint8)

        found = tf.shape(picture)
        fits = tf.logical_and(tf.equal(found[0], size[0]), tf.equal(found[1], size[1]))
        return tf.ensure_shape(tf.cond(fits, lambda: picture, resized), (*size, 3))
