"""Exact statistics of every dataset's action and state: computed once, cached, shared as a file.

Not here: applying them (``samples.statistics``), the layout of the file (``samples.statistics``).
"""

from __future__ import annotations

from autoloader.index.statistics.compute import dataset_statistics
from autoloader.index.statistics.mixture import (
    file_differences,
    read_statistics,
    statistics_document,
    statistics_of,
    with_recorded_sizes,
)

__all__ = [
    "dataset_statistics",
    "file_differences",
    "read_statistics",
    "statistics_document",
    "statistics_of",
    "with_recorded_sizes",
]
