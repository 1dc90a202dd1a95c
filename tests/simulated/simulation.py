"""Runs the real policy and the real reflex over a simulated plant.

The order of a running loader: the reflex ten times a second, the policy once.

Not here: the plant (``plant``).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from autoloader.controller.decisions import DecisionLog
from autoloader.controller.limits import ControllerLimits
from autoloader.controller.observation import Observation
from autoloader.controller.policy import Decision, decide
from autoloader.controller.reflex import Action, ReflexState, react
from autoloader.controller.states import ControllerState, State
from autoloader.spec.knobs import Knobs
from simulated.plant import STEP_S, Plant

STEPS_PER_DECISION = 10
Decide = Callable[[ControllerState, Observation, ControllerLimits], Decision]


@dataclass(slots=True)
class Trace:
    """What happened.

    Attributes:
        observations, decisions: of each policy step.
        headroom_bytes: after each 0.1 s.
        own_breaches: times the loader itself took the headroom below the floor.
        waits: (seconds, seconds waited so far) at each policy step.
        restarts: children that the reflex restarted.
        final: the policy's state at the end.
    """

    observations: list[Observation] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    headroom_bytes: list[int] = field(default_factory=list)
    own_breaches: list[float] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    restarts: int = 0
    final: ControllerState = field(default_factory=ControllerState)

    def wait_ratio(self, since_s: float, until_s: float = float("inf")) -> float:
        """Share of the time between two times that the consumer waited."""
        inside = [pair for pair in self.waits if since_s <= pair[0] <= until_s]
        if len(inside) < 2:
            return 0.0
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

    def changes(self) -> list[tuple[float, Decision]]:
        """Decisions that moved something, and when."""
        pairs = zip(self.observations, self.decisions, strict=True)
        return [(seen.at_s, made) for seen, made in pairs if made.knobs is not None]

    def states(self) -> set[State]:
        """States that were entered."""
        return {made.state.name for made in self.decisions}


def simulate(
    plant: Plant,
    seconds: float,
    *,
    limits: ControllerLimits | None = None,
    policy: Decide | None = decide,
    disturb: Callable[[Plant], None] | None = None,
    log: DecisionLog | None = None,
    state: ControllerState | None = None,
) -> Trace:
    """Let simulated time pass.

    Args:
        plant: the machine; goes on from where it is.
        seconds: simulated.
        limits: the controller's; default ``plant.limits()``.
        policy: decides; ``None`` keeps the knobs still (the reflex works all the same).
        disturb: called before every 0.1 s; may change ``plant.model``.
        log: written to.
        state: the policy's state to go on from.
    """
    limits = limits or plant.limits()
    trace, reflex = Trace(), ReflexState()
    state = state or ControllerState(since_s=plant.now_s)
    if log is not None:
        log.start(limits)
    floor = limits.ram_floor_bytes
    for number in range(1, round(seconds / STEP_S) + 1):
        if disturb is not None:
            disturb(plant)
        before, held = plant.headroom_bytes, plant.held_bytes
        plant.step()
        if plant.headroom_bytes < floor <= before and plant.held_bytes > held:
            trace.own_breaches.append(plant.now_s)
        trace.headroom_bytes.append(plant.headroom_bytes)
        reflex = _reflex(plant, reflex, limits, trace)
        if number % STEPS_PER_DECISION == 0 and policy is not None:
            seen = plant.observe()
            answer = policy(state, seen, limits)
            if log is not None:
                log.decision(state, seen, answer)
            state = answer.state
            if answer.knobs is not None:
                plant.apply(answer.knobs)
            trace.observations.append(seen)
            trace.decisions.append(answer)
        if number % STEPS_PER_DECISION == 0:
            trace.waits.append((plant.now_s, plant.waited_s))
    trace.final = state
    return trace


def _reflex(
    plant: Plant, state: ReflexState, limits: ControllerLimits, trace: Trace
) -> ReflexState:
    reaction = react(
        state,
        at_s=plant.now_s,
        headroom_bytes=plant.headroom_bytes,
        growth_bytes=plant.growth.p99_bytes,
        ready_batches=plant.ready_batches,
        surplus_bytes=plant.surplus_bytes,
        limits=limits,
    )
    plant.admit = reaction.admit
    if reaction.action in (Action.DROP, Action.RESTART):
        least: Knobs = limits.least(plant.knobs)
        plant.apply(least)
        plant.drop()
        trace.restarts += reaction.action is Action.RESTART
    return reaction.state
