"""What the tf.data peers share: records into samples, samples into frames, in TensorFlow.

``parse_single_example`` of the named features only; one element a sample, its frames still encoded;
later one decode per frame with the fast integer DCT, and a resize where the size differs.

Each sample carries ``episode_index`` (the record's number in the split) and ``step``.

Not here: in what order, how many at a time (``bench.peers.tfdata``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.mixture import MixedDataset, Mixture, Term
from bench.records import parse_example, read_records


def shards(dataset: MixedDataset) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Paths, how many records to take of each, and the number of each one's first record."""
    counts = np.array([count for _, count in dataset.files], np.int64)
    return [path for path, _ in dataset.files], counts, np.cumsum(counts) - counts


def records_of(tf: Any, path: Any, count: Any, first: Any) -> Any:
    """A shard as a ``tf.data.Dataset`` of (number, record)."""
    return tf.data.TFRecordDataset(path).take(count).enumerate(first)


class Samples:
    """An episode's Example into samples, and a sample's frames into pixels.

    Args:
        tf: TensorFlow.
        mixture: what to read.
        per_episode: samples drawn of an episode each time it is read; 0 is all of them, in order.
    """

    def __init__(self, tf: Any, mixture: Mixture, per_episode: int = 0) -> None:
        self._tf, self._mixture = tf, mixture
        self._per_episode = per_episode
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

    def stream(
        self,
        number: int,
        *,
        cycle_length: int = 1,
        interleave_calls: int = 0,
        parse_calls: int = 0,
        endless: bool = True,
    ) -> Any:
        """A dataset's samples, shards in a new random order each time.

        0 calls are tf.data's ``None`` (sequential), -1 is AUTOTUNE; not ``endless``: once.
        """
        tf, dataset = self._tf, self._mixture.datasets[number]
        return (
            tf.data.Dataset.from_tensor_slices(shards(dataset))
            .shuffle(len(dataset.files), seed=number)
            .repeat(None if endless else 1)
            .interleave(
                partial(records_of, tf),
                cycle_length=cycle_length,
                num_parallel_calls=interleave_calls or None,
                deterministic=False if interleave_calls else None,
            )
            .map(
                self.parser(number, dataset),
                num_parallel_calls=parse_calls or None,
                deterministic=False if parse_calls else None,
            )
            .unbatch()
        )

    def mixed(self, streams: Sequence[Any]) -> Any:
        """One stream, drawn by weight."""
        if len(streams) == 1:
            return streams[0]
        weights = np.array([one.weight for one in self._mixture.datasets])
        return self._tf.data.Dataset.sample_from_datasets(
            list(streams), weights=weights / weights.sum(), seed=self._mixture.seed
        )

    def decoded(self, samples: Any, calls: int) -> Any:
        """Samples with their frames, by so many parallel calls."""
        return samples.map(self.decode, num_parallel_calls=calls, deterministic=False)

    def batches(
        self,
        mixed: Any,
        *,
        decode_calls: int,
        prefetch: int,
        batch_calls: int = 0,
        autotune: int = 0,
        threads: int = 0,
        ram_budget_bytes: int = 0,
        **_: int,
    ) -> Any:
        """Batches of a mixed stream; 0 ``decode_calls``: its samples have frames."""
        samples = self.decoded(mixed, decode_calls) if decode_calls else mixed
        batches = samples.batch(
            self._mixture.batch,
            drop_remainder=True,
            num_parallel_calls=batch_calls or None,
            deterministic=False if batch_calls else None,
        )
        return self.optioned(batches.prefetch(prefetch), autotune, threads, ram_budget_bytes)

    def optioned(
        self, data: Any, autotune: int = 0, threads: int = 0, ram_budget_bytes: int = 0
    ) -> Any:
        """In any order; 0 threads are TensorFlow's shared pool, 0 bytes its own default."""
        options = self._tf.data.Options()
        options.deterministic = False
        options.autotune.enabled = bool(autotune)
        if autotune and ram_budget_bytes:
            options.autotune.ram_budget = ram_budget_bytes
        if threads:
            options.threading.private_threadpool_size = threads
        return data.with_options(options)

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

        def parse(episode: Any, record: Any) -> dict[str, Any]:
            example = tf.io.parse_single_example(record, wanted)
            return self.samples_of(number, dataset, episode, example)

        return parse

    def samples_of(
        self, number: int, dataset: MixedDataset, episode: Any, example: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The samples of an episode whose features are ``example``."""
        tf, integers = self._tf, self._integers[number]
        images = example[dataset.image]
        steps = tf.size(images)
        t = tf.range(steps)
        if self._per_episode:
            t = tf.random.shuffle(t)[: self._per_episode]
        places = t[:, None] + tf.constant(self._offsets)
        inside = (places >= 0) & (places < steps)
        action, action_mask = self._field(dataset.action, example, steps, self._action_width)
        state, state_mask = self._field(dataset.state, example, steps, self._state_width)
        sample = {
            "action": action,
            "action_mask": action_mask,
            "state": state,
            "state_mask": state_mask,
            "language": self._language(dataset, integers, example, steps),
        }
        if self._per_episode:
            sample = {name: tf.gather(values, t) for name, values in sample.items()}
        return {
            **sample,
            "encoded": tf.gather(images, tf.clip_by_value(places, 0, steps - 1)),
            "frame_mask": inside,
            "dataset_index": tf.fill(tf.shape(t), tf.constant(number, tf.int64)),
            "episode_index": tf.fill(tf.shape(t), episode),
            "step": t,
        }

    def _field(
        self, terms: tuple[Term, ...], example: Mapping[str, Any], steps: Any, width: int
    ) -> tuple[Any, Any]:
        tf = self._tf
        pieces = []
        for term in terms:
            piece = tf.cast(example[term.feature], tf.float32)
            piece = tf.reshape(piece, tf.stack([steps, -1]))
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
