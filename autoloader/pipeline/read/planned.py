"""The indexed reader: the plan names the samples beforehand, so runs of them are read ahead.

There is no mixer and no cursor: the plan names the sample of every position, so the place of a
pipeline is one number, and no knob moves the order. Batches are built here or in decode processes;
TensorFlow is not imported.

Theory of operation. A run, here, is spans of positions with some ``run_samples`` samples in all.
The batch builder of a source assigns runs to it, and fills their batches. Reader threads take run
after run. Each looks up
its samples in the plan and computes their windows over the index's columns. It reads their frames
in the order of their files, neighbours in one call, into memory that earlier runs have left
(``pipeline.read.frame_reads``). With locality frames lie in blocks that
were read before (``pipeline.read.blocks``). Finished runs wait, at most ``read_ahead`` of them,
until the consumer has taken the runs before.

Frames that the frame cache has are not read. A run pins the cached frames that it shows. When the
cache shrinks, runs that pin much of it and are wanted last are put back, and read again in their
turn. The cache's key of a frame is the place where its encoded bytes end, as several frames of a
video may begin at one keyframe. So datasets, passes and cameras' draws that decode the same bytes
alike share the cached frame.

One thread plans at a time. Planning is work of the interpreter, so several threads would be no
faster. They would take the interpreter from each other, and from those that fill batches, at every
call that gives it up. A thread that waits for a lock costs nothing.

Columns over the whole run have the samples' numbers, in the order of the positions, padded to the
mixture's widths.

Invariants:
    1. Samples come in the order in which their positions were assigned, whatever the threads do.
    2. No knob changes which sample a position names.

Not here: the plan (``sampling.plan``), the index (``index``), who fills which batch
(``sampling.dealing``), which frames stay cached (``cache.table``), decoding (``decode``).
"""

from __future__ import annotations

import heapq
import logging
import math
import threading
import time
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autoloader.cache.disk import DiskRoom
from autoloader.cache.slab import BLACK, FILE_BITS, CameraFrames, FrameCache
from autoloader.cache.table import FrameCosts, FrameTable
from autoloader.decode.batch_builder import Listener, SampleSource, Spans
from autoloader.decode.message import TellBad
from autoloader.decode.ring import RingMemory
from autoloader.formats.files import descriptors
from autoloader.formats.frames import Encoded
from autoloader.host.supervision import import_path
from autoloader.host.threads import LoaderThread, all_ended
from autoloader.index.encoded import mean_encoded_bytes
from autoloader.index.planned import PlannedReads
from autoloader.index.shard import ShardIndex
from autoloader.pipeline.builders import Helpers, RemoteBuilder, identity_of
from autoloader.pipeline.messages import BuildStart, HelpersStart
from autoloader.pipeline.pipeline import MixtureReader
from autoloader.pipeline.read import frame_reads
from autoloader.pipeline.read.blocks import Blocks, BlockUser
from autoloader.pipeline.read.open_mixture import CompiledMixture, OpenMixture
from autoloader.samples.block import RUN_BYTES, FrameLease, Place, SampleBlock
from autoloader.samples.resolve import ResolvedMixture
from autoloader.sampling.dealing import NodePart
from autoloader.sampling.mixture import MixtureOrder
from autoloader.sampling.plan import PlannedSamples
from autoloader.sampling.schedule import NEVER
from autoloader.spec.knobs import Knobs
from autoloader.telemetry.statistics import CacheStatistics, Counts

if TYPE_CHECKING:
    from autoloader.pipeline.builders import Answers
    from autoloader.pipeline.read.shards import ShardFeed

logger = logging.getLogger(__name__)

Ints = NDArray[np.int64]


class PlannedSource(SampleSource):
    """Reads runs ahead; see ``decode.batch_builder.SampleSource``.

    Args:
        reader: reader of the mixture, open.
        knobs: ``io_threads``, ``read_ahead``, ``cache_bytes`` and ``decode_processes`` are heeded.
        listener: told when a run is ready, and of the exception that ends a thread. What is damaged
            was found when the index was built.
    """

    def __init__(self, reader: IndexedReader, knobs: Knobs, listener: Listener) -> None:
        self._datasets = reader.mixture.datasets
        self._indexes, self._plan = reader.opened.indexes, reader.opened.plan
        self._planner = reader.opened.planner(reader.mixture)
        self._shares = reader.order.shares
        self._lease, self._feed, self._blocks = reader.lease, reader.feed(), reader.blocks
        self._user = BlockUser() if self._blocks is None else self._blocks.enter()
        self._leases: list[FrameLease] = []
        self._memory = frame_reads.RunMemory(_pieces(knobs))
        self._now = frame_reads.NowRead(reader.opened.first)
        self._listener = listener
        self._planning = threading.Lock()
        self._room = threading.Condition()
        self._closed = False
        self._parked = False
        self._threads: list[threading.Thread] = []
        self._knobs = knobs
        self.run_bytes = self.read_bytes = 0
        self.reading_s = 0.0
        self._assigned = 0
        self._to_read: list[tuple[int, Spans]] = []
        """A heap: runs that were never read, and those that were put back."""
        self._claimed = 0
        self._read_once = 0
        self._ready: dict[int, tuple[SampleBlock, Spans]] = {}
        self._wanted = 0
        self._run: SampleBlock | None = None
        self._at = 0
        self.busy_s = 0.0
        self._entered = True
        descriptors.enter()

    def start(self) -> None:
        """Begin to read what is assigned."""
        self.retune(self._knobs)

    def assign(self, spans: Spans) -> None:
        """See ``SampleSource.assign``; the shards of later positions are fetched ahead."""
        if self._feed is not None:
            self._feed.follow(spans[0][0])
        with self._room:
            heapq.heappush(self._to_read, (self._assigned, spans))
            self._assigned += 1
            self._room.notify()

    def retune(self, knobs: Knobs) -> None:
        """Have so many threads, and so many runs ahead, from now on."""
        with self._room:
            if self._closed:
                return
            less = knobs.cache_bytes < self._knobs.cache_bytes
            self._knobs = knobs
            if less:
                self._unpin()
            self._memory.release(_pieces(knobs))
            self._room.notify_all()
            for _ in range(knobs.io_threads - len(self._threads)):
                thread = LoaderThread(target=self._work, name="autoloader-read")
                self._threads.append(thread)
                thread.start()

    def park(self, parked: bool) -> None:
        """Stop reading (True) or go on."""
        with self._room:
            self._parked = parked
            self._room.notify_all()
        if self._blocks is not None:
            self._blocks.park(self._user, parked)

    def drop(self) -> None:
        """Give back what is read and not wanted next; it is read again, in its turn."""
        with self._room:
            for number in [n for n in self._ready if n != self._wanted]:
                self._put_back(number)
            self._memory.release()
            self._room.notify_all()
        if self._blocks is not None:
            self._blocks.drop()

    def _put_back(self, number: int) -> None:
        """Let go of a run; it is read again, in its turn; under the lock."""
        run, spans = self._ready.pop(number)
        if run.lease is not None:
            run.lease.give_up()
        heapq.heappush(self._to_read, (number, spans))

    def _unpin(self) -> None:
        """Put the farthest runs back: all pin half of what may be held at most; under the lock."""
        left = self._knobs.cache_bytes // 2 // self._knobs.decode_processes
        for number in sorted(self._ready):
            lease = self._ready[number][0].lease
            left -= 0 if lease is None else lease.pinned_bytes
            if left < 0 and lease is not None and number != self._wanted:
                self._put_back(number)

    def take(self, count: int) -> tuple[SampleBlock, int, int] | None:
        """See ``SampleSource.take``: all samples of a batch are in one run."""
        if self._run is None:
            with self._room:
                if self._wanted not in self._ready:
                    return None
                self._run, _ = self._ready.pop(self._wanted)
                self._wanted += 1
                self._at = 0
                self._room.notify_all()
        run, first = self._run, self._at
        self._at += count
        if self._at >= len(run):
            self._run = None
        return run, first, count

    def read(self, span: tuple[int, int]) -> SampleBlock:
        """See ``SampleSource.read``."""
        return self._read([span])

    def stalled(self, waited_s: float) -> Sequence[int]:
        """See ``SampleSource.stalled``."""
        logger.warning("no data has come from the files for %.0f s", waited_s)
        return ()

    def activity(self, own: Sequence[Counts]) -> Counts:
        """Samples read ahead and seconds of reading, divided by the datasets' shares."""
        ahead = sum(len(run) for run, _ in list(self._ready.values()))
        late, awaits = "", ""
        if not ahead and self._run is None:
            late, awaits = self._now.told(self._datasets)
            if not late and self._blocks is not None:
                late, awaits = self._blocks.now.told(self._datasets)
        datasets = {
            dataset.name: counted
            | {
                "queue": round(ahead * share),
                "generations": 1,
                "read_s": self.busy_s * share,
                "awaits": awaits if dataset.name == late else "",
            }
            for dataset, share, counted in zip(self._datasets, self._shares, own, strict=True)
        }
        read = {name: getattr(self, name) for name in ("run_bytes", "read_bytes", "reading_s")}
        return {"datasets": datasets, **read}

    def close(self) -> None:
        """End the threads after the run in hand; runs read ahead are dropped at once."""
        if self._feed is not None:
            self._feed.close()
        with self._room:
            self._closed = True
            self._run = None
            self._ready.clear()
            self._memory.release(0)
            self._room.notify_all()
        if self._blocks is not None:
            reading = self._blocks.leave(self._user)
            self._threads += [] if reading is None else [reading]

    def join(self, within_s: float | None) -> bool:
        """See ``SampleSource.join``."""
        with self._room:
            threads = list(self._threads)
        over = all_ended(threads, within_s)
        with self._room:
            last = over and self._entered
            self._entered = self._entered and not last
        if last:
            for lease in self._leases:
                lease.give_up()
            self._leases.clear()
            descriptors.leave()
        if self._feed is not None:
            over = self._feed.join(within_s if over else 0.0) and over
        return over

    def _work(self) -> None:
        try:
            while (claimed := self._claim()) is not None:
                number, spans = claimed
                began, might_hold = time.perf_counter(), self._knobs.cache_bytes
                run = self._read(spans)
                with self._room:
                    self.busy_s += time.perf_counter() - began
                    self._read_once += 1
                    if not self._closed:
                        self._ready[number] = run, spans
                        if self._knobs.cache_bytes < might_hold:
                            self._unpin()
                    self._room.notify_all()
                del run
                with self._listener.arrived:
                    self._listener.arrived.notify_all()
        except BaseException as error:  # noqa: BLE001 the one boundary of this thread: the trainer must hear of it
            if not self._closed:
                self._listener.failed(error)

    def _claim(self) -> tuple[int, Spans] | None:
        """The next run to read, when there is room for it; ``None`` to end.

        No more are under way than have been read, or one: what is wanted first is read first, as
        threads that plan take turns at the interpreter.
        """
        with self._room:
            while not self._closed:
                if threading.current_thread() not in self._threads[: self._knobs.io_threads]:
                    self._threads.remove(threading.current_thread())
                    return None
                if self._to_read and not self._parked:
                    number, spans = self._to_read[0]
                    near = number - self._wanted < self._knobs.read_ahead
                    again = number < self._claimed
                    if near and (again or self._claimed < max(1, 2 * self._read_once)):
                        heapq.heappop(self._to_read)
                        self._claimed = max(self._claimed, number + 1)
                        if self._blocks is not None:
                            self._blocks.begin(self._user, spans)
                        return number, spans
                self._room.wait()
        return None

    def _read(self, spans: Spans) -> SampleBlock:
        with self._planning:
            wanted, block, reads = self._planned(spans)
        for camera, ranges in reads.ranges.items():
            block.frames[camera] = [None] * len(ranges.file)
        if block.frames:
            into = list(block.frames.values())
            rows = [np.flatnonzero(ranges.file >= 0) for ranges in reads.ranges.values()]
            if self._blocks is not None:
                rows = self._blocks.fill(self._user, into, reads, wanted, spans)
            self._read_frames(into, reads, rows)
            datasets = [block.datasets[number] for number in reads.sample.tolist()]
            block.videos = {
                camera
                for camera, ranges in reads.ranges.items()
                if ranges.finish(block.frames[camera], datasets)
            }
        return block

    def _planned(self, spans: Spans) -> tuple[PlannedSamples, SampleBlock, PlannedReads]:
        """A run's samples, their block without frames, and what is to be read for it."""
        wanted = self._plan.spans(spans)
        rebuilds = -1
        while rebuilds != ShardIndex.rebuilds:  # once, unless an index was overwritten meanwhile
            rebuilds = ShardIndex.rebuilds
            try:
                block, reads = self._planner.run(wanted)
                self._check_indexes(reads.shards)
            except (LookupError, ValueError, OverflowError):
                self._check_indexes(None)
                if rebuilds == ShardIndex.rebuilds:
                    raise
        self._lease(spans, wanted, block, reads)
        if block.lease is not None:
            self._leases = [lease for lease in self._leases if not lease.over]
            self._leases.append(block.lease)
        return wanted, block, reads

    def _check_indexes(self, paths: Set[str] | None) -> None:
        for index in self._indexes:
            index.check_unchanged(paths)

    def _read_frames(
        self, frames: Sequence[list[Encoded | None]], reads: PlannedReads, wanted: Sequence[Ints]
    ) -> None:
        """Fill in the bytes of frames, by camera, file by file, neighbours in one read."""
        camera_of = np.repeat(np.arange(len(wanted)), [len(rows) for rows in wanted])
        pairs = list(zip(reads.ranges.values(), wanted, strict=True))
        file, offset, length = (
            np.concatenate([getattr(ranges, name)[rows] for ranges, rows in pairs])
            for name in ("file", "offset", "length")
        )
        if not len(file):
            return
        found = frame_reads.Stretches.of(
            file, offset, length.astype(np.int64), frame_reads.MERGE_GAP_BYTES
        )
        wanted_reads = found.reads()
        starts, sizes = found.start.tolist(), length[found.order].tolist()
        targets = camera_of[found.order].tolist()
        rows = np.concatenate(wanted)[found.order].tolist()
        memory = self._memory.take(int(wanted_reads[2].sum()))
        self.run_bytes = len(memory)
        began = time.perf_counter()
        came = frame_reads.read_all(
            self._datasets, reads.files, wanted_reads, memory, lambda: not self._closed, self._now
        )
        with self._room:
            self.reading_s += time.perf_counter() - began
            self.read_bytes += len(memory)
        for data, (begin, end) in zip(came, pairwise(found.edges.tolist()), strict=True):
            for k in range(begin, end):
                at = starts[k] - starts[begin]
                frames[targets[k]][rows[k]] = data[at : at + sizes[k]]


def _pieces(knobs: Knobs) -> int:
    """Free pieces of memory that may wait: those of the runs ahead and of the one in hand."""
    return knobs.read_ahead + 1


RUN_SAMPLES = 256
"""Samples of a run that are read, at most or somewhat more: a run is whole batches."""
HELD_RUN_SAMPLES = 1024
"""Samples of a run at most, with those whose frames are cached. Planning costs much the same for
each dataset, however many samples of it there are. So where all frames are cached, the rate of 29
datasets rises by a tenth from 512 to 1,024 samples, and by nothing above."""
SAMPLES_A_THREAD = 48
"""Each decode thread keeps a run alive for a while. With 29 datasets and two threads, twice as many
take 3 % less processor time, for planning, and 13 MB more memory."""

LEAST_RUN_SAMPLES = 32
_PINNED_PART = 20
"""What is held and pinned by a run, which makes no room, is this part of the cache at most."""
_LEAST_HELD = 0.25
_NEARLY_ALL = 0.75
"""From this share of the frames on what is not held, and wants room, becomes less and less."""


def run_samples(
    decode_threads: int,
    ranks_here: int,
    encoded_bytes: float,
    held_ratio: float = 0.0,
    held_samples: float = math.inf,
) -> int:
    """Samples of a run, at least 1 (a run is whole batches, however few).

    Planning a run takes the same time for any length, and a run lies in memory until its last
    sample is decoded. So it is long if many threads decode, and short if few do. Cached frames are
    neither read nor decoded, so a run may have as many more samples.

    Args:
        decode_threads: number of threads that decode it.
        ranks_here: number of ranks that read ahead in one process, together about as much as one.
        encoded_bytes: mean bytes of a sample's encoded frames.
        held_ratio: share of the frames that were held lately, 0 to 1.
        held_samples: samples whose frames the cache has room for; infinite where it holds nothing.
    """
    decoded = max(1 / RUN_SAMPLES, 1 - held_ratio)
    read = min(RUN_SAMPLES, SAMPLES_A_THREAD * max(2, decode_threads))
    many = min(HELD_RUN_SAMPLES, int(read / decoded))
    displaced = held_ratio * min(1.0, (1 - held_ratio) / (1 - _NEARLY_ALL))
    many = int(min(many, held_samples / _PINNED_PART / max(_LEAST_HELD, displaced)))
    many = max(LEAST_RUN_SAMPLES, many // ranks_here)
    return max(1, min(many, int(RUN_BYTES / ranks_here / max(1.0, encoded_bytes * decoded))))


@dataclass(eq=False)
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
        helpers_at: address of the Ray cluster whose hosts help; "": no host helps.
        ram_floor_bytes: bytes of memory that must stay free on each of their hosts.
        disk_floor_bytes: bytes that must stay free on the disk of the cache of shards, for decode
            processes; ``None``: as the environment says.
        by_blocks: whether blocks are held, with locality. Not where batches from here and there are
            built: frames for these are read one by one.
        opened: the indexes and the plan over them, once they are open.
        blocks: blocks with the frames of an order with locality; ``None``: frames lie in files.
    """

    mixture: ResolvedMixture
    order: MixtureOrder
    ranks_here: int = 1
    compiled: CompiledMixture = field(default_factory=CompiledMixture)
    others_frames: FrameCache | None = None
    on_disk: DiskRoom | None = None
    node: NodePart | None = None
    helpers_at: str = ""
    ram_floor_bytes: int = 0
    disk_floor_bytes: int | None = None
    by_blocks: bool = True

    def __post_init__(self) -> None:
        self._encoded_bytes = 0.0
        sizes = self.mixture.layout.cameras.values()
        self._frames_bytes = 3 * self.mixture.layout.frames * sum(h * w for h, w in sizes)
        self._frames: FrameTable | None = None
        self.opened: OpenMixture
        self._cache: FrameCache
        self.blocks: Blocks | None = None
        self._claiming = threading.Lock()
        self._closed = False

    def open(self, bad: TellBad) -> None:
        """See ``MixtureReader.open``: builds indexes that are missing."""
        opened = self.compiled.open(self.mixture, self.order)
        self.opened, indexes = opened, opened.indexes
        for dataset, index in zip(self.mixture.datasets, indexes, strict=True):
            for slice_, record, reason in index.damaged:
                bad(Place(dataset.index, 0, slice_, record), reason)
        self._encoded_bytes = mean_encoded_bytes(self.mixture, indexes, self.order.shares)
        self.blocks = opened.blocks if self.by_blocks else None
        if self.blocks is not None:
            self.blocks.node = self.node
        self._frames = opened.frames
        self._cache = self.others_frames or opened.frames
        # The samples of a block of such datasets use a frame together.
        self._chained = np.asarray(opened.plan.chained, np.bool_)

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

    def source(self, knobs: Knobs, listener: Listener) -> PlannedSource:
        """See ``MixtureReader.source``."""
        return PlannedSource(self, knobs, listener)

    def lease(
        self, spans: Spans, planned: PlannedSamples, block: SampleBlock, reads: PlannedReads
    ) -> None:
        """Give a block its lease of the frame cache, if it has use for one; any thread.

        Cached frames are taken out of ``reads``.

        Args:
            spans: positions of the samples.
            planned: samples of the run.
            block: block of the samples, without frames yet.
            reads: stretches of files that the block needs.
        """
        if not self._cache.budget_bytes or not reads.ranges:
            return
        position = np.concatenate([np.arange(start, stop) for start, stop in spans])
        dataset_of = planned.dataset.astype(np.int64)
        if self._cache.budget_bytes < self.opened.frames_bytes:
            after = self.opened.next_use.after
            shown = after(planned, reads.steps, reads.shown, position, self.node)
        else:  # nothing is evicted: when a frame is shown again decides nothing
            shown = np.broadcast_to(position[:, None] + 1, reads.shown.shape)
        at = block.frame_row.ravel()
        frames = 1 + int(at.max())
        seen = ~block.frame_zeroed.ravel()
        next_use = np.full(frames, -1, np.int64)
        np.maximum.at(next_use, at[seen], shown.ravel()[seen])
        dataset = np.empty(frames, np.int64)
        dataset[at] = np.repeat(dataset_of, block.frame_row.shape[1])
        # The samples of a chained block use a frame together; a sample uses one once.
        together = np.where(
            self._chained[dataset_of], position // self.order.block_length, position
        )
        use = np.repeat(together - together.min(), block.frame_row.shape[1])
        every = int(use.max()) + 1
        pairs = np.sort(at[seen] * every + use[seen])  # np.unique hashes, which takes longer
        uses = np.bincount(pairs[np.diff(pairs, prepend=-1) > 0] // every, minlength=frames)
        asked = {}
        for camera, ranges in reads.ranges.items():
            key = (ranges.file.astype(np.int64) << FILE_BITS) + ranges.key
            wanted = (ranges.file >= 0) & (next_use >= 0) & (ranges.key >> FILE_BITS == 0)
            asked[camera] = CameraFrames(
                np.where(wanted, key, -1), np.where(wanted, next_use, NEVER), dataset, uses
            )
        lease = self._cache.ask(reads.files, asked, int(position[0]), len(block))
        if not any((slots >= 0).any() for slots in lease.slots.values()):
            lease.give_up()  # no frame is cached or will be: rows are not asked one by one
            return
        block.lease = lease
        for camera, ranges in reads.ranges.items():
            lease.slots[camera][ranges.file < 0] = BLACK  # such a dataset has no such camera
            ranges.file[lease.cached[camera]] = -1

    def feed(self) -> ShardFeed | None:
        """A feed that fetches remote shards ahead; ``None``: all data is local."""
        if not any(dataset.remote for dataset in self.mixture.datasets):
            return None
        from autoloader.pipeline.read.shards import ShardFeed, ShardOrder  # few need it

        slices = [index.slice_of for index in self.opened.indexes]
        return ShardFeed(ShardOrder(self.opened.plan, self.mixture.datasets, slices, self.node))

    def processes(self, knobs: Knobs) -> int:
        """See ``MixtureReader.processes``."""
        return knobs.decode_processes

    def remote(self, knobs: Knobs, memory: RingMemory, bad: TellBad) -> RemoteBuilder:
        """See ``MixtureReader.remote``."""
        assert self._frames is not None
        return RemoteBuilder(
            BuildStart(
                0,
                mixture=self.mixture.plain(),
                order=asdict(self.order),
                knobs=knobs.flat(),
                node=None if self.node is None else asdict(self.node),
                on_disk=None if self.on_disk is None else asdict(self.on_disk),
                disk_floor_bytes=self.disk_floor_bytes,
            ),
            memory.descriptor,
            self._frames,
            bad=bad,
        )

    def helpers(self, memory: RingMemory, bad: TellBad, answers: Answers) -> Helpers | None:
        """See ``MixtureReader.helpers``."""
        if not self.helpers_at:
            return None
        order = asdict(self.order)

        def start() -> HelpersStart:
            return HelpersStart(
                0,
                mixture=self.mixture.plain(),
                order=order,
                identity=identity_of(self.mixture, order, self.opened.indexes),
                address=self.helpers_at,
                ram_floor_bytes=self.ram_floor_bytes,
                import_path=import_path(),
            )

        return Helpers(start, memory.descriptor, answers, bad=bad)

    def run_samples(self, knobs: Knobs) -> int:
        """See ``MixtureReader.run_samples``."""
        held, room = 0.0, math.inf
        if self._frames is not None and self._frames.budget_bytes:
            held = self._frames.lately_cached
            room = self._frames.budget_bytes / self._frames_bytes
        return run_samples(knobs.decode_threads, self.ranks_here, self._encoded_bytes, held, room)
