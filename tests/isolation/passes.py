"""Counts what a loader hands out, by dataset and pass, and holds it against what there is."""

from __future__ import annotations

import collections
from typing import Any

from autoloader import AutoLoader


class Passes:
    """Samples seen, by (dataset name, pass)."""

    def __init__(self, loader: AutoLoader) -> None:
        self.names = loader.dataset_names
        self.sizes = {name: count.samples for name, count in loader.plan.counts.items()}
        self.seen: dict[tuple[str, int], collections.Counter[tuple[int, ...]]] = (
            collections.defaultdict(collections.Counter)
        )

    def note(self, batch: dict[str, Any]) -> None:
        for dataset, pass_, *place in batch["provenance"].tolist():
            self.seen[self.names[dataset], pass_][tuple(place)] += 1

    def complete(self, passes: int) -> bool:
        """Whether every dataset has begun pass number ``passes``."""
        begun = collections.defaultdict(int)
        for name, pass_ in self.seen:
            begun[name] = max(begun[name], pass_)
        return all(begun[name] >= passes for name in self.names)

    def faults(self) -> list[str]:
        """Passes that are over and do not hold every sample exactly once."""
        found = []
        for (name, pass_), counter in self.seen.items():
            twice = [place for place, count in counter.items() if count > 1]
            if twice:
                found.append(f"{name} pass {pass_}: {len(twice)} samples came twice: {twice[:3]}")
            if (name, pass_ + 1) in self.seen and len(counter) != self.sizes[name]:
                found.append(f"{name} pass {pass_}: {len(counter)} of {self.sizes[name]} samples")
        return found

    def ended(self) -> int:
        """Passes that are over."""
        return sum((name, pass_ + 1) in self.seen for name, pass_ in self.seen)
