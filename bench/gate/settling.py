"""Waits until processes have nothing left to do, and sees what memory one batch touches.

Theory of operation. Between two batches everybody is let come to rest: the ring is full, and all is
read that may be read ahead. Nothing changes while a busy machine lets nobody run, so that no thread
may be about to run either. Then the kernel is asked to forget which pages were touched
(``clear_refs``), one batch is taken, so that one is made, and what was touched since is summed, the
ring left out. A copy of a batch, to wherever, touches its bytes (malloc has been told to map no
block for itself, so that none is gone again). The median of several batches leaves out those
for which a run of samples was read as well, or in which the loader said what it does (3 MB), and
those before which a busy machine gave a slot back too late for one to be made. What
else is touched (an interpreter's heap) does not depend on the size of a batch's pictures, so copies
are what grows with it.

Not here: other counts (``bench.gate.counted``).
"""

from __future__ import annotations

import operator
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from bench.processes import forget_touched, page_faults, touched_bytes, wants_processor

WINDOWS = 9
CALM_LOOKS = 5
LOOK_S = 0.02
MOST_LOOKS = 5000

_Look = TypeVar("_Look")


def calm(
    look: Callable[[], _Look], same: Callable[[_Look, _Look], bool], pids: Sequence[int]
) -> _Look:
    """What one sees when nothing has changed for a while, and no thread of ``pids`` would run.

    Raises:
        TimeoutError: they never came to rest; a batch may not be made yet, so nothing is counted.
    """
    times, before = 0, look()
    for _ in range(MOST_LOOKS):
        time.sleep(LOOK_S)
        now = look()
        times = times + 1 if same(before, now) and not any(map(wants_processor, pids)) else 0
        before = now
        if times == CALM_LOOKS:
            return before
    raise TimeoutError(f"processes {list(pids)} did not come to rest in {MOST_LOOKS} looks")


def touched_per_batch(batches: Iterator[Any], pids: Sequence[int]) -> float:
    """Bytes of their own memory that processes touch while one batch is taken and one is made."""
    return statistics.median(_touched(batches, pids) for _ in range(WINDOWS))


def _touched(batches: Iterator[Any], pids: Sequence[int]) -> int:
    calm(lambda: sum(map(page_faults, pids)), operator.eq, pids)
    for pid in pids:
        forget_touched(pid)
    next(batches)
    calm(lambda: sum(map(page_faults, pids)), operator.eq, pids)
    return sum(map(touched_bytes, pids))
