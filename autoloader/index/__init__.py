"""The sidecar index of a dataset: where every frame lies, and the numbers of every step.

Built once beside the data (or in the user's cache), mapped at each start. A million episodes open
in seconds. An index names every file that its content came from, by content hash or by size and
mtime. It is rebuilt when any of them changes.

Start here:
    ``opening.open_indexes``: finds, checks, builds and maps the indexes of a mixture.
    ``dataset.DatasetIndex``: columns and frame ranges of one dataset.
    ``planned.RunPlanner``: the samples of a run of positions: numbers, and which bytes to read.
    ``records``: a record in memory with the face of an index, for the stream reader.
    ``statistics``: exact statistics of action and state, computed from the columns.

Never here: reading frames (``pipeline``), pixels (``decode``), the order of samples (``sampling``).
"""

from __future__ import annotations

from autoloader.index.dataset import DamagedRecord, DatasetIndex, GatheredEpisodes
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
