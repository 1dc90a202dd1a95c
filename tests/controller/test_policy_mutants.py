"""Mutants of the policy, made by hand: each must be caught by a check that the true one passes.

A mutant is one text replacement in one module of the policy. The mutated modules are executed anew
beside the real ones, and put through the checks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from situations import (
    FLOOR,
    REQUIRED,
    check_answer,
    crowded,
    grew,
    growing,
    holding,
    limits,
    seen,
    stage,
    two_processors,
    without,
)

import autoloader.controller.policy
from autoloader.controller.observation import Reading
from autoloader.errors import KnobError
from autoloader.knobs import Knobs
from autoloader.units import MIB

# ruff: noqa: E501 a mutant stands on one line

HERE = Path(autoloader.controller.__file__).parent
ORDER = ("observation", "admission", "states", "verification", "limits", "proposals", "policy")
HELD = limits()

MUTANTS: list[tuple[str, str, str]] = [
    ("observation", "0.0 <= reading.age_s <= oldest_s", "0.0 <= reading.age_s"),
    ("observation", "0.0 <= reading.age_s <= oldest_s", "reading.age_s <= oldest_s"),
    ("observation", "not math.isfinite(reading.value)", "False"),
    ("admission", "if headroom_bytes is None:\n        return False", "if headroom_bytes is None:\n        return True"),
    ("admission", "headroom_bytes - ram_floor_bytes - margin_bytes", "headroom_bytes - ram_floor_bytes"),
    ("admission", "headroom_bytes - ram_floor_bytes - margin_bytes", "headroom_bytes - margin_bytes"),
    ("admission", "left * min(1.0, max(0.0, budget_ratio))", "left"),
    ("admission", "price_bytes > room_bytes", "price_bytes > room_bytes + 2**40"),
    ("admission", "return max(0, grown + math.ceil(twice", "return max(0, grown + 0 * math.ceil(twice"),
    ("states", "_E.BELOW_FLOOR: (_S.EMERGENCY,) * 6", "_E.BELOW_FLOOR: (_S.SHRINK,) * 6"),
    ("states", "_E.SILENT: (_S.PARKED,) * 6", "_E.SILENT: (_S.HOLD,) * 6"),
    ("states", "_E.BLIND: (_S.WARMUP, _S.HOLD", "_E.BLIND: (_S.WARMUP, _S.GROW"),
    ("states", "_E.WARMING: (_S.WARMUP,) * 6", "_E.WARMING: (_S.GROW,) * 6"),
    ("states", "_E.CALMING: (_S.WARMUP, _S.HOLD, _S.HOLD, _S.SHRINK", "_E.CALMING: (_S.WARMUP, _S.HOLD, _S.HOLD, _S.GROW"),
    ("states", "_E.HUNGRY: (_S.GROW,) * 6", "_E.HUNGRY: (_S.WARMUP, *(_S.GROW,) * 5)"),
    ("verification", "return Verdict.NOTHING if len(after)", "return Verdict.PAID if len(after)"),
    ("verification", "<= SIGNIFICANCE:\n        return Verdict.LOST", "<= SIGNIFICANCE:\n        return Verdict.PAID"),
    ("verification", "chance_of_more(before, after) <= SIGNIFICANCE", "True"),
    ("verification", "if total >= observed", "if total > observed"),
    ("proposals", "if idle is None:\n            continue", "idle = 8.0 if idle is None else idle"),
    ("proposals", "if idle < IDLE_CPUS:", "if False:"),
    ("proposals", "others is None or others < OTHERS_CPUS", "others is None"),
    ("proposals", "idle is None or idle >= IDLE_CPUS or others is None", "idle is None or others is None"),
    ("proposals", "more = to / (to + runnable) / share", "more = to / threads"),
    ("proposals", "min(LARGEST_STEP, threads), 2 * limits.knobs.cpus", "min(LARGEST_STEP, threads), 99"),
    ("proposals", "or _others_share(seen, limits) is not None:", "or False:"),
    ("proposals", "price = price_change(seen.knobs, knobs, limits.knobs.shards, seen.prices)\n        if admits(", "price = price_change(seen.knobs, knobs, limits.knobs.shards, seen.prices)\n        if True or admits("),
    ("proposals", "min(LARGEST_STEP, need - workers)", "need - workers"),
    ("proposals", "wanted.check(limits.knobs)", "pass"),
    ("proposals", "if not _may_grow(knob, context, state, seen, limits):\n            continue", "pass"),
    ("proposals", "max(limits.margin_bytes, int(growth or 0))", "limits.margin_bytes"),
    ("proposals", "if limits.order_fixed and any(", "if False and any("),
    ("proposals", "max(found, key=lambda c: c.gain_per_s", "min(found, key=lambda c: c.gain_per_s"),
    ("proposals", "max(least[key], value // 2)", "value // 2"),
    ("proposals", "min(target, _ceiling(seen, limits)) - rate", "target - rate"),
    ("policy", "if seen.parked or _silent(seen, limits):", "if seen.parked:"),
    ("policy", "if _pausing(seen, limits):\n        return Decision", "if False:\n        return Decision"),
    ("policy", "if _pausing(seen, limits):\n        return None", "if False:\n        return None"),
    ("policy", "_away(seen, limits, PAUSE_S, 2)", "_away(seen, limits, PAUSE_S, 0)"),
    ("policy", "return _away(seen, limits, PAUSE_S, 2)", "return _away(replace(seen, waiting=False), limits, PAUSE_S, 2)"),
    ("policy", "if seen.parked or _silent(seen, limits):", "if _silent(seen, limits):"),
    ("policy", "headroom is not None and headroom < limits.ram_floor_bytes:\n        return Event.BELOW_FLOOR", "False:\n        return Event.BELOW_FLOOR"),
    ("policy", "if headroom is None or waits is None or rate is None:", "if waits is None or rate is None:"),
    ("policy", "if waits < enough or _gpu_is_the_bottleneck(seen, limits):", "if waits < enough:"),
    ("policy", "busy is not None and not seen.gpu_shared and", "busy is not None and"),
    ("policy", "SATISFIED_RATIO = 0.01", "SATISFIED_RATIO = 0.0"),
    ("policy", "if now.trial is not None:\n        return _verify(now, seen, limits, event)", "pass"),
    ("policy", "failures = (*(f for f in now.failures if f.knob != trial.knob), failure)", "failures = now.failures"),
    ("policy", "back is None or not (trial.growing or admitted(seen, back, limits))", "back is None"),
    ("policy", "if not seen.settled or seen.gate_closed:", "if False:"),
    ("policy", "_go(now, seen, event, limits.least(seen.knobs)", "_go(now, seen, event, halved(seen, limits)"),
    ("policy", "limits.calm_s * 2.0 ** max(0, state.pressures - 1)", "limits.calm_s"),
    ("policy", "if not trial.hungry and event is Event.HUNGRY:", "if False:"),
    ("policy", "if seen.at_s - now.shrunk_s < HALVING_S:", "if False:"),
]  # fmt: skip


@contextmanager
def policy_with(mutant: tuple[str, str, str] | None) -> Iterator[ModuleType]:
    """The policy, made anew from its sources with one of them mutated."""
    names = [f"autoloader.controller.{name}" for name in ORDER]
    kept = {name: sys.modules[name] for name in names}
    try:
        for name, full in zip(ORDER, names, strict=True):
            source = (HERE / f"{name}.py").read_text(encoding="utf-8")
            if mutant is not None and mutant[0] == name:
                assert source.count(mutant[1]) == 1, f"{mutant[1]!r} is not there once"
                source = source.replace(mutant[1], mutant[2])
            elif name in ("observation", "states", "limits"):
                continue  # shared classes, so that observations made outside are theirs
            module = ModuleType(full)
            module.__file__ = str(HERE / f"{name}.py")
            sys.modules[full] = module
            if mutant is not None and mutant[0] == name and name in ("observation", "states"):
                # Only what is mutated is new; the classes stay the ones that tests build.
                vars(module).update(vars(kept[full]))
                _execute_functions(source, module, kept[full])
            else:
                exec(compile(source, module.__file__, "exec"), vars(module))
        yield sys.modules["autoloader.controller.policy"]
    finally:
        sys.modules.update(kept)


def _execute_functions(source: str, module: ModuleType, real: ModuleType) -> None:
    exec(compile(source, str(real.__file__), "exec"), vars(module))
    for name, value in vars(real).items():
        if isinstance(value, type) and value.__module__ == real.__name__:
            setattr(module, name, value)
    if hasattr(real, "TRANSITIONS"):
        states, events = {s.value: s for s in real.State}, {e.value: e for e in real.Event}
        module.TRANSITIONS = {  # type: ignore[attr-defined]
            (states[s.value], events[e.value]): states[to.value]
            for (s, e), to in module.TRANSITIONS.items()
        }


# --- checks: what any policy of ours must do ------------------------------------------------------


def _decodes(policy: ModuleType, **own: object) -> dict[str, int]:
    return dict(policy.decide(growing(), seen(**own), HELD).changes)


def check_growth(policy: ModuleType) -> None:
    assert _decodes(policy) == {"decode_threads": 4}
    assert _decodes(policy, demand_per_s=Reading(1e6)) == {"decode_threads": 6}
    assert _decodes(policy, demand_per_s=Reading(401.0)) == {}
    from autoloader.controller.states import ControllerState, State

    fresh_state = ControllerState(State.WARMUP, since_s=99.0, rates=growing().rates)
    assert grew(seen().knobs, policy.decide(fresh_state, seen(), HELD).knobs)


def check_unknown_never_grows(policy: ModuleType) -> None:
    for name in REQUIRED:
        for stale in (True, False):
            here = without(seen(), name, stale=stale)
            answer = policy.decide(growing(), here, HELD)
            assert not grew(here.knobs, answer.knobs), name
            assert answer.state.name.value != "GROW" or name == "stages"
    for idle in (None, Reading(5.0, 60.0), Reading(5.0, -1.0), Reading(float("inf")), Reading(0.0)):
        assert "decode_threads" not in _decodes(policy, idle_cpus=idle)
    warming = policy.decide(growing(), seen(batches=3), HELD)
    assert (warming.knobs, warming.state.name.value) == (None, "WARMUP")
    admits = sys.modules["autoloader.controller.admission"].admits
    assert not admits(1, headroom_bytes=None, ram_floor_bytes=0, margin_bytes=0)


def check_noise(policy: ModuleType) -> None:
    del policy
    verification = sys.modules["autoloader.controller.verification"]
    # All three above all five: one of 56 ways to draw three of eight.
    assert verification.chance_of_more([1, 2, 3, 4, 5], [6, 7, 8]) == 1 / 56
    assert verification.chance_of_more([1, 1], [1, 1]) == 1.0


def check_memory(policy: ModuleType) -> None:
    for state in (growing(), holding()):
        large = Knobs.build({"reader": "indexed", "ring_slots": 32, "read_ahead": 9})
        here = seen(knobs=large, headroom_bytes=Reading(FLOOR - 1.0))
        answer = check_answer(policy, state, here, HELD)
        assert answer.state.name.value == "EMERGENCY"
        assert answer.knobs == HELD.least(here.knobs)
    for above in (5, 100, 200, 257, 260, 263, 300):
        here = seen(headroom_bytes=Reading(FLOOR + above * MIB))
        check_answer(policy, growing(), here, HELD)
    fast = seen(headroom_bytes=Reading(FLOOR + 400.0 * MIB), growth_bytes=Reading(500.0 * MIB))
    answer = check_answer(policy, growing(), fast, HELD)
    assert answer.state.name.value == "SHRINK"
    changed = dict(answer.changes)
    assert changed == {"read_ahead": 1, "ring_slots": 4}
    again = replace(fast, at_s=fast.at_s + 1.0)
    assert policy.decide(answer.state, again, HELD).knobs is None
    small = limits(budget_ratio=0.01)
    room = seen(headroom_bytes=Reading(FLOOR + 300.0 * MIB))
    assert policy.decide(growing(), room, small).knobs is None
    assert policy.decide(growing(), replace(room, room_bytes=1.0), HELD).knobs is None


def check_streams_are_priced_twice(policy: ModuleType) -> None:
    admission = sys.modules["autoloader.controller.admission"]
    before = Knobs.build({"reader": "stream"})
    after = Knobs.build({"cycle_length": 2}, base=before)
    prices = admission.Prices(record_bytes={"a": 10 * MIB})
    price = admission.price_change(before, after, {"a": 8}, prices)
    assert price >= admission.price_knobs(after, {"a": 8}, prices) - 4 * MIB


def check_calm(policy: ModuleType) -> None:
    state, waits, at = growing(), [], 100.0
    for _ in range(2):
        state = policy.decide(state, seen(at, headroom_bytes=Reading(FLOOR + 1.0)), HELD).state
        gone = at
        while state.name.value != "GROW" and at - gone < 100:
            at += 1.0
            state = policy.decide(state, seen(at), HELD).state
        waits.append(at - gone)
    assert waits == [10.0, 20.0]


def check_consumer(policy: ModuleType) -> None:
    quiet = seen(waiting=False, silent_s=Reading(30.0), wait_ratio=Reading(0.0))
    busy = seen(waiting=False, silent_s=Reading(30.0), wait_ratio=Reading(0.5))
    for here in (quiet, busy, seen(parked=True)):
        answer = policy.decide(holding(10.0), here, HELD)
        assert answer.state.name.value == "PARKED"
        assert answer.knobs is None
    assert policy.decide(growing(), seen(wait_ratio=Reading(0.005)), HELD).knobs is None
    loaded = {"gpu_busy_ratio": Reading(0.99)}
    assert policy.decide(growing(), seen(**loaded), HELD).knobs is None
    assert policy.decide(growing(), seen(gpu_shared=True, **loaded), HELD).knobs is not None


def check_pauses(policy: ModuleType) -> None:
    pause = {"waiting": False, "silent_s": Reading(1.2)}
    assert policy.decide(growing(), seen(**pause), HELD).knobs is None
    assert policy.decide(growing(), seen(**pause), HELD).state.rates == growing().rates
    for steps in ({**pause, "waiting": True}, {**pause, "step_s": Reading(1.0)}):
        assert policy.decide(growing(), seen(**steps), HELD).knobs is not None


def check_trials(policy: ModuleType) -> None:
    for rates, keeps in (
        ((790, 795, 792), True), ((401, 399, 400, 402, 405, 398, 411, 400), False),
        ((300, 301, 299), False), ((420, 380, 440, 390, 430, 385, 410, 395), False),
    ):  # fmt: skip
        state = growing()
        answer = policy.decide(state, seen(100.0), HELD)
        knobs, state = answer.knobs, answer.state
        for n, rate in enumerate((1.0, *map(float, rates)), start=1):
            here = seen(100.0 + n, knobs=knobs, rate_per_s=Reading(rate if n > 1 else 400.0))
            answer = policy.decide(state, here, HELD)
            state = answer.state
            if answer.verdict is not None:
                break
            assert answer.knobs is None, "two changes at a time"
        assert answer.verdict is not None
        assert (answer.knobs is None) == keeps
        if not keeps:
            state = replace(state, rates=growing().rates)
            again = policy.decide(state, seen(here.at_s + 20), HELD)
            assert "decode_threads" not in again.changes
    for own in ({"settled": False}, {"gate_closed": True}):
        assert policy.decide(growing(), seen(**own), HELD).knobs is None


def check_given_back(policy: ModuleType) -> None:
    knobs = Knobs.build({"reader": "indexed", "ring_slots": 32, "decode_threads": 2})
    calm = {"wait_ratio": Reading(0.0), "waiting": False, "occupancy_ratio": Reading(0.9)}
    first = policy.decide(holding(), seen(100.0, knobs=knobs, **calm), HELD)
    assert first.changes == {"ring_slots": 16}
    hungry = seen(103.0, knobs=first.knobs, wait_ratio=Reading(0.3))
    assert policy.decide(first.state, hungry, HELD).knobs == knobs
    tight = replace(hungry, headroom_bytes=Reading(FLOOR + 300.0 * MIB))
    assert policy.decide(first.state, tight, HELD).knobs is None


def check_guards(policy: ModuleType) -> None:
    knobs = Knobs.build({"reader": "indexed", "decode_threads": 16})
    slow = (stage("decode", 16, 0.04), stage("read", 4, 0.001, busy_ratio=Reading(0.1)))
    check_answer(policy, growing(), seen(knobs=knobs, stages=slow), HELD)
    stream = Knobs.build({"reader": "stream", "decode_threads": 4})
    parts = tuple(stage("read", 1, 0.005, dataset=n, share=0.5) for n in "ab")
    here = seen(knobs=stream, stages=parts)
    full = limits(knobs=replace(HELD.knobs, shards={"a": 1, "b": 1}))
    check_answer(policy, growing(), here, full)
    fixed = policy.decide(growing(), here, limits(order_fixed=True))
    assert not any("cycle_length" in key for key in fixed.changes)
    wide = Knobs.build({"reader": "stream", "cycle_length": 4, "ring_slots": 4})
    idle = tuple(stage("read", 1, 1e-5, dataset=n, share=0.5) for n in "ab")
    calm = {"wait_ratio": Reading(0.0), "occupancy_ratio": Reading(0.9), "stages": idle}
    for held, moves in ((HELD, True), (limits(order_fixed=True), False)):
        answer = policy.decide(holding(), seen(100.0, knobs=wide, **calm), held)
        assert ("cycle_length" in answer.changes) == moves


def check_others(policy: ModuleType) -> None:
    two = two_processors()
    kept = [Knobs.build({"reader": "indexed", "decode_threads": n}) for n in (2, 3, 4)]

    def changes(**own: object) -> dict[str, int]:
        return dict(policy.decide(growing(), crowded(**own), two).changes)

    assert changes() == {"decode_threads": 4}
    assert policy.decide(growing(), crowded(), two).gain_per_s < 100.0
    assert changes(knobs=kept[1]) == {"decode_threads": 4}
    assert "decode_threads" not in changes(others_cpus=Reading(0.1))
    assert "decode_threads" not in changes(knobs=kept[2])
    # A little waiting, which no buffer is predicted to mend.
    little = {"knobs": kept[2], "wait_ratio": Reading(0.1)}
    assert changes(**little) == {}
    little["knobs"] = Knobs.build({"reader": "stream", "decode_threads": 4})
    for gone in ({"others_cpus": Reading(0.0)}, {"idle_cpus": Reading(0.6)}):
        assert changes(**little, **gone) == {"decode_threads": 2}


CHECKS: list[Callable[[ModuleType], None]] = [
    check_growth, check_unknown_never_grows, check_memory, check_streams_are_priced_twice,
    check_calm, check_noise, check_consumer, check_trials, check_given_back, check_guards,
    check_others, check_pauses,
]  # fmt: skip


def test_the_true_policy_passes_every_check() -> None:
    with policy_with(None) as policy:
        for check in CHECKS:
            check(policy)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{m[0]}: {m[2][:40]}" for m in MUTANTS])
def test_a_mutant_is_caught(mutant: tuple[str, str, str]) -> None:
    with policy_with(mutant) as policy:
        for check in CHECKS:
            try:
                check(policy)
            except (AssertionError, KnobError):  # a wrong answer, or one that is no set of knobs
                return
    raise AssertionError(f"a policy with {mutant[2]!r} in {mutant[0]} passes everything")


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= 20
