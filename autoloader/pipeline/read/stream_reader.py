"""Reader threads: one a dataset, from its source into its queue, at any cursor with any knobs.

Theory of operation. A reader thread folds what it has put into the queue into a cursor of its own.
To change a stream knob it has a new generation of its source opened at that cursor (the cut), on a
thread of its own, and reads on from the old one until the new one has its first episode; what both
give, the cursor knows, and it is passed over. At most ``opening_at_once`` readers reopen at a time,
so that a retune of all datasets leaves cores to decoding; at start-up all open side by side.

Where an epoch is one pass of every dataset, it has the samples that the index counted. A record
that the index names as damaged gives none, whatever the source makes of it. One that was whole then
and proves broken when it is read would leave the epoch short: the next pass would begin within it,
and every epoch after it would be off by as much. Its samples are made up for by repeats of the next
whole episode's, flagged as those of undecodable frames are: provenance names what they show, the
ledger what they stand for. With other epochs a dataset simply goes on.

A source that is interrupted (remote files) is opened again at the cursor, after a pause: nothing is
lost and nothing comes twice. Any other exception reaches the pipeline with its dataset and stage;
the stream never just ends.

Not here: what a source is (``samples.block``), queues (``pipeline.read.queues``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from autoloader.decode.quarantine import Quarantine
from autoloader.errors import AutoloaderError, SourceError, as_fault
from autoloader.host.threads import LoaderThread
from autoloader.pipeline.read.queues import SampleQueue
from autoloader.pipeline.read.record_counts import RecordCounts
from autoloader.pipeline.read.retry import RetryPolicy
from autoloader.samples.block import (
    EmptyEpisode,
    EpisodeStream,
    Place,
    ReaderStart,
    SampleBlock,
    SourceInterruptedError,
    stand_ins,
)
from autoloader.samples.resolve import ResolvedDataset
from autoloader.sampling.cursor import DatasetCursor
from autoloader.spec.knobs import ResolvedDatasetKnobs
from autoloader.telemetry.progress import shard_words

_EPISODE = "an episode"


def opening_at_once(cpus: int) -> int:
    """Readers that may reopen at a time: two, never more than half of the processors.

    Measured on two processors with 29 streams: the largest gap between batches while all reopen is
    0.20 s with one at a time and 0.24 to 0.60 s with two.
    """
    return max(1, min(2, cpus // 2))


class DatasetReader:
    """Keeps one dataset's queue filled.

    Args:
        dataset: whose episodes these are.
        source: opens them; made on the reader's own thread, because compiling a graph takes time.
        cursor: where to begin; the reader's own from then on.
        queue: filled.
        knobs: the stream knobs to begin with.
        quarantine: told of bad records.
        opening: bounds how many readers reopen at a time.
        counts: what was counted of the records, where an epoch is one pass of them, else ``None``;
            asked on the reader's own thread.
        failed: told of the exception that ends this reader.

    Attributes:
        thread: reads.
    """

    def __init__(
        self,
        dataset: ResolvedDataset,
        source: Callable[[ResolvedDataset], EpisodeStream],
        cursor: DatasetCursor,
        queue: SampleQueue,
        knobs: ResolvedDatasetKnobs,
        *,
        quarantine: Quarantine,
        opening: threading.Semaphore,
        counts: RecordCounts | None = None,
        failed: Callable[[int, AutoloaderError], None],
    ) -> None:
        self._dataset = dataset
        self._make_source = source
        self._cursor = cursor
        self._queue = queue
        self._knobs = knobs
        self._wanted = knobs
        self._quarantine = quarantine
        self._opening = opening
        self._counts = counts
        self._short: dict[Place, int] = {}
        self._failed = failed
        self._closing = threading.Event()
        self._retry = RetryPolicy(f"dataset {dataset.name!r}", dataset.name, self._closing.wait)
        self._next: _Opening | None = None
        self._awaits = ""
        self.generations = 0
        self.episodes = 0
        self.read_s = 0.0
        self.thread = LoaderThread(target=self._run, name=f"autoloader-read-{dataset.name}")

    def start(self) -> None:
        """Begin to read."""
        self.thread.start()

    def retune(self, knobs: ResolvedDatasetKnobs) -> None:
        """Read on with other knobs from the next episode on; pending changes coalesce."""
        self._wanted = knobs

    @property
    def settled(self) -> bool:
        """Whether the stream that is read has the knobs that are wanted."""
        return self._next is None and _same_stream(self._wanted, self._knobs)

    def close(self) -> None:
        """Stop after the episode in hand; does not wait."""
        self._closing.set()

    @property
    def interruptions(self) -> int:
        """Times its source did not answer, and was opened again."""
        return self._retry.interruptions

    @property
    def awaits(self) -> str:
        """What it waits for, as "opening shard 3/1024"; "": for nothing. Any thread may ask."""
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
                self._failed(self._dataset.index, as_fault(error, "read", self._dataset.name))

    def _read(self) -> None:
        self._awaits = "making its graph"
        source = self._make_source(self._dataset)
        episodes = source.open(self._cursor.start(), self._knobs)
        self.generations = 1
        while not self._closing.is_set():
            episodes = self._newest(source, episodes)
            started = time.perf_counter()
            self._awaits = _EPISODE
            try:
                item = next(episodes, None)
            except SourceInterruptedError as error:
                self._awaits = "its source does not answer, and is asked again"
                self._retry.failed(error)
                episodes = source.open(self._cursor.start(), self._knobs)
                self.generations += 1
                continue
            self._awaits = ""
            self._retry.succeeded()
            self.read_s += time.perf_counter() - started
            if item is None:
                raise SourceError(
                    f"dataset {self._dataset.name!r} ended; a stream has no end",
                    remedy="check that its files are still there",
                    dataset=self._dataset.name,
                )
            self._hand_over(item)

    def _newest(
        self, source: EpisodeStream, old: Iterator[SampleBlock | EmptyEpisode]
    ) -> Iterator[SampleBlock | EmptyEpisode]:
        """The generation to read on from: the next one as soon as it is open, else ``old``."""
        if self._next is None:
            changed = not _same_stream(self._wanted, self._knobs)
            if changed and self._opening.acquire(blocking=False):
                self._next = _Opening(source, self._cursor.start(), self._wanted, self._opening)
            return old
        if not self._next.done:
            return old
        opened, self._next = self._next, None
        self._knobs = opened.knobs
        self.generations += 1
        return opened.episodes()

    def _hand_over(self, item: SampleBlock | EmptyEpisode) -> None:
        taken = self._cursor.taken(item.place)
        if taken is None or item.place in self._short:
            return
        damage = self._counts.damage(item.place) if self._counts is not None else None
        if damage is not None:
            item = EmptyEpisode(item.place, damage)
        if isinstance(item, EmptyEpisode):
            short = 0
            if item.reason is not None:
                self._quarantine.add(item.place, item.reason)
                short = self._counts.samples(item.place) if self._counts is not None else 0
            if short:
                self._short[item.place] = short
                return
            self._cursor.close(item.place)
            self._queue.put_empty(item.place)
            return
        if taken >= len(item):
            path = self._dataset.slices[item.place.shard].path
            raise SourceError(
                f"dataset {self._dataset.name!r}: {taken} samples of episode {item.place.record} "
                f"of {path} had been taken, and it has {len(item)}: the files, "
                "or the state that was loaded, are not as they were",
                remedy="resume with the files that the state was saved with, or begin anew",
                dataset=self._dataset.name,
            )
        self._make_up(item)
        self.episodes += 1
        if self._queue.put(item, taken):
            self._cursor.close(item.place)

    def _make_up(self, whole: SampleBlock) -> None:
        """Replace the samples of broken records before ``whole`` by repeats of its own."""
        for place, count in list(self._short.items()):
            taken = self._cursor.taken(place) or 0
            if not self._queue.put(stand_ins(whole, place, count), taken):
                return
            self._cursor.close(place)
            del self._short[place]


def _same_stream(one: ResolvedDatasetKnobs, other: ResolvedDatasetKnobs) -> bool:
    """Whether they differ at most in what the queue heeds by itself."""
    return one == other._replace(
        queue_samples=one.queue_samples, shuffle_samples=one.shuffle_samples
    )


class _Opening:
    """A generation being opened on a thread of its own, up to its first episode."""

    def __init__(
        self,
        source: EpisodeStream,
        start: ReaderStart,
        knobs: ResolvedDatasetKnobs,
        opening: threading.Semaphore,
    ) -> None:
        self.knobs = knobs
        self.done = False
        self._first: list[SampleBlock | EmptyEpisode] = []
        self._rest: Iterator[SampleBlock | EmptyEpisode] = iter(())
        self._failure: BaseException | None = None
        LoaderThread(
            target=self._open, args=(source, start, opening), name="autoloader-open"
        ).start()

    def _open(
        self, source: EpisodeStream, start: ReaderStart, opening: threading.Semaphore
    ) -> None:
        try:
            self._rest = iter(source.open(start, self.knobs))
            self._first.append(next(self._rest))
        except BaseException as error:  # noqa: BLE001 raised again by the reader, on its own thread
            self._failure = error
        finally:
            opening.release()
            self.done = True

    def episodes(self) -> Iterator[SampleBlock | EmptyEpisode]:
        """All its episodes.

        Raises:
            Exception: whatever opening it raised.
        """
        if self._failure is not None:
            raise self._failure
        yield from self._first
        yield from self._rest
