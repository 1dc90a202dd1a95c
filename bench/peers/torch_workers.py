"""torch's ``DataLoader`` with worker processes, each over TFDS pipelines of its own.

What RLDS loaders for torch do where one process is not enough: an ``IterableDataset`` whose workers
each build the whole mixture, from TFDS. A dataset's episodes are divided among the workers
(``split[a:b]``); one with fewer episodes than workers is read whole by each.

In its favour: TFDS decodes no frame (``SkipDecoding``), caches and prefetches nothing by itself; a
worker mixes encoded samples, decodes them as ``bench.peers.tfdata`` does with its part of the
threads, and hands over whole batches through shared memory, so that nothing is collated again;
workers are forked from a process that has torch but not TensorFlow loaded, so that they share its
pages. What it cannot do: read only the named features of a step (``PartialDecoding`` does not reach
into RLDS steps), so all cameras are parsed.

Not here: samples and frames (``bench.peers.tfdata_samples``).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bench.mixture import MixedDataset, Mixture, read_mixture
from bench.peers import settled

SETTINGS: Mapping[str, int] = {
    "workers": 2,
    "prefetch_factor": 2,
    "decode_calls": 2,
    "prefetch": 1,
    "per_episode": 0,
}


class TorchWorkers:
    """The peer.

    Settings: ``workers``, ``prefetch_factor`` (batches each), of each worker ``decode_calls`` and
    ``prefetch``, and ``per_episode`` (0 is all).
    """

    def __init__(self, spec: Path, settings: Mapping[str, int]) -> None:
        chosen = settled("torch_workers", SETTINGS, settings)
        mixture = read_mixture(spec)
        self.datasets = len(mixture.datasets)
        self._loader: DataLoader[Any] = DataLoader(
            _Batches(mixture, chosen),
            batch_size=None,
            num_workers=chosen["workers"],
            prefetch_factor=chosen["prefetch_factor"],
        )
        self._batches: Iterator[Mapping[str, Any]] | None = None

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        self._batches = iter(self._loader)
        for batch in self._batches:
            yield {
                name: value.numpy() if isinstance(value, torch.Tensor) else value
                for name, value in batch.items()
            }

    def close(self) -> None:
        """Ends the workers."""
        self._batches = None


class _Batches(IterableDataset[dict[str, Any]]):
    """What a worker iterates: batches of the whole mixture."""

    def __init__(self, mixture: Mixture, chosen: Mapping[str, int]) -> None:
        self._mixture = mixture
        self._chosen = chosen

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import tensorflow as tf

        from bench.peers.tfdata_samples import Samples

        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        mixture, chosen = self._mixture, self._chosen
        tf.random.set_seed(mixture.seed + number)
        samples = Samples(tf, mixture, chosen["per_episode"])
        streams = [
            _episodes(dataset, number, count, seed=mixture.seed + number)
            .map(lambda episode, at=at, one=dataset: _samples(tf, samples, at, one, episode))
            .unbatch()
            for at, dataset in enumerate(mixture.datasets)
        ]
        batches = samples.batches(
            samples.mixed(streams),
            decode_calls=chosen["decode_calls"],
            prefetch=chosen["prefetch"],
            threads=max(1, len(os.sched_getaffinity(0)) // count),
        )
        # TensorFlow's arrays cannot be written to, which torch says of each; nobody writes here.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        for batch in batches.as_numpy_iterator():
            yield {
                name: torch.from_numpy(value) if value.dtype != object else value.tolist()
                for name, value in batch.items()
            }


def _episodes(dataset: MixedDataset, number: int, count: int, *, seed: int) -> Any:
    """A worker's part of a dataset's episodes as TFDS gives them, without end."""
    import tensorflow_datasets as tfds

    place = Path(dataset.files[0][0])
    builder = tfds.builder_from_directory(place.parent)
    split = place.name.rpartition(".tfrecord")[0].rpartition("-")[2]
    records = sum(taken for _, taken in dataset.files)
    first, last = records * number // count, records * (number + 1) // count
    if first == last:
        first, last = 0, records
    return builder.as_dataset(
        split=f"{split}[{first}:{last}]",
        shuffle_files=True,
        decoders={"steps": tfds.decode.SkipDecoding()},
        read_config=tfds.ReadConfig(
            shuffle_seed=seed,
            interleave_cycle_length=1,
            enable_ordering_guard=False,
            add_tfds_id=True,
            try_autocache=False,
            skip_prefetch=True,
        ),
    ).repeat()


def _samples(tf: Any, samples: Any, number: int, dataset: MixedDataset, episode: Any) -> Any:
    """An episode as TFDS gives it into samples."""
    # Of "some-train.tfrecord-00003-of-00010__7" (the end of the file's name differs): shard 3,
    # record 7.
    told = tf.strings.regex_replace(episode["tfds_id"], r".*\.tfrecord-(\d+).*__(\d+)$", r"\1 \2")
    place = tf.strings.split(told)
    shard, record = tf.unstack(tf.strings.to_number(place, tf.int64), 2)
    return samples.samples_of(number, dataset, shard * 2**32 + record, _flat(episode))


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{name}/")
        else:
            found[above + name] = value
    return found
