"""How an order with locality is shuffled over many passes of a mixture, beside the full shuffle.

    python -m bench.locality_shuffle [--passes 20] [--windows 20] [--window 8] [--data demo]

The orders are those of the mixture's files; no frame is read. Blocks are so small that every
dataset has ``--windows`` windows at least. For each order: different episodes of a batch, over
batches spread over all passes; how often neighbours in a dataset are of one episode; and the rank
correlation of delivery and storage, the mean over all passes of all datasets. The last order takes
each dataset as it is stored.

Result on stdout as JSON. Exit code 1 where |correlation| is 0.02 or more, or a batch has fewer than
90 % of the full shuffle's episodes.

Not here: what a trainer makes of it (``bench.locality_training``), speed (``bench.locality``).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace

import numpy as np

from autoloader import PipelineSpec
from autoloader.index.opening import open_indexes
from autoloader.index.valid import table_of
from autoloader.order.episodes import DatasetTable
from autoloader.order.local.scatter import Locality
from autoloader.order.mixture import MixtureOrder, PositionSequence, mixture_order
from autoloader.order.quality import ShuffleQuality, foretell_quality
from autoloader.samples.resolve import resolve
from bench.data import ensure_data
from bench.host import load

CORRELATION, EPISODES = 0.02, 0.9
STRETCHES = 8
"""Places, spread over the passes, at which batches are looked at."""


def main() -> int:
    chosen = _arguments()
    spec = PipelineSpec.from_yaml(ensure_data(chosen.data))
    mixture = resolve(spec, "train")
    indexes = open_indexes(mixture.datasets)
    tables = [table_of(d, index) for d, index in zip(mixture.datasets, indexes, strict=True)]
    samples = {d.name: t.samples for d, t in zip(mixture.datasets, tables, strict=True)}
    full = replace(mixture_order(mixture, samples), locality=None)
    blocks = tuple(max(1, t.samples // (chosen.windows * chosen.window)) for t in tables)
    orders = {
        "full shuffle": full,
        "locality": replace(full, locality=Locality(blocks, chosen.window)),
    }
    batch = spec.batch.size
    found = {name: _quality(order, tables, batch, chosen.passes) for name, order in orders.items()}
    found["storage order"] = _as_stored(full, tables, batch)
    near, whole = found["locality"], found["full shuffle"]
    episodes = near.distinct_episodes / whole.distinct_episodes
    ok = abs(near.storage_correlation) < CORRELATION and episodes >= EPISODES
    print(
        json.dumps(
            {
                "datasets": len(tables),
                "passes": chosen.passes,
                "orders": {name: asdict(one) for name, one in found.items()},
                "episodes_against_full": episodes,
                "held": ok,
                "load": load(),
            },
            indent=1,
        )
    )
    return int(not ok)


def _quality(
    order: MixtureOrder, tables: list[DatasetTable], batch: int, passes: int
) -> ShuffleQuality:
    """The quality over so many passes."""
    end = passes * sum(table.samples for table in tables)
    each = [
        foretell_quality(order, tables, batch, passes=passes if not place else 0, start=start)
        for place, start in enumerate(range(0, end, end // STRETCHES))
    ]
    return ShuffleQuality(
        float(np.mean([one.distinct_episodes for one in each])),
        float(np.mean([one.same_episode_ratio for one in each])),
        each[0].storage_correlation,
    )


def _as_stored(order: MixtureOrder, tables: list[DatasetTable], batch: int) -> ShuffleQuality:
    """The same turns, where each dataset gives its samples as they are stored."""
    dataset, number = PositionSequence(order).ordinals(0, sum(table.samples for table in tables))
    episode = np.empty_like(number)
    same = neighbours = 0
    for each, table in enumerate(tables):
        own = dataset == each
        ends = np.cumsum(table.counts, dtype=np.int64)
        episode[own] = np.searchsorted(ends, number[own] % table.samples, side="right")
        same += int((np.diff(episode[own]) == 0).sum())
        neighbours += int(own.sum()) - 1
    batches = range(0, len(number) - batch, batch)
    pairs = np.stack([dataset, episode])
    distinct = [len(np.unique(pairs[:, at : at + batch], axis=1).T) for at in batches]
    return ShuffleQuality(float(np.mean(distinct)), same / neighbours, 1.0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.locality_shuffle", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--windows", type=int, default=20, help="of a dataset, at least")
    parser.add_argument("--window", type=int, default=8, help="blocks of a window")
    parser.add_argument("--data", default="demo")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
