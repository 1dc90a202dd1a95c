"""How large a dataset's records are: of local data by its files, of remote data by its metadata.

Not here: what memory comes of it (``controller.admission``, ``planning``).
"""

from __future__ import annotations

from pathlib import Path

from autoloader.sampling.resolve import ResolvedDataset, ResolvedMixture
from autoloader.units import MIB

REMOTE_RECORD_BYTES = 8 * MIB
"""What a record of remote data counts as where its metadata does not say how large it is."""


def record_bytes(mixture: ResolvedMixture) -> dict[str, int]:
    """Mean bytes of a record, by dataset, from file sizes; of remote data from the metadata."""
    return {dataset.name: record_bytes_of(dataset) for dataset in mixture.datasets}


def record_bytes_of(dataset: ResolvedDataset) -> int:
    """Mean bytes of a record of one dataset."""
    if dataset.remote:
        told = dataset.directory.record_bytes
        of = [told[piece.split] for piece in dataset.slices if piece.split in told]
        return max([*of, 0]) or REMOTE_RECORD_BYTES
    whole = sum(Path(path).stat().st_size for path in _paths(dataset))
    return whole // max(1, dataset.records)


def _paths(dataset: ResolvedDataset) -> set[str]:
    return {piece.path for piece in dataset.slices if piece.stop > piece.start}
