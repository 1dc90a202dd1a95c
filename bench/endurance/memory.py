"""What the loader holds: in the trainer's process, in all, with more datasets, over time.

Growth over time is the Theil–Sen slope (the median of the slopes between all pairs of readings):
no single peak moves it. The first fifth of a soak is left out: buffers fill.

Not here: measuring it (``bench.endurance.held``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.checks import Check, most, reported
from bench.child import answer
from bench.data import ensure_data
from bench.endurance.passes import Circumstances

MIB = 2**20
WARMING = 0.2
"""Share of a soak that is left out at its beginning."""
TELLING_S = 300.0
"""A shorter soak tells nothing: buffers come and go by more than an hour's growth may be."""
MOST_READINGS = 1500
"""Pairs are formed of so many readings at most."""


def trainer_memory(_: Circumstances) -> list[Check]:
    """What the library adds to a trainer's process."""
    found = held_by("demo", output="torch", batches=100)
    imported = found["tensorflow"]
    return [
        most(
            "trainer: resident memory added, ring excluded",
            found["resident_bytes"] / MIB,
            40,
            "MiB",
        ),
        Check("trainer: TensorFlow imported", str(imported), "False", not imported),
    ]


def memory(_: Circumstances) -> list[Check]:
    """Loader and child together."""
    held = held_by("demo", knobs={"reader": "indexed"})["peak_bytes"] / MIB
    return [
        most("by index: PSS of loader and child, ring excluded, 29 datasets", held, 250, "MiB", 0)
    ]


def by_datasets(given: Circumstances) -> list[Check]:
    """Peak, first batch and closing with 1, 5, 15 and 29 equal datasets."""
    counts = (1, 5, 15, 29)
    found = [held_by(f"even_{count}", knobs={"reader": given.reader}) for count in counts]
    peaks = [one["peak_bytes"] / MIB for one in found]
    rows = [
        Check(
            f"{count} datasets ({given.reader}): peak PSS; first batch; close()",
            f"{peak:.0f} MiB; {one['first_batch_s']:.2f} s; {one['close_s']:.2f} s",
            "close() ≤ 2 s",
            one["close_s"] <= 2,
        )
        for count, peak, one in zip(counts, peaks, found, strict=True)
    ]
    slope = float(np.polyfit(counts, peaks, 1)[0])
    return [*rows, reported("a dataset more", f"{slope:+.2f} MiB of peak PSS for each")]


def soak(given: Circumstances) -> list[Check]:
    """Growth over ``soak_s`` of the whole demo mixture."""
    found = held_by("demo", knobs={"reader": given.reader}, soak_s=given.soak_s)
    low, middle, high = (slope / MIB for slope in growth_per_hour(found["series"]))
    return [
        Check(
            f"soak of {given.soak_s / 60:.1f} min ({given.reader}): growth of PSS, ring excluded",
            f"{middle:+.1f} MiB/h (half of the slopes in {low:+.1f} … {high:+.1f})",
            "flat (≤ 30 MiB/h)",
            middle <= 30 if given.soak_s >= TELLING_S else None,
        ),
        reported("soak: peak PSS", f"{found['peak_bytes'] / MIB:.0f} MiB"),
        most("soak: close()", found["close_s"], 2, "s"),
    ]


def growth_per_hour(series: Sequence[tuple[float, int]]) -> tuple[float, float, float]:
    """Bytes an hour: quartiles of the slopes between all pairs of readings.

    Args:
        series: (seconds, bytes), from the beginning of a soak on.

    Raises:
        ValueError: fewer than two readings are left.
    """
    kept = [one for one in series if one[0] >= WARMING * series[-1][0]]
    kept = kept[:: max(1, -(-len(kept) // MOST_READINGS))]
    if len(kept) < 2:
        raise ValueError(f"{len(series)} readings are too few for a slope: soak longer")
    at_s, held = (np.array(column, np.float64) for column in zip(*kept, strict=True))
    first, second = np.triu_indices(len(kept), 1)
    slopes = (held[second] - held[first]) / (at_s[second] - at_s[first])
    low, middle, high = np.percentile(3600 * slopes, [25, 50, 75]).tolist()
    return low, middle, high


def held_by(data: str, **asked: Any) -> dict[str, Any]:
    """What a loader of a mixture holds: see ``bench.endurance.held``."""
    job: dict[str, Any] = {"output": "numpy", "knobs": {}, "batches": 300, "soak_s": 0.0, **asked}
    told = json.dumps({**job, "spec": str(ensure_data(data))})
    found: dict[str, Any] = answer("bench.endurance.held", told, longest_s=600 + job["soak_s"])
    return found
