"""Holds a batch that a helper has filled against the same batch, filled here. Pure.

Not here: which batches are compared (``cluster.driver``).
"""

from __future__ import annotations

import numpy as np

from autoloader.ring.message import BatchMessage, texts_of
from autoloader.samples.layout import CALLED, BatchLayout

_TEXTS = ("language_text", "language_end")


def difference(
    layout: BatchLayout,
    ours: tuple[np.ndarray, BatchMessage],
    theirs: tuple[np.ndarray, BatchMessage],
) -> str:
    """The first thing that differs, for people; "" where all is the same.

    Args:
        layout: of the batches.
        ours: a slot's memory, and what is said of it.
        theirs: the same, as the helper sent it.
    """
    (our_memory, our_batch), (their_memory, their_batch) = ours, theirs
    if our_batch.rows != their_batch.rows:
        return f"{our_batch.rows} rows here, {their_batch.rows} there"
    mine, other = layout.views(our_memory), layout.views(their_memory)
    shown = slice(our_batch.rows)
    # Where a sample comes from is told first: what else differs mostly follows from it.
    for name in sorted(mine, key=lambda name: name not in ("ledger", "provenance")):
        if name in _TEXTS or name.startswith(CALLED):
            continue
        here, there = mine[name][shown], other[name][shown]
        if not np.array_equal(here, there, equal_nan=here.dtype.kind == "f"):
            differs = (here != there).reshape(our_batch.rows, -1).any(axis=1)
            return f"{name}, row {int(np.flatnonzero(differs)[0])}"
    if texts_of(layout, mine, our_batch) != texts_of(layout, other, their_batch):
        return "language"
    return ""


def dataset_of(layout: BatchLayout, memory: np.ndarray, text: str) -> int | None:
    """The dataset of the row that ``difference`` names, by its index."""
    _, _, row = text.partition(", row ")
    return int(layout.views(memory)["dataset_index"][int(row)]) if row else None
