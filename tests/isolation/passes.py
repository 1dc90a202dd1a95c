"""Counts what loaders hand out, by dataset and pass, and holds it against what there is."""

import collections
from typing import Any

from autoloader import AutoLoader


class Passes:
    """Samples seen of passes that are not over, and what was wrong with those that are.

    A dataset's pass is over when every rank is in a later one: ranks that stream have records of
    their own, and one may be passes ahead of another.

    Attributes:
        missing, twice: samples that never came in a pass that is over, and that came again.
    """

    def __init__(self, loader: AutoLoader) -> None:
        self.names = loader.dataset_names
        self.sizes = {name: count.samples for name, count in loader.plan.counts.items()}
        self.missing = self.twice = 0
        self._seen: dict[tuple[str, int], set[tuple[int, ...]]] = collections.defaultdict(set)
        self._over = dict.fromkeys(self.names, 0)
        self._faults: list[str] = []
        self.resume(1)

    def resume(self, ranks: int) -> None:
        """So many loaders go on; which pass each of them is in will be seen."""
        self._in_pass = [dict.fromkeys(self.names, -1) for _ in range(ranks)]

    def note(self, batch: dict[str, Any], rank: int = 0) -> None:
        """A batch of a rank; all ranks of a step must be noted before ``faults`` is asked."""
        in_pass = self._in_pass[rank]
        for dataset, pass_, *rest in batch["provenance"].tolist():
            name, place = self.names[dataset], tuple(rest)
            seen = self._seen[name, pass_]
            if place in seen or pass_ < self._over[name]:
                self.twice += 1
                self._faults.append(f"{name} pass {pass_}: {place} came twice")
            seen.add(place)
            in_pass[name] = max(in_pass[name], pass_)

    def complete(self, passes: int) -> bool:
        """Whether every dataset has begun pass number ``passes``."""
        return all(max(one[name] for one in self._in_pass) >= passes for name in self.names)

    def faults(self) -> list[str]:
        """What came twice, and passes that are over and do not hold every sample."""
        for name, over in self._over.items():
            for pass_ in range(over, min(one[name] for one in self._in_pass)):
                missing = self.sizes[name] - len(self._seen.pop((name, pass_), ()))
                if missing:
                    self.missing += missing
                    self._faults.append(f"{name} pass {pass_}: {missing} samples never came")
                self._over[name] = pass_ + 1
        return self._faults

    def ended(self) -> int:
        """Passes that are over."""
        self.faults()
        return sum(self._over.values())


def read(loader: AutoLoader, passes: Passes, batches: int) -> None:
    """Note so many batches, of as many epochs as they take."""
    done = 0
    while done < batches:
        for batch in loader:
            passes.note(batch)
            done += 1
            if done == batches:
                break
