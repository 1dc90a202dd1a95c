"""The stream reader: a tf.data stream for each dataset, opened when it is first read.

TensorFlow is imported with the first stream, and a stream that an earlier pipeline over the same
mixture has compiled is used again.

Not here: the graphs (``pipeline.graph.reader``), reading the streams (``pipeline.read.streams``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from autoloader.decode.message import PipelineStart
from autoloader.decode.quarantine import Quarantine
from autoloader.errors import SourceError
from autoloader.pipeline.pipeline import MixtureReader
from autoloader.pipeline.read.open_mixture import CompiledMixture
from autoloader.pipeline.read.streams import StreamSource
from autoloader.samples.block import EpisodeStream
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec.knobs import Knobs

if TYPE_CHECKING:
    from autoloader.pipeline.read.shard_fill import ShardFill

OpenStream = Callable[[ResolvedDataset], EpisodeStream]
"""Makes a dataset's stream; called on that dataset's thread."""
_importing = threading.Lock()


class StreamsReader(MixtureReader):
    """Reads one mixture by streams, in this process.

    Args:
        mixture: the resolved mixture that is read.
        order: the order of the mixture's samples.
        open_stream: makes a dataset's stream.
        start: position at which to begin.
        world_size: ranks that stream a part of the mixture each.
    """

    def __init__(
        self,
        mixture: ResolvedMixture,
        order: MixtureOrder,
        open_stream: OpenStream,
        start: PipelineStart,
        world_size: int = 1,
    ) -> None:
        self._mixture = mixture
        self._order = order
        self._open_stream = open_stream
        self._start = start
        self._world_size = world_size
        self._fill: ShardFill | None = None

    def open(self, quarantine: Quarantine) -> None:
        """See ``MixtureReader.open``: the cache of shards begins to fill, if the spec lets it."""
        del quarantine
        away = [one for one in self._mixture.datasets if one.remote and one.indexable]
        if away and self._mixture.spec.reader == "auto":
            from autoloader.pipeline.read.shard_fill import ShardFill  # local data goes without

            self._fill = ShardFill(away)
            self._fill.start()

    def close(self) -> None:
        """See ``MixtureReader.close``."""
        if self._fill is not None:
            self._fill.close()

    def source(
        self,
        knobs: Knobs,
        quarantine: Quarantine,
        condition: threading.Condition,
        failed: Callable[[BaseException], None],
    ) -> StreamSource:
        """See ``MixtureReader.source``."""
        return StreamSource(
            self._mixture,
            self._order,
            knobs,
            self._open_stream,
            start=self._start,
            world_size=self._world_size,
            quarantine=quarantine,
            condition=condition,
            failed=failed,
        )


def opener(mixture: ResolvedMixture, compiled: CompiledMixture) -> OpenStream:
    """Makes the streams of a mixture, or takes those that are compiled already.

    What it returns raises ``SourceError`` where TensorFlow cannot be imported.
    """

    def open_stream(dataset: ResolvedDataset) -> EpisodeStream:
        if (compiled_before := compiled.readers.get(dataset.name)) is not None:
            return compiled_before
        with _importing:
            try:
                from autoloader.pipeline.graph.reader import StreamReader
            except ImportError as error:
                raise SourceError(
                    f"TensorFlow cannot be imported: {error}",
                    remedy="install tensorflow; the stream reader needs it",
                ) from error
        # A mixture that waits promises an order that does not depend on timing.
        ordered = mixture.spec.mixing.waits
        reader = StreamReader(dataset, mixture.layout, ordered=ordered)
        return compiled.readers.setdefault(dataset.name, reader)

    return open_stream
