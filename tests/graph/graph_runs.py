"""Runs pipelines of every strategy over the same mixture and collects their samples by place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autoloader.graph.mixture import MixtureStream
from autoloader.graph.reader import StreamReader
from autoloader.knobs import Knobs
from autoloader.runtime.filled import FilledBatch, PipelineStart, languages
from autoloader.runtime.graph_pipeline import GraphPipeline
from autoloader.runtime.pipeline import Pipeline
from autoloader.runtime.ring import RingMemory
from autoloader.sampling.counts import count_mixture
from autoloader.sampling.cursor import DatasetCursor
from autoloader.sampling.order import MixtureOrder, mixture_order
from autoloader.sampling.resolve import ResolvedMixture, resolve
from autoloader.spec import PipelineSpec

Key = tuple[int, ...]
Sample = dict[str, Any]
_ROWS = ("action", "action_mask", "state", "state_mask", "frame_offset", "dataset_index")


class Run:
    """One pipeline and what it has delivered.

    Attributes:
        samples: ledger without the episode's count → the row's values.
        order: these keys, as they came.
        repeats: ledger rows whose frames were of another row.
        cursors: fold of all that was delivered, as a loader keeps it.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        strategy: str,
        *,
        decode: str = "pool",
        start: PipelineStart | None = None,
        cut: Callable[[int], int] | None = None,
        **knobs: Any,
    ) -> None:
        mixing = spec.mixing.model_copy(update={"strategy": strategy})
        spec = spec.model_copy(update={"mixing": mixing})
        self.mixture: ResolvedMixture = resolve(spec)
        counts = count_mixture(self.mixture)
        self.sizes = [counts[name].samples for name in self.mixture.names]
        self.orders: MixtureOrder = mixture_order(
            self.mixture, {name: count.samples for name, count in counts.items()}
        )
        self.knobs = Knobs.build({"queue_samples": 8, "decode": decode, **knobs})
        self.memory = RingMemory(self.mixture.layout)
        self.samples: dict[Key, Sample] = {}
        self.order: list[Key] = []
        self.repeats: list[Key] = []
        self.last: FilledBatch | None = None
        start = start or PipelineStart.beginning(self.mixture)
        self.cursors = [cursor.copy() for cursor in start.cursors]
        if strategy == "python":
            self.pipeline: Pipeline | GraphPipeline = Pipeline(
                self.mixture,
                self.orders,
                self.knobs,
                self.memory,
                lambda dataset: StreamReader(dataset, self.mixture.layout),
                start=start,
                cut=cut,
            )
        else:
            self.pipeline = GraphPipeline(
                self.mixture,
                self.orders,
                self.knobs,
                self.memory,
                lambda: MixtureStream(self.mixture, self.orders),
                start=start,
                cut=cut,
            )

    def __enter__(self) -> Run:
        self.pipeline.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.pipeline.close()
        self.memory.close()

    def batch(self) -> int:
        """Take one batch in; its rows."""
        filled = None
        while filled is None:
            filled = self.pipeline.next(5.0)
        views = self.mixture.layout.views(self.memory.base(filled.slot))
        texts = languages(views, filled)
        for row in range(filled.rows):
            *key, total = views["ledger"][row].tolist()
            place = tuple(key)
            self.cursors[key[0]].take(*key[1:4], total)
            self.order.append(place)
            if views["provenance"][row].tolist() != key:
                self.repeats.append(place)
                continue
            sample = {name: views[name][row].copy() for name in _ROWS}
            for camera in self.mixture.layout.cameras:
                sample[f"images/{camera}"] = views[f"images/{camera}"][row].copy()
                sample[f"frame_mask/{camera}"] = views[f"frame_mask/{camera}"][row].copy()
            sample["language"] = texts[row]
            self.samples[place] = sample
        for empty in filled.empties:
            self.cursors[empty.dataset].close(empty)
        self.last = filled
        self.pipeline.release(filled.slot)
        return filled.rows

    def take(self, samples: int) -> Run:
        """Take batches in until that many samples have come."""
        while len(self.order) < samples:
            self.batch()
        return self

    def until_passes(self, passes: int) -> Run:
        """Take batches in until every dataset has done that many passes."""
        while min(cursor.pass_ for cursor in self.cursors) < passes:
            self.batch()
        return self

    def of_pass(self, pass_: int) -> dict[Key, Sample]:
        return {key: sample for key, sample in self.samples.items() if key[1] == pass_}

    def resumed_at(self) -> PipelineStart:
        assert self.last is not None
        cursors = []
        for dataset, cursor in zip(self.mixture.datasets, self.cursors, strict=True):
            saved = DatasetCursor.of(dataset)
            saved.restore(cursor.state())
            cursors.append(saved)
        return PipelineStart(tuple(cursors), self.last.mixer, self.last.number + 1)


def assert_equal(
    found: dict[Key, Sample], wanted: dict[Key, Sample], *, grey_levels: float = 0
) -> None:
    assert sorted(found) == sorted(wanted)
    for key, sample in wanted.items():
        for name, value in sample.items():
            other = found[key][name]
            if not name.startswith("images/"):
                np.testing.assert_array_equal(other, value, err_msg=f"{key} {name}")
            elif grey_levels:
                off = np.abs(other.astype(np.int16) - value).mean()
                assert off <= grey_levels, (key, name, off)
            else:
                np.testing.assert_array_equal(other, value, err_msg=f"{key} {name}")
