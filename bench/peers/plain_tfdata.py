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

from bench.mixture import MixedDataset, read_mixture
from bench.peers import settled
from bench.peers.tfdata_samples import Samples, mix, with_options

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
    "per_episode": 0,
    "cached": 0,
}
"""Every setting with its value where a scenario does not say; 0 calls are tf.data's ``None``
(sequential), -1 is AUTOTUNE, 0 threads is TensorFlow's shared pool; ``cached`` 1 has each dataset
decode and resize its samples once, into ``.cache()``."""


class PlainTfData:
    """The peer; see the module."""

    def __init__(self, spec: Path, settings: Mapping[str, int]) -> None:
        import tensorflow as tf

        self._settings = settled("plain_tfdata", SETTINGS, settings)
        self._tf = tf
        self._mixture = read_mixture(spec)
        self.datasets = len(self._mixture.datasets)
        self._samples = Samples(tf, self._mixture, self._settings["per_episode"])

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._build().as_numpy_iterator())

    def close(self) -> None:
        """Nothing to end: the graph goes with the process."""

    def _build(self) -> Any:
        tf, chosen, mixture = self._tf, self._settings, self._mixture
        streams = [self._stream(number, one) for number, one in enumerate(mixture.datasets)]
        mixed = mix(tf, mixture, streams)
        batches = (
            (mixed if chosen["cached"] else self._decoded(mixed))
            .batch(
                mixture.batch,
                drop_remainder=True,
                num_parallel_calls=chosen["batch_calls"] or None,
                deterministic=False if chosen["batch_calls"] else None,
            )
            .prefetch(chosen["prefetch"])
        )
        return with_options(
            tf,
            batches,
            autotune=bool(chosen["autotune"]),
            threads=chosen["threads"],
            ram_budget_bytes=chosen["ram_budget_bytes"],
        )

    def _decoded(self, samples: Any) -> Any:
        calls = self._settings["decode_calls"]
        return samples.map(self._samples.decode, num_parallel_calls=calls, deterministic=False)

    def _stream(self, number: int, dataset: MixedDataset) -> Any:
        chosen = self._settings
        samples = self._samples.stream(
            number,
            dataset,
            cycle_length=chosen["cycle_length"],
            interleave_calls=chosen["interleave_calls"],
            parse_calls=chosen["parse_calls"],
            endless=not chosen["cached"],
        )
        if chosen["cached"]:
            samples = self._decoded(samples).cache().repeat()
        if chosen["stream_prefetch"]:
            samples = samples.prefetch(chosen["stream_prefetch"])
        return samples
