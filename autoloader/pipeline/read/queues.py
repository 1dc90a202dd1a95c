"""One dataset's queue of encoded samples, between its reader and the mixer.

Theory of operation. Episodes go in whole; their frames are held once, however many samples wait.
A queue admits another episode while fewer than ``capacity`` samples wait (so one episode is always
let in), and gives samples out episode by episode, each in its keyed order. With ``shuffle``
above zero the capacity is at least that, and each sample is drawn, by a keyed hash, from all that
wait; passes are never mixed.

Each queue has a lock of its own, on which its one reader waits for room; it is woken when there is
some, not at every sample. All queues of a pipeline share one condition on which the mixer waits.

Invariants:
    1. Samples of an episode leave in order; an episode leaves before any of a later pass.
    2. ``pending`` counts samples waiting; reading it needs no lock.

Not here: threads (``pipeline.read.stream_reader``), who takes (``decode.batch_builder``).
"""

from __future__ import annotations

import threading
from collections import deque

from autoloader.samples import draws
from autoloader.samples.block import Place, SampleBlock
from autoloader.samples.draws import PURPOSE_SHUFFLE


class _Open:
    """An episode in the queue and how many of its samples are gone."""

    __slots__ = ("episode", "taken")

    def __init__(self, episode: SampleBlock, taken: int) -> None:
        self.episode = episode
        self.taken = taken


class SampleQueue:
    """Encoded samples of one dataset that are ready to be mixed.

    Args:
        key: of the shuffle's draws.
        arrived: shared by all queues of a pipeline; told when samples come.
        capacity: samples that may wait before no further episode is admitted.
        shuffle: samples a draw chooses from; 0 is none.
    """

    def __init__(
        self, key: int, arrived: threading.Condition, *, capacity: int, shuffle: int
    ) -> None:
        self._key = draws.fold(key, PURPOSE_SHUFFLE)
        self._arrived = arrived
        self._room = threading.Condition()
        self._open: deque[_Open] = deque()
        self._drawn = 0
        self._closed = False
        self._capacity = capacity
        self._shuffle = shuffle
        self._empties: list[Place] = []
        self.pending = 0
        self.held_bytes = 0
        self.parked = False

    def limit(self, *, capacity: int, shuffle: int) -> None:
        """Move the admission limit; a surplus drains."""
        with self._room:
            self._capacity, self._shuffle = capacity, shuffle
            self._room.notify_all()

    @property
    def capacity(self) -> int:
        """Samples that may wait before admission stops."""
        return max(self._capacity, self._shuffle)

    def put(self, episode: SampleBlock, taken: int) -> bool:
        """Add an episode whose first ``taken`` samples are gone; blocks while the queue is full.

        Returns:
            False where the queue was closed meanwhile.
        """
        with self._room:
            while not self._closed and (self.parked or self.pending >= self.capacity):
                self._room.wait()
            if self._closed:
                return False
            self._open.append(_Open(episode, taken))
            self.pending += len(episode) - taken
            self.held_bytes += episode.nbytes
        with self._arrived:
            self._arrived.notify_all()
        return True

    def put_empty(self, place: Place) -> None:
        """Note a record without samples; it is reported with the samples taken next."""
        with self._room:
            self._empties.append(place)

    def take(self) -> tuple[SampleBlock, int]:
        """The next sample, as its episode and number in it.

        Raises:
            IndexError: nothing waits.
        """
        with self._room:
            at = self._draw() if self._shuffle else 0
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

    def take_empties(self) -> list[Place]:
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
            self._room.notify_all()

    def close(self) -> None:
        """Wake everybody; nothing more is admitted."""
        with self._room:
            self._closed = True
            self._open.clear()
            self.pending = 0
            self._room.notify_all()
