"""What decode reuse saves and what it takes: decodes of a sample, different episodes of a batch.

A full run of b samples with m frames each costs b + m − 1 decodes where the frames are chained, a
sample outside a run m. That is what a pass costs at most: windows that repeat an episode's edge
decode fewer, blocks that the end of a batch cuts in two decode one more. A goal frame is a
sample's own. How many episodes a batch is of is counted over the first batches of the plan.

Not here: the chains (``chains``), what a running loader really decoded (``decode.activity``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoloader.order.episodes import DatasetTable
from autoloader.order.mixture import MixtureOrder
from autoloader.order.plan import SamplePlan
from autoloader.spec import SampleSpec

_BATCHES = 64


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a plan will decode.

    Attributes:
        chained: [D] whether the samples of a dataset's blocks share frames.
        decodes: [D] decodes of a sample of each dataset and camera, over a pass.
        alone: [D] the same without chaining.
        distinct_episodes: mean number of different episodes in a batch.
    """

    chained: tuple[bool, ...]
    decodes: tuple[float, ...]
    alone: tuple[float, ...]
    distinct_episodes: float


def foretell_reuse(order: MixtureOrder, tables: Sequence[DatasetTable], batch: int) -> Reuse:
    """What batches of ``batch`` samples will cost and be of; no frame is looked at.

    Args:
        order: the mixture's.
        tables: its datasets, each with a sample at least.
        batch: samples of a batch.
    """
    plan = SamplePlan(order, tables, chain=order.chain)
    alone = [_frames(table.sample) for table in tables]
    decodes = []
    for table, frames, runs in zip(tables, alone, plan.runs, strict=True):
        saved = (len(set(table.sample.frame_offsets)) - 1) * (order.block_length - 1)
        decodes.append((table.samples * frames - runs * saved) / table.samples)
    counts = [
        plan.samples(start, start + batch).distinct_episodes
        for start in range(0, _BATCHES * batch, batch)
    ]
    return Reuse(plan.chained, tuple(decodes), tuple(map(float, alone)), float(np.mean(counts)))


def _frames(sample: SampleSpec) -> int:
    return len(set(sample.frame_offsets)) + (sample.goal != "none")
