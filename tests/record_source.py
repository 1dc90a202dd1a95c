"""A reader without TensorFlow: records in a row, parsed by the reference parser."""

import itertools
from collections.abc import Callable, Iterator

from autoloader.formats.records import read_records
from autoloader.index.records import RecordSamples
from autoloader.samples.block import EmptyEpisode, EpisodeStream, Place, ReaderStart, SampleBlock
from autoloader.samples.layout import BatchLayout
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture
from autoloader.spec.knobs import Knobs

Hook = Callable[[ResolvedDataset, Place], None]


class RecordSource:
    """An ``EpisodeStream``: shard after shard, pass after pass.

    Args:
        dataset: whose records.
        layout: widths to pad to.
        before: called before each record, on the reader's thread; may block or raise.
    """

    def __init__(self, dataset: ResolvedDataset, layout: BatchLayout, before: Hook | None) -> None:
        self._dataset = dataset
        self._layout = layout
        self._before = before
        self.opened: list[tuple[ReaderStart, Knobs]] = []

    def open(self, start: ReaderStart, knobs: Knobs) -> Iterator[SampleBlock | EmptyEpisode]:
        """See ``EpisodeStream.open``."""
        self.opened.append((start, knobs))
        dataset = self._dataset
        for pass_ in itertools.count(start.pass_):
            for shard, piece in enumerate(dataset.slices):
                skip = start.skip[shard] if pass_ == start.pass_ else 0
                for one in read_records(piece.path, piece.start + skip, piece.stop):
                    assert one.number is not None
                    assert one.payload is not None
                    place = Place(dataset.index, pass_, shard, one.number)
                    if self._before is not None:
                        self._before(dataset, place)
                    samples = RecordSamples(dataset, self._layout).of(place, one.payload)
                    yield samples or EmptyEpisode(place, None)


def record_sources(
    mixture: ResolvedMixture, before: Hook | None = None
) -> Callable[[ResolvedDataset], EpisodeStream]:
    """Makes a ``RecordSource`` for each dataset of a mixture."""

    def make(dataset: ResolvedDataset) -> EpisodeStream:
        return RecordSource(dataset, mixture.layout, before)

    return make
