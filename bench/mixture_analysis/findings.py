"""What a batch log says of a mixture, and the words for it.

A batch's *dominant* dataset gave most of its samples (the first of several); its *leading* one
gave most above what its weight gives it, so that a large weight alone leads nothing. The *switch
rate* is the share of batches whose dominant (leading) dataset is another than that of the batch
before. A dataset's *gap* is the longest stretch of batches without a sample of it; how long one is
to be expected follows from its weight: with n samples a batch, 1 / (weight · n) batches lie between
two of its samples. Which datasets are *slow* is told by the wait for a batch, averaged over the
samples of each dataset: those of a slow one sit in batches that were waited for longer.

Not here: drawing (``bench.mixture_analysis.drawings``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.mixture_analysis.recorded import Recorded

LISTED = 5
"""Datasets named in the lists of slowest ones and largest gaps."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What came out; [D] arrays are in the order of the datasets.

    Attributes:
        shares: [D] of the samples.
        errors: [D] share less weight, in percentage points.
        dominant, leading: [N] each batch's dominant and leading dataset.
        waits_s: [D] mean wait for the batches of its samples; NaN where it gave none.
        gaps: [D] batches of the longest stretch without it.
        expected_gaps: [D] batches between two of its samples by its weight.
        gap_from: [D] the batch with which that stretch began.
    """

    shares: NDArray[np.float64]
    errors: NDArray[np.float64]
    dominant: NDArray[np.int64]
    leading: NDArray[np.int64]
    waits_s: NDArray[np.float64]
    gaps: NDArray[np.int64]
    expected_gaps: NDArray[np.float64]
    gap_from: NDArray[np.int64]


def find(run: Recorded) -> Findings:
    """Work it out."""
    samples = run.counts.sum(axis=0)
    shares = samples / samples.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        waits = (run.counts * run.wait_s[:, None]).sum(axis=0) / samples
        expected = 1 / (run.weights * run.counts.sum(axis=1).mean())
    gaps = [_longest_gap(run.counts[:, dataset] > 0) for dataset in range(len(samples))]
    return Findings(
        shares=shares,
        errors=100 * (shares - run.weights),
        dominant=run.counts.argmax(axis=1),
        leading=(run.counts - run.counts.sum(axis=1)[:, None] * run.weights).argmax(axis=1),
        waits_s=waits,
        gaps=np.array([length for length, _ in gaps]),
        expected_gaps=expected,
        gap_from=np.array([begin for _, begin in gaps]),
    )


def _longest_gap(there: NDArray[np.bool_]) -> tuple[int, int]:
    """(batches, the first of them) of the longest stretch of false."""
    edges = np.flatnonzero(np.concatenate(([True], there, [True])))
    lengths = np.diff(edges) - 1
    at = int(lengths.argmax())
    return int(lengths[at]), int(edges[at])


def switch_rate(datasets: NDArray[np.int64]) -> float:
    """Share of batches with another dataset than the batch before, 0 to 1."""
    return float((datasets[1:] != datasets[:-1]).mean()) if len(datasets) > 1 else 0.0


def summary(run: Recorded, found: Findings) -> str:
    """``mixture_summary.txt``."""
    return "\n".join(_lines(run, found)) + "\n"


def _lines(run: Recorded, found: Findings) -> Iterator[str]:
    samples = int(run.counts.sum())
    elapsed_s = float(run.at_s[-1] - run.at_s[0])
    yield run.name
    yield f"{run.batches} batches, {samples} samples of {len(run.datasets)} datasets"
    if elapsed_s > 0:
        rate = int(run.counts[1:].sum()) / elapsed_s
        p50, p90, p99 = np.percentile(np.diff(run.at_s), [50, 90, 99])
        yield f"{rate:.1f} samples/s from the first batch to the last"
        yield f"between batches p50 / p90 / p99: {p50:.4f} / {p90:.4f} / {p99:.4f} s"
        waited = float(run.wait_s[1:].sum()) / elapsed_s
        yield f"waited for batches: {100 * waited:.1f} % of the time"
    worst = int(np.abs(found.errors).argmax())
    yield (
        f"share against weight: at most {abs(found.errors[worst]):.3f} percentage points off "
        f"({run.datasets[worst]})"
    )
    for word, datasets in (("dominant", found.dominant), ("leading", found.leading)):
        yield (
            f"distinct {word} datasets: {len(np.unique(datasets))} of {len(run.datasets)}, "
            f"switch rate {switch_rate(datasets):.3f}"
        )
    mean = float(run.wait_s.mean())
    yield ""
    yield f"slowest datasets (mean wait for the batches of their samples; over all {mean:.4f} s)"
    slowest = np.argsort(np.nan_to_num(-found.waits_s, nan=np.inf))[:LISTED]
    for dataset in slowest.tolist():
        if np.isfinite(found.waits_s[dataset]):
            yield f"  {found.waits_s[dataset]:.4f} s  {run.datasets[dataset]}"
    yield ""
    yield "longest stretches of batches without a dataset (and how long by its weight)"
    with np.errstate(invalid="ignore"):
        longest = np.argsort(-found.gaps / np.maximum(found.expected_gaps, 1))[:LISTED]
    for dataset in longest.tolist():
        yield (
            f"  {found.gaps[dataset]:4d} ({found.expected_gaps[dataset]:.1f})  "
            f"{run.datasets[dataset]}, from batch {found.gap_from[dataset]}"
        )
    yield ""
    wide = max(map(len, run.datasets))
    yield f"{'dataset':{wide}}  weight   share    off by     samples  dominant  leading"
    dominates, leads = (
        np.bincount(datasets, minlength=len(run.datasets))
        for datasets in (found.dominant, found.leading)
    )
    for dataset, name in enumerate(run.datasets):
        yield (
            f"{name:{wide}}  {run.weights[dataset]:.4f}  {found.shares[dataset]:.4f}  "
            f"{found.errors[dataset]:+.3f} pp  {run.counts[:, dataset].sum():8d}  "
            f"{dominates[dataset]:8d}  {leads[dataset]:7d}"
        )
