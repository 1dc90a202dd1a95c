"""The mixture as other RLDS loaders lay it out in tf.data: divided, square-root, Octo's.

- ``Divided``: every dataset decodes its own samples, and every count of parallel calls is divided
  by the number of datasets (at least 1 each); ``sample_from_datasets`` mixes decoded samples.
- ``Sqrt``: the same with counts divided by the square root of the number; a Python thread per
  dataset fills a queue, another one mixes blocks of samples from the queues into batches.
- ``OctoStyle``: threads for reading and parsing are dealt to the datasets by weight, samples stay
  encoded until after the mix and a shuffle buffer, then one parallel map decodes.

In their favour, as in ``bench.peers.plain_tfdata``: only the named features are parsed, JPEGs are
decoded with the fast integer DCT, a frame of the wanted size is not resized, nothing has to be
deterministic, decode threads are bounded by a private pool, and where a dataset's share of the
readers is one, it reads without a thread of its own.

Not here: samples and frames (``bench.peers.tfdata_samples``), which settings are compared
(``bench/scenarios``).
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bench.mixture import read_mixture
from bench.peers import settled
from bench.peers.tfdata_samples import Samples, mix, with_options


class _Layout:
    """What the three share."""

    KIND: ClassVar[str]
    SETTINGS: ClassVar[Mapping[str, int]]

    def __init__(self, spec: Path, settings: Mapping[str, int]) -> None:
        import tensorflow as tf

        self._tf = tf
        self._chosen = settled(self.KIND, self.SETTINGS, settings)
        self._mixture = read_mixture(spec)
        self.datasets = len(self._mixture.datasets)
        self._samples = Samples(tf, self._mixture, self._chosen["per_episode"])

    def close(self) -> None:
        """Nothing to end: the graph goes with the process."""

    def _decoded(self, number: int, divisor: float) -> Any:
        """A dataset's decoded samples, every count divided."""
        calls = {
            name: max(1, round(self._chosen[name] / divisor))
            for name in ("read_calls", "parse_calls", "decode_calls")
        }
        reads = calls["read_calls"]
        return self._samples.stream(
            number,
            self._mixture.datasets[number],
            cycle_length=reads,
            interleave_calls=reads if reads > 1 else 0,
            parse_calls=calls["parse_calls"],
        ).map(self._samples.decode, num_parallel_calls=calls["decode_calls"], deterministic=False)


class Divided(_Layout):
    """Every count divided by the number of datasets.

    Settings: totals of ``read_calls``, ``parse_calls``, ``decode_calls``; ``prefetch`` in batches;
    ``threads`` of the pool; ``per_episode`` (0 is all).
    """

    KIND = "divided_tfdata"
    SETTINGS: ClassVar[Mapping[str, int]] = {
        "read_calls": 32,
        "parse_calls": 32,
        "decode_calls": 32,
        "prefetch": 2,
        "threads": 2,
        "per_episode": 0,
    }

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        tf, chosen = self._tf, self._chosen
        streams = [self._decoded(number, self.datasets) for number in range(self.datasets)]
        batches = mix(tf, self._mixture, streams).batch(self._mixture.batch, drop_remainder=True)
        batches = batches.prefetch(chosen["prefetch"])
        batches = with_options(tf, batches, autotune=False, threads=chosen["threads"])
        return iter(batches.as_numpy_iterator())


class Sqrt(_Layout):
    """Every count divided by the square root of the number, mixed in Python.

    Settings: those of ``Divided`` but ``threads`` (29 pools would be 29 times as many: all streams
    use TensorFlow's own), and ``block_length``, ``queue_samples`` of each dataset, ``min_ready``
    datasets before the first batch.
    """

    KIND = "sqrt_tfdata"
    SETTINGS: ClassVar[Mapping[str, int]] = {
        "read_calls": 4,
        "parse_calls": 4,
        "decode_calls": 4,
        "prefetch": 2,
        "block_length": 4,
        "queue_samples": 4,
        "min_ready": 8,
        "per_episode": 0,
    }

    def __init__(self, spec: Path, settings: Mapping[str, int]) -> None:
        super().__init__(spec, settings)
        size = self._chosen["queue_samples"]
        self._queues = [queue.Queue[Mapping[str, Any]](size) for _ in range(self.datasets)]
        self._batches = queue.Queue[Mapping[str, Any] | Exception](self._chosen["prefetch"])
        self._opened = np.zeros(self.datasets, bool)
        self._ready = threading.Semaphore(0)
        self._closed = False

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for number in range(self.datasets):
            threading.Thread(target=self._fill, args=(number,), daemon=True).start()
        threading.Thread(target=self._mix, daemon=True).start()
        while True:
            batch = self._batches.get()
            if isinstance(batch, Exception):
                raise batch
            yield batch

    def close(self) -> None:
        """The threads end with the sample in hand, or, where they wait, with the process."""
        self._closed = True

    def _fill(self, number: int) -> None:
        try:
            stream = self._decoded(number, math.sqrt(self.datasets))
            for sample in with_options(self._tf, stream, autotune=False).as_numpy_iterator():
                self._queues[number].put(sample)
                if not self._opened[number]:
                    self._opened[number] = True
                    self._ready.release()
                if self._closed:
                    return
        except Exception as error:  # noqa: BLE001 - what ends a thread reaches the consumer
            self._batches.put(error)

    def _mix(self) -> None:
        mixture = self._mixture
        weights = np.array([one.weight for one in mixture.datasets])
        rng = np.random.default_rng(mixture.seed)
        for _ in range(min(self._chosen["min_ready"], self.datasets)):
            self._ready.acquire()
        taken: list[Mapping[str, Any]] = []
        while not self._closed:
            shares = weights * self._opened
            number = int(rng.choice(self.datasets, p=shares / shares.sum()))
            taken += [self._queues[number].get() for _ in range(self._chosen["block_length"])]
            while len(taken) >= mixture.batch:
                self._batches.put(_stacked(taken[: mixture.batch]))
                del taken[: mixture.batch]


def _stacked(samples: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


class OctoStyle(_Layout):
    """Threads by weight, a buffer of encoded samples, decoding last.

    Settings: totals of ``read_calls`` and ``parse_calls``; ``shuffle_samples`` held encoded;
    ``decode_calls`` after the mix; ``autotune`` with ``ram_budget_bytes``; the rest as above.
    """

    KIND = "octo_style"
    SETTINGS: ClassVar[Mapping[str, int]] = {
        "read_calls": 32,
        "parse_calls": 32,
        "shuffle_samples": 10_000,
        "decode_calls": 4,
        "prefetch": 2,
        "threads": 2,
        "autotune": 1,
        "ram_budget_bytes": 10**9,
        "per_episode": 0,
    }

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        tf, chosen, mixture = self._tf, self._chosen, self._mixture
        weights = [one.weight for one in mixture.datasets]
        reads, parses = (dealt(chosen[name], weights) for name in ("read_calls", "parse_calls"))
        streams = [
            self._samples.stream(
                number,
                dataset,
                cycle_length=reads[number],
                interleave_calls=reads[number] if reads[number] > 1 else 0,
                parse_calls=parses[number],
            )
            for number, dataset in enumerate(mixture.datasets)
        ]
        mixed = mix(tf, mixture, streams)
        if chosen["shuffle_samples"]:
            mixed = mixed.shuffle(chosen["shuffle_samples"], seed=mixture.seed)
        batches = (
            mixed.map(
                self._samples.decode, num_parallel_calls=chosen["decode_calls"], deterministic=False
            )
            .batch(mixture.batch, drop_remainder=True)
            .prefetch(chosen["prefetch"])
        )
        batches = with_options(
            tf,
            batches,
            autotune=bool(chosen["autotune"]),
            threads=chosen["threads"],
            ram_budget_bytes=chosen["ram_budget_bytes"],
        )
        return iter(batches.as_numpy_iterator())


def dealt(total: int, weights: Sequence[float]) -> list[int]:
    """``total`` threads dealt by weight: one each, the rest by largest remainder."""
    shares = np.array(weights) / sum(weights) * max(0, total - len(weights))
    counts = 1 + np.floor(shares).astype(int)
    left = max(0, total - int(counts.sum()))
    for at in np.argsort(np.floor(shares) - shares, kind="stable")[:left]:
        counts[at] += 1
    return [int(count) for count in counts]
