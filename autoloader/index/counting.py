"""Samples of every dataset, those with a transform among them: these are counted by their index.

How many steps a transform leaves is not known before it has run, so the index is built (once) for
the count, whichever reader then reads. A quick look, and remote data, are estimated from the
episode that it was tried on.

Not here: datasets that are read as they lie (``sampling.counts``).
"""

from __future__ import annotations

from dataclasses import replace

from autoloader.index.dataset import count_indexed, open_dataset_index
from autoloader.sampling import counts
from autoloader.sampling.counts import DatasetCount
from autoloader.sampling.resolve import ResolvedDataset, ResolvedMixture


def count_dataset(dataset: ResolvedDataset, *, probe_only: bool = False) -> DatasetCount:
    """Count one dataset's samples.

    Args:
        dataset: the dataset.
        probe_only: read no more than a few records of a dataset with a transform, and estimate.

    Raises:
        SourceError: no record can be read.
    """
    transform = dataset.transform
    if transform is None:
        return counts.count_dataset(dataset, probe_only=probe_only)
    if not probe_only and not dataset.remote:
        return count_indexed(open_dataset_index(dataset))
    # Rules speak of what the function gives: none of them is asked of the files.
    found = counts.count_dataset(replace(dataset, keep=None), probe_only=True)
    frames = max(1, round(found.frames * transform.kept_ratio))
    if dataset.num_samples is not None:
        return replace(found, frames=frames, frames_estimated=True)
    samples = max(1, round(found.samples * transform.kept_ratio))
    return replace(found, frames=frames, samples=samples, estimated=True, frames_estimated=True)


def count_mixture(mixture: ResolvedMixture, *, probe_only: bool = False) -> dict[str, DatasetCount]:
    """Count every dataset of a mixture, by name.

    Raises:
        SourceError: as ``sampling.counts.count_mixture``.
    """
    return counts.count_mixture(mixture, probe_only=probe_only, count=count_dataset)
