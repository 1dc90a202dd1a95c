"""How long an answer from another host is waited for: by how long answers lately took. Pure.

Not here: what is done when it does not come (``sharing.builder``).
"""

from __future__ import annotations

import collections
import math

_KEPT = 200
_TAIL = 0.99
_OF_MEDIAN = 4.0


class Patience:
    """Fed with times of answers, says from when on one is late.

    Until answers are known it is ``FIRST_S``. Then it is the 99th percentile of the last two
    hundred and half as much again, and never below ``LEAST_S``. Where most come in time and some
    hang, as while an object store is full, it is ``FIRST_S`` or four times their median at most.
    Answers that come after they were given up count too, so it grows where all helpers are slow.
    """

    FIRST_S = 1.0
    LEAST_S = 0.1
    MOST_S = 30.0
    COPY_S = 1.0
    """A copy from the object store into the ring takes milliseconds."""

    def __init__(self) -> None:
        self._times: collections.deque[float] = collections.deque(maxlen=_KEPT)
        self.limit_s = self.FIRST_S

    def note(self, took_s: float) -> None:
        """An answer came after so long; one that comes late says little, as its helper hung."""
        self._times.append(min(took_s, 2 * self.limit_s))

        ordered = sorted(self._times)
        tail = ordered[min(len(ordered) - 1, math.ceil(_TAIL * len(ordered)) - 1)]
        known = 1.5 * tail if len(ordered) >= 8 else max(self.FIRST_S, 1.5 * tail)
        most = max(self.FIRST_S, _OF_MEDIAN * ordered[len(ordered) // 2])
        self.limit_s = min(self.MOST_S, most, max(self.LEAST_S, known))
