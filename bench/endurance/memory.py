"""What the loader holds: in the trainer's process, in all, with more datasets, over time.

Growth over time is the Theil–Sen slope (the median of the slopes between all pairs of readings):
no single peak moves it. The first fifth of a soak is left out: buffers fill.

Not here: measuring it (``bench.endurance.held``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoloader.cli.demo import ensure_demo
from bench.data import ensure_data
from bench.endurance.claims import Circumstances, Claim
from bench.endurance.held import held_by

MIB = 2**20
WARMING = 0.2
"""Share of a soak that is left out at its beginning."""

TELLING_S = 300.0
"""A shorter soak tells nothing: buffers come and go by more than an hour's growth may be."""

MOST_READINGS = 1500
"""Pairs are formed of so many readings at most."""


def trainer_memory(_: Circumstances) -> list[Claim]:
    found = held_by(ensure_demo(), output="torch", batches=100)
    added, has_tensorflow = found["resident_bytes"], found["tensorflow"]
    return [
        Claim(
            "trainer: resident memory added, ring excluded",
            f"{added / MIB:.1f} MiB",
            "≤ 40 MiB",
            added <= 40 * MIB,
        ),
        Claim("trainer: TensorFlow imported", str(has_tensorflow), "False", not has_tensorflow),
    ]


def memory(_: Circumstances) -> list[Claim]:
    most = held_by(ensure_demo(), knobs={"reader": "indexed"})["peak_bytes"]
    return [
        Claim(
            "by index: PSS of loader and child, ring excluded, 29 datasets",
            f"{most / MIB:.0f} MiB",
            "≤ 250 MiB",
            most <= 250 * MIB,
        )
    ]


def by_datasets(given: Circumstances) -> list[Claim]:
    """Peak, first batch and closing with 1, 5, 15 and 29 equal datasets."""
    counts = (1, 5, 15, 29)
    found = [
        held_by(ensure_data(f"even_{count}"), knobs={"reader": given.reader}) for count in counts
    ]
    peaks = [one["peak_bytes"] / MIB for one in found]
    slope = float(np.polyfit(counts, peaks, 1)[0])
    rows = [
        Claim(
            f"{count} datasets ({given.reader}): peak PSS; first batch; close()",
            f"{peak:.0f} MiB; {one['first_batch_s']:.2f} s; {one['close_s']:.2f} s",
            "close() ≤ 2 s",
            one["close_s"] <= 2,
        )
        for count, peak, one in zip(counts, peaks, found, strict=True)
    ]
    rows.append(Claim("a dataset more", f"{slope:+.2f} MiB of peak PSS for each", "reported", None))
    return rows


def soak(given: Circumstances) -> list[Claim]:
    """Growth over ``soak_s`` of the whole demo mixture."""
    found = held_by(ensure_demo(), knobs={"reader": given.reader}, soak_s=given.soak_s)
    low, middle, high = (slope / MIB for slope in growth_per_hour(found["series"]))
    return [
        Claim(
            f"soak of {given.soak_s / 60:.1f} min ({given.reader}): growth of PSS, ring excluded",
            f"{middle:+.1f} MiB/h (half of the slopes in {low:+.1f} … {high:+.1f})",
            "flat (≤ 30 MiB/h)",
            middle <= 30 if given.soak_s >= TELLING_S else None,
        ),
        Claim("soak: peak PSS", f"{found['peak_bytes'] / MIB:.0f} MiB", "reported", None),
        Claim("soak: close()", f"{found['close_s']:.2f} s", "≤ 2 s", found["close_s"] <= 2),
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
