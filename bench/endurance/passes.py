"""Reads whole passes of the demo mixture and counts that every sample came exactly once.

Not here: what disturbs the loader meanwhile (``bench.endurance.survival``).
"""

from __future__ import annotations

import collections
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from autoloader import AutoLoader, PipelineSpec
from autoloader.cli.demo import ensure_demo
from bench.endurance.claims import HELD


def passes_mixture(scale: float = 0.08) -> PipelineSpec:
    """The demo mixture in small, each epoch one pass of every dataset."""
    spec = PipelineSpec.from_yaml(ensure_demo(scale=scale))
    plain = spec.model_dump(mode="json")
    plain["weights"] = "natural"
    return PipelineSpec.from_mapping(plain)


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

    def wrong_passes(self) -> tuple[int, int]:
        """(passes that are over, those of them that are not exactly their sample set)."""
        over = [key for key in self._seen if (key[0], key[1] + 1) in self._seen]
        wrong = [
            key
            for key in over
            if len(self._seen[key]) != self._sizes[key[0]] or max(self._seen[key].values()) > 1
        ]
        return len(over), len(wrong)


def run_epochs(
    epochs: int,
    act: Callable[[AutoLoader, random.Random], None] | None,
    every: int,
    start: dict[str, Any],
) -> tuple[Counted, int]:
    """Read passes, acting on the loader about every so many batches; how often it was."""
    drawn, acted = random.Random(7), 0
    with AutoLoader(passes_mixture(), **HELD, knobs=start) as loader:
        counted = Counted(loader)
        for _ in range(epochs):
            for batch in loader:
                counted.note(batch)
                if act is not None and drawn.random() < 1 / every:
                    act(loader, drawn)
                    acted += 1
    return counted, acted
