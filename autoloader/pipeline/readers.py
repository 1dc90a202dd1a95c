"""The two readers as a pipeline uses them: by index, and as a tf.data stream for each dataset.

By index there is no mixer and no cursor: the plan names the sample of every position, so the place
of a pipeline is one number, and no knob moves the order. Batches are built here or in decode
processes; TensorFlow is not imported.

Streams are opened when they are first read: TensorFlow is imported with the first one. A stream
that an earlier pipeline over the same mixture has compiled is used again.

Not here: the plan and the index (``index``), the graphs (``pipeline.graph.reader``), reading
(``pipeline.read``).
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from autoloader.cache.disk import DiskRoom
from autoloader.cache.slab import FrameCache
from autoloader.cache.table import FrameCosts, FrameTable
from autoloader.decode.message import PipelineStart
from autoloader.decode.quarantine import Quarantine
from autoloader.decode.ring import RingMemory
from autoloader.errors import SourceError
from autoloader.host.supervision import import_path
from autoloader.index.dataset import DatasetIndex
from autoloader.pipeline.helpers import HelperRequest
from autoloader.pipeline.messages import BuildStart, HelpersStart
from autoloader.pipeline.pipeline import MixtureReader
from autoloader.pipeline.read.blocks import Blocks
from autoloader.pipeline.read.open_mixture import CompiledMixture, OpenMixture
from autoloader.pipeline.read.planned import CacheLookup, PlannedSource
from autoloader.pipeline.read.streams import StreamSource
from autoloader.samples.block import EpisodeStream, Place
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture
from autoloader.sampling.dealing import NodePart
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec.knobs import Knobs
from autoloader.telemetry.statistics import CacheStatistics

if TYPE_CHECKING:
    from autoloader.pipeline.decode_client import RemoteBuilder
    from autoloader.pipeline.helpers import Answers, Helpers
    from autoloader.pipeline.read.shards import ShardFill


RUN_SAMPLES = 256
"""Samples of a run that are read at most, or somewhat more: a run is whole batches."""
HELD_RUN_SAMPLES = 1024
"""Samples of a run at most, those counted whose frames are held. Its planning costs much the same
for each dataset however many samples of it there are, so where all are held the rate of 29 datasets
rises by a tenth from 512 to 1,024 samples, and by nothing above."""
SAMPLES_A_THREAD = 48
"""As many as each decode thread keeps a run alive for a while; fewer would plan too often."""

LEAST_RUN_SAMPLES = 32
RUN_BYTES = 16 * 2**20
"""Encoded frames that a run should not exceed: where frames are large it has fewer samples."""
_PINNED_PART = 20
"""What is held and pinned by a run, which makes no room, is this part of the cache at most."""
_LEAST_HELD = 0.25
_NEARLY_ALL = 0.75
"""From this share of the frames on what is not held, and wants room, becomes less and less."""
_LOOKED_AT = 4


def run_samples(
    decode_threads: int,
    ranks_here: int,
    sample_bytes: float,
    held_ratio: float = 0.0,
    held_samples: float = math.inf,
) -> int:
    """Samples of a run, at least 1 (a run is whole batches, however few).

    Planning a run costs its time, whatever its length, and all of it lies in memory until its last
    sample is decoded: so it is long where many threads decode, and short where few do. Frames that
    are held are neither read nor decoded, so a run may have as many more samples.

    Args:
        decode_threads: number of threads that decode it.
        ranks_here: so many read ahead in one process: together about as much as one.
        sample_bytes: mean of encoded frames.
        held_ratio: share of the frames that were held lately.
        held_samples: samples whose frames the cache has room for; infinite where it holds nothing.
    """
    decoded = max(1 / RUN_SAMPLES, 1 - held_ratio)
    read = min(RUN_SAMPLES, SAMPLES_A_THREAD * max(2, decode_threads))
    many = min(HELD_RUN_SAMPLES, int(read / decoded))
    displaced = held_ratio * min(1.0, (1 - held_ratio) / (1 - _NEARLY_ALL))
    many = int(min(many, held_samples / _PINNED_PART / max(_LEAST_HELD, displaced)))
    many = max(LEAST_RUN_SAMPLES, many // ranks_here)
    return max(1, min(many, int(RUN_BYTES / ranks_here / max(1.0, sample_bytes * decoded))))


def sample_bytes(
    mixture: ResolvedMixture, indexes: Sequence[DatasetIndex], shares: Sequence[float]
) -> float:
    """Mean bytes of a sample's encoded frames, estimated from a few episodes of each dataset."""
    found = 0.0
    for dataset, index, share in zip(mixture.datasets, indexes, shares, strict=True):
        whole = np.flatnonzero(index.steps)  # a transform may leave an episode without steps
        if not len(whole):
            continue
        some = whole[np.linspace(0, len(whole) - 1, _LOOKED_AT).astype(np.int64)]
        episodes, first = index.episodes_at(some), np.zeros((len(some), 1), np.int64)
        for features in dataset.cameras.values():
            lengths = [episodes.frames(feature.path, first)[1].mean() for feature in features]
            found += share * mixture.layout.frames * float(np.mean(lengths))
    return found


@dataclasses.dataclass(eq=False)
class IndexedReader(MixtureReader):
    """Reads one mixture by index, here or in decode processes.

    Attributes:
        mixture: the resolved mixture that is read.
        order: the order of the mixture's samples.
        ranks_here: number of ranks whose pipelines share this process, and its memory.
        compiled: keeps the open indexes for the next pipeline.
        others_frames: frame cache of another process; ``None``: this process has its own.
        on_disk: room for decoded frames on a disk, which decode processes share.
        node: ranks of this node, whose uses of frames count; ``None``: there is one rank.
        asked: request for helpers on other hosts; ``None``: no host helps.
        disk_floor_bytes: bytes that must stay free on the disk of the cache of shards, for decode
            processes; ``None``: as the environment says.
        by_blocks: whether blocks are held, with locality. Not where batches from here and there are
            built: frames for these are read one by one.
        indexes: index of every dataset, once it is open.
    """

    mixture: ResolvedMixture
    order: MixtureOrder
    ranks_here: int = 1
    compiled: CompiledMixture = dataclasses.field(default_factory=CompiledMixture)
    others_frames: FrameCache | None = None
    on_disk: DiskRoom | None = None
    node: NodePart | None = None
    asked: HelperRequest | None = None
    disk_floor_bytes: int | None = None
    by_blocks: bool = True

    def __post_init__(self) -> None:
        self._sample_bytes = 0.0
        sizes = self.mixture.layout.cameras.values()
        self._frames_bytes = 3 * self.mixture.layout.frames * sum(h * w for h, w in sizes)
        self.indexes: Sequence[DatasetIndex] = ()
        self._frames: FrameTable | None = None
        self._opened: OpenMixture
        self._cached: CacheLookup
        self._blocks: Blocks | None = None
        self._claiming = threading.Lock()
        self._closed = False

    def open(self, quarantine: Quarantine) -> None:
        """See ``MixtureReader.open``: builds indexes that are missing."""
        opened = self.compiled.open(self.mixture, self.order)
        self._opened, self.indexes = opened, opened.indexes
        for dataset, index in zip(self.mixture.datasets, self.indexes, strict=True):
            for slice_, record, reason in index.damaged:
                quarantine.add(Place(dataset.index, 0, slice_, record), reason)
        self._sample_bytes = sample_bytes(self.mixture, self.indexes, self.order.shares)
        self._blocks = opened.blocks if self.by_blocks else None
        if self._blocks is not None:
            self._blocks.node = self.node
        self._frames = opened.frames
        self._cached = CacheLookup(
            self.others_frames or opened.frames, opened, self.order, self.node
        )

    def hold(self, cache_bytes: int, costs: FrameCosts) -> None:
        """See ``MixtureReader.hold``."""
        with self._claiming:
            if self._frames is not None and not self._closed:
                self._frames.claim(self, cache_bytes, costs)

    def held(self) -> CacheStatistics:
        """See ``MixtureReader.held``."""
        return CacheStatistics() if self._frames is None else self._frames.counts()

    def close(self) -> None:
        """See ``MixtureReader.close``."""
        with self._claiming:
            self._closed = True
            if self._frames is not None:
                self._frames.leave(self)

    def source(
        self,
        knobs: Knobs,
        quarantine: Quarantine,
        condition: threading.Condition,
        failed: Callable[[BaseException], None],
    ) -> PlannedSource:
        """See ``MixtureReader.source``."""
        del quarantine  # what is damaged was found when the index was built
        feed = None
        if any(dataset.remote for dataset in self.mixture.datasets):
            from autoloader.pipeline.read.shards import ShardFeed, ShardOrder  # few need it

            slices = [index.slice_of for index in self.indexes]
            plan = self._opened.plan
            feed = ShardFeed(ShardOrder(plan, self.mixture.datasets, slices, self.node))
        return PlannedSource(
            self.mixture,
            self._opened,
            self.order,
            knobs,
            cached=self._cached,
            feed=feed,
            blocks=self._blocks,
            condition=condition,
            failed=failed,
        )

    def processes(self, knobs: Knobs) -> int:
        """See ``MixtureReader.processes``."""
        return knobs.decode_processes

    def remote(self, knobs: Knobs, memory: RingMemory, quarantine: Quarantine) -> RemoteBuilder:
        """See ``MixtureReader.remote``."""
        from autoloader.pipeline.decode_client import RemoteBuilder  # one process needs none

        assert self._frames is not None
        return RemoteBuilder(
            BuildStart(
                0,
                mixture=self.mixture.plain(),
                order=dataclasses.asdict(self.order),
                knobs=knobs.flat(),
                node=None if self.node is None else dataclasses.asdict(self.node),
                on_disk=None if self.on_disk is None else dataclasses.asdict(self.on_disk),
                disk_floor_bytes=self.disk_floor_bytes,
            ),
            memory.descriptor,
            self._frames,
            datasets=len(self.mixture.datasets),
            bad=quarantine.add,
        )

    def helpers(
        self, memory: RingMemory, quarantine: Quarantine, answers: Answers
    ) -> Helpers | None:
        """See ``MixtureReader.helpers``."""
        request, order = self.asked, dataclasses.asdict(self.order)
        if request is None:
            return None
        from autoloader.pipeline.helpers import Helpers, identity_of  # few loaders have helpers

        def start() -> HelpersStart:
            return HelpersStart(
                0,
                mixture=self.mixture.plain(),
                order=order,
                identity=identity_of(self.mixture, order, self.indexes),
                address=request.address,
                ram_floor_bytes=request.ram_floor_bytes,
                import_path=import_path(),
            )

        return Helpers(start, memory.descriptor, answers, bad=quarantine.add)

    def run_samples(self, knobs: Knobs) -> int:
        """See ``MixtureReader.run_samples``."""
        held, room = 0.0, math.inf
        if self._frames is not None and self._frames.budget_bytes:
            held = self._frames.lately_cached
            room = self._frames.budget_bytes / self._frames_bytes
        return run_samples(knobs.decode_threads, self.ranks_here, self._sample_bytes, held, room)


OpenStream = Callable[[ResolvedDataset], EpisodeStream]
"""Makes a dataset's stream; called on that dataset's thread."""
_importing = threading.Lock()


@dataclasses.dataclass(eq=False)
class StreamsReader(MixtureReader):
    """Reads one mixture by streams, in this process.

    Attributes:
        mixture: the resolved mixture that is read.
        order: the order of the mixture's samples.
        open_stream: makes a dataset's stream.
        begin: position at which to begin.
        world_size: number of ranks that stream a part of the mixture each.
    """

    mixture: ResolvedMixture
    order: MixtureOrder
    open_stream: OpenStream
    begin: PipelineStart
    world_size: int = 1
    _fill: ShardFill | None = None

    def open(self, quarantine: Quarantine) -> None:
        """See ``MixtureReader.open``: the cache of shards begins to fill, if the spec lets it."""
        del quarantine
        away = [one for one in self.mixture.datasets if one.remote and one.indexable]
        if away and self.mixture.spec.reader == "auto":
            from autoloader.pipeline.read.shards import ShardFill  # local data goes without

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
            self.mixture,
            self.order,
            knobs,
            self.open_stream,
            start=self.begin,
            world_size=self.world_size,
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
