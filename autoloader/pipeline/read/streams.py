"""The stream reader: a thread and a queue for each dataset, and the mixer over them.

Streams are opened when they are first read: TensorFlow is imported with the first one. A stream
that an earlier pipeline over the same mixture has compiled is used again.

Theory of operation. A reader thread for each dataset puts episodes into the dataset's queue. All
readers open side by side. The mixer names the dataset of the next sample, which comes from that
dataset's queue. The first sample is given out when ``min_ready_datasets`` have one.

*Queues.* Episodes go in whole; their frames are kept once, however many samples wait. A queue
admits another episode while fewer than ``capacity`` samples wait (so one episode always gets in).
It gives samples out episode by episode, each in its keyed order. With ``shuffle`` above zero the
capacity is at least that, and each sample is drawn, by a keyed hash, from all that wait; passes are
never mixed. A queue's reader waits on a lock of its own for room, and wakes when there is some. All
queues share one condition, on which the mixer waits.

*Readers.* A reader keeps a cursor of the samples that it has put into the queue. To change a stream
knob it opens a new generation of its stream at that cursor, on a thread of its own. It reads on
from the old generation until the new one has its first episode. The cursor tells which episodes
both give, and these are passed over once. At most ``opening_at_once`` readers reopen at a time, so
that a retune of all datasets leaves cores to decoding.

Where an epoch is one pass of every dataset, it has the samples that the index counted. A record
that the index names as damaged gives none, whatever the stream makes of it. A record that was whole
then and proves broken now would leave the epoch short, and shift every later epoch. Repeats of the
next whole episode's samples take the place of its own, flagged as those of undecodable frames are:
provenance names what they show, the ledger what they stand for. With other epochs a dataset goes
on.

A stream that is interrupted (remote files) is opened again at the cursor, after a pause: nothing is
lost and nothing comes twice. Its own client has retried before, so pauses grow from 1 to 60 s, and
end after about ten minutes without a single episode. Any other exception reaches the pipeline with
its dataset and stage; the stream never just ends.

Invariants:
    1. Samples of an episode leave in order; an episode leaves before any of a later pass.
    2. ``pending`` counts samples waiting; reading it needs no lock.

Not here: what a stream is (``samples.block``, ``pipeline.graph``), who is next
(``pipeline.read.mixer``).
"""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from autoloader.decode.batch_builder import Listener, SampleSource
from autoloader.decode.message import BatchMessage, PipelineStart, TellBad
from autoloader.errors import MissingExtraError, SourceError, as_fault
from autoloader.host.machine import usable_processors
from autoloader.host.threads import LoaderThread, all_ended, free_in_forks
from autoloader.index import open_dataset_index
from autoloader.index.valid import check_count, table_of
from autoloader.pipeline.pipeline import MixtureReader
from autoloader.pipeline.read.mixer import Mixer
from autoloader.pipeline.read.open_mixture import CompiledMixture
from autoloader.samples import block, draws
from autoloader.samples.draws import PURPOSE_SHUFFLE
from autoloader.samples.resolve import ResolvedDataset, ResolvedMixture
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec.knobs import REOPENING_KNOBS, Knobs
from autoloader.telemetry.progress import shard_words
from autoloader.telemetry.statistics import Counts

if TYPE_CHECKING:
    from autoloader.pipeline.read.shards import ShardFill

logger = logging.getLogger(__name__)

PAUSES_S: Sequence[float] = (1, 2, 4, 8, 16, 32, *(60,) * 9)
_EPISODE = "an episode"

Episodes = Iterator[block.SampleBlock | block.EmptyEpisode]


def opening_at_once(cpus: int) -> int:
    """Number of readers that may reopen at a time: two, at most half of the processors.

    Measured on two processors with 29 streams: the largest gap between batches while all reopen is
    0.20 s with one at a time and 0.24 to 0.60 s with two.
    """
    return max(1, min(2, cpus // 2))


_READER_COUNTS = ("generations", "read_s", "episodes", "interruptions")


class StreamSource(SampleSource):
    """Gives the samples of one mixture from its streams.

    Args:
        reader: reader of the mixture.
        knobs: values to begin with.
        listener: told when samples are there, of bad records, and of the exception that ends a
            reader.
    """

    def __init__(self, reader: StreamsReader, knobs: Knobs, listener: Listener) -> None:
        mixture, order, start = reader.mixture, reader.order, reader.begin
        self._mixture = mixture
        self._listener = listener
        self._used = order.used
        self._min_ready = min(knobs.min_ready_datasets, sum(self._used))
        self._begun = False
        opening = threading.Semaphore(opening_at_once(usable_processors()))
        self._readers = [
            DatasetReader(
                dataset,
                reader,
                knobs.for_dataset(dataset.name),
                opening,
                replace(listener, failed=partial(self._reader_failed, dataset.index)),
            )
            for dataset in mixture.datasets
        ]
        self._queues = [reader.queue for reader in self._readers]
        owe = not mixture.spec.mixing.waits
        self._mixer = Mixer(order, mixture.names, owe=owe, streams=reader.world_size)
        if start.mixer is not None:
            self._mixer.restore(start.mixer)

    def start(self) -> None:
        """Open all streams side by side, the heaviest first; none of a dataset without a share."""
        for dataset in sorted(self._mixture.datasets, key=lambda dataset: -dataset.weight):
            if self._used[dataset.index]:
                self._readers[dataset.index].thread.start()

    def take(self, count: int) -> tuple[block.SampleBlock, int, int] | None:
        """See ``SampleSource.take``."""
        if not self._begun:
            ready = sum(queue.pending > 0 for queue in self._queues)
            if ready < min(self._min_ready, self._live()):
                return None
            self._begun = True
        dataset = self._mixer.next(lambda own, samples: self._queues[own].pending >= samples)
        if dataset is None:
            return None
        return (*self._queues[dataset].take(), 1)

    def finish(self, batch: BatchMessage) -> None:
        """See ``SampleSource.finish``."""
        batch.empties = [place for queue in self._queues for place in queue.take_empties()]
        batch.mixer = self._mixer.snapshot()

    def stalled(self, waited_s: float) -> Sequence[int] | None:
        """See ``SampleSource.stalled``."""
        names = self._mixture.names
        if not self._begun:
            late = [
                f"{name} ({reader.awaits})" if reader.awaits else name
                for name, used, reader in zip(names, self._used, self._readers, strict=True)
                if used and not reader.queue.pending
            ]
            logger.warning(
                "%d/%d datasets ready, %d wanted to begin; waiting for %s",
                len(names) - len(late),
                len(names),
                self._min_ready,
                ", ".join(late[:5]) + (" …" if len(late) > 5 else ""),
            )
            return ()
        dataset = self._mixer.waiting_for
        if dataset is None:
            return None
        logger.warning(
            "dataset %s has given nothing for %.0f s; the mixture waits for it",
            names[dataset],
            waited_s,
        )
        return (dataset,)

    def retune(self, knobs: Knobs) -> None:
        """See ``SampleSource.retune``."""
        for dataset in self._mixture.datasets:
            if self._used[dataset.index]:
                self._readers[dataset.index].retune(knobs.for_dataset(dataset.name))

    def park(self, parked: bool) -> None:
        """See ``SampleSource.park``."""
        for queue in self._queues:
            queue.park(parked)

    @property
    def settled(self) -> bool:
        """True if every stream runs with the knobs in force."""
        return all(reader.settled for reader in self._readers)

    def activity(self, own: Sequence[Counts]) -> Counts:
        """See ``SampleSource.activity``."""
        datasets = {
            name: counted
            | {one: getattr(reader, one) for one in _READER_COUNTS}
            | {
                "queue": reader.queue.pending,
                "queue_bytes": reader.queue.held_bytes,
                "awaits": "" if reader.queue.pending else reader.awaits,
            }
            for name, reader, counted in zip(self._mixture.names, self._readers, own, strict=True)
        }
        return {"datasets": datasets}

    def close(self) -> None:
        """Stop all readers after the episode in hand; does not wait."""
        for reader in self._readers:
            reader.close()

    def join(self, within_s: float | None) -> bool:
        """See ``SampleSource.join``."""
        return all_ended([reader.thread for reader in self._readers], within_s)

    def _reader_failed(self, dataset: int, error: BaseException) -> None:
        drop = self._mixture.spec.errors.dead_dataset == "drop"
        if drop and isinstance(error, SourceError) and self._live() > 1:
            logger.error("going on without dataset %s: %s", self._mixture.names[dataset], error)
            with self._listener.arrived:
                self._queues[dataset].park(True)
                self._mixer.drop(dataset)
                self._listener.arrived.notify_all()
            return
        self._listener.failed(error)

    def _live(self) -> int:
        return sum(self._used) - len(self._mixer.snapshot()["dropped"])


class DatasetReader:
    """Keeps one dataset's queue filled.

    Args:
        dataset: the dataset whose episodes are read.
        mixture: says how streams are made, which is done on the reader's own thread, as compiling
            a graph takes time; and where they begin.
        knobs: the stream knobs to begin with.
        opening: bounds how many readers reopen at a time.
        listener: told when samples come, of bad records, and of the exception that ends this
            reader.

    Attributes:
        queue: queue of the dataset's samples.
        thread: the thread that reads.
        generations: number of times that the stream was opened.
        episodes: number of episodes read.
        read_s: seconds that the reader waited for the stream.
        interruptions: number of times that the stream did not answer, and was opened again.
    """

    def __init__(
        self,
        dataset: ResolvedDataset,
        mixture: StreamsReader,
        knobs: Knobs,
        opening: threading.Semaphore,
        listener: Listener,
    ) -> None:
        self.queue = SampleQueue(dataset.key, listener.arrived, knobs)
        self._dataset = dataset
        self._make_source = mixture.open_stream
        self._cursor = mixture.begin.cursors[dataset.index].copy()
        self._knobs = self._wanted = knobs
        self._listener = listener
        self._opening = opening
        known = mixture.order.pass_samples
        estimated = known is None or dataset.remote or dataset.num_samples is not None
        self._counted = None if known is None or estimated else known[dataset.index]
        """Samples of a pass that the index counted; ``None``: an epoch is not one such pass."""
        self._counts: dict[tuple[int, int], int] = {}
        self._damaged: dict[tuple[int, int], str] = {}
        self._short: dict[block.Place, int] = {}
        self._closing = threading.Event()
        self._failures_in_a_row = 0
        self._next: tuple[Knobs, Future[Episodes]] | None = None
        self._awaits = ""
        self.generations = self.episodes = self.interruptions = 0
        self.read_s = 0.0
        self.thread = LoaderThread(target=self._run, name=f"autoloader-read-{dataset.name}")

    def retune(self, knobs: Knobs) -> None:
        """Read on with other knobs from the next episode on; pending changes coalesce."""
        self.queue.limit(knobs)
        self._wanted = knobs

    @property
    def settled(self) -> bool:
        """True if the stream that is read has the knobs that are wanted."""
        return self._next is None and _reopening(self._wanted) == _reopening(self._knobs)

    def close(self) -> None:
        """Stop after the episode in hand; does not wait."""
        self._closing.set()
        self.queue.close()

    @property
    def awaits(self) -> str:
        """The reader's wait, as "opening shard 3/1024"; "": for nothing. Any thread may ask."""
        if self._awaits != _EPISODE:
            return self._awaits
        shard, has_come = self._cursor.comes_next(self._knobs.cycle_length)
        doing = "reading" if has_come else "opening"
        return f"{doing} {shard_words(self._dataset.slices[shard].path)}"

    def _run(self) -> None:
        try:
            self._read()
        except Exception as error:  # noqa: BLE001 the one boundary of this thread: nothing may end a stream unseen
            if not self._closing.is_set():
                self._listener.failed(as_fault(error, "read", self._dataset.name))

    def _read(self) -> None:
        self._awaits = "making its graph"
        source = self._make_source(self._dataset)
        episodes = source.open(self._cursor.start(), self._knobs)
        self.generations = 1
        while not self._closing.is_set():
            started = time.perf_counter()
            self._awaits = _EPISODE
            try:
                episodes = self._newest(source, episodes)
                item = next(episodes)
            except block.SourceInterruptedError as error:
                self._awaits = "its source does not answer, and is asked again"
                self._pause(error)
                episodes = source.open(self._cursor.start(), self._knobs)
                self.generations += 1
                continue
            self._awaits = ""
            self._failures_in_a_row = 0
            self.read_s += time.perf_counter() - started
            self._hand_over(item)

    def _pause(self, error: block.SourceInterruptedError) -> None:
        """Wait before the stream is opened again.

        Raises:
            SourceError: there were too many failures in a row.
        """
        name, number = self._dataset.name, self._failures_in_a_row
        self.interruptions += 1
        if number == len(PAUSES_S):
            raise SourceError(
                f"dataset {name!r} could not be read in {number + 1} tries: {error}",
                remedy="resume from the last checkpoint when its server or file system works again",
            ) from error
        self._failures_in_a_row += 1
        logger.warning(
            "dataset %r is interrupted, and opened again where it stopped in %g s: %s",
            name,
            PAUSES_S[number],
            error,
        )
        self._closing.wait(PAUSES_S[number])

    def _newest(self, source: block.EpisodeStream, old: Episodes) -> Episodes:
        """The generation to read on from: the next one as soon as it is open, else ``old``.

        Raises:
            Exception: whatever opening it raised.
        """
        if self._next is None:
            changed = _reopening(self._wanted) != _reopening(self._knobs)
            if changed and self._opening.acquire(blocking=False):
                self._next = self._wanted, self._open(source, self._cursor.start(), self._wanted)
            return old
        knobs, opened = self._next
        if not opened.done():
            return old
        self._next, self._knobs = None, knobs
        self.generations += 1
        return opened.result()

    def _open(
        self, source: block.EpisodeStream, start: block.ReaderStart, knobs: Knobs
    ) -> Future[Episodes]:
        """Open a generation up to its first episode, on a thread of its own."""
        opened: Future[Episodes] = Future()

        def work() -> None:
            try:
                rest = iter(source.open(start, knobs))
                first = [next(rest)]
            except BaseException as error:  # noqa: BLE001 raised again by the reader, on its own thread
                opened.set_exception(error)
            else:
                opened.set_result(chain(first, rest))
            finally:
                self._opening.release()

        LoaderThread(target=work, name="autoloader-open").start()
        return opened

    def _hand_over(self, item: block.SampleBlock | block.EmptyEpisode) -> None:
        taken = self._cursor.taken(item.place)
        if taken is None or item.place in self._short:
            return
        if self._counted is not None and not self._counts:
            self._read_counts(self._counted)
        record = item.place.shard, item.place.record
        if (damage := self._damaged.get(record)) is not None:
            item = block.EmptyEpisode(item.place, damage)
        if isinstance(item, block.EmptyEpisode):
            if item.reason is not None:
                self._listener.bad(item.place, item.reason)
                if short := self._counts.get(record, 0):
                    self._short[item.place] = short
                    return
            self._cursor.close(item.place)
            self.queue.put_empty(item.place)
            return
        if taken >= len(item):
            path = self._dataset.slices[item.place.shard].path
            raise SourceError(
                f"dataset {self._dataset.name!r}: by the saved state, {taken} samples of episode "
                f"{item.place.record} of {path} were read, but the episode has {len(item)}",
                remedy="resume with the files of the saved run, or start without the state",
            )
        self._make_up(item)
        self.episodes += 1
        if self.queue.put(item, taken):
            self._cursor.close(item.place)

    def _read_counts(self, samples: int) -> None:
        """Read the index's counts of samples and its damaged records, by (shard, record)."""
        index = open_dataset_index(self._dataset)
        table = table_of(self._dataset, index)
        check_count(self._dataset, table.samples, samples)
        places = zip(table.slice_of.tolist(), table.record_of.tolist(), strict=True)
        self._damaged = {(slice_, record): why for slice_, record, why in index.damaged}
        self._counts = dict(zip(places, table.counts.tolist(), strict=True))

    def _make_up(self, whole: block.SampleBlock) -> None:
        """Replace the samples of broken records before ``whole`` by repeats of its own."""
        for place, count in list(self._short.items()):
            taken = self._cursor.taken(place) or 0
            if not self.queue.put(block.stand_ins(whole, place, count), taken):
                return
            self._cursor.close(place)
            del self._short[place]


_reopening = operator.attrgetter(*REOPENING_KNOBS)


@dataclass(slots=True)
class _Waiting:
    """An episode in a queue, and the number of its samples that are taken."""

    episode: block.SampleBlock
    taken: int


class SampleQueue:
    """Queue between one dataset's stream thread and the mixer; ``put`` waits while it is full.

    Args:
        key: key of the shuffle's draws.
        arrived: shared by all queues of a pipeline; told when samples come.
        knobs: ``queue_samples`` may wait before no further episode is admitted; a draw chooses from
            ``shuffle_samples``, 0 is no shuffle.
    """

    def __init__(self, key: int, arrived: threading.Condition, knobs: Knobs) -> None:
        self._key = draws.fold(key, PURPOSE_SHUFFLE)
        self._arrived = arrived
        self._room = threading.Condition()
        self._open: deque[_Waiting] = deque()
        self._drawn = 0
        self._closed = False
        self._knobs = knobs
        self._empties: list[block.Place] = []
        self.pending = 0
        self.held_bytes = 0
        self.parked = False

    def limit(self, knobs: Knobs) -> None:
        """Move the admission limit; a surplus drains."""
        with self._room:
            self._knobs = knobs
            self._room.notify_all()

    @property
    def capacity(self) -> int:
        """Samples that may wait before admission stops."""
        return max(self._knobs.queue_samples, self._knobs.shuffle_samples)

    def put(self, episode: block.SampleBlock, taken: int) -> bool:
        """Add an episode whose first ``taken`` samples are gone; blocks while the queue is full.

        Returns:
            False where the queue was closed meanwhile.
        """
        with self._room:
            while not self._closed and (self.parked or self.pending >= self.capacity):
                self._room.wait()
            if self._closed:
                return False
            self._open.append(_Waiting(episode, taken))
            self.pending += len(episode) - taken
            self.held_bytes += episode.nbytes
        with self._arrived:
            self._arrived.notify_all()
        return True

    def put_empty(self, place: block.Place) -> None:
        """Note a record without samples; it is reported with the samples taken next."""
        with self._room:
            self._empties.append(place)

    def take(self) -> tuple[block.SampleBlock, int]:
        """The next sample, as its episode and number in it.

        Raises:
            IndexError: no sample waits in the queue.
        """
        with self._room:
            at = self._draw() if self._knobs.shuffle_samples else 0
            entry = self._open[at]
            number = entry.taken
            entry.taken += 1
            self.pending -= 1
            if entry.taken == len(entry.episode):
                del self._open[at]
                self.held_bytes -= entry.episode.nbytes
            if self.pending == self.capacity - 1 or not self.pending:
                self._room.notify()
            return entry.episode, number

    def take_empties(self) -> list[block.Place]:
        """Records without samples noted since the last call."""
        if not self._empties:
            return []
        with self._room:
            empties, self._empties = self._empties, []
            return empties

    def _draw(self) -> int:
        pass_ = self._open[0].episode.place.pass_
        waiting = [
            len(entry.episode) - entry.taken
            for entry in self._open
            if entry.episode.place.pass_ == pass_
        ]
        self._drawn += 1
        drawn = draws.choose(draws.fold(self._key, self._drawn), sum(waiting))
        for at, count in enumerate(waiting):
            if drawn < count:
                return at
            drawn -= count
        raise AssertionError("a draw past the end")

    def park(self, parked: bool) -> None:
        """Stop admitting (True) or go on."""
        with self._room:
            self.parked = parked
            if not parked and self.pending < self.capacity:  # nobody else has anything to do
                self._room.notify_all()

    def close(self) -> None:
        """Wake everybody; nothing more is admitted."""
        with self._room:
            self._closed = True
            self._open.clear()
            self.pending = 0
            self._room.notify_all()


OpenStream = Callable[[ResolvedDataset], block.EpisodeStream]
"""Makes a dataset's stream; called on that dataset's thread."""
_importing = free_in_forks(threading.Lock())


@dataclass(eq=False)
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

    def open(self, bad: TellBad) -> None:
        """See ``MixtureReader.open``: the cache of shards begins to fill, if the spec lets it."""
        away = [one for one in self.mixture.datasets if one.remote and one.indexable]
        if away and self.mixture.spec.reader == "auto":
            from autoloader.pipeline.read.shards import ShardFill  # local data goes without

            self._fill = ShardFill(away)
            self._fill.start()

    def close(self) -> None:
        """See ``MixtureReader.close``."""
        if self._fill is not None:
            self._fill.close()

    def source(self, knobs: Knobs, listener: Listener) -> StreamSource:
        """See ``MixtureReader.source``."""
        return StreamSource(self, knobs, listener)


def opener(mixture: ResolvedMixture, compiled: CompiledMixture) -> OpenStream:
    """Makes the streams of a mixture, or takes those that are compiled already.

    What it returns raises ``SourceError`` where TensorFlow cannot be imported.
    """

    def open_stream(dataset: ResolvedDataset) -> block.EpisodeStream:
        if (compiled_before := compiled.readers.get(dataset.name)) is not None:
            return compiled_before
        with _importing:
            try:
                from autoloader.pipeline.graph.reader import StreamReader
            except MissingExtraError as error:
                raise SourceError(error.what, remedy=error.remedy) from error
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
