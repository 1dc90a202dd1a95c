"""The reflex: ten times a second near the floor, headroom alone, no policy in between.

Theory of operation. ``react`` is pure: a reading of headroom and what the reflex remembers in, what
to do out. Between floor + margin and the floor no new reads are admitted; below the floor buffers
are dropped, knobs go to the minimum, memory is returned to the kernel, and the next readings say
whether it helped. The margin is the fall of headroom in 300 ms (99th percentile of the falls seen),
at least 256 MiB: fresh pages come at 0.4 GiB/s and a reading every 100 ms must be enough.
Only where the loader itself still holds more than its minimum costs, seconds later, is it restarted
small.

The consumer is never blocked: one batch that is ready is kept and one more is always let through,
so with fewer than two in the ring the gate opens until there are.

Invariants:
    1. Below the floor the answer is at least DROP; below floor + margin at least GATE.
    2. With fewer than two batches ready the gate is open.
    3. An unreadable headroom closes nothing and opens nothing: what was, stays.

Far from the floor, where 200 ms cannot take what is left, it reads five times a second.

``ControlLoop`` has the two threads of control: the reflex, and the policy once a second. They
run beside the pipelines that they govern: in the loader's child, or in the trainer's process with
``isolation="thread"``. The reflex acts even while the policy's thread waits for the GPU or for a
slow file system. An error in either thread is counted, logged once, and leaves all knobs as they
are: the controller fails static.

Not here: growing (``policy``), the pipelines (``process.control``).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any, Protocol, TypeVar

from autoloader.controller.admission import percentile
from autoloader.controller.limits import MARGIN_BYTES, ControllerLimits
from autoloader.host.clock import Clock
from autoloader.host.frozen import frozen
from autoloader.host.headroom import HeadroomProbe
from autoloader.host.threads import LoaderThread, all_ended

logger = logging.getLogger(__name__)

PERIOD_S = 0.1
CALM_PERIODS = 2
"""Between two readings, while headroom is far from the floor."""
CALM_RATIO = 3.0
"""Far from the floor: floor + margin × this. A margin is what 300 ms take."""
GROWTH_WINDOW_S = 0.3
REPEAT_S = 0.5
"""Between two rounds of dropping, while headroom stays below the floor."""
RESTART_AFTER_S = 5.0
"""Below the floor for so long, with memory of its own to give: the child restarts small."""
REOPEN_RATIO = 1.25
"""The gate opens at floor + margin × this, so that it does not flutter."""
KEPT_BATCHES = 2
_HISTORY = 3000  # readings, which are five minutes


class Action(str, Enum):
    """Action of the reflex; each includes the ones above it."""

    NOTHING = "nothing"
    GATE = "gate"
    DROP = "drop"
    RESTART = "restart"


@frozen
class ReflexState:
    """Memory of the reflex.

    Attributes:
        closed: whether the gate is closed; it opens nonetheless while the ring is nearly empty.
        below_s: time since which headroom is below the floor; ``None``: it is not below.
        dropped_s: time at which buffers were last dropped.
        restarts: number of restarts that were asked for while headroom stayed below the floor.
    """

    closed: bool = False
    below_s: float | None = None
    dropped_s: float = -1e9
    restarts: int = 0

    def may_restart(self, at_s: float) -> bool:
        """True if a reading below the floor may be answered by a restart."""
        lasted = self.below_s is not None and at_s - self.below_s >= RESTART_AFTER_S
        return lasted and not self.restarts


@frozen
class Reaction:
    """The answer: what to do, whether reads are admitted, and whether the floor is far."""

    state: ReflexState
    action: Action
    admit: bool
    calm: bool = False


def react(
    state: ReflexState,
    *,
    at_s: float,
    headroom_bytes: int | None,
    growth_bytes: int,
    ready_batches: int,
    surplus_bytes: int | None,
    limits: ControllerLimits,
) -> Reaction:
    """Answer one reading.

    Args:
        state: state of the last answer.
        at_s: time of the reading, in seconds.
        headroom_bytes: the reading; ``None`` where it failed.
        growth_bytes: fall of headroom in 300 ms (``GrowthMeter.p99_bytes``).
        ready_batches: number of filled batches in the ring.
        surplus_bytes: bytes that the loader holds above its minimum's price; ``None``: unknown, or
            not asked for (``ReflexState.may_restart``).
        limits: RAM floor and margin, in bytes.
    """
    starving = ready_batches < KEPT_BATCHES
    if headroom_bytes is None:
        return Reaction(state, Action.NOTHING, not state.closed or starving)
    margin = max(limits.margin_bytes, growth_bytes)
    floor = limits.ram_floor_bytes
    if headroom_bytes >= floor:
        closed = headroom_bytes < floor + margin * (REOPEN_RATIO if state.closed else 1.0)
        state = ReflexState(closed=closed, dropped_s=state.dropped_s)
        action, calm = Action.GATE if closed else Action.NOTHING, floor + margin * CALM_RATIO
        return Reaction(state, action, not closed or starving, headroom_bytes >= calm)
    below = at_s if state.below_s is None else state.below_s
    state = replace(state, closed=True, below_s=below)
    large = surplus_bytes is not None and surplus_bytes > MARGIN_BYTES
    if large and state.may_restart(at_s):
        return Reaction(replace(state, restarts=1), Action.RESTART, starving)
    if at_s - state.dropped_s >= REPEAT_S:
        return Reaction(replace(state, dropped_s=at_s), Action.DROP, starving)
    return Reaction(state, Action.GATE, starving)


class GrowthMeter:
    """Measures growth of used memory: falls of headroom over 300 ms, in the last five minutes."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=round(GROWTH_WINDOW_S / PERIOD_S))
        self._falls: deque[float] = deque(maxlen=_HISTORY)
        self._calls = 0
        self._p99 = 0

    def note(self, headroom_bytes: int, periods: int = 1) -> None:
        """Take in a reading of headroom in bytes, so many periods of 100 ms after the last one."""
        last = self._recent[-1] if self._recent else headroom_bytes
        for left in reversed(range(periods)):  # in between it fell evenly
            now = headroom_bytes + (last - headroom_bytes) * left // periods
            if len(self._recent) == self._recent.maxlen:
                self._falls.append(max(0, self._recent[0] - now))
                self._calls += 1
                if self._calls % 10 == 1:
                    self._p99 = int(percentile(self._falls, 0.99) or 0)
            self._recent.append(now)

    @property
    def p99_bytes(self) -> int:
        """Fall over 300 ms that 99 of 100 do not exceed; 0 before the fourth reading.

        Worked out anew with every tenth reading.
        """
        return self._p99


POLICY_PERIOD_S = 1.0


class Governed(Protocol):
    """A pipeline under control; each method is called from its own thread."""

    def reflex(self, at_s: float, headroom_bytes: int | None, growth_bytes: int) -> bool:
        """Answer a reading of headroom (``None``: it failed); true if the floor is far.

        Must not wait.
        """

    def govern(self, at_s: float, growth_bytes: int) -> None:
        """Observe the pipeline, decide by the policy, and apply the decision."""


_Found = TypeVar("_Found")


class ControlLoop:
    """Governs pipelines; its threads run while there are any.

    Args:
        headroom: source that the reflex reads; ``None``: pipelines are only watched.

    Attributes:
        growth: meter of the falls of headroom.
        faults: number of errors in either thread.
    """

    def __init__(self, headroom: HeadroomProbe | None) -> None:
        self._headroom = headroom
        self._clock = Clock()
        self._governed: tuple[Governed, ...] = ()
        self._lock = threading.Lock()
        self._running = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._said: set[str] = set()
        self._periods = 1
        self.growth = GrowthMeter()
        self.faults = 0

    def add(self, one: Governed) -> None:
        """Govern a pipeline from now on; the first one starts the threads."""
        with self._lock:
            self._governed = (*self._governed, one)
            if self._threads:
                return
            self._running.acquire()
            policy, reflex = (self.govern_once, POLICY_PERIOD_S), (self.react_once, PERIOD_S)
            jobs = {"control": policy, "reflex": reflex}
            if self._headroom is None:
                jobs = {"watch": policy}
            for name, job in jobs.items():
                thread = LoaderThread(self._run, f"autoloader-{name}", job)
                self._threads.append(thread)
                thread.start()

    def remove(self, one: Governed) -> None:
        """Govern a pipeline no more; with the last one the threads end."""
        with self._lock:
            self._governed = tuple(other for other in self._governed if other is not one)
            if self._governed or not self._threads:
                return
            threads, self._threads = self._threads, []
            self._running.release()
        all_ended(threads, 2.0)

    def react_once(self) -> float:
        """Read headroom, and have the reflex of each pipeline answer; seconds to the next time."""
        assert self._headroom is not None
        read = self._static("headroom", self._headroom.read)
        headroom = None if read is None else read.headroom_bytes
        if headroom is not None:
            self.growth.note(headroom, self._periods)
        calm, growth = True, self.growth.p99_bytes
        for one in self._governed:
            now_s = self._clock.now_s()
            calm &= self._static("reflex", one.reflex, now_s, headroom, growth) is not False
        self._periods = CALM_PERIODS if calm else 1
        return PERIOD_S * self._periods

    def govern_once(self) -> float:
        """Have each pipeline observe, decide and apply once; seconds to the next time."""
        for one in self._governed:
            self._static("policy", one.govern, self._clock.now_s(), self.growth.p99_bytes)
        return POLICY_PERIOD_S

    def _run(self, once: Callable[[], float], pause_s: float) -> None:
        while not self._running.acquire(timeout=pause_s):  # costs less than an Event
            pause_s = once()
        self._running.release()

    def _static(self, where: str, step: Callable[..., _Found], *given: Any) -> _Found | None:
        """Result of ``step``; an error leaves things as they are, is counted, and logged once."""
        try:
            return step(*given)
        except Exception as error:  # noqa: BLE001 the boundary of a thread: it must live on
            self.faults += 1
            text = f"{where}: {type(error).__name__}: {error}"
            if text not in self._said and len(self._said) < 100:
                self._said.add(text)
                kept = "the controller leaves things as they are"
                watched = "a loader cannot be watched"
                logger.warning("%s: %s", watched if self._headroom is None else kept, text)
            return None
