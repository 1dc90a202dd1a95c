"""The in-graph mixtures: all datasets mixed in one tf.data graph, by ``choose`` or by ``sample``.

Theory of operation::

    samples of dataset 0 ─┐
    samples of dataset 1 ─┼─ choose_from_datasets(choices) ─ [prefetch ─ map(decode)] ─ batch ─┐
    …                    ─┘                                             groups of 16 ─ prefetch┘

``choose`` takes its choices from the low-discrepancy schedule, ``sample`` draws them by keyed
hashes (as ``sample_from_datasets`` does by a stateful generator, which could not be resumed). Both
go on from any position. A dataset that has nothing ready is waited for. Samples wait encoded: as
many after the mix as the ``python`` strategy's queues hold in all (``queue_samples`` × datasets).
The order within a dataset is that of its stream; ``shuffle_samples`` has no counterpart here.

Nothing in the graph ends in an error for a bad record: it just does not come (``graph.records``).

Not here: counting what came, reopening after damage or for other knobs (``runtime.arrivals``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autoloader.graph import files
from autoloader.graph.choices import drawn_choices, scheduled_choices
from autoloader.graph.decode import decode_sample
from autoloader.graph.episodes import still_options
from autoloader.graph.samples import SampleStream
from autoloader.graph.tensorflow import tf
from autoloader.knobs import Knobs
from autoloader.processors import usable_processors
from autoloader.sampling.episode import Place
from autoloader.sampling.order import MixtureOrder
from autoloader.sampling.resolve import ResolvedMixture
from autoloader.sampling.rows import BrokenGraphError, RowGroup, RowStart

GROUP = 16
"""Samples of a group: one call into TensorFlow costs about 0.3 ms, whatever it brings."""
_IMAGE_GROUPS = 2
"""Groups that wait decoded; what waits for long waits encoded."""


class MixtureStream:
    """One mixture in one graph; see ``sampling.rows.RowSource``.

    Args:
        mixture: what is mixed.
        order: its shares and schedule.
    """

    def __init__(self, mixture: ResolvedMixture, order: MixtureOrder) -> None:
        self._mixture = mixture
        self._order = order
        if any(dataset.remote for dataset in mixture.datasets):
            files.enter()
        self._streams = [SampleStream(dataset, mixture.layout) for dataset in mixture.datasets]

    def open(
        self, starts: Sequence[RowStart], position: int, knobs: Knobs, *, decode: bool
    ) -> Iterator[RowGroup]:
        """See ``RowSource.open``."""
        try:
            for element in self.dataset(starts, position, knobs, decode=decode):
                yield self._group_of(element, decode=decode)
        except tf.errors.OpError as error:
            raise BrokenGraphError(" ".join(str(error.message).split())[:300]) from error

    def dataset(
        self, starts: Sequence[RowStart], position: int, knobs: Knobs, *, decode: bool
    ) -> Any:
        """The tf.data dataset of groups; arguments as of ``open``."""
        streams = [
            stream.dataset(start, knobs.for_dataset(dataset.name))
            for stream, start, dataset in zip(
                self._streams, starts, self._mixture.datasets, strict=True
            )
        ]
        waiting = sum(
            knobs.for_dataset(dataset.name).queue_samples for dataset in self._mixture.datasets
        )
        options = still_options()
        options.experimental_warm_start = True
        options.threading.max_intra_op_parallelism = 1
        options.threading.private_threadpool_size = _threads(knobs)
        with tf.device("/CPU:0"):
            mixed = tf.data.Dataset.choose_from_datasets(
                streams, self._choices(position), stop_on_empty_dataset=True
            )
            if decode:
                mixed = mixed.prefetch(waiting).map(
                    tf.autograph.experimental.do_not_convert(self._decode),
                    num_parallel_calls=knobs.decode_threads,
                    deterministic=True,
                )
            groups = mixed.batch(GROUP, drop_remainder=True)
            return groups.prefetch(
                _IMAGE_GROUPS if decode else max(1, waiting // GROUP)
            ).with_options(options)

    def due(self, position: int, count: int) -> Sequence[int]:
        """See ``RowSource.due``."""
        with tf.device("/CPU:0"):
            return [int(index) for index in self._choices(position).take(count)]

    def unreadable(self, dataset: int) -> str | None:
        """See ``RowSource.unreadable``."""
        found = self._mixture.datasets[dataset]
        for piece in () if found.remote else found.slices:  # remote ones would make it wait
            if not tf.io.gfile.exists(piece.path):
                return str(piece.path)
        return None

    def _choices(self, position: int) -> Any:
        spec = self._mixture.spec
        if spec.mixing.strategy == "sample":
            return drawn_choices(self._order, spec.seed, position)
        return scheduled_choices(self._order, position)

    def _decode(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        mixture = self._mixture
        has = [
            [camera in dataset.cameras for camera in mixture.layout.cameras]
            for dataset in mixture.datasets
        ]
        table = tf.reshape(tf.constant(has, tf.bool), [len(has), len(mixture.layout.cameras)])
        present = tf.gather(table, sample["ledger"][0])
        wanted = present[:, None] & ~sample["frame_zeroed"][None, :]
        images, decoded = decode_sample(sample["frames"], wanted, mixture.spec.cameras)
        done = {f"images/{camera}": pictures for camera, pictures in images.items()}
        frames = tf.cond(decoded, lambda: tf.zeros_like(sample["frames"]), lambda: sample["frames"])
        return {**sample, **done, "frames": frames, "decoded": decoded}

    def _group_of(self, element: Mapping[str, Any], *, decode: bool) -> RowGroup:
        arrays = {name: _array(tensor) for name, tensor in element.items()}
        ledger = arrays["ledger"]
        empties = [
            _places(int(row[0]), noted)
            for row, noted in zip(ledger, arrays["empties"].tolist(), strict=True)
        ]
        return RowGroup(
            ledger=ledger,
            frames=arrays["frames"],
            frame_row=arrays["frame_row"],
            frame_mask=arrays["frame_mask"],
            frame_zeroed=arrays["frame_zeroed"],
            frame_offset=arrays["frame_offset"],
            action=arrays["action"],
            action_mask=arrays["action_mask"],
            state=arrays["state"],
            state_mask=arrays["state_mask"],
            language=arrays["language"].tolist(),
            empties=empties,
            images={camera: arrays[f"images/{camera}"] for camera in self._mixture.layout.cameras}
            if decode
            else {},
            decoded=arrays["decoded"] if decode else np.zeros(len(ledger), dtype=np.bool_),
        )


def _array(tensor: Any) -> Any:
    """A tensor as NumPy has it; numbers share its memory."""
    return tensor.numpy() if tensor.dtype == tf.string else np.asarray(memoryview(tensor))


def _places(dataset: int, noted: bytes) -> Sequence[Place]:
    if not noted:
        return ()
    numbers = [map(int, one.split(b",")) for one in noted.split(b";") if one]
    return tuple(Place(dataset, *place) for place in numbers)


def _threads(knobs: Knobs) -> int:
    """Threads of the graph's own pool: parsing and decoding; interleaves bring theirs."""
    return max(usable_processors(), knobs.decode_threads)
