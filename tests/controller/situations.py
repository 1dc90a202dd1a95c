"""Observations by hand and by Hypothesis, and what must hold of any policy: shared by the tests."""

import dataclasses
from types import ModuleType
from typing import Any

from hypothesis import strategies as st

from autoloader.controller.admission import Prices, price_change
from autoloader.controller.limits import ControllerLimits
from autoloader.controller.observation import Observation
from autoloader.controller.proposals import margin
from autoloader.controller.states import ControllerState, State
from autoloader.host.units import GIB, MIB
from autoloader.spec.knobs import KnobLimits, Knobs
from autoloader.telemetry.statistics import StageMoment

SHARDS = {"a": 8, "b": 4}
FLOOR = 2 * GIB
PRICES = Prices(slot_bytes=20 * MIB, record_bytes={"a": 3 * MIB, "b": MIB})


def limits(**own: Any) -> ControllerLimits:
    """Limits of a pipeline over datasets a and b on 8 processors."""
    least = {
        "ring_slots": 4, "decode_threads": 1, "queue_samples": 1, "stream_prefetch": 0,
        "io_threads": 1, "read_ahead": 1,
    }  # fmt: skip
    values: dict[str, Any] = {
        "ram_floor_bytes": FLOOR,
        "knobs": KnobLimits(cpus=8, shards=SHARDS, batch_bytes=20 * MIB),
        "minimum": Knobs.build(least),
    }
    return ControllerLimits(**{**values, **own})


def stage(
    name: str, workers: int, service_s: float | None, dataset: str = "", share: float = 1.0,
    busy_ratio: float | None = 0.95,
) -> StageMoment:  # fmt: skip
    bound = workers / (service_s * share) if service_s else None
    return StageMoment(name, dataset, workers, service_s, busy_ratio, bound, share)


def seen(at_s: float = 100.0, **own: Any) -> Observation:
    """A hungry consumer, decoding the bottleneck, plenty of memory and processors."""
    knobs = own.pop("knobs", None) or Knobs.build({"reader": "indexed", "decode_threads": 2})
    values: dict[str, Any] = {
        "batches": 100,
        "waiting": True,
        "rate_per_s": 400.0,
        "wait_ratio": 0.5,
        "demand_per_s": 800.0,
        "silent_s": 0.0,
        "step_s": 0.1,
        "occupancy_ratio": 0.1,
        "stages": (stage("decode", knobs.decode_threads, 0.005),
                   stage("read", 4, 0.001, busy_ratio=0.1)),
        "idle_cpus": 5.0,
        "headroom_bytes": FLOOR + 4 * GIB,
        "growth_bytes": 0,
        "prices": PRICES,
    }  # fmt: skip
    return Observation(at_s, knobs, **{**values, **own})


def crowded(**own: Any) -> Observation:
    """Two processors, two decode threads or more, all busy, and a neighbour that always runs."""
    threads = own["knobs"].decode_threads if "knobs" in own else 2
    values: dict[str, Any] = {
        "idle_cpus": 0.0,
        "others_cpus": 2 / (threads + 1),
        "stages": (stage("decode", threads, threads / 400.0),
                   stage("read", 4, 0.001, busy_ratio=0.1)),
    }  # fmt: skip
    return seen(**{**values, **own})


def two_processors() -> ControllerLimits:
    return limits(knobs=KnobLimits(cpus=2, shards=SHARDS, batch_bytes=20 * MIB))


def growing(at_s: float = 90.0) -> ControllerState:
    """A state in which a change may be begun."""
    return ControllerState(State.GROW, since_s=at_s, rates=(400.0, 401.0, 399.0, 400.0, 402.0))


def holding(at_s: float = 50.0) -> ControllerState:
    return ControllerState(State.HOLD, since_s=at_s, rates=(400.0,) * 6)


REQUIRED = ("headroom_bytes", "rate_per_s", "wait_ratio", "stages")


def without(observation: Observation, name: str) -> Observation:
    """The observation with one kind of evidence gone."""
    gone: Any = () if name == "stages" else None
    return dataclasses.replace(observation, **{name: gone})


def grew(before: Knobs, after: Knobs | None) -> bool:
    """Whether any knob went up."""
    if after is None:
        return False
    return any(
        isinstance(new, int) and new > (old if old is not None else _common(before, key))
        for key, (new, old) in after.changed(before).items()
    )


def _common(knobs: Knobs, key: str) -> int:
    return int(getattr(knobs, key.rpartition(".")[2]))


def check_answer(
    policy: ModuleType, state: ControllerState, here: Observation, held: ControllerLimits
) -> Any:
    """What must hold of every answer, whatever was asked; returns it."""
    answer = policy.decide(state, here, held)
    headroom = here.headroom_bytes
    if answer.knobs is None:
        return answer
    answer.knobs.check(held.knobs)  # no illegal knobs
    if grew(here.knobs, answer.knobs):
        assert headroom is not None, "grew on unknown headroom"
        assert here.rate_per_s is not None
        assert here.wait_ratio is not None
        price = price_change(here.knobs, answer.knobs, held.knobs.shards, here.prices)
        left = headroom - held.ram_floor_bytes - margin(here, held)
        assert price <= max(0, left), "an admitted change crosses the floor"
        assert not here.parked, "grew while parked"
    if headroom is not None and headroom < held.ram_floor_bytes:
        assert answer.knobs == held.least(here.knobs), "below the floor, and not the minimum"
    return answer


# --- by Hypothesis --------------------------------------------------------------------------------


@st.composite
def knob_sets(draw: st.DrawFn) -> Knobs:
    cycle = draw(st.integers(1, 4))
    return Knobs.build(
        {
            "reader": draw(st.sampled_from(["indexed", "stream"])),
            "ring_slots": draw(st.integers(4, 64)),
            "decode_threads": draw(st.integers(1, 16)),
            "io_threads": draw(st.integers(1, 32)),
            "read_ahead": draw(st.integers(1, 64)),
            "queue_samples": draw(st.integers(1, 512)),
            "stream_prefetch": draw(st.integers(0, 4)),
            "parse_parallel_calls": draw(st.integers(1, 4)),
            "cycle_length": cycle,
            "num_parallel_calls": draw(st.integers(1, cycle)),
        }
    )


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


@st.composite
def observations(draw: st.DrawFn, at_s: float = 100.0) -> Observation:
    knobs = draw(knob_sets())
    rates = st.floats(0.0, 1e5)
    ratios = st.floats(0.0, 1.0)
    services = maybe(st.floats(1e-5, 0.1))
    busy = draw(maybe(ratios))
    stages = [stage("decode", knobs.decode_threads, draw(services), busy_ratio=busy)]
    if knobs.reader == "indexed":
        stages.append(stage("read", knobs.io_threads, draw(services), busy_ratio=None))
    else:
        stages += [stage("read", 1, draw(services), name, 0.5, None) for name in SHARDS]
    return Observation(
        at_s, knobs, parked=draw(st.integers(0, 9)) == 0, settled=draw(st.integers(0, 9)) > 0,
        batches=draw(st.sampled_from([0, 5, 100, 100, 100])), waiting=draw(st.booleans()),
        rate_per_s=draw(maybe(rates)), rate_is_new=draw(st.booleans()),
        wait_ratio=draw(maybe(ratios)), demand_per_s=draw(maybe(rates)),
        silent_s=draw(maybe(st.floats(0.0, 60.0))), occupancy_ratio=draw(maybe(ratios)),
        stages=tuple(stages), idle_cpus=draw(maybe(st.floats(0.0, 8.0))),
        others_cpus=draw(maybe(st.floats(0.0, 8.0))),
        headroom_bytes=draw(maybe(st.integers(0, 8 * GIB))), growth_bytes=draw(st.integers(0, GIB)),
        pressure_percent=draw(maybe(st.floats(0.0, 100.0))), gpu_busy_ratio=draw(maybe(ratios)),
        prices=PRICES,
    )  # fmt: skip
