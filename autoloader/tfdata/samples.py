"""One dataset as a stream of single encoded samples with their numbers, the same shape for all.

Theory of operation. What ``graph.episodes`` parses is completed in the graph (``graph.windows``,
``tfdata.fields``), so that samples of all datasets have one signature and can be mixed there::

    numbers of files ─ interleave(records) ─ map(parse, windows) ─ prefetch ─ flat_map(samples)

File number n stands for the pass n ÷ files, and in it for the (n mod files)-th of that pass's keyed
order. So tf.data service can deal files, of all passes, to its workers, each to one of them.

An episode's frames are held once; a sample takes copies of its own when it leaves.

Not here: mixing and decoding (``tfdata.mixture``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoloader.graph import draws, windows
from autoloader.graph.episodes import EpisodeGraph
from autoloader.graph.records import numbered_records
from autoloader.graph.tensorflow import tf
from autoloader.knobs import ResolvedDatasetKnobs
from autoloader.samples.block import field_offsets
from autoloader.samples.draws import PURPOSE_ORDER, PURPOSE_SHARDS
from autoloader.samples.layout import BatchLayout
from autoloader.samples.resolve import ResolvedDataset
from autoloader.tfdata.fields import as_columns, evaluate, scaled, text_of_points, window_values
from autoloader.transforms.fields import FieldName, feature_width

_ENDLESS = 2**62


def sample_stream(
    dataset: ResolvedDataset,
    layout: BatchLayout,
    knobs: ResolvedDatasetKnobs,
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
    dataset: ResolvedDataset,
    knobs: ResolvedDatasetKnobs,
    passes: int | None,
    shard: tuple[int, int] | None,
) -> Any:
    """(pass, shard, record, episode key, record bytes) of every record, pass after pass."""
    slices = dataset.slices
    paths = tf.constant([piece.path for piece in slices])
    starts = tf.constant([piece.start for piece in slices], tf.int64)
    stops = tf.constant([piece.stop for piece in slices], tf.int64)
    key, count = tf.constant(dataset.key, tf.uint64), len(slices)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def of_file(number: Any) -> Any:
        pass_ = number // count
        which = draws.order(draws.fold(key, PURPOSE_SHARDS, pass_), 0, count)[number % count]
        pass_key = draws.fold(key, PURPOSE_ORDER, pass_)
        return numbered_records(paths[which], starts[which], stops[which], pass_, which, pass_key)

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
        self._episodes = EpisodeGraph(dataset, layout)
        self._widths = {
            path: feature_width(feature, field=path)
            for path, feature in dataset.numeric_features().items()
        }

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def samples_of(self, pass_: Any, shard: Any, record: Any, key: Any, raw: Any) -> dict[str, Any]:
        """All samples of an episode: columns [n, ...], and ``used`` [C, U] its frames."""
        parsed = self._episodes.parse(pass_, shard, record, key, raw)
        t = parsed["t"]
        steps = tf.maximum(parsed["steps"], 0)  # -1 where a transform dropped the episode
        count = tf.size(t, out_type=tf.int64)
        columns = {
            path: as_columns(parsed[f"column/{path}"], width)
            for path, width in self._widths.items()
        }
        window = windows.frame_rows(t, steps, self._dataset.sample, key)
        action, action_mask = self._field("action", t, steps, columns)
        state, state_mask = self._field("state", t, steps, columns)
        place = tf.stack([self._dataset.index, pass_, shard, record])
        places = tf.broadcast_to(place[None], tf.stack([count, 4]))
        return {
            "provenance": tf.concat([places, t[:, None]], axis=1),
            "used": self._frames(parsed),
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

    def _field(
        self, name: FieldName, t: Any, steps: Any, columns: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        sample, layout = self._dataset.sample, self._layout
        is_action = name == "action"
        bound = self._dataset.bound(name)
        width = layout.action_width if is_action else layout.state_width
        rows = layout.action_rows if is_action else layout.state_rows
        if bound is None:
            shape = tf.stack([tf.size(t), rows, width])
            return (
                tf.ensure_shape(tf.zeros(shape, tf.float32), [None, rows, width]),
                tf.ensure_shape(tf.zeros(shape, tf.bool), [None, rows, width]),
            )
        values = evaluate(bound, columns, steps)
        window = windows.rows(t, tf.constant(field_offsets(sample, name)), steps, sample)
        dims, base = sample.action_relative_to_state if is_action else (), None
        if dims and self._dataset.state is not None:
            base = tf.gather(evaluate(self._dataset.state, columns, steps), t)
        summed = is_action and sample.action_reduce == "sum"
        found, mask = window_values(values, window, width, dims=dims, base=base, summed=summed)
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


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _one_by_one(episode: Mapping[str, Any]) -> Any:
    """An episode's samples; frames are copied only when a sample leaves."""
    rows = dict(episode)
    used = rows.pop("used")

    def sample(row: Mapping[str, Any]) -> dict[str, Any]:
        left = dict(row)
        return {**left, "frames": tf.gather(used, left.pop("frame_row"), axis=1)}

    return tf.data.Dataset.from_tensor_slices(rows).map(sample)
