"""Runs readers and pipelines for tests, and says what came out of them."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rlds_files import Written

from autoloader import AutoLoader
from autoloader.decode.message import BatchMessage, PipelineStart, languages
from autoloader.decode.ring import RingMemory
from autoloader.host.clock import Clock
from autoloader.index.counting import count_mixture
from autoloader.pipeline.pipeline import Pipeline
from autoloader.pipeline.read.planned import IndexedReader
from autoloader.pipeline.read.streams import StreamsReader
from autoloader.samples.block import EmptyEpisode, EpisodeStream, Place, SampleBlock
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture, resolve
from autoloader.sampling.cursor import DatasetCursor
from autoloader.sampling.dealing import Deal, Ranks
from autoloader.sampling.mixture import mixture_order
from autoloader.spec import PipelineSpec
from autoloader.spec.knobs import Knobs

every_strategy = pytest.mark.parametrize("strategy", ["python", "choose", "sample"])

Sample = tuple[int, int, int, int, int]
"""Dataset, pass, shard, record, t."""


def dataset_of(written: Written, **own: Any) -> dict[str, Any]:
    """What a spec says of a dataset with ``rlds_files.PLAIN`` features."""
    return {
        "name": written.name,
        "path": str(written.path),
        "images": {"primary": "observation/image"},
        "action": "action",
        "state": "observation/state",
        "language": "language_instruction",
        **own,
    }


def spec_of(*datasets: Written | Mapping[str, Any], **top: Any) -> PipelineSpec:
    """A spec over written datasets: small frames, batches of four."""
    plain: dict[str, Any] = {
        "datasets": [dataset_of(one) if isinstance(one, Written) else one for one in datasets],
        "cameras": {"primary": {"size": [12, 16]}},
        "batch": {"size": 4},
    }
    return PipelineSpec.from_mapping({**plain, **top})


def write_spec(folder: Path, written: Written, size: str = "[12, 16]", **top: Any) -> Path:
    """A file with a spec of one dataset: a pass an epoch, in batches of four."""
    path = folder / "mix.yaml"
    plain = (
        f"datasets: [{dataset_of(written)}]",
        "weights: natural",
        f"cameras: {{primary: {{size: {size}}}}}",
        "batch: {size: 4}",
    )
    path.write_text("\n".join([*plain, *(f"{name}: {value}" for name, value in top.items())]))
    return path


def spec_file(folder: Path, spec: PipelineSpec | Mapping[str, Any]) -> Path:
    """A file ``mix.yaml`` that holds a spec."""
    path = folder / "mix.yaml"
    path.write_text(spec.to_yaml() if isinstance(spec, PipelineSpec) else yaml.safe_dump(spec))
    return path


def opened(spec: Any, **own: Any) -> AutoLoader:
    """A loader of this process that gives NumPy arrays."""
    return AutoLoader(
        spec, **{"isolation": "thread", "ram_floor": "64MiB", "output": "numpy", **own}
    )


def opened_by(reader: str, *datasets: Any, output: Any = "numpy", **top: Any) -> AutoLoader:
    """A pass of each dataset an epoch: by stream, indexed, or indexed with decode processes."""
    how = {"weights": "natural", "batch": {"size": 4, "drop_last": False}, **top}
    spec = spec_of(*datasets, reader="stream" if reader == "stream" else "indexed", **how)
    knobs = {"ring_slots": 4, "decode_processes": 1} if reader == "processes" else None
    return opened(spec, controller=False, output=output, knobs=knobs)


def mixture_of(*datasets: Written | Mapping[str, Any], **top: Any) -> ResolvedMixture:
    """``spec_of``, resolved for split train."""
    return resolve(spec_of(*datasets, **top))


def stream_knobs(**values: Any) -> Knobs:
    """The stream knobs of a dataset; calls follow the cycle."""
    values.setdefault("num_parallel_calls", values.get("cycle_length", 1))
    return Knobs.build(values).for_dataset(None)


def stream_reader(mixture: ResolvedMixture) -> Callable[[ResolvedDataset], EpisodeStream]:
    """Makes stream readers of a mixture's datasets."""

    def make(dataset: ResolvedDataset) -> EpisodeStream:
        from autoloader.pipeline.graph.reader import StreamReader

        return StreamReader(dataset, mixture.layout, ordered=mixture.spec.mixing.waits)

    return make


def episodes_of_pass(
    mixture: ResolvedMixture, index: int = 0, pass_: int = 0, **knobs: Any
) -> Iterator[SampleBlock | EmptyEpisode]:
    """What the stream reader gives of one pass of one dataset."""
    dataset = mixture.datasets[index]
    cursor = DatasetCursor.of(dataset)
    cursor.pass_ = pass_
    for item in stream_reader(mixture)(dataset).open(cursor.start(), stream_knobs(**knobs)):
        if item.place.pass_ != pass_:
            return
        yield item


@dataclass
class Got:
    """Batches that came out, as arrays of their own."""

    rows: list[tuple[int, ...]] = field(default_factory=list)
    batches: list[dict[str, np.ndarray]] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    filled: list[BatchMessage] = field(default_factory=list)

    @property
    def samples(self) -> list[Sample]:
        """The samples that the rows stand for."""
        return [tuple(row[:5]) for row in self.rows]  # type: ignore[misc]

    def joined(self, name: str) -> np.ndarray:
        """One array of all batches."""
        return np.concatenate([batch[name] for batch in self.batches])

    def of_pass(self, dataset: int, pass_: int) -> collections.Counter[Sample]:
        """Samples of one pass of one dataset, each with how often it came."""
        return collections.Counter(s for s in self.samples if s[:2] == (dataset, pass_))


class Running:
    """A pipeline in this process, drained by hand; used as a context."""

    def __init__(
        self,
        mixture: ResolvedMixture,
        knobs: Mapping[str, Any] | None = None,
        *,
        start: PipelineStart | None = None,
        source: Callable[[ResolvedDataset], EpisodeStream] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.mixture = mixture
        self.counts = count_mixture(mixture)
        self.order = mixture_order(mixture, {n: c.samples for n, c in self.counts.items()})
        self.memory = RingMemory(mixture.layout)
        self.cursors = [DatasetCursor.of(dataset) for dataset in mixture.datasets]
        self.begin = begin = start or PipelineStart(
            tuple(DatasetCursor.of(dataset) for dataset in mixture.datasets), None
        )
        self.cursors = [cursor.copy() for cursor in begin.cursors]
        self.pipeline = Pipeline(
            mixture,
            StreamsReader(mixture, self.order, source or stream_reader(mixture), begin),
            Knobs.build({"ring_slots": 4, "queue_samples": 8, **(knobs or {})}),
            self.memory,
            deal=begin.deal(mixture, self.order, Ranks()),
            clock=clock,
        )
        self.got = Got()

    def __enter__(self) -> Running:
        self.pipeline.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.pipeline.close()
        self.memory.close()

    def batch(self) -> BatchMessage:
        """One batch, noted in ``got`` and folded into ``cursors``."""
        while (filled := self.pipeline.next(1.0)) is None:
            pass
        views = self.mixture.layout.views(self.memory.base(filled.slot))
        copied = {name: view[: filled.rows].copy() for name, view in views.items()}
        self.got.texts += languages(views, filled)
        self.pipeline.release(filled.slot)
        self.got.batches.append(copied)
        self.got.filled.append(filled)
        for place in filled.empties:
            self.cursors[place.dataset].close(place)
        for row in copied["ledger"].tolist():
            dataset, pass_, shard, record, _, total = row
            self.cursors[dataset].take(pass_, shard, record, total)
            self.got.rows.append(tuple(row))
        return filled

    @property
    def position(self) -> int:
        """Samples taken since the beginning of everything."""
        return self.begin.position + len(self.got.rows)

    def batches(self, count: int) -> Got:
        """``count`` more batches."""
        for _ in range(count):
            self.batch()
        return self.got

    def until_pass(self, pass_: int) -> Got:
        """Batches until every dataset has begun pass ``pass_`` or a later one."""
        while any(cursor.pass_ < pass_ for cursor in self.cursors):
            self.batch()
        return self.got

    def place(self) -> PipelineStart:
        """Where another pipeline must begin to go on from here."""
        last = self.got.filled[-1] if self.got.filled else None
        return PipelineStart(
            tuple(cursor.copy() for cursor in self.cursors),
            last.mixer if last else None,
            last.number + 1 if last else 0,
            self.position,
            self.position % (self.order.epoch_samples or 1),
        )


class Playing:
    """A pipeline that reads by index in this process, taken by hand; a context, or closed."""

    def __init__(
        self, mixture: ResolvedMixture, ranks: Ranks | None = None, *, base: int = 0, **knobs: Any
    ) -> None:
        order = mixture_order(mixture, {n: c.samples for n, c in count_mixture(mixture).items()})
        self.mixture, self.memory = mixture, RingMemory(mixture.layout)
        self.knobs = Knobs.build({"ring_slots": 4, "reader": "indexed", "read_ahead": 1, **knobs})
        batch = mixture.spec.batch
        deal = Deal(ranks or Ranks(), batch.size, batch.drop_last, order.epoch_samples, base, base)
        self.reader = IndexedReader(mixture, order)
        self.pipeline = Pipeline(mixture, self.reader, self.knobs, self.memory, deal=deal)
        self.got: list[dict[str, np.ndarray]] = []
        self.pipeline.start()

    def batch(self) -> dict[str, np.ndarray]:
        """One batch, as arrays of its own."""
        while (filled := self.pipeline.next(1.0)) is None:
            pass
        views = self.mixture.layout.views(self.memory.base(filled.slot))
        names = [name for name in views if not name.startswith("language")]
        self.got.append({name: views[name][: filled.rows].copy() for name in names})
        del views
        self.pipeline.release(filled.slot)
        return self.got[-1]

    def batches(self, count: int) -> list[dict[str, np.ndarray]]:
        """``count`` more batches."""
        return [self.batch() for _ in range(count)]

    def joined(self, name: str) -> np.ndarray:
        """One array of all batches so far."""
        return np.concatenate([batch[name] for batch in self.got])

    @property
    def samples(self) -> list[tuple[int, ...]]:
        """What each row so far is."""
        return [tuple(row) for row in self.joined("provenance").tolist()]

    def close(self) -> None:
        """End it; ``blocks`` are those that were read."""
        self.blocks = self.reader.blocks
        self.pipeline.close()
        self.memory.close()

    def __enter__(self) -> Playing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def every_sample(mixture: ResolvedMixture, index: int, pass_: int) -> set[Sample]:
    """The samples of one pass, found by reading each record on its own."""
    from autoloader.formats.records import MalformedRecordError, read_records
    from autoloader.index.records import RecordSamples

    dataset = mixture.datasets[index]
    found: set[Sample] = set()
    for shard, piece in enumerate(dataset.slices):
        for one in read_records(piece.path, piece.start, piece.stop):
            if one.number is None or one.payload is None:
                continue
            record, place = one.number, Place(index, pass_, shard, one.number)
            try:
                samples = RecordSamples(dataset, mixture.layout).of(place, one.payload)
            except MalformedRecordError:
                continue
            if samples is not None:
                found |= {(index, pass_, shard, record, t) for t in samples.t.tolist()}
    return found


def until(true: Callable[[], bool]) -> None:
    """Wait; a hang is the suite's time limit."""
    while not true():
        time.sleep(0.005)


def endless(loader: AutoLoader) -> Iterator[dict[str, Any]]:
    """Batches over all epochs."""
    while True:
        yield from loader


def rows(batches: Iterator[dict[str, Any]], count: int = 1) -> list[tuple[int, ...]]:
    """Where the samples of the next batches are from."""
    return [tuple(row) for _ in range(count) for row in next(batches)["provenance"].tolist()]
