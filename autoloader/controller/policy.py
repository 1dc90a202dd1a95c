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
from dataclasses import field, replace
from enum import Enum
from typing import Any

from autoloader.controller import proposals
from autoloader.controller.limits import ControllerLimits
from autoloader.controller.observation import Observation
from autoloader.controller.states import TRANSITIONS, ControllerState, Event, Failure, State, Trial
from autoloader.host.frozen import frozen
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
PAUSE_S = 0.5
LONGEST_CALM_S = 30.0
LONGEST_RETRY_S = 1200.0
QUIET_S = 120.0
"""Pressure that comes back within this time counts as the same trouble."""


@frozen
class Decision:
    """Answer of the policy.

    Attributes:
        state: the controller's state from now on; goes into the next ``decide``.
        event: event that the observation amounts to.
        rule: why, in a few words.
        knobs: values of all knobs from now on; ``None`` where nothing moves.
        changes: knobs that move, flat knob → value.
        gain_per_s: predicted, of a growth.
        price_bytes: predicted bytes of the change.
        verdict: on the change before, where one fell now.
    """

    state: ControllerState
    event: Event
    rule: str
    knobs: Knobs | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    gain_per_s: float | None = None
    price_bytes: int | None = None
    verdict: Verdict | None = None


def decide(state: ControllerState, seen: Observation, limits: ControllerLimits) -> Decision:
    """Decide for this second.

    Args:
        state: state of the last decision.
        seen: observation of this second.
        limits: limits of the controller.
    """
    event = event_of(state, seen, limits)
    here = _entered(proposals.Situation(state, seen, limits, event))
    name = here.state.name
    if seen.knobs.cache_bytes and event in (Event.BELOW_FLOOR, Event.PRESSURE):
        return _go(here, _fewer_frames(here), "the frame cache goes first")
    if name is State.EMERGENCY:
        return _go(here, limits.least(seen.knobs), "below the floor: minimum knobs")
    if name is State.SHRINK:
        return _shrink(here)
    if name in (State.PARKED, State.WARMUP):
        return _stay(here, "nothing moves")
    if here.state.trial is not None:
        return _verify(here, here.state.trial)
    if event is Event.HUNGRY:
        return _grow(here)
    if event is Event.SATISFIED:
        return _give_back(here)
    return _stay(here, "unknown is not free: nothing moves")


def event_of(state: ControllerState, seen: Observation, limits: ControllerLimits) -> Event:
    """First event that holds of an observation; see ``states.Event``."""
    headroom = seen.headroom_bytes
    if headroom is not None and headroom < limits.ram_floor_bytes:
        return Event.BELOW_FLOOR
    if _pressed(seen, limits):
        return Event.PRESSURE
    if state.pressure_s is not None and seen.at_s - state.pressure_s < calm_s(state, limits):
        return Event.CALMING
    if seen.parked or _away(seen, limits.silence_s, 5):
        return Event.SILENT
    warming = seen.batches < WARMUP_BATCHES
    if warming and (state.name is not State.WARMUP or seen.at_s - state.since_s < LONGEST_WARMUP_S):
        return Event.WARMING
    if headroom is None or seen.wait_ratio is None or seen.rate_per_s is None:
        return Event.BLIND
    enough = HUNGRY_AGAIN_RATIO if state.name is State.HOLD else SATISFIED_RATIO
    busy = 0.0 if seen.gpu_shared else seen.gpu_busy_ratio or 0.0
    if seen.wait_ratio < enough or busy >= limits.gpu_busy_ratio:
        return Event.SATISFIED
    return Event.HUNGRY


def calm_s(state: ControllerState, limits: ControllerLimits) -> float:
    """Seconds that pressure must have been gone: more each time it came back soon."""
    return min(LONGEST_CALM_S, limits.calm_s * 2.0 ** max(0, state.pressures - 1))


def _pressed(seen: Observation, limits: ControllerLimits) -> bool:
    """True if headroom, or the kernel's pressure, says that memory is short."""
    headroom, margin_bytes = seen.headroom_bytes, proposals.margin(seen, limits)
    if headroom is not None and headroom < limits.ram_floor_bytes + margin_bytes:
        return True
    # Many loads keep a host's pressure above nothing for hours; it counts where memory is near.
    if (seen.pressure_percent or 0.0) < limits.pressure_percent:
        return False
    return headroom is None or headroom < limits.ram_floor_bytes + 4 * margin_bytes


def _pausing(seen: Observation) -> bool:
    """True if the consumer takes unusually long between two batches.

    Not for long enough to be silent, yet what is seen meanwhile is its pause: processors that fell
    idle because the ring is full, a rate that nobody asked for.
    """
    return _away(seen, PAUSE_S, 2)


def _away(seen: Observation, least_s: float, steps: int) -> bool:
    """True if the consumer wanted nothing for so long, and for so many of its usual steps."""
    if seen.silent_s is None or seen.waiting:
        return False
    return seen.silent_s > max(least_s, steps * (seen.step_s or 0.0))


def _entered(here: proposals.Situation) -> proposals.Situation:
    """The situation in the state that its event leads to, with what is remembered of it."""
    state, seen, limits = here.state, here.seen, here.limits
    name = TRANSITIONS[state.name, here.event]
    changed = name is not state.name
    now = replace(state, name=name, since_s=seen.at_s if changed else state.since_s)
    if here.event in (Event.BELOW_FLOOR, Event.PRESSURE):
        new = state.pressure_s is None or seen.at_s - state.pressure_s > limits.calm_s / 2
        soon = state.pressure_s is not None and seen.at_s - state.pressure_s < QUIET_S
        times = state.pressures if not new else state.pressures + 1 if soon else 1
        now = replace(now, pressure_s=seen.at_s, pressures=times)
    moved = {m: s for m, s in now.moved.items() if seen.at_s - s < limits.hold_off_s}
    trial, rates = now.trial, now.rates
    if name in (State.SHRINK, State.EMERGENCY):
        trial, rates = None, ()
    elif name in (State.PARKED, State.WARMUP):
        # A pause is no evidence: what was seen before it stays, and the change settles anew.
        trial = None if trial is None else replace(trial, since_s=seen.at_s)
    elif trial is None:
        if changed and {name, state.name} == {State.GROW, State.HOLD}:
            rates = ()  # the consumer has changed its pace
        rates = (*rates, *_new_rates(seen))[-KEPT_RATES:]
    return replace(here, state=replace(now, trial=trial, rates=rates, moved=moved))


def _new_rates(seen: Observation) -> tuple[float, ...]:
    """The rate that was not there before, if any; none of a pause."""
    if seen.rate_per_s is None or not seen.rate_is_new or _pausing(seen):
        return ()
    return (seen.rate_per_s,)


def _stay(here: proposals.Situation, rule: str, **own: Any) -> Decision:
    """Nothing moves; ``own``: changes of the policy's memory."""
    return Decision(replace(here.state, **own), here.event, rule)


def _go(
    here: proposals.Situation, knobs: Knobs, rule: str, sign: str = "-", **own: Any
) -> Decision:
    """Go to ``knobs``; ``own``: changes of the policy's memory."""
    changed = {key: pair[0] for key, pair in knobs.changed(here.seen.knobs).items()}
    if not changed:
        return _stay(here, f"{rule}; nothing is left to shrink", **own)
    moved = {**here.state.moved, **{f"{key}{sign}": here.seen.at_s for key in changed}}
    return Decision(replace(here.state, moved=moved, **own), here.event, rule, knobs, changed)


def _shrink(here: proposals.Situation) -> Decision:
    """Decide while memory is short: halve, or wait for the last halving's effect."""
    if here.event is not Event.PRESSURE:
        return _stay(here, "pressure has gone: wait before growing")
    if here.seen.at_s - here.state.shrunk_s < HALVING_S:
        return _stay(here, "halved just now: wait for the effect")
    return _go(here, proposals.halved(here), "close to the floor", shrunk_s=here.seen.at_s)


def _fewer_frames(here: proposals.Situation) -> Knobs:
    """Half of the frame cache at least, and what is missing above the floor and the margin."""
    seen, missing = here.seen, 0
    held = seen.knobs.cache_bytes
    if seen.cache is not None:
        held = min(held, seen.cache.allocated_bytes)
    if (headroom := seen.headroom_bytes) is not None:
        margin_bytes = proposals.margin(seen, here.limits)
        missing = proposals.missing_bytes(headroom, here.limits.ram_floor_bytes, margin_bytes)
    return proposals.lowered_cache(seen.knobs, held, max(missing, held // 2))


def _grow(here: proposals.Situation) -> Decision:
    """Decide while training waits: try one change, the frame cache's included."""
    seen = here.seen
    if not seen.settled or seen.gate_closed:
        return _stay(here, "an earlier change is on its way")
    if _pausing(seen):
        return _stay(here, "training pauses")
    if len(here.state.rates) < MINIMUM_RATES:
        return _stay(here, "too few rates to compare with")
    fewer = proposals.shrunk_cache(seen)
    if fewer is not None and here.rested("cache_bytes-"):
        rule = "files are read again for longer than held frames save: fewer are held"
        return _go(here, fewer, rule, dear_s=seen.at_s)
    dear = fewer is not None or seen.at_s - here.state.dear_s < LONGEST_RETRY_S
    frames = None if dear else proposals.grown_cache(seen, here.limits)
    if frames is not None and here.admits(frames):
        return _go(here, frames, "training waits: the frame cache grows")
    change = proposals.best_growth(here) or proposals.best_cut(here)
    if change is not None:
        return _try(here, change)
    missing = "" if here.stages else ": no stage is measured"
    return _stay(here, f"no change is predicted to pay{missing}")


def _give_back(here: proposals.Situation) -> Decision:
    """Decide while training does not wait: give back one thing."""
    early = here.seen.at_s - here.state.since_s < GIVE_BACK_AFTER_S
    if early or len(here.state.rates) < MINIMUM_RATES:
        return _stay(here, "training does not wait")
    change = proposals.best_return(here) if here.seen.settled else None
    if change is None:
        return _stay(here, "training does not wait, and nothing is too much")
    return _try(here, change)


def _try(here: proposals.Situation, change: proposals.Change) -> Decision:
    """Make a change on trial."""
    trial = Trial(
        knob=change.move,
        before=here.seen.knobs,
        changes=change.changes,
        since_s=here.seen.at_s,
        hungry=here.event is Event.HUNGRY,
        context=here.context,
        rates_before=here.state.rates,
    )
    answer = _go(here, change.knobs, change.rule, change.move[-1], trial=trial, rates=())
    return replace(
        answer, changes=change.changes, gain_per_s=change.gain_per_s, price_bytes=change.price_bytes
    )


def _verify(here: proposals.Situation, trial: Trial) -> Decision:
    """Compare what a change did with what it was made for; keep it, or take it back."""
    seen = here.seen
    if any(seen.knobs.flat().get(key) != to for key, to in trial.changes.items()):
        return _stay(here, "somebody else moved the knob: no verdict", trial=None, rates=())
    if not seen.settled or seen.at_s - trial.since_s < SETTLE_S:
        return _stay(here, "the change settles")
    if trial.growing and here.event is Event.SATISFIED:
        return _kept(here, trial)
    if not trial.hungry and here.event is Event.HUNGRY:
        return _reverted(here, trial, Verdict.LOST)
    rates = _new_rates(seen)
    if not rates:
        return _stay(here, "no new rate to judge by")
    trial = replace(trial, rates_after=(*trial.rates_after, *rates))
    here = replace(here, state=replace(here.state, trial=trial))
    if trial.hungry:
        verdict = judge(trial.rates_before, trial.rates_after, growing=trial.growing)
    else:  # its rate is the consumer's: that training does not wait is the whole proof
        verdict = Verdict.PAID if len(trial.rates_after) >= LOOKS_GIVEN_BACK else Verdict.UNDECIDED
    if verdict is Verdict.UNDECIDED:
        return _stay(here, "the change is being watched")
    return _kept(here, trial) if verdict is Verdict.PAID else _reverted(here, trial, verdict)


def _kept(here: proposals.Situation, trial: Trial) -> Decision:
    """End a trial whose change paid; the change stays."""
    failures = {move: one for move, one in here.state.failures.items() if move != trial.knob}
    rates = trial.rates_after[-KEPT_RATES:]
    kept = _stay(here, "the change paid: kept", trial=None, rates=rates, failures=failures)
    return replace(kept, verdict=Verdict.PAID)


def _reverted(here: proposals.Situation, trial: Trial, verdict: Verdict) -> Decision:
    """End a trial whose change did not pay: go back, and let the knob rest."""
    before = here.state.failures.get(trial.knob)
    times = 1 if before is None else before.times + 1
    rest_s = min(LONGEST_RETRY_S, here.limits.retry_s * 2.0 ** (times - 1))
    failure = Failure(here.seen.at_s + rest_s, times, trial.context)
    failures = {**here.state.failures, trial.knob: failure}
    own = {"trial": None, "rates": (), "failures": failures}
    flat = trial.before.flat()
    common = {key: flat[key] for key in trial.changes if key in flat}
    # Without values of their own that some datasets did not have before.
    back = here.legal(common, without=trial.changes.keys() - flat.keys())
    if back is None or not (trial.growing or here.admits(back)):
        rule = "the change did not pay, and cannot be taken back: memory"
        return replace(_stay(here, rule, **own), verdict=verdict)
    rule = f"the change did not pay ({verdict.value}): taken back and remembered"
    sign = "-" if trial.growing else "+"
    return replace(_go(here, back, rule, sign, **own), verdict=verdict)


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
        growing: whether the change took memory or threads.
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
