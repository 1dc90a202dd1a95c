"""How long it is from one use of a frame to the next: the law of the interval.

Theory of operation. Time is counted in passes of the frame's dataset. Each pass shuffles its
samples anew, so a frame that k samples show is used at k places of each pass, drawn uniformly and
on their own. From a use at u of its pass the next is the first of the k−1 others behind it, or the
first of the k in the next pass. With one use a pass the interval has the triangular law on (0, 2):
P(X ≤ x) = x²/2 for x ≤ 1, else 1 − (2−x)²/2. Where a use comes in a pass only by a chance ρ
(``per_episode`` draws it, or another node has it), the interval may be longer than two passes.

With G(z) the chance that none of the k uses comes within z of a pass's beginning,

    P(X > x) = max(0, 1−x) (1−ρx)ᵏ⁻¹ + ∫ (1−ρ(x−z))ᵏ⁻¹ G(z) dz   over z from max(0, x−1) to x
    G(m + y) = (1−ρ)ᵏᵐ (1−ρy)ᵏ                                   for whole m and y in [0, 1)

From a use at a known u of its pass, the integral's first factor is a number (``from_phases``).

A frame is held from a use to the next where the interval is at most h. By Little's law the part of
the frames that is held is the uses of a frame in a pass, times E[X; X ≤ h].

Not here: which h a dataset gets (``forecast``), how often its frames are shown (``shown``).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_STEPS = 256
"""Points of a pass at which the law is tabled."""
_TAIL = 1e-3
_MAX_PASSES = 64

Floats = NDArray[np.float64]


class IntervalLaw:
    """The law for frames that are used ``uses`` times in a pass at most.

    Args:
        uses: k, samples of a pass that show a frame.
        chance: ρ, of each of them in a pass.
        known: passes for which a next use is known ahead; what lies beyond is not held.

    Attributes:
        uses, chance: as they are.
        longest: passes beyond which no interval goes, or hardly one.
    """

    def __init__(self, uses: int, chance: float = 1.0, known: float = math.inf) -> None:
        self.uses, self.chance, self._known = uses, chance, known
        self._rate = uses * chance
        passes = 2
        while chance < 1 and (1 - chance) ** (uses * (passes - 1)) > _TAIL and passes < _MAX_PASSES:
            passes += 1
        self.longest = float(passes)
        self._x = np.linspace(0, passes, passes * _STEPS + 1)
        self._survival = self._survivals()
        area = np.cumsum((self._survival[1:] + self._survival[:-1]) / 2) / _STEPS
        # Intervals up to x, weighted by their length: ∫ S − x S(x).
        weighted = np.concatenate([[0.0], area]) - self._x * self._survival
        self._held = np.minimum(self._rate * np.maximum(weighted, 0), 1)

    def _survivals(self) -> Floats:
        """P(X > x) at each tabled x."""
        others, step = self.uses - 1, 1 / _STEPS
        middles = np.asarray((np.arange(len(self._x) - 1) + 0.5) * step, dtype=np.float64)
        none_yet = self._none_before(middles)
        behind = (1 - self.chance * (np.arange(_STEPS) + 0.5) * step) ** others
        integral = np.convolve(none_yet, behind)[: len(none_yet)] * step
        same_pass = np.maximum(0, 1 - self._x) * np.maximum(0, 1 - self.chance * self._x) ** others
        return np.asarray(same_pass + np.concatenate([[0.0], integral]))

    def hit_ratio(self, longest: Floats | float) -> Floats:
        """Part of the uses whose interval from the one before is at most ``longest`` passes."""
        return 1 - np.interp(np.minimum(longest, self._known), self._x, self._survival)

    def held_ratio(self, longest: Floats | float) -> Floats:
        """Part of the frames that are held at any time, where these intervals are."""
        return np.asarray(np.interp(np.minimum(longest, self._known), self._x, self._held))

    def from_phases(self, steps: int) -> Floats:
        """Where the next use lies, with a pass cut into ``steps``: [steps, longest · steps].

        Row u is of a use in the middle of step u of a pass; column j the chance that the next one
        comes in the step j + 1 later.
        """
        others = self.uses - 1
        edge: Floats = (np.arange(int(self.longest) * steps + 1) + 0.5) / steps
        left = (steps - np.arange(steps) - 0.5)[:, None] / steps
        beyond: Floats = np.maximum(edge - left, 0)
        within = np.minimum(edge, left)
        survival = (1 - self.chance * within) ** others * self._none_before(beyond)
        survival[:, 0] = 1
        comes = survival[:, :-1] - survival[:, 1:]
        comes[:, edge[1:] > self._known] = 0
        return np.asarray(comes)

    def _none_before(self, z: Floats) -> Floats:
        """G: the chance that no use comes within z passes of a pass's beginning."""
        whole = np.floor(z)
        missed = (1 - self.chance) ** (self.uses * whole)
        return np.asarray(missed * (1 - self.chance * (z - whole)) ** self.uses, dtype=np.float64)


@lru_cache(maxsize=256)
def interval_law(uses: int, chance: float = 1.0, known: float = math.inf) -> IntervalLaw:
    """The law of a number of uses, tabled once."""
    return IntervalLaw(uses, chance, known)
