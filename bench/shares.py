"""How far a mixture's shares are from its weights, counted from the order of its samples.

Not here: running the loader (``bench.window``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def share_errors(
    order: Sequence[int], shares: Sequence[float], *, blocks: int, block_length: int = 1
) -> dict[str, float]:
    """Largest distance between a share and its weight over all datasets, in percentage points.

    Args:
        order: dataset of each sample, from the first one on.
        shares: what each dataset should have; sums to 1.
        blocks: length of the stretch over which shares are taken.
        block_length: samples of a block.

    Returns:
        ``running``: the worst since the beginning, at any moment from that length on. ``whole``:
        over everything counted. ``window``: over any stretch of that length, which counts a debt
        and its repayment twice.

    Raises:
        ValueError: fewer samples than one stretch.
    """
    length = blocks * block_length
    if len(order) < length:
        raise ValueError(f"{len(order)} samples are fewer than {blocks} blocks of {block_length}")
    one_hot = np.asarray(order)[:, None] == np.arange(len(shares))
    totals = np.vstack((np.zeros(len(shares), np.int64), np.cumsum(one_hot, axis=0)))
    aims = np.asarray(shares)
    windows = (totals[length:] - totals[:-length]) / length - aims
    running = totals[length:] / np.arange(length, len(order) + 1)[:, None] - aims
    return {
        "running": 100 * float(np.abs(running).max()),
        "whole": 100 * float(np.abs(running[-1]).max()),
        "window": 100 * float(np.abs(windows).max()),
    }
