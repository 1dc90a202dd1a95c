"""The policy: ``decide(state, observation, limits) -> Decision``. Pure.

No clock, no I/O, no thread, no framework: everything it knows comes in, everything it wants goes
out, so ``autoloader replay`` reproduces every decision from its record.

Law. Find the bottleneck stage from measured service rates, size it by Little's law, make the one
change with the best predicted gain per byte, compare predicted with observed, revert what did not
pay and remember it. Stop when training does not wait, or the GPU is the bottleneck: then give back.
Growth is additive and verified; shrink is multiplicative and at once; both have hold-offs.

Invariants:
    1. Missing or stale evidence never raises a knob.
    2. No knobs leave ``decide`` that ``KnobLimits`` refuses, nor any that were not admitted.
    3. At most one change is under way.
    4. Below the floor the frame cache goes at once, and where there is none the knobs are the
       minimum at once, whatever else holds.
    5. A silent consumer moves nothing.

A change is judged by its rates, before against after. Rates of a loader are not normal: a page
cache miss or a neighbour's burst makes some far too small. So the test is of ranks (Mann–Whitney,
one-sided, exact, ties by midranks). With five rates before and three after, all of them better,
chance alone would do that once in 56 times. A change that takes memory or threads must be seen to
pay; one that gives them back must only not be seen to hurt.

Not here: the transitions (``states``), which change (``proposals``), applying it
(``process.control``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from autoloader.controller.admission import admits, price_change
from autoloader.controller.limits import ControllerLimits
from autoloader.controller.observation import Observation, Reading, fresh
from autoloader.controller.proposals import (
    Change,
    best_cut,
    best_growth,
    best_return,
    cheaper_cache,
    grown_cache,
    halved,
    known_stages,
    legal,
    lowered_cache,
    margin,
    missing_bytes,
    rested,
)
from autoloader.controller.states import (
    TRANSITIONS,
    ControllerState,
    Event,
    Failure,
    State,
    Trial,
)
from autoloader.spec.knobs import Knobs

WARMUP_BATCHES = 8
LONGEST_WARMUP_S = 60.0
SATISFIED_RATIO = 0.01
HUNGRY_AGAIN_RATIO = 0.02
SETTLE_S = 2.0
HALVING_S = 2.0
GIVE_BACK_AFTER_S = 8.0
KEPT_RATES = 8
LOOKS_GIVEN_BACK = 5
NEW_S = 0.3
PAUSE_S = 0.5
LONGEST_CALM_S = 30.0
LONGEST_RETRY_S = 1200.0
QUIET_S = 120.0
"""Pressure that comes back within this time counts as the same trouble."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Answer of the policy.

    Attributes:
        state: the controller's state from now on; goes into the next ``decide``.
        event: what the observation amounted to.
        rule: why, in a few words.
        knobs: to be in force from now on; ``None`` where nothing moves.
        changes: what moves, flat knob → value.
        gain_per_s: predicted, of a growth.
        price_bytes: predicted bytes of the change.
        verdict: on the change before, where one fell now.
        verdict_on: what that change was remembered by.
    """

    state: ControllerState
    event: Event
    rule: str
    knobs: Knobs | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    gain_per_s: float | None = None
    price_bytes: int | None = None
    verdict: Verdict | None = None
    verdict_on: str = ""


def decide(state: ControllerState, seen: Observation, limits: ControllerLimits) -> Decision:
    """Decide for this second.

    Args:
        state: what the last decision left.
        seen: observation of this second.
        limits: what may not be overstepped.
    """
    event = event_of(state, seen, limits)
    name = TRANSITIONS[state.name, event]
    now = _advanced(state, name, event, seen, limits)
    if seen.knobs.cache_bytes and event in (Event.BELOW_FLOOR, Event.PRESSURE):
        return _go(now, seen, event, _fewer_frames(seen, limits), "the frame cache goes first")
    if name is State.EMERGENCY:
        return _go(now, seen, event, limits.least(seen.knobs), "below the floor: minimum knobs")
    if name is State.SHRINK:
        return _shrink(now, seen, limits, event)
    if name in (State.PARKED, State.WARMUP):
        return Decision(now, event, "nothing moves")
    if now.trial is not None:
        return _verify(now, seen, limits, event)
    if event is Event.HUNGRY:
        return _grow(now, seen, limits, event)
    if event is Event.SATISFIED:
        return _give_back(now, seen, limits, event)
    return Decision(now, event, "unknown is not free: nothing moves")


def event_of(state: ControllerState, seen: Observation, limits: ControllerLimits) -> Event:
    """First event that holds of an observation; see ``states.Event``."""
    headroom = fresh(seen.headroom_bytes, limits.oldest_s)
    if headroom is not None and headroom < limits.ram_floor_bytes:
        return Event.BELOW_FLOOR
    if _pressed(headroom, seen, limits):
        return Event.PRESSURE
    if state.pressure_s is not None and seen.at_s - state.pressure_s < calm_s(state, limits):
        return Event.CALMING
    if seen.parked or _silent(seen, limits):
        return Event.SILENT
    warming = seen.batches < WARMUP_BATCHES
    if warming and (state.name is not State.WARMUP or seen.at_s - state.since_s < LONGEST_WARMUP_S):
        return Event.WARMING
    waits = fresh(seen.wait_ratio, limits.oldest_s)
    rate = fresh(seen.rate_per_s, limits.oldest_s)
    if headroom is None or waits is None or rate is None:
        return Event.BLIND
    enough = HUNGRY_AGAIN_RATIO if state.name is State.HOLD else SATISFIED_RATIO
    if waits < enough or _gpu_is_the_bottleneck(seen, limits):
        return Event.SATISFIED
    return Event.HUNGRY


def calm_s(state: ControllerState, limits: ControllerLimits) -> float:
    """Seconds that pressure must have been gone: more each time it came back soon."""
    return min(LONGEST_CALM_S, limits.calm_s * 2.0 ** max(0, state.pressures - 1))


def _pressed(headroom: float | None, seen: Observation, limits: ControllerLimits) -> bool:
    if headroom is not None and headroom < limits.ram_floor_bytes + margin(seen, limits):
        return True
    # Many loads keep a host's pressure above nothing for hours; it counts where memory is near.
    pressure = fresh(seen.pressure_percent, limits.oldest_s)
    if pressure is None or pressure < limits.pressure_percent:
        return False
    return headroom is None or headroom < limits.ram_floor_bytes + 4 * margin(seen, limits)


def _silent(seen: Observation, limits: ControllerLimits) -> bool:
    return _away(seen, limits, limits.silence_s, 5)


def _pausing(seen: Observation, limits: ControllerLimits) -> bool:
    """True if the consumer takes unusually long between two batches.

    Not for long enough to be silent, yet what is seen meanwhile is its pause: processors that fell
    idle because the ring is full, a rate that nobody asked for.
    """
    return _away(seen, limits, PAUSE_S, 2)


def _away(seen: Observation, limits: ControllerLimits, least_s: float, steps: int) -> bool:
    """True if the consumer wanted nothing for so long, and for so many of its usual steps."""
    silent = fresh(seen.silent_s, limits.oldest_s)
    if silent is None or seen.waiting:
        return False
    step = fresh(seen.step_s, limits.oldest_s) or 0.0
    return silent > max(least_s, steps * step)


def _gpu_is_the_bottleneck(seen: Observation, limits: ControllerLimits) -> bool:
    busy = fresh(seen.gpu_busy_ratio, limits.oldest_s)
    return busy is not None and not seen.gpu_shared and busy >= limits.gpu_busy_ratio


def _advanced(
    state: ControllerState,
    name: State,
    event: Event,
    seen: Observation,
    limits: ControllerLimits,
) -> ControllerState:
    """The state with what this observation adds to its memory."""
    changed = name is not state.name
    now = replace(state, name=name, since_s=seen.at_s if changed else state.since_s)
    if event in (Event.BELOW_FLOOR, Event.PRESSURE):
        new = state.pressure_s is None or seen.at_s - state.pressure_s > limits.calm_s / 2
        soon = state.pressure_s is not None and seen.at_s - state.pressure_s < QUIET_S
        times = state.pressures if not new else state.pressures + 1 if soon else 1
        now = replace(now, pressure_s=seen.at_s, pressures=times)
    moved = tuple(m for m in now.moved if seen.at_s - m[1] < limits.hold_off_s)
    if name in (State.SHRINK, State.EMERGENCY):
        return replace(now, rates=(), trial=None, moved=moved)
    if name in (State.PARKED, State.WARMUP):
        # A pause is no evidence: what was seen before it stays, and the change settles anew.
        trial = None if now.trial is None else replace(now.trial, since_s=seen.at_s)
        return replace(now, trial=trial, moved=moved)
    if changed and now.trial is None and {name, state.name} == {State.GROW, State.HOLD}:
        now = replace(now, rates=())  # the consumer has changed its pace
    rate = _new_rate(seen, limits)
    rates = now.rates if rate is None or now.trial is not None else (*now.rates, rate)
    return replace(now, rates=rates[-KEPT_RATES:], moved=moved)


def _new_rate(seen: Observation, limits: ControllerLimits) -> float | None:
    """A rate that was not there before; one reading counts once, and none of a pause."""
    if _pausing(seen, limits):
        return None
    rate = fresh(seen.rate_per_s, limits.oldest_s)
    return rate if seen.rate_per_s is not None and seen.rate_per_s.age_s < NEW_S else None


def _shrink(
    now: ControllerState, seen: Observation, limits: ControllerLimits, event: Event
) -> Decision:
    if event is not Event.PRESSURE:
        return Decision(now, event, "pressure has gone: wait before growing")
    if seen.at_s - now.shrunk_s < HALVING_S:
        return Decision(now, event, "halved just now: wait for the effect")
    return _go(
        replace(now, shrunk_s=seen.at_s), seen, event, halved(seen, limits), "close to the floor"
    )


def _fewer_frames(seen: Observation, limits: ControllerLimits) -> Knobs:
    """Half of the frame cache at least, and what is missing above the floor and the margin."""
    headroom = fresh(seen.headroom_bytes, limits.oldest_s)
    held, missing = seen.knobs.cache_bytes, 0
    if seen.cache is not None and seen.cache.allocated_bytes is not None:
        held = min(held, seen.cache.allocated_bytes)
    if headroom is not None:
        missing = missing_bytes(int(headroom), limits.ram_floor_bytes, margin(seen, limits))
    return lowered_cache(seen.knobs, held, max(missing, held // 2))


def _go(now: ControllerState, seen: Observation, event: Event, knobs: Knobs, rule: str) -> Decision:
    changed = {key: pair[0] for key, pair in knobs.changed(seen.knobs).items()}
    if not changed:
        return Decision(now, event, f"{rule}; nothing is left to shrink")
    moved = (*now.moved, *((f"{key}-", seen.at_s) for key in changed))
    return Decision(replace(now, moved=moved), event, rule, knobs, changed)


def _grow(
    now: ControllerState, seen: Observation, limits: ControllerLimits, event: Event
) -> Decision:
    if not seen.settled or seen.gate_closed:
        return Decision(now, event, "an earlier change is on its way")
    if _pausing(seen, limits):
        return Decision(now, event, "training pauses")
    if len(now.rates) < MINIMUM_RATES:
        return Decision(now, event, "too few rates to compare with")
    fewer = cheaper_cache(seen)
    if fewer is not None and rested("cache_bytes-", now, seen.at_s, limits):
        rule = "files are read again for longer than held frames save: fewer are held"
        return _go(replace(now, dear_s=seen.at_s), seen, event, fewer, rule)
    dear = fewer is not None or seen.at_s - now.dear_s < LONGEST_RETRY_S
    frames = None if dear else grown_cache(seen, limits, margin(seen, limits))
    if frames is not None and admitted(seen, frames, limits):
        return _go(now, seen, event, frames, "training waits: more frames are held")
    change = best_growth(now, seen, limits)
    if change is not None:
        return _try(now, seen, event, change, growing=True, hungry=True)
    cut = best_cut(now, seen, limits)
    if cut is not None:
        return _try(now, seen, event, cut, growing=False, hungry=True)
    missing = "" if known_stages(seen, limits) else ": no stage is measured"
    return Decision(now, event, f"no change is predicted to pay{missing}")


def _give_back(
    now: ControllerState, seen: Observation, limits: ControllerLimits, event: Event
) -> Decision:
    if seen.at_s - now.since_s < GIVE_BACK_AFTER_S or len(now.rates) < MINIMUM_RATES:
        return Decision(now, event, "training does not wait")
    change = best_return(now, seen, limits) if seen.settled else None
    if change is None:
        return Decision(now, event, "training does not wait, and nothing is too much")
    return _try(now, seen, event, change, growing=False, hungry=False)


def _try(
    now: ControllerState,
    seen: Observation,
    event: Event,
    change: Change,
    *,
    growing: bool,
    hungry: bool,
) -> Decision:
    rate = now.rates[-1] if now.rates else 0.0
    trial = Trial(
        knob=change.knob if not growing else f"{change.knob}+",
        before=seen.knobs,
        changes=change.changes,
        since_s=seen.at_s,
        growing=growing,
        hungry=hungry,
        gain_ratio=change.gain_per_s / rate if rate > 0 else 0.0,
        context=change.context,
        rates_before=now.rates,
    )
    sign = "+" if growing else "-"
    moved = (*now.moved, *((f"{key}{sign}", seen.at_s) for key in change.changes))
    state = replace(now, trial=trial, moved=moved, rates=())
    return Decision(
        state,
        event,
        change.rule,
        change.knobs,
        change.changes,
        change.gain_per_s,
        change.price_bytes,
    )


def _verify(
    now: ControllerState, seen: Observation, limits: ControllerLimits, event: Event
) -> Decision:
    """Compare what a change did with what it was made for; keep it, or take it back."""
    trial = now.trial
    assert trial is not None
    if any(seen.knobs.flat().get(key) != to for key, to in trial.changes.items()):
        state = replace(now, trial=None, rates=())
        return Decision(state, event, "somebody else moved the knob: no verdict")
    if not seen.settled or seen.at_s - trial.since_s < SETTLE_S:
        return Decision(now, event, "the change settles")
    if trial.growing and event is Event.SATISFIED:
        return _kept(now, event, Verdict.PAID)
    if not trial.hungry and event is Event.HUNGRY:
        return _reverted(now, seen, limits, event, Verdict.LOST)
    rate = _new_rate(seen, limits)
    if rate is None:
        return Decision(now, event, "no new rate to judge by")
    trial = replace(trial, rates_after=(*trial.rates_after, rate))
    now = replace(now, trial=trial)
    if trial.hungry:
        verdict = judge(trial.rates_before, trial.rates_after, growing=trial.growing)
    else:  # its rate is the consumer's: that training does not wait is the whole proof
        enough = len(trial.rates_after) >= LOOKS_GIVEN_BACK
        verdict = Verdict.PAID if enough else Verdict.UNDECIDED
    if verdict is Verdict.UNDECIDED:
        return Decision(now, event, "the change is being watched")
    if verdict is Verdict.PAID:
        return _kept(now, event, verdict)
    return _reverted(now, seen, limits, event, verdict)


def _kept(now: ControllerState, event: Event, verdict: Verdict) -> Decision:
    trial = now.trial
    assert trial is not None
    failures = tuple(f for f in now.failures if f.knob != trial.knob)
    state = replace(now, trial=None, rates=trial.rates_after[-KEPT_RATES:], failures=failures)
    return Decision(state, event, "the change paid: kept", verdict=verdict, verdict_on=trial.knob)


def _reverted(
    now: ControllerState,
    seen: Observation,
    limits: ControllerLimits,
    event: Event,
    verdict: Verdict,
) -> Decision:
    trial = now.trial
    assert trial is not None
    times = 1 + max((f.times for f in now.failures if f.knob == trial.knob), default=0)
    rest_s = min(LONGEST_RETRY_S, limits.retry_s * 2.0 ** (times - 1))
    failure = Failure(trial.knob, seen.at_s + rest_s, times, trial.context)
    failures = (*(f for f in now.failures if f.knob != trial.knob), failure)
    state = replace(now, trial=None, rates=(), failures=failures)
    flat = trial.before.flat()
    common = {key: flat[key] for key in trial.changes if key in flat}
    back = legal(_without(seen.knobs, set(trial.changes) - set(flat)), common, limits)
    if back is None or not (trial.growing or admitted(seen, back, limits)):
        return Decision(
            state,
            event,
            "the change did not pay, and cannot be taken back: memory",
            verdict=verdict,
            verdict_on=trial.knob,
        )
    sign = "-" if trial.growing else "+"
    moved = (*now.moved, *((f"{key}{sign}", seen.at_s) for key in trial.changes))
    return Decision(
        replace(state, moved=moved),
        event,
        f"the change did not pay ({verdict.value}): taken back and remembered",
        back,
        {key: pair[0] for key, pair in back.changed(seen.knobs).items()},
        verdict=verdict,
        verdict_on=trial.knob,
    )


def admitted(
    seen: Observation,
    knobs: Knobs,
    limits: ControllerLimits,
    *,
    headroom: Reading | None = None,
) -> bool:
    """True if there is room to go to ``knobs``; taking a shrink back is a growth too.

    Args:
        seen: what the prices are of.
        knobs: to be in force.
        limits: RAM floor and margin, in bytes.
        headroom: a fresher reading than the observation's.
    """
    return admits(
        price_change(seen.knobs, knobs, limits.knobs.shards, seen.prices),
        headroom_bytes=fresh(headroom or seen.headroom_bytes, limits.oldest_s),
        ram_floor_bytes=limits.ram_floor_bytes,
        margin_bytes=margin(seen, limits),
        budget_ratio=limits.budget_ratio,
        room_bytes=seen.room_bytes,
    )


def _without(knobs: Knobs, keys: set[str]) -> Knobs:
    """The knobs without values of their own that some datasets did not have before."""
    return Knobs.build({key: value for key, value in knobs.flat().items() if key not in keys})


SIGNIFICANCE = 0.02
MINIMUM_RATES = 4
"""Rates that must be known before a change is begun."""
FIRST_LOOK = 3
LAST_LOOK = 8
LEAST_GAIN_RATIO = 0.01
LEAST_LOSS_RATIO = 0.02


class Verdict(str, Enum):
    """Verdict on a change."""

    UNDECIDED = "undecided"
    PAID = "paid"
    NOTHING = "nothing"
    LOST = "lost"


def judge(before: Sequence[float], after: Sequence[float], *, growing: bool) -> Verdict:
    """The verdict on a change.

    Args:
        before: rates with the old knobs.
        after: rates with the new ones, once settled.
        growing: it took memory or threads.
    """
    if len(after) < FIRST_LOOK or not before:
        return Verdict.UNDECIDED
    import statistics  # where no change is judged a process goes without

    was, is_ = statistics.median(before), statistics.median(after)
    if is_ < was * (1 - LEAST_LOSS_RATIO) and chance_of_more(after, before) <= SIGNIFICANCE:
        return Verdict.LOST
    if is_ > was * (1 + LEAST_GAIN_RATIO) and chance_of_more(before, after) <= SIGNIFICANCE:
        return Verdict.PAID
    if not growing:
        return Verdict.PAID if len(after) >= LAST_LOOK - FIRST_LOOK else Verdict.UNDECIDED
    return Verdict.NOTHING if len(after) >= LAST_LOOK else Verdict.UNDECIDED


def chance_of_more(low: Sequence[float], high: Sequence[float]) -> float:
    """Probability of ranks of ``high`` at least as high as these, were both of one kind.

    Exact, by counting the subsets of all ranks whose sum is as large; ranks are doubled, so that
    midranks of ties are whole numbers.
    """
    every = sorted([*low, *high])
    ranks = {value: every.index(value) * 2 + every.count(value) + 1 for value in set(every)}
    observed = sum(ranks[value] for value in high)
    counts: list[dict[int, int]] = [{0: 1}, *({} for _ in high)]
    for value in every:
        rank = ranks[value]
        for size in range(len(high), 0, -1):
            for total, ways in counts[size - 1].items():
                counts[size][total + rank] = counts[size].get(total + rank, 0) + ways
    whole = counts[len(high)]
    return sum(ways for total, ways in whole.items() if total >= observed) / sum(whole.values())
