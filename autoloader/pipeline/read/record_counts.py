"""What the index counted of a dataset's records, for the epochs that are held to that count.

Not here: counting (``index``), what a broken record makes of a pass
(``pipeline.read.stream_reader``).
"""

from __future__ import annotations

from autoloader.index import open_dataset_index
from autoloader.index.valid import check_count, table_of
from autoloader.samples.block import Place
from autoloader.samples.resolve import ResolvedDataset
from autoloader.sampling.mixture import MixtureOrder


def record_counts(dataset: ResolvedDataset, order: MixtureOrder) -> RecordCounts | None:
    """The count that a pass is held to, where an epoch is one pass and the index made the count."""
    if order.pass_samples is None or dataset.remote or dataset.num_samples is not None:
        return None
    return RecordCounts(dataset, order.pass_samples[dataset.index])


class RecordCounts:
    """What the index says of a dataset's records; it is opened when it is first asked.

    Args:
        dataset: whose records.
        samples: of a pass, as the run was planned.
    """

    def __init__(self, dataset: ResolvedDataset, samples: int) -> None:
        self._dataset = dataset
        self._samples = samples
        self._counts: dict[tuple[int, int], int] = {}
        self._damage: dict[tuple[int, int], str] = {}

    def samples(self, place: Place) -> int:
        """Samples that a pass takes of a record."""
        self._open()
        return self._counts.get((place.shard, place.record), 0)

    def damage(self, place: Place) -> str | None:
        """Why a record was not counted; ``None`` where it was."""
        self._open()
        return self._damage.get((place.shard, place.record))

    def _open(self) -> None:
        if self._counts:
            return
        index = open_dataset_index(self._dataset)
        table = table_of(self._dataset, index)
        check_count(self._dataset, table.samples, self._samples)
        places = zip(table.slice_of.tolist(), table.record_of.tolist(), strict=True)
        self._damage = {(slice_, record): why for slice_, record, why in index.damaged}
        self._counts = dict(zip(places, table.counts.tolist(), strict=True))
