"""Holds what was seen of the frame cache against its promise: it is back within a second of need.

Decoded frames are surplus. So where headroom is below floor + margin, as many bytes of them as are
missing must lie with the kernel a second later, or all of them. Left out are the frames of two
planned runs, that which batches are made of and that which is next: they stay until they are shown.

Not here: the other promises (``bench.control.judge``), who looks (``bench.control.sampler``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.control.memory import MIB

BACK_S = 1.0
PINNED_RUNS, RUN_SAMPLES = 2, 256


def pinned_bytes(slot_bytes: int, times: Sequence[Sequence[float]]) -> int:
    """What may stay, with batches of so many bytes.

    Args:
        slot_bytes: of a batch.
        times: (asked, got, samples) of each batch.
    """
    samples = max((int(one[2]) for one in times), default=1)
    return PINNED_RUNS * RUN_SAMPLES * slot_bytes // max(1, samples)


def given_back(
    samples: Sequence[Mapping[str, Any]], floor: int, margin: int, pinned: int
) -> tuple[int, float | None]:
    """(bytes that were due at most at once, seconds until such were back at worst).

    Seconds are ``None`` where some never came back. Nothing was due: (0, 0).

    Args:
        samples: the sampler's.
        floor: what must stay free.
        margin: the distance to it that must.
        pinned: what may stay.
    """
    most, worst = 0, 0.0
    for n, one in enumerate(samples):
        need = floor + margin - one["room"]
        left = max(pinned, one["frames"] - need)
        if need <= 0 or one["frames"] <= left:
            continue
        most = max(most, one["frames"] - left)
        back = next(
            (
                later["at"] - one["at"]
                for later in samples[n:]
                if later["frames"] <= left or later["room"] >= floor + margin
            ),
            None,
        )
        if back is None:
            return most, None
        worst = max(worst, back)
    return most, worst


def told(due: int, back_s: float | None) -> str:
    """What was found, in words."""
    if not due:
        return "nothing was due"
    return f"up to {due / MIB:.0f} MiB due, " + (
        "never back" if back_s is None else f"back after {back_s:.2f} s"
    )
