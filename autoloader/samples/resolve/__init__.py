"""Resolves a spec against the datasets on disk: checks and binds all that a reader needs.

The way goes down once:

    split: which datasets take part (``sources``), and the layout of their batches
    bind: one dataset, opened
    transforms: what rewrites its episodes (``binding``), then a binder for each part of a sample
        (``cameras``, ``language``, ``numbers``), given the features that its episodes have

Not here: opening files for data (``graph``, ``index``), sample counts (``samples.counts``).
"""

from __future__ import annotations

from autoloader.samples.resolve.dataset import ResolvedDataset
from autoloader.samples.resolve.mixture import MixtureSizes, ResolvedMixture
from autoloader.samples.resolve.normalise import normalised
from autoloader.samples.resolve.split import resolve, resolve_plain

__all__ = [
    "MixtureSizes",
    "ResolvedDataset",
    "ResolvedMixture",
    "normalised",
    "resolve",
    "resolve_plain",
]
