"""Strikes a training loop wherever it is, and counts which rows came twice, and which never came.

A line run raises at every line of the library that the loop's thread runs, one after the other: in
``next``, ``state_dict``, ``load_state_dict``, ``retune``, ``set_weights``, ``close``. A signal run
sends SIGINT, SIGALRM and SIGTERM at random moments; their handlers raise. Rows are held against
what an undisturbed loader gives of each dataset, and the state against the rows of the loop.

Not here: Lightning fits that are struck, runs of every line and of hundreds of signals
(``tools/hunt/strike.py``).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from coded_rows import coded_spec, write_coded

import autoloader
from autoloader import AutoLoader, PipelineSpec

PACKAGE = str(Path(autoloader.__file__).parent)
BATCH = 8
EPOCH = 13 * BATCH
LONGEST_CLOSE_S = 10.0
STRIKES = (KeyboardInterrupt, TimeoutError, SystemExit)


class StruckError(BaseException):
    """Raised between two lines."""


class LineStriker:
    """Raises at one line of the package, in the thread that enters it.

    Args:
        at: which of the lines that are run meanwhile, from 1.
    """

    def __init__(self, at: int) -> None:
        self._left = at
        self.where = ""

    def __enter__(self) -> LineStriker:
        self.arm()
        return self

    def __exit__(self, *_: object) -> None:
        self.disarm()

    def arm(self) -> None:
        """Count lines from here on, until it has struck."""
        if not self.where:
            sys.settrace(self._called)

    def disarm(self) -> None:
        """Count no lines."""
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, given: object) -> Any:
        del event, given
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, given: object) -> Any:
        del given
        if event == "line":
            self._left -= 1
            if not self._left:
                sys.settrace(None)
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise StruckError(self.where)
        return self._line


@dataclass
class Tally:
    """What was found.

    Attributes:
        strikes: how many there were.
        rows: that the loop got.
        twice, missing: rows that came again, or not at all.
        between: rows that never came, by a strike outside the library: between Python's return
            from ``next`` (Lightning: the transfer) and the store.
        longest_close_s: of all ``close`` calls.
        faults: what else was wrong.
    """

    strikes: int = 0
    rows: int = 0
    twice: int = 0
    missing: int = 0
    between: int = 0
    longest_close_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether the promise was kept."""
        kept = self.longest_close_s <= LONGEST_CLOSE_S
        return not (self.twice or self.missing or self.faults) and kept

    def __str__(self) -> str:
        return (
            f"strikes {self.strikes}  rows {self.rows:,}  twice {self.twice}  missing "
            f"{self.missing}  between call and store {self.between}  longest close "
            f"{self.longest_close_s:.1f} s" + "".join(f"\n  {one}" for one in self.faults[:10])
        )


Place = tuple[int, ...]


class Sequences:
    """The order of each dataset's samples, whatever the weights: what a loop must get."""

    def __init__(self, spec: PipelineSpec) -> None:
        self._loader = opened(spec, "thread")
        self._of: list[list[Place]] = [[] for _ in self._loader.dataset_names]

    def __len__(self) -> int:
        return len(self._of)

    def until(self, dataset: int, at: int) -> list[Place]:
        """A dataset's samples, up to one and beyond."""
        while len(self._of[dataset]) <= at:
            for batch in self._loader:
                for place in places(batch):
                    self._of[place[0]].append(place)
        return self._of[dataset]

    def close(self) -> None:
        """Read no more."""
        self._loader.close()


def places(batch: Any) -> list[Place]:
    """The rows of a batch."""
    return [tuple(row) for row in batch["provenance"].tolist()]


def opened(spec: PipelineSpec, isolation: Any, **own: Any) -> AutoLoader:
    """A loader without a controller."""
    settings = {"ram_floor": "64MiB", "controller": False, "output": "numpy"}
    return AutoLoader(spec, isolation=isolation, knobs={"ring_slots": 6}, **{**settings, **own})


class Books:
    """What a loop got, held against what it must get.

    Args:
        sequences: of the mixture.
        tally: where it is counted.
    """

    def __init__(self, sequences: Sequences, tally: Tally) -> None:
        self._sequences = sequences
        self.tally = tally
        self.got = [0] * len(sequences)

    @property
    def rows(self) -> int:
        """Rows that it has, and those that were lost on the way to it."""
        return sum(self.got)

    def note(self, batch: Any) -> None:
        """A batch that the loop has."""
        for place in places(batch):
            self.tally.rows += 1
            at = self.got[place[0]]
            sequence = self._sequences.until(place[0], at + 1_000)
            if sequence[at] == place:
                self.got[place[0]] += 1
            elif place in sequence[:at]:
                self.tally.twice += 1
            else:
                self.tally.missing += 1
                self.got[place[0]] = sequence.index(place) + 1

    def compare(self, loader: AutoLoader, *, between: bool = False) -> None:
        """The state must say what the loop got; what was lost between call and store is counted."""
        state = loader.state_dict()
        taken = [int(state["taken"][name]) for name in loader.dataset_names]
        self.settle(taken, between=between)

    def settle(self, taken: list[int], *, between: bool = False) -> None:
        """The same, with the rows of each dataset that a state counts."""
        lost = sum(taken) - self.rows
        if lost > 0 and between:
            self.tally.between += lost
            self.got = taken
        elif taken != self.got:
            self.tally.missing += max(0, lost)
            self.tally.twice += max(0, -lost)
            self.tally.faults.append(f"the loop got {self.got}, the state says {taken}")
            self.got = taken


def close(loader: AutoLoader, tally: Tally) -> None:
    """Close it in time, with all that is its own."""
    pids = [] if loader._ended else filter(None, [loader._pipeline.child.pid])
    began_s = time.monotonic()
    loader.close()
    tally.longest_close_s = max(tally.longest_close_s, time.monotonic() - began_s)
    if left := [pid for pid in pids if psutil.pid_exists(pid)]:
        tally.faults.append(f"close left processes {left}")
    thread = loader._background._thread
    if thread is not None and thread.is_alive():
        tally.faults.append("close left the loader's thread")


Loop = Callable[[AutoLoader], Any]
LOOPS: dict[str, Loop] = {
    "plain": iter,
    "dataloader": lambda loader: iter(loader.as_torch_dataloader()),
}


class LineRun:
    """Strikes each line of each call of a loop in turn.

    Args:
        spec: of the loader.
        sequences: of its datasets.
        isolation: of the loader.
        loop: makes the iteration.
    """

    def __init__(
        self, spec: PipelineSpec, sequences: Sequences, isolation: str, loop: Loop
    ) -> None:
        self._spec = spec
        self._isolation = isolation
        self._loop = loop
        self.tally = Tally()
        self.books = Books(sequences, self.tally)
        self.loader = opened(spec, isolation)
        self._saved: tuple[dict[str, Any], list[int]] = (self.loader.state_dict(), self.books.got)
        self._flips = 0

    def next(self) -> None:
        """One batch, or the end of an epoch."""
        for batch in self._loop(self.loader):
            sys.settrace(None)
            self.books.note(batch)
            return

    def state(self) -> None:
        """A state, which is kept for ``load``."""
        state = self.loader.state_dict()
        self._saved = (state, list(self.books.got))

    def load(self) -> None:
        """Go back to the state that was kept."""
        self.loader.load_state_dict(self._saved[0])

    def retune(self) -> None:
        """Other knobs."""
        self._flips += 1
        self.loader.retune(ring_slots=5 + self._flips % 2)

    def set_weights(self) -> None:
        """Other weights."""
        self._flips += 1
        names = self.loader.dataset_names
        self.loader.set_weights({name: 1.0 + (n + self._flips) % 2 for n, name in enumerate(names)})

    def run(self, rounds: int, *, calls: tuple[str, ...] = (), every: int = 1) -> Tally:
        """Strike, until each call was done unhurt ``rounds`` times."""
        for _ in range(rounds):
            for call in calls or ("next", "state", "load", "next", "retune", "set_weights"):
                self._strike(getattr(self, call), every)
        for _ in range(20):
            self.next()
        self.books.compare(self.loader)
        close(self.loader, self.tally)
        return self.tally

    def _strike(self, call: Callable[[], None], every: int) -> None:
        at = 1
        while True:
            striker = LineStriker(at)
            try:
                with striker:
                    call()
            except StruckError:
                self.tally.strikes += 1
                self._went_back(call)
                self._look(striker.where)
                at += every
                continue
            self._went_back(call)
            self._look("")
            return

    def _look(self, where: str) -> None:
        before = len(self.tally.faults)
        self.books.compare(self.loader)
        if len(self.tally.faults) > before:
            self.tally.faults[-1] += f" (struck at {where})"

    def _went_back(self, call: Callable[[], None]) -> None:
        """Behind ``load`` the loop is where it was, or where the state was saved, nowhere else."""
        if call != self.load:
            return
        saved, got = self._saved
        if self.loader.state_dict()["position"] == saved["position"]:
            self.books.got = list(got)
        for _ in range(3):
            self.next()

    def closes(self, every: int = 1) -> Tally:
        """Strike each line of ``close``, of a loader of its own."""
        at = 1
        while True:
            loader = opened(self._spec, self._isolation)
            next(iter(loader))
            pids = [loader._pipeline.child.pid]
            striker = LineStriker(at)
            try:
                with striker:
                    loader.close()
            except StruckError:
                self.tally.strikes += 1
                at += every
            close(loader, self.tally)
            if left := [pid for pid in pids if psutil.pid_exists(pid)]:
                self.tally.faults.append(f"{striker.where}: close left processes {left}")
            if not striker.where:
                return self.tally


class SignalStriker:
    """Sends a signal a random moment after it was armed; the handlers raise in the main thread."""

    def __init__(self, seed: int, most_s: float) -> None:
        self._random = random.Random(seed)
        self._most_s = most_s
        self.quiet = False
        self.came = False
        self.between = False
        self._late = False
        self._orders: SimpleQueue[tuple[float, int]] = SimpleQueue()
        self._sent: SimpleQueue[None] = SimpleQueue()
        threading.Thread(target=self._send, daemon=True).start()
        self._raised = dict(
            zip((signal.SIGINT, signal.SIGALRM, signal.SIGTERM), STRIKES, strict=True)
        )

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """Handle the signals."""
        before = {number: signal.signal(number, self._handle) for number in self._raised}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def arm(self) -> None:
        """Send one soon."""
        self.came = self.between = self._late = self.quiet = False
        number = self._random.choice(list(self._raised))
        self._orders.put((self._random.uniform(0, self._most_s), number))

    def _send(self) -> None:
        while True:
            delay_s, number = self._orders.get()
            time.sleep(delay_s)
            os.kill(os.getpid(), number)
            self._sent.put(None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.quiet:
            self._late = True
            return
        self.came = True
        self.between = not _of_the_library(frame)
        raise self._raised[signal.Signals(number)]("struck")

    def speak(self) -> None:
        """Be quiet no longer."""
        self.quiet = False
        if self._late and not self.came:
            self._late, self.came = False, True
            raise TimeoutError("struck")

    def end(self) -> None:
        """Wait until it was sent."""
        self._sent.get()


def _of_the_library(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


class SignalRun:
    """A loop that is struck by signals, and goes on.

    Args:
        spec, sequences, seed: of the run.
        loop: makes the iteration.
        by_next: whether batches are taken by ``x = next(it)`` instead of ``for``.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        sequences: Sequences,
        loop: Loop,
        seed: int,
        *,
        by_next: bool = False,
        isolation: str = "process",
    ) -> None:
        self._spec, self._loop, self._isolation = spec, loop, isolation
        self._by_next = by_next
        self.tally = Tally()
        self.books = Books(sequences, self.tally)
        self._random = random.Random(seed)
        self._striker = SignalStriker(seed, 0.03)
        self.loader = opened(spec, isolation)
        self._noted: Any = None

    def run(self, strikes: int) -> Tally:
        """Have so many."""
        with self._striker.handling():
            while self.tally.strikes < strikes:
                self._strike()
        close(self.loader, self.tally)
        return self.tally

    def _strike(self) -> None:
        striker, self._batch = self._striker, None
        if self._random.random() < 0.7:  # else it is struck while it waits for its first batch
            for batch in self._loop(self.loader):
                self.books.note(batch)
                break
        saved, got = self.loader.state_dict(), list(self.books.got)
        act = self._random.choice(("read",) * 6 + ("load", "retune", "weights", "close"))
        try:
            striker.arm()
            while not striker.came:
                self._act(act, saved)
        except STRIKES:
            self.tally.strikes += 1
        striker.end()
        striker.quiet = True
        if self._batch is not None and self._batch is not self._noted:
            self.books.note(self._batch)
        self._batch = self._noted = None
        if act == "close":
            self._reopen()
        if act == "load" and self.loader.state_dict()["position"] == saved["position"]:
            self.books.got = got
        self.books.compare(self.loader, between=striker.between)

    def _reopen(self) -> None:
        close(self.loader, self.tally)
        state = self.loader.state_dict()
        self.loader = opened(self._spec, self._isolation)
        self.loader.load_state_dict(state)

    def _act(self, act: str, saved: dict[str, Any]) -> None:
        if act == "load":
            self.loader.load_state_dict(saved)
        elif act == "retune":
            self.loader.retune(ring_slots=self._random.choice((5, 6)))
        elif act == "weights":
            names = self.loader.dataset_names
            self.loader.set_weights({name: self._random.uniform(1, 2) for name in names})
        elif act == "close":
            self.loader.close()
            time.sleep(0.001)
            return
        if act == "load":
            return
        (self._read_by_next if self._by_next else self._read)()

    def _read(self) -> None:
        for self._batch in self._loop(self.loader):  # noqa: B020 stored at once
            self._take()

    def _read_by_next(self) -> None:
        batches = self._loop(self.loader)
        with contextlib.suppress(StopIteration):
            while True:
                self._batch = next(batches)
                self._take()

    def _take(self) -> None:
        self._striker.quiet = True
        self.books.note(self._batch)
        self._noted = self._batch
        self._striker.speak()


def mixture(folder: Path) -> PipelineSpec:
    """A mixture with short epochs."""
    return coded_spec(write_coded(folder), mixing={"epoch": EPOCH}, batch={"size": BATCH})
