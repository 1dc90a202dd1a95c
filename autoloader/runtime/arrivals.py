"""Samples as they arrive from an in-graph mixture: pulled, counted, and handed on in order.

Theory of operation. One thread pulls groups of samples out of the graph and folds each sample into
the cursor of its dataset. Samples wait in one line, in the mixture's order; to the assembler that
line is who is next (``Turns``) and every dataset's samples (``Waiting``).

The graph never says that a record is broken: it just does not come. So when a dataset's next pass
begins, what its last pass lacks is looked for in the files. What is broken is quarantined. Where
whole records lay behind it, the graph is opened anew at the cursors, told where they lie, and goes
on from the first sample not yet counted: nothing is lost and nothing comes twice. To move a knob
it is opened anew in the same way.

Not here: the graph (``graph.mixture``), batches (``runtime.assembler``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoloader.catalog.files import UnreachableError, unreadable
from autoloader.catalog.tfrecord import MalformedRecordError, read_record, scan_records
from autoloader.clock import Clock
from autoloader.errors import AutoloaderError, PipelineError, SourceError
from autoloader.knobs import Knobs
from autoloader.runtime.patience import Patience
from autoloader.runtime.quarantine import Quarantine
from autoloader.sampling.cursor import DatasetCursor
from autoloader.sampling.episode import EpisodeSamples, Place
from autoloader.sampling.record import samples_of_record
from autoloader.sampling.resolve import ResolvedMixture
from autoloader.sampling.rows import BrokenGraphError, RowGroup, RowSource, RowStart, Span
from autoloader.sampling.source import SourceInterruptedError
from autoloader.threads import LoaderThread

logger = logging.getLogger(__name__)

STALL_S = 5.0
_WAITING = 64
"""Samples that may wait here before no further group is pulled; the graph holds more."""
_COMPILING_S = 30.0
"""What opening a graph may take before the mixture counts as stalled."""
_DONE = 2**40
_TRIES = 3


@dataclass(frozen=True, slots=True)
class ArrivedSample(EpisodeSamples):
    """One sample with the face of an episode: its arrays have one row, number 0.

    ``frames`` are encoded, or pictures where the graph has decoded them.

    Attributes:
        total: samples of its episode in this pass; also its length.
    """

    total: int

    def __len__(self) -> int:
        return self.total

    def total_at(self, k: int) -> int:
        """Samples of its episode in this pass."""
        del k
        return self.total


class Arrivals:
    """The line of samples that have come out of an in-graph mixture.

    Args:
        mixture: what is mixed.
        source: makes the graph; called on this object's thread, because compiling takes time.
        cursors: where to begin, for each dataset; this object's own from then on.
        position: samples of the mixture's order that are gone.
        knobs: to begin with.
        quarantine: told of bad records.
        condition: shared with the assembler.
        clock: for stalls.
        failed: told of the error that ends the thread.
    """

    def __init__(
        self,
        mixture: ResolvedMixture,
        source: Callable[[], RowSource],
        cursors: Sequence[DatasetCursor],
        position: int,
        knobs: Knobs,
        *,
        quarantine: Quarantine,
        condition: threading.Condition,
        clock: Clock,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._mixture = mixture
        self._make_source = source
        self._source: RowSource | None = None
        self._cursors = cursors
        self._position = position
        self._taken = position
        self._knobs = self._wanted = knobs
        self._decode = knobs.decode == "graph"
        self._quarantine = quarantine
        self._condition = condition
        self._clock = clock
        self._failed = failed
        self._closed = False
        self._parked = False
        self._line: deque[ArrivedSample] = deque()
        self._empties: list[Place] = []
        self._flowing_since: float | None = None
        count = len(mixture.datasets)
        self._bad: list[set[tuple[int, int]]] = [set() for _ in range(count)]
        self._asked_again: set[Place] = set()
        self._closing = threading.Event()
        self._patience = [
            Patience(f"dataset {one.name!r}", one.name, self._closing.wait)
            for one in mixture.datasets
        ]
        self._spans: list[dict[int, list[Span]]] = [{} for _ in range(count)]
        self.waiting_for: int | None = None
        self.datasets = [ArrivedDataset(self) for _ in range(count)]
        self.generations = 0
        self.read_s = 0.0
        self._thread = LoaderThread(target=self._run, name="autoloader-pull")

    def start(self) -> None:
        """Begin to pull."""
        self._thread.start()

    def retune(self, knobs: Knobs) -> None:
        """Go on with other knobs; pending changes coalesce."""
        self._wanted = knobs

    def interruptions(self, dataset: int) -> int:
        """Times that a dataset's remote files did not answer."""
        return self._patience[dataset].interruptions

    @property
    def settled(self) -> bool:
        """Whether the graph that is pulled has the knobs that are wanted."""
        wanted = _of_graph(self._wanted, decode=self._decode)
        return wanted == _of_graph(self._knobs, decode=self._decode)

    def park(self, parked: bool) -> None:
        """Stop pulling (True) or go on."""
        with self._condition:
            self._parked = parked
            self._condition.notify_all()

    def close(self) -> None:
        """Stop after the group in hand; does not wait."""
        self._closed = True
        self._closing.set()
        with self._condition:
            self._condition.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; whether it has."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def check_flow(self) -> None:
        """Say so where nothing has come for ``STALL_S``; called by whoever waits for batches.

        Raises:
            SourceError: a file of a dataset that is due is gone.
        """
        source, since, now = self._source, self._flowing_since, self._clock.now_s()
        if source is None or since is None or now - since < STALL_S:
            return
        self._flowing_since = now
        due = sorted(set(source.due(self._position, 16)))
        for index in due:
            path = source.unreadable(index)
            if path is not None:
                name = self._mixture.names[index]
                raise SourceError(
                    f"dataset {name!r} gives nothing more: {path} is gone",
                    remedy="bring the file back, or take the dataset out",
                    dataset=name,
                )
        logger.warning(
            "the in-graph mixture has given nothing for %.0f s; it waits for one of: %s",
            now - since,
            ", ".join(self._mixture.names[index] for index in due),
        )

    # As ``Turns``, on the assembler's thread.

    def next(self, ready: Callable[[int, int], bool]) -> int | None:
        """Dataset of the first sample in line, or ``None`` where none waits."""
        del ready
        return self._line[0].place.dataset if self._line else None

    def snapshot(self) -> dict[str, Any]:
        """Samples of the order that have been taken; see ``graph_pipeline``."""
        return {"samples": self._taken}

    def take(self) -> tuple[EpisodeSamples, int]:
        """The first sample in line.

        Raises:
            IndexError: none waits.
        """
        with self._condition:
            sample = self._line.popleft()
            dataset = self.datasets[sample.place.dataset]
            dataset.pending -= 1
            dataset.held_bytes -= sample.nbytes
            self._taken += 1
            if len(self._line) < _WAITING:
                self._condition.notify_all()
            return sample, 0

    def take_empties(self, of: ArrivedDataset) -> list[Place]:
        """Records without samples noted since the last call; all come with the first dataset's."""
        if of is not self.datasets[0] or not self._empties:
            return []
        with self._condition:
            empties, self._empties = self._empties, []
            return empties

    # On the pulling thread.

    def _run(self) -> None:
        try:
            self._source = self._make_source()
            self._pull(self._source)
        except AutoloaderError as error:
            self._report(error)
        except Exception as error:  # noqa: BLE001 the one boundary of this thread: the stream may not just end
            fault = PipelineError(
                f"stage read: {type(error).__name__}: {error}",
                remedy="this is a fault of the loader; please report it with this message",
                stage="read",
            )
            fault.__cause__ = error
            self._report(fault)

    def _report(self, error: AutoloaderError) -> None:
        if not self._closed:
            self._failed(error)

    def _pull(self, source: RowSource) -> None:
        fruitless = 0
        while not self._closed:
            self._knobs = self._wanted
            self.generations += 1
            begun, passes = self._position, [cursor.pass_ for cursor in self._cursors]
            broken: BrokenGraphError | None = None
            try:
                whole = self._flow(source)
            except BrokenGraphError as error:
                whole, broken = False, error
                if self._decode and not self._closed:
                    logger.warning("decode=graph goes on in the pool: %s", error)
                    self._decode = False
                    continue
            finally:
                self._flowing_since = None
            fruitless = 0 if self._position > begun else fruitless + 1
            if whole:
                self._look_for_ended(passes)
            away = [one.index for one in self._mixture.datasets if one.remote]
            if fruitless > _TRIES and away:
                self._patience[away[0]].failed(broken or SourceInterruptedError("nothing comes"))
            elif fruitless > _TRIES:
                raise SourceError(
                    f"the in-graph mixture gives nothing: {broken or 'a dataset ended'}",
                    remedy="check that the datasets' files are there and readable",
                ) from broken

    def _flow(self, source: RowSource) -> bool:
        """Take samples in until the graph has to be opened anew; whether it came to its end."""
        opened_with = _of_graph(self._knobs, decode=self._decode)
        self._flowing_since = self._clock.now_s() + _COMPILING_S
        started = time.perf_counter()
        groups = source.open(self._starts(), self._position, self._knobs, decode=self._decode)
        for group in groups:
            self.read_s += time.perf_counter() - started
            if not self._admit(group):
                return False
            if _of_graph(self._wanted, decode=self._decode) != opened_with:
                return False
            if not self._wait_for_room():
                return False
            self._flowing_since = self._clock.now_s()
            started = time.perf_counter()
        return True

    def _wait_for_room(self) -> bool:
        """Whether to pull on; ``False`` once closed."""
        with self._condition:
            while not self._closed and (self._parked or len(self._line) >= _WAITING):
                self._flowing_since = None
                self._condition.wait()
        return not self._closed

    def _starts(self) -> list[RowStart]:
        starts = []
        for index, cursor in enumerate(self._cursors):
            taken = {}
            for number, state in cursor.state()["passes"].items():
                for shard, records in state["beyond"]:
                    taken.update({Place(index, int(number), shard, r): _DONE for r in records})
                for shard, record, count in state["open"]:
                    taken[Place(index, int(number), shard, record)] = count
            spans = [span for listed in self._spans[index].values() for span in listed]
            starts.append(RowStart(cursor.start(), taken, spans))
        return starts

    def _admit(self, group: RowGroup) -> bool:
        """Take a group in; ``False`` from the sample on before which some record is lacking."""
        for row, (dataset, pass_, shard, record, _, total) in enumerate(group.ledger.tolist()):
            cursor = self._cursors[dataset]
            for empty in group.empties[row]:
                if not self._is_complete_before(dataset, empty.pass_):
                    return False
                if cursor.taken(empty) is not None:
                    self._close_record(empty)
            if not self._is_complete_before(dataset, pass_):
                return False
            if cursor.taken(Place(dataset, pass_, shard, record)) == 0:
                self.datasets[dataset].episodes += 1
            cursor.take(pass_, shard, record, total)
            self._patience[dataset].succeeded()
            self._position += 1
            self._append(self._sample_of(group, row))
        return True

    def _append(self, sample: ArrivedSample) -> None:
        dataset = self.datasets[sample.place.dataset]
        with self._condition:
            dataset.pending += 1
            dataset.held_bytes += sample.nbytes
            self._line.append(sample)
            if len(self._line) == 1:
                self._condition.notify_all()

    def _close_record(self, place: Place) -> None:
        """A record that gives no (further) sample is done."""
        self._cursors[place.dataset].close(place)
        with self._condition:
            self._empties.append(place)

    def _sample_of(self, group: RowGroup, row: int) -> ArrivedSample:
        dataset, pass_, shard, record, t, total = group.ledger[row].tolist()
        cameras = self._mixture.datasets[dataset].cameras
        frames: dict[str, Any] = {}
        if group.decoded[row]:
            frame_row = np.arange(group.frame_row.shape[1])
            frames = {camera: group.images[camera][row] for camera in cameras}
            held = sum(picture.nbytes for picture in frames.values())
        else:
            numbers = group.frame_row[row].tolist()
            frame_row = np.array([numbers.index(number) for number in numbers])
            for camera, encoded in zip(
                self._mixture.layout.cameras, group.frames[row], strict=True
            ):
                if camera in cameras:
                    frames[camera] = encoded.tolist()
            held = sum(len(one) for encoded in frames.values() for one in encoded)
        one = slice(row, row + 1)
        return ArrivedSample(
            place=Place(dataset, pass_, shard, record),
            t=np.array([t]),
            frames=frames,
            frame_row=frame_row[None],
            frame_mask=group.frame_mask[one],
            frame_zeroed=group.frame_zeroed[one],
            frame_offset=group.frame_offset[one],
            action=group.action[one],
            action_mask=group.action_mask[one],
            state=group.state[one],
            state_mask=group.state_mask[one],
            language=group.language[one],
            nbytes=held,
            total=total,
        )

    # What did not come.

    def _is_complete_before(self, dataset: int, pass_: int) -> bool:
        """Whether all passes before ``pass_`` are accounted for; else the graph must open anew."""
        cursor = self._cursors[dataset]
        while cursor.pass_ < pass_:
            if not self._account_for(dataset):
                return False
        return True

    def _account_for(self, dataset: int) -> bool:
        """Find what a dataset's pass lacks; whether none of it can still be read."""
        cursor, pass_ = self._cursors[dataset], self._cursors[dataset].pass_
        slices = self._mixture.datasets[dataset].slices
        settled = True
        for shard, (piece, done) in enumerate(zip(slices, cursor.start().skip, strict=True)):
            lacking = []
            for record in range(piece.start + done, piece.stop):
                place = Place(dataset, pass_, shard, record)
                if cursor.taken(place) is None:
                    continue
                if (shard, record) in self._bad[dataset]:
                    self._close_record(place)
                else:
                    lacking.append(place)
            if lacking:
                settled &= self._judge(piece.path, lacking)
        return settled

    def _judge(self, path: str, lacking: Sequence[Place]) -> bool:
        """Quarantine what is broken of a shard; whether nothing whole is left."""
        dataset = self._mixture.datasets[lacking[0].dataset]
        try:
            return self._judged(path, lacking)
        except UnreachableError as error:
            self._patience[dataset.index].failed(error)
            return False
        except OSError as error:
            if dataset.remote:
                raise unreadable(error, path, dataset=dataset.name) from error
            raise SourceError(
                f"dataset {dataset.name!r}: {path} cannot be read: {error}",
                remedy="check that the file is there and readable, or take the dataset out",
                dataset=dataset.name,
            ) from error

    def _judged(self, path: str, lacking: Sequence[Place]) -> bool:
        """As ``_judge``. Raises OSError."""
        dataset = self._mixture.datasets[lacking[0].dataset]
        scan = scan_records(path, verify="all")
        broken = {damage.record: damage.reason for damage in scan.damage}
        settled = True
        for place in lacking:
            record = place.record
            why = broken.get(record)
            if why is None and record >= len(scan.offsets):
                why = broken.get(None, "the shard ends before this record")
            if why is None:
                offset, length = int(scan.offsets[record]), int(scan.lengths[record])
                try:
                    samples = samples_of_record(
                        dataset, self._mixture.layout, place, read_record(path, offset, length)
                    )
                except MalformedRecordError as error:
                    why = str(error)
                else:
                    if samples is None:
                        self._close_record(place)
                        continue
            if why is None and dataset.remote:
                # The stream broke off, which a tolerant graph does not tell: it will come.
                self._patience[dataset.index].failed(
                    SourceInterruptedError(f"{path} ended before record {record}")
                )
                return False
            if why is None and place not in self._asked_again:
                self._asked_again.add(place)
                settled = False
                continue
            self._quarantine.add(place, why or "TensorFlow cannot read it")
            self._bad[place.dataset].add((place.shard, record))
            self._close_record(place)
        if broken:
            self._spans[dataset.index][lacking[0].shard] = [
                Span(lacking[0].shard, record, int(offset), int(length), scan.size)
                for record, (offset, length) in enumerate(
                    zip(scan.offsets, scan.lengths, strict=True)
                )
                if record not in broken
            ]
        return settled

    def _look_for_ended(self, passes: Sequence[int]) -> None:
        """The graph came to its end: a dataset did many passes, or has nothing more to give."""
        if any(cursor.pass_ > begun for cursor, begun in zip(self._cursors, passes, strict=True)):
            return
        for dataset, cursor in enumerate(self._cursors):
            if not cursor.state()["passes"]:
                self._account_for(dataset)


class ArrivedDataset:
    """One dataset's samples in the line; see ``assembler.Waiting``."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self.pending = 0
        self.held_bytes = 0
        self.episodes = 0

    def take(self) -> tuple[EpisodeSamples, int]:
        """The first sample in line, which the caller knows to be this dataset's."""
        return self._arrivals.take()

    def take_empties(self) -> list[Place]:
        """See ``Arrivals.take_empties``."""
        return self._arrivals.take_empties(self)


def _of_graph(knobs: Knobs, *, decode: bool) -> dict[str, Any]:
    """The knobs that a graph is opened with."""
    fixed = ("ring_slots", "shuffle_samples", "min_ready_datasets")
    return {
        name: value
        for name, value in knobs.flat().items()
        if name.rpartition(".")[2] not in fixed and (decode or name != "decode_threads")
    }
