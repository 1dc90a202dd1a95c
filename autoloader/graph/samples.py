"""One dataset as a stream of single encoded samples with their numbers, the same shape for all.

Theory of operation. What ``graph.episodes`` parses is completed in the graph (``graph.windows``,
``graph.fields``), so that samples of all datasets have one signature and can be mixed there::

    records ─ map(parse, windows) ─ scan(empty records) ─ prefetch ─ flat_map(samples)

An episode's frames are held once; a sample takes copies of its own when it leaves. A record without
samples is noted in the next sample (``empties``), so that whoever counts misses none.

Not here: mixing (``graph.mixture``), decoding (``graph.decode``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autoloader.graph import windows
from autoloader.graph.episodes import EpisodeStream, compiling
from autoloader.graph.fields import as_columns, evaluate, scaled, text_of_points
from autoloader.graph.records import STRUCTURE, record_stream
from autoloader.graph.tensorflow import tf
from autoloader.knobs import ResolvedDatasetKnobs
from autoloader.sampling.fields import feature_width
from autoloader.sampling.layout import BatchLayout
from autoloader.sampling.resolve import ResolvedDataset
from autoloader.sampling.rows import RowStart

_flat: dict[str, tuple[Any, Any]] = {}
"""Element structure of episodes → the traced function that flattens them, and a sample's structure.
All datasets of a mixture have one structure, so that this is traced once."""


class SampleStream:
    """The compiled stream of one dataset's samples; thread-safe, opened any number of times."""

    def __init__(self, dataset: ResolvedDataset, layout: BatchLayout) -> None:
        self._dataset = dataset
        self._layout = layout
        self._episodes = EpisodeStream(dataset, layout)
        self._widths = {
            path: feature_width(feature, field=path)
            for path, feature in dataset.numeric_features().items()
        }
        self._parse: Any = None
        self._episode: Any = None

    def dataset(self, start: RowStart, knobs: ResolvedDatasetKnobs) -> Any:
        """The tf.data dataset of samples from ``start`` on.

        An element has ``ledger`` [6] int64, ``frames`` [C, F] string, ``frame_row`` [F] int64,
        ``frame_mask`` and ``frame_zeroed`` [F] bool, ``frame_offset`` [F] int32, ``action`` [H, A]
        and ``state`` [Fs, S] float32 with their masks, and the strings ``language`` and
        ``empties``.
        """
        with compiling:
            if self._parse is None:
                self._parse = self._trace()
            flatten, structure = _flattening(self._episode)
        taken = [(p.pass_, p.shard, p.record, count) for p, count in start.taken.items()]
        with tf.device("/CPU:0"):
            variant = self._parse(
                record_stream(self._dataset, start.start, knobs, tolerant=True, spans=start.spans),
                tf.constant(knobs.parse_parallel_calls, tf.int64),
                tf.reshape(tf.constant(taken, tf.int64), [-1, 4]),
            )
            episodes = tf.data.experimental.from_variant(variant, self._episode)
            if knobs.stream_prefetch:
                episodes = episodes.prefetch(knobs.stream_prefetch)
            variant = flatten(tf.data.experimental.to_variant(episodes))
            return tf.data.experimental.from_variant(variant, structure)

    def _trace(self) -> Any:
        """Records → episodes, as a function of a variant."""
        parse = tf.function(
            self._parsed,
            input_signature=[
                tf.TensorSpec([], tf.variant),
                tf.TensorSpec([], tf.int64),
                tf.TensorSpec([None, 4], tf.int64),
            ],
            autograph=False,
        )
        parse.get_concrete_function()
        return parse

    def _parsed(self, records: Any, parse_calls: Any, taken: Any) -> Any:
        def episode(pass_: Any, shard: Any, record: Any, key: Any, raw: Any) -> dict[str, Any]:
            return self._windows(self._episodes.parse(pass_, shard, record, key, raw), key, taken)

        stream = (
            tf.data.experimental.from_variant(records, STRUCTURE)
            .map(episode, num_parallel_calls=parse_calls, deterministic=True)
            .ignore_errors()
            .scan(tf.constant(""), self._note_empties)
        )
        self._episode = stream.element_spec
        return tf.data.experimental.to_variant(stream)

    def _windows(self, parsed: Mapping[str, Any], key: Any, taken: Any) -> dict[str, Any]:
        """All samples of an episode: columns [n, ...], ``frames`` [C, U] and two scalars."""
        place, t, steps = parsed["place"], parsed["t"], parsed["steps"]
        count = tf.size(t, out_type=tf.int64)
        columns = {
            path: as_columns(parsed[f"column/{path}"], width)
            for path, width in self._widths.items()
        }
        window = windows.frame_rows(t, steps, self._dataset.sample, key)
        action, action_mask = self._field("action", t, steps, columns)
        state, state_mask = self._field("state", t, steps, columns)
        dataset_column = tf.fill([count, 1], tf.constant(self._dataset.index, tf.int64))
        every = {
            "ledger": tf.concat(
                [
                    dataset_column,
                    tf.broadcast_to(place[None], tf.stack([count, 3])),
                    t[:, None],
                    tf.fill([count, 1], count),
                ],
                axis=1,
            ),
            "frame_row": parsed["frame_row"],
            "frame_mask": window.inside,
            "frame_zeroed": window.zeroed,
            "frame_offset": window.offset,
            "action": action,
            "action_mask": action_mask,
            "state": state,
            "state_mask": state_mask,
            "language": self._language(parsed, count),
        }
        done = tf.reduce_sum(
            tf.where(
                tf.reduce_all(taken[:, :3] == place, axis=1), taken[:, 3], tf.zeros([], tf.int64)
            )
        )
        left = {name: column[tf.minimum(done, count) :] for name, column in every.items()}
        # An episode without a step may be a broken record; it is for whoever counts to look at.
        empty = (count == 0) & (steps != 0)
        left["frames"] = self._frames(parsed)
        left["empties"] = tf.where(
            empty, tf.strings.reduce_join(tf.strings.as_string(place), separator=",") + ";", ""
        )
        return left

    def _field(self, name: str, t: Any, steps: Any, columns: Mapping[str, Any]) -> tuple[Any, Any]:
        sample, layout = self._dataset.sample, self._layout
        is_action = name == "action"
        bound = self._dataset.action if is_action else self._dataset.state
        width = layout.action_width if is_action else layout.state_width
        rows = layout.action_rows if is_action else layout.state_rows
        if bound is None:
            shape = tf.stack([tf.size(t), rows, width])
            return (
                tf.ensure_shape(tf.zeros(shape, tf.float32), [None, rows, width]),
                tf.ensure_shape(tf.zeros(shape, tf.bool), [None, rows, width]),
            )
        values = evaluate(bound, columns, steps)
        offsets = np.asarray(sample.state_offsets, dtype=np.int64)
        if is_action:
            offsets = sample.action_start + np.arange(sample.action_horizon, dtype=np.int64)
        window = windows.rows(t, tf.constant(offsets), steps, sample)
        dims, base = sample.action_relative_to_state if is_action else (), None
        if dims and self._dataset.state is not None:
            base = tf.gather(evaluate(self._dataset.state, columns, steps), t)
        summed = is_action and sample.action_reduce == "sum"
        reduced = windows.summed_values if summed else windows.window_values
        found, mask = reduced(values, window, width, dims=dims, base=base)
        scaling = self._dataset.scaling.get(name)
        if scaling is not None:
            found = scaled(scaling, found, ~mask[..., 0] if summed else window.zeroed)
        return found, mask

    def _language(self, parsed: Mapping[str, Any], count: Any) -> Any:
        """[n] string: UTF-8 of each sample."""
        if not self._dataset.language:
            return tf.fill([count], "")
        texts = parsed["language"]
        if texts.dtype != tf.string:
            texts = text_of_points(texts)
        return tf.broadcast_to(texts, count[None])

    def _frames(self, parsed: Mapping[str, Any]) -> Any:
        """[C, U] string: frames that some sample uses, of every camera of the mixture."""
        own = {camera: parsed[f"frames/{camera}"] for camera in self._dataset.cameras}
        row = tf.reshape(parsed["frame_row"], [-1])
        used = tf.reduce_max(tf.concat([row, [-1]], 0)) + 1
        none = tf.fill([used], "")
        every = [own.get(camera, none) for camera in self._layout.cameras]
        frames = tf.stack(every) if every else tf.fill([0, used], "")
        return tf.ensure_shape(frames, [len(self._layout.cameras), None])

    @staticmethod
    def _note_empties(waiting: Any, episode: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Hold places of empty records until an episode with samples comes."""
        noted = waiting + episode["empties"]
        has_samples = tf.shape(episode["ledger"])[0] > 0
        carried = tf.where(has_samples, "", noted)
        return carried, {**episode, "empties": tf.where(has_samples, noted, "")}


def _flattening(structure: Any) -> tuple[Any, Any]:
    """(episodes → samples, as a function of a variant; structure of a sample)."""
    name = repr(sorted(structure.items()))
    if name not in _flat:
        found: list[Any] = []

        def flatten(episodes: Any) -> Any:
            stream = tf.data.experimental.from_variant(episodes, structure).flat_map(_samples)
            found.append(stream.element_spec)
            return tf.data.experimental.to_variant(stream)

        function = tf.function(
            flatten, input_signature=[tf.TensorSpec([], tf.variant)], autograph=False
        )
        function.get_concrete_function()
        _flat[name] = function, found[0]
    return _flat[name]


def _samples(episode: Mapping[str, Any]) -> Any:
    """An episode's samples one by one; frames are copied only when a sample leaves."""
    every = dict(episode)
    frames, empties = every.pop("frames"), every.pop("empties")
    every["empties"] = tf.where(tf.range(tf.shape(every["ledger"])[0]) == 0, empties, "")

    def sample(row: Mapping[str, Any]) -> dict[str, Any]:
        return {**row, "frames": tf.gather(frames, row["frame_row"], axis=1)}

    return tf.data.Dataset.from_tensor_slices(every).map(sample)
