"""The mixture in tf.data: plainly, as its guides have it, and as other RLDS loaders lay it out.

- ``PlainTfData``: shards interleaved, the same features parsed, one element a sample (frames still
  encoded), ``sample_from_datasets``, then one parallel map that decodes and resizes, ``batch``,
  ``prefetch``.
- ``Divided``: every dataset decodes its own samples, and every count of parallel calls is divided
  by the number of datasets (at least 1 each); ``sample_from_datasets`` mixes decoded samples.
- ``Sqrt``: the same with counts divided by the square root of the number; a Python thread per
  dataset fills a queue, another one mixes blocks of samples from the queues into batches.
- ``OctoStyle``: threads for reading and parsing are dealt to the datasets by weight, samples stay
  encoded until after the mix and a shuffle buffer, then one parallel map decodes.

In their favour: only the named features are parsed, JPEGs are decoded once per use with the fast
integer DCT, a frame of the wanted size is not resized, nothing has to be deterministic, decode
threads can be bounded by a private pool, and where a dataset's share of the readers is one, it
reads without a thread of its own. Every count is a setting (-1 is AUTOTUNE).

They give what the loader gives, but for provenance and exact places: the same frames, action,
state, masks, language and dataset index, in the same shapes. Datasets are drawn by weight.

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
from bench.peers.tfdata_samples import Samples


class PlainTfData:
    """The plain one.

    Settings: 0 calls are tf.data's ``None`` (sequential), -1 is AUTOTUNE, 0 ``threads`` is
    TensorFlow's shared pool; ``cached`` 1 has each dataset decode and resize its samples once, into
    ``.cache()``; ``per_episode`` 0 is all samples of an episode.
    """

    KIND = "plain_tfdata"
    SETTINGS: ClassVar[Mapping[str, int]] = {
        **dict.fromkeys(("interleave_calls", "parse_calls", "batch_calls", "stream_prefetch"), 0),
        **dict.fromkeys(("threads", "ram_budget_bytes", "per_episode", "cached"), 0),
        "cycle_length": 1,
        "decode_calls": 2,
        "prefetch": 2,
        "autotune": 1,
    }

    def __init__(self, spec: Path, settings: Mapping[str, int]) -> None:
        import tensorflow as tf

        self._chosen = settled(self.KIND, self.SETTINGS, settings)
        self._mixture = read_mixture(spec)
        self.datasets = len(self._mixture.datasets)
        self._samples = Samples(tf, self._mixture, self._chosen["per_episode"])

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        mixed = self._samples.mixed([self._stream(number) for number in range(self.datasets)])
        return iter(self._batches(mixed).as_numpy_iterator())

    def close(self) -> None:
        """Nothing to end: the graph goes with the process."""

    def _stream(self, number: int) -> Any:
        """A dataset's samples."""
        chosen = self._chosen
        samples = self._samples.stream(
            number,
            cycle_length=chosen["cycle_length"],
            interleave_calls=chosen["interleave_calls"],
            parse_calls=chosen["parse_calls"],
            endless=not chosen["cached"],
        )
        if chosen["cached"]:
            samples = self._samples.decoded(samples, chosen["decode_calls"]).cache().repeat()
        return samples.prefetch(chosen["stream_prefetch"]) if chosen["stream_prefetch"] else samples

    def _batches(self, mixed: Any) -> Any:
        decode_calls = 0 if self._chosen["cached"] else self._chosen["decode_calls"]
        return self._samples.batches(mixed, **{**self._chosen, "decode_calls": decode_calls})


class Divided(PlainTfData):
    """Every count divided by the number of datasets.

    Settings: totals of ``read_calls``, ``parse_calls``, ``decode_calls``; ``prefetch`` in batches;
    ``threads`` of the pool; ``per_episode``.
    """

    KIND = "divided_tfdata"
    SETTINGS: ClassVar[Mapping[str, int]] = {
        **dict.fromkeys(("read_calls", "parse_calls", "decode_calls"), 32),
        "prefetch": 2,
        "threads": 2,
        "per_episode": 0,
    }

    def _stream(self, number: int) -> Any:
        reads, parses, decodes = (
            max(1, round(self._chosen[name] / self._divisor))
            for name in ("read_calls", "parse_calls", "decode_calls")
        )
        return self._samples.decoded(_read(self._samples, number, reads, parses), decodes)

    @property
    def _divisor(self) -> float:
        return self.datasets

    def _batches(self, mixed: Any) -> Any:
        return self._samples.batches(mixed, **{**self._chosen, "decode_calls": 0})


class Sqrt(Divided):
    """Every count divided by the square root of the number, mixed in Python.

    Settings: those of ``Divided`` but ``threads`` (29 pools would be 29 times as many: all streams
    use TensorFlow's own), and ``block_length``, ``queue_samples`` of each dataset, ``min_ready``
    datasets before the first batch.
    """

    KIND = "sqrt_tfdata"
    SETTINGS: ClassVar[Mapping[str, int]] = {
        **dict.fromkeys(("read_calls", "parse_calls", "decode_calls"), 4),
        "prefetch": 2,
        "per_episode": 0,
        "block_length": 4,
        "queue_samples": 4,
        "min_ready": 8,
    }

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        size = self._chosen["queue_samples"]
        self._queues = [queue.Queue[Mapping[str, Any]](size) for _ in range(self.datasets)]
        self._ahead = queue.Queue[Mapping[str, Any] | Exception](self._chosen["prefetch"])
        self._opened = np.zeros(self.datasets, bool)
        self._ready = threading.Semaphore(0)
        for number in range(self.datasets):
            threading.Thread(target=self._fill, args=(number,), daemon=True).start()
        threading.Thread(target=self._mix, daemon=True).start()
        while not isinstance(batch := self._ahead.get(), Exception):
            yield batch
        raise batch

    @property
    def _divisor(self) -> float:
        return math.sqrt(self.datasets)

    def _fill(self, number: int) -> None:
        try:
            samples = self._samples.optioned(self._stream(number))
            for sample in samples.as_numpy_iterator():
                self._queues[number].put(sample)
                if not self._opened[number]:
                    self._opened[number] = True
                    self._ready.release()
        except Exception as error:  # noqa: BLE001 - what ends a thread reaches the consumer
            self._ahead.put(error)

    def _mix(self) -> None:
        mixture, taken = self._mixture, list[Mapping[str, Any]]()
        weights = np.array([one.weight for one in mixture.datasets])
        rng = np.random.default_rng(mixture.seed)
        for _ in range(min(self._chosen["min_ready"], self.datasets)):
            self._ready.acquire()
        while True:
            shares = weights * self._opened
            number = int(rng.choice(self.datasets, p=shares / shares.sum()))
            taken += [self._queues[number].get() for _ in range(self._chosen["block_length"])]
            while len(taken) >= mixture.batch:
                whole, taken = taken[: mixture.batch], taken[mixture.batch :]
                self._ahead.put({name: np.stack([one[name] for one in whole]) for name in whole[0]})


class OctoStyle(PlainTfData):
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

    def _stream(self, number: int) -> Any:
        weights = [one.weight for one in self._mixture.datasets]
        shares = (dealt(self._chosen[name], weights) for name in ("read_calls", "parse_calls"))
        return _read(self._samples, number, *(share[number] for share in shares))

    def _batches(self, mixed: Any) -> Any:
        if self._chosen["shuffle_samples"]:
            mixed = mixed.shuffle(self._chosen["shuffle_samples"], seed=self._mixture.seed)
        return self._samples.batches(mixed, **self._chosen)


def _read(samples: Samples, number: int, reads: int, parses: int) -> Any:
    """A dataset's samples by so many parallel calls."""
    interleave = reads if reads > 1 else 0
    return samples.stream(
        number, cycle_length=reads, interleave_calls=interleave, parse_calls=parses
    )


def dealt(total: int, weights: Sequence[float]) -> list[int]:
    """``total`` threads dealt by weight: one each, the rest by largest remainder."""
    shares = np.array(weights) / sum(weights) * max(0, total - len(weights))
    counts = 1 + np.floor(shares).astype(int)
    left = max(0, total - int(counts.sum()))
    for at in np.argsort(np.floor(shares) - shares, kind="stable")[:left]:
        counts[at] += 1
    return [int(count) for count in counts]
