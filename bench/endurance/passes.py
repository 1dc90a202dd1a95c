"""What checks share: what may be chosen, the mixture, and whether each sample came exactly once.

Not here: what disturbs the loader meanwhile (``bench.endurance.survival``).
"""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoloader import AutoLoader, PipelineSpec
from autoloader.cli.demo import ensure_demo
from bench.checks import Check, all_of

HELD: dict[str, Any] = {"output": "numpy", "profile": "local_dev", "controller": False}
"""Knobs move where a check moves them, and nowhere else."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a person may choose.

    Attributes:
        reader: of the loaders that are disturbed.
        soak_s: how long the soak lasts.
    """

    reader: str = "stream"
    soak_s: float = 300.0

    @property
    def start(self) -> dict[str, Any]:
        """Knobs to begin with."""
        return {"ring_slots": 8, "queue_samples": 32, "reader": self.reader}


def passes_mixture(scale: float = 0.08) -> PipelineSpec:
    """The demo mixture in small, each epoch one pass of every dataset."""
    plain = PipelineSpec.from_yaml(ensure_demo(scale=scale)).model_dump(mode="json")
    for one in plain["datasets"]:
        del one["weight"]
    return PipelineSpec.from_mapping({**plain, "weights": "natural"})


class Counted:
    """Counts samples by dataset and pass, and times the gaps between batches."""

    def __init__(self, loader: AutoLoader) -> None:
        self._names = loader.dataset_names
        self._sizes = {name: count.samples for name, count in loader.plan.counts.items()}
        self._seen: dict[tuple[str, int], collections.Counter[tuple[int, ...]]] = (
            collections.defaultdict(collections.Counter)
        )
        self._last_s: float | None = None
        self.gaps_s: list[float] = []

    def note(self, batch: Mapping[str, Any]) -> None:
        """One batch."""
        now = time.perf_counter()
        if self._last_s is not None:
            self.gaps_s.append(now - self._last_s)
        for dataset, pass_, *place in batch["provenance"].tolist():
            self._seen[self._names[dataset], pass_][tuple(place)] += 1
        self._last_s = time.perf_counter()

    def exact(self, what: str) -> Check:
        """Whether passes that are over are exactly their sample set."""
        over = [key for key in self._seen if (key[0], key[1] + 1) in self._seen]
        right = [
            key
            for key in over
            if len(self._seen[key]) == self._sizes[key[0]] and max(self._seen[key].values()) == 1
        ]
        return all_of(f"{what}: passes exact", len(right), len(over))
