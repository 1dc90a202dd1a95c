"""The sidecar index: where every frame of a dataset's TFRecords lies, and its small features.

Not here: the order in which samples come (``sampling.plan``), reading and decoding frames.
"""

from __future__ import annotations

from autoloader.index.dataset import DamagedRecord, DatasetIndex
from autoloader.index.episodes import GatheredEpisodes
from autoloader.index.opening import find_indexes, open_dataset_index, open_indexes
from autoloader.index.valid import count_indexed

__all__ = [
    "DamagedRecord",
    "DatasetIndex",
    "GatheredEpisodes",
    "count_indexed",
    "find_indexes",
    "open_dataset_index",
    "open_indexes",
]
