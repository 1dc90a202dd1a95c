"""The controller's states, and every transition between them, as data.

``TRANSITIONS`` is total: each state has an answer to each event. The events stand in the order in
which they are looked for; the first that holds is the one that happened (``policy.event_of``).

Rules that the table keeps, and tests check:
    1. Memory below the floor leads to EMERGENCY from anywhere, pressure at least to SHRINK.
    2. Only HUNGRY leads to GROW.
    3. No state is a trap: from each, HUNGRY leads to GROW.
    4. A silent consumer is PARKED, never HOLD: silence is not satisfaction.
    5. Blindness never leads to GROW.

Not here: which event happened, and what is done in a state (``policy``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from autoloader.host.frozen import frozen
from autoloader.spec.knobs import Knobs


class _Told(str, Enum):
    """A name with its meaning.

    Attributes:
        meaning: meaning for people, in one clause.
    """

    _value_: str
    meaning: str

    def __new__(cls, name: str, meaning: str) -> _Told:
        one = str.__new__(cls, name)
        one._value_, one.meaning = name, meaning
        return one


class State(_Told):
    """State of the controller."""

    WARMUP = "WARMUP", "too few batches yet for a judgement; nothing moves"
    GROW = "GROW", "training waits for data: one change at a time, each verified"
    HOLD = "HOLD", "training does not wait, or nothing would help; gives back what is too much"
    SHRINK = "SHRINK", "memory is close to the floor: buffers are halved until it is not"
    EMERGENCY = "EMERGENCY", "memory is below the floor: minimum knobs"
    PARKED = "PARKED", "the consumer is silent, or another loader is in use; nothing moves"


class Event(_Told):
    """Event that an observation amounts to: the first of these whose condition holds."""

    BELOW_FLOOR = "BELOW_FLOOR", "headroom is below the floor"
    PRESSURE = "PRESSURE", "headroom is below floor + margin, or the kernel reports pressure"
    CALMING = "CALMING", "pressure has gone, but not for long enough"
    SILENT = "SILENT", "no batch taken or wanted for long, or another loader is in use"
    WARMING = "WARMING", "fewer than 8 batches so far"
    BLIND = "BLIND", "headroom, rate or waits are unknown or stale"
    SATISFIED = "SATISFIED", "wait_ratio below 1 % (2 % to leave HOLD), or the GPU limits the run"
    HUNGRY = "HUNGRY", "training waits for data"


_S, _E = State, Event
_ROWS: Mapping[Event, tuple[State, ...]] = {
    #                 WARMUP,      GROW,        HOLD,        SHRINK,      EMERGENCY,   PARKED
    _E.BELOW_FLOOR: (_S.EMERGENCY,) * 6,
    _E.PRESSURE: (_S.SHRINK, _S.SHRINK, _S.SHRINK, _S.SHRINK, _S.EMERGENCY, _S.SHRINK),
    _E.CALMING: (_S.WARMUP, _S.HOLD, _S.HOLD, _S.SHRINK, _S.EMERGENCY, _S.PARKED),
    _E.SILENT: (_S.PARKED,) * 6,
    _E.WARMING: (_S.WARMUP,) * 6,
    _E.BLIND: (_S.WARMUP, _S.HOLD, _S.HOLD, _S.SHRINK, _S.EMERGENCY, _S.PARKED),
    _E.SATISFIED: (_S.HOLD,) * 6,
    _E.HUNGRY: (_S.GROW,) * 6,
}

TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (state, event): row[at] for event, row in _ROWS.items() for at, state in enumerate(State)
}
"""Where each event leads from each state."""


@frozen
class Trial:
    """A change that is being verified.

    Attributes:
        knob: name of the change: the knob that moved, with "+" or "-" behind it.
        before: the knobs to go back to.
        changes: knobs that were moved, with both values.
        since_s: time of the change, in seconds.
        hungry: whether training waited when it was made.
        context: the bottleneck it was meant for, and that stage's service time.
        rates_before, rates_after: samples/s, one number an observation.
    """

    knob: str
    before: Knobs
    changes: Mapping[str, int]
    since_s: float
    hungry: bool
    context: tuple[str, float]
    rates_before: tuple[float, ...]
    rates_after: tuple[float, ...] = ()

    @property
    def growing(self) -> bool:
        """True if it took more memory or threads."""
        return self.knob.endswith("+")


@frozen
class Failure:
    """A change that did not pay; not tried again before ``until_s``, or while nothing differs."""

    until_s: float
    times: int
    context: tuple[str, float]


@frozen
class ControllerState:
    """All that the policy remembers; it is handed in and out, and holds no hidden part.

    Attributes:
        name: name of the controller's state.
        since_s: time at which it was entered, in seconds.
        rates: the last rates seen with these knobs, oldest first.
        trial: the change being verified.
        failures: knob and direction ("ring_slots-") → that change, which did not pay.
        moved: knob and direction → when it last moved so.
        pressure_s: time at which pressure was last seen; ``None``: never.
        pressures: number of times that memory came under pressure shortly after it was calm.
        shrunk_s: time at which buffers were last halved.
        dear_s: time at which held frames last cost more reading than they saved decoding.
    """

    name: State = State.WARMUP
    since_s: float = 0.0
    rates: tuple[float, ...] = ()
    trial: Trial | None = None
    failures: Mapping[str, Failure] = field(default_factory=dict)
    moved: Mapping[str, float] = field(default_factory=dict)
    pressure_s: float | None = None
    pressures: int = 0
    shrunk_s: float = -1e9
    dear_s: float = -1e9
