"""Holds a run's record against the promises of the controller.

Theory of operation. Waiting is the trainer's own account, batch by batch. Memory is the sampler's.
The loader is to blame for a moment below the floor when headroom would be at the floor or above it
had the loader not grown since headroom was last at floor + margin or above, and it grew by more
than the two batches that always pass; otherwise others have crossed it. What is within half a
second of a crossing by others is theirs, and so is what follows it until headroom is back. A
trainer that computes nothing waits all the time, and how long for a batch depends on the minute:
such scenarios are held against static knobs by pairs of turns (``bench.control.pairs``).
Reversals are read off the decision log: a knob that turned round within its hold-off, a try's own
take-back and forced shrinks left out, since those are one move and no choice.

Not here: what is recorded (``bench.control.runner``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.control.memory import MIB
from bench.control.scenario import Scenario
from bench.control.surplus import BACK_S, given_back, pinned_bytes, told

MARGIN_BYTES = 256 * MIB
HOLD_OFF_S = 15.0
SETTLES_S = 60.0
WAIT_FACTOR = 1.1
ENOUGH_RATIO = 0.01
"""Waits below it are what the law calls none."""
SPAN_S = 5.0
STEP_S = 1.0
CPU_RATIO = 0.01
AT_MINIMUM_S = 1.0
LEAST_SLOTS = 4
PASSING_BATCHES = 2
PASSING_RUN_BYTES = 16 * MIB
SAME_STRETCH_S = 1.0
AT_ONCE_S = 0.5


@dataclass(frozen=True, slots=True)
class Check:
    """One promise: what was found, what was wanted, and whether it was met (``None``: unknown)."""

    name: str
    found: str
    wanted: str
    met: bool | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


def judge(
    scenario: Scenario, record: Mapping[str, Any], best: Mapping[str, Any] | None
) -> list[Check]:
    """Every check that this scenario has.

    Args:
        scenario: what happened.
        record: of ``runner.perform``.
        best: the best static setting's turn under the conditions that lasted; ``None``: none was
            asked, since next to nothing was waited, or there is no search.
    """
    result = record["result"]
    if result is None or record["first_s"] is None or not record["alive"]:
        return [Check("finished", record["said"][-300:], "to the end", False)]
    decisions = [json.loads(line) for line in record["decisions"]]
    checks = [
        *_exact(result["exact"]),
        Check("killed for memory", str(record["oom_kills"]), "0", record["oom_kills"] == 0),
        _floor(scenario, record, decisions),
        *_frames(scenario, record, decisions),
        _reversals(decisions),
        _replayed(record["decisions"]),
        _cost(record),
        *_waits(scenario, record, best),
    ]
    if scenario.states:
        checks.append(_states(scenario, decisions))
    if scenario.at_minimum:
        checks += _minimum(scenario, record, decisions)
    if scenario.own_meminfo:
        checks.append(_blind(record, decisions))
    if scenario.gives_back:
        checks.append(_given_back(scenario, record, decisions))
    return checks


def _exact(exact: Mapping[str, int]) -> list[Check]:
    return [
        Check("nothing twice", f"{exact['twice']} of {exact['samples']}", "0", exact["twice"] == 0),
        Check(
            "nothing lost",
            f"{exact['incomplete']} of {exact['passes']} passes",
            "0",
            exact["incomplete"] == 0 if exact["passes"] else None,
        ),
    ]


def below_floor(
    samples: Sequence[Mapping[str, Any]], floor: int, passes: int = 0
) -> tuple[int, int, int]:
    """(samples below the floor, those of them by the loader's own growth, deepest by it).

    Args:
        samples: the sampler's.
        floor: what must stay free.
        passes: growth that is let through whatever happens: the trainer's next batches.
    """
    below: list[tuple[float, bool, int]] = []
    least = None
    for one in samples:
        held = one["loader"] + one["ring"] + one["frames"]
        if least is None or one["room"] >= floor + MARGIN_BYTES:
            least = held
        least = min(least, held)
        if one["room"] < floor:
            by_others = one["room"] + held - least < floor or held - least <= passes
            below.append((one["at"], by_others, floor - one["room"]))
    theirs = [at for at, by_others, _ in below if by_others]
    own = []
    last = float("-inf")
    others = False
    for at, by_others, depth in below:
        others = (others and at - last <= SAME_STRETCH_S) or by_others
        last = at
        if not others and not any(abs(at - other) <= AT_ONCE_S for other in theirs):
            own.append(depth)
    return len(below), len(own), max(own, default=0)


def slot_bytes(decisions: Sequence[Mapping[str, Any]]) -> int:
    """Of a batch in the ring, from the log's prices; 0 where there is no decision."""
    made = (line for line in decisions if line["kind"] == "decision")
    return next((int(line["observation"]["prices"]["slot_bytes"]) for line in made), 0)


def _floor(
    scenario: Scenario, record: Mapping[str, Any], decisions: Sequence[Mapping[str, Any]]
) -> Check:
    samples = record["samples"]
    passes = PASSING_BATCHES * slot_bytes(decisions) + PASSING_RUN_BYTES
    below, own, deepest = below_floor(samples, scenario.floor_bytes, passes)
    least = min(one["room"] for one in samples)
    found = f"{own} of {len(samples)} samples"
    if own:
        found += f", by {deepest / MIB:.0f} MiB"
    if below > own:
        found += f" ({below - own} by others)"
    found += f"; least {(least - scenario.floor_bytes) / MIB:+.0f} MiB"
    return Check("below the floor by the loader", found, "never", own == 0)


def _frames(
    scenario: Scenario, record: Mapping[str, Any], decisions: Sequence[Mapping[str, Any]]
) -> list[Check]:
    """Decoded frames go first, at once, and the log says so."""
    samples, floor = record["samples"], scenario.floor_bytes
    if not any(one["frames"] for one in samples):
        return []
    pinned = pinned_bytes(slot_bytes(decisions), record["result"]["times"])
    due, back_s = given_back(samples, floor, MARGIN_BYTES, pinned)
    lines = _frames_lines(decisions)
    name = "the frame cache back at the kernel"
    met = None if not due else back_s is not None and back_s <= BACK_S and bool(lines)
    found = f"{told(due, back_s)}, {len(lines)} lines in the log"
    return [Check(name, found, f"≤ {BACK_S:g} s", met)]


def _frames_lines(decisions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Lines of the log that say that frames were given back."""
    return [one for one in decisions if one["kind"] == "reflex" and one["action"] == "frames"]


def reversals(decisions: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """(knob, seconds of the log) of knobs that turned round within their hold-off."""
    found: list[tuple[str, float]] = []
    last: dict[tuple[int, str], tuple[int, float]] = {}
    for line in decisions:
        if line["kind"] != "decision" or not line["decision"]["changes"]:
            continue
        made, before = line["decision"], line["observation"]["knobs"]
        if made["knobs"] is None:
            continue
        forced = made["state"]["name"] in ("SHRINK", "EMERGENCY")
        for key, new in made["changes"].items():
            old = _value(before, key)
            if old is None or new is None or new == old:
                continue
            way, at = last.get((line["pipeline"], key), (0, -1e9))
            now = 1 if new > old else -1
            free = made["verdict"] is None and not forced
            if way == -now and line["at_s"] - at < HOLD_OFF_S and free:
                found.append((key, line["at_s"]))
            last[line["pipeline"], key] = (now, line["at_s"])
    return found


def _value(knobs: Mapping[str, Any], key: str) -> Any:
    dataset, _, knob = key.rpartition(".")
    own = knobs.get("datasets", {}).get(dataset, {}) if dataset else knobs
    return own.get(knob)


def _reversals(decisions: Sequence[Mapping[str, Any]]) -> Check:
    found = reversals(decisions)
    text = ", ".join(sorted({key for key, _ in found}))
    return Check("reversals within the hold-off", f"{len(found)} {text}".strip(), "0", not found)


def _replayed(lines: Sequence[str]) -> Check:
    """By the command line, as anybody would."""
    if not lines:
        return Check("replay", "there is no log", "identical", False)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as log:
        log.writelines(lines)
        log.flush()
        ran = subprocess.run(
            [sys.executable, "-m", "autoloader", "replay", log.name],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
    said = (ran.stdout.strip().splitlines() or ran.stderr.strip().splitlines() or [""])[-1]
    return Check("replay", said[:80], "identical", ran.returncode == 0)


def _cost(record: Mapping[str, Any]) -> Check:
    spent = [
        (one["at"], one["pid"], sum(one["cpu"].values()))
        for one in record["samples"]
        if one.get("cpu") and one["at"] >= record["first_s"]
    ]
    spent = [one for one in spent if one[1] == spent[-1][1]]  # a child that lives no more is gone
    if len(spent) < 2 or spent[-1][0] - spent[0][0] < 5:
        return Check("controller's processor time", "not seen", f"≤ {CPU_RATIO:.0%}", None)
    ratio = (spent[-1][2] - spent[0][2]) / (spent[-1][0] - spent[0][0])
    wanted = f"≤ {CPU_RATIO:.0%} of a core"
    return Check("controller's processor time", f"{ratio:.2%}", wanted, ratio <= CPU_RATIO)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The trainer's waiting over a stretch: share of the time, and seconds for each batch."""

    ratio: float
    a_batch_s: float

    def within(self, best_s: float) -> bool:
        """Whether it is at most a tenth more than ``best_s`` a batch, or next to nothing."""
        return self.ratio <= ENOUGH_RATIO or self.a_batch_s <= WAIT_FACTOR * best_s


def waiting(times: Sequence[Sequence[float]], since_s: float, until_s: float) -> Waiting:
    """The waiting between two moments."""
    waited = sum(
        max(0.0, min(got, until_s) - max(asked, since_s))
        for asked, got, _ in times
        if got > since_s and asked < until_s
    )
    batches = sum(since_s < got <= until_s for _, got, _ in times)
    return Waiting(waited / max(1e-9, until_s - since_s), waited / max(1, batches))


def next_to_nothing(scenario: Scenario, record: Mapping[str, Any]) -> bool:
    """Whether the trainer waited so little at the end that no static setting need be asked."""
    return record["result"] is None or _at_the_end(scenario, record).ratio <= ENOUGH_RATIO


def _at_the_end(scenario: Scenario, record: Mapping[str, Any]) -> Waiting:
    ends = record["stopped_s"]
    return waiting(record["result"]["times"], ends - scenario.window_s, ends)


def _waits(
    scenario: Scenario, record: Mapping[str, Any], best: Mapping[str, Any] | None
) -> list[Check]:
    times, ends = record["result"]["times"], record["stopped_s"]
    found = _at_the_end(scenario, record)
    text = f"{found.a_batch_s * 1e3:.0f} ms a batch, {found.ratio:.1%} of the time"
    name = "waiting at the end"
    if best is None and found.ratio > ENOUGH_RATIO:
        return [Check(name, text, "", None)]
    best_s = 0.0 if best is None else best["wait_a_batch_s"]
    if scenario.paired:  # pairs say how the waiting compares; this, when it became steady
        best_s = found.a_batch_s
    disturbed = max((one["done"] for one in record["events"]), default=record["first_s"])
    if scenario.jump_at_batch:
        disturbed = times[min(scenario.jump_at_batch, len(times) - 1)][1]
    settled = settle_s(times, disturbed, ends, best_s)
    wanted = f"≤ {ENOUGH_RATIO:.0%}"
    if best is not None:
        wanted = f"≤ {WAIT_FACTOR} × the best static's {best_s * 1e3:.0f} ms, or {wanted}"
    return [
        Check(name, text, "see the pairs", None)
        if scenario.paired
        else Check(name, text, wanted, found.within(best_s)),
        Check(
            "settles",
            "not within the run" if settled is None else f"{settled:.0f} s",
            f"≤ {SETTLES_S:.0f} s",
            settled is not None and settled <= SETTLES_S,
        ),
    ]


def settle_s(
    times: Sequence[Sequence[float]], since_s: float, until_s: float, best_s: float
) -> float | None:
    """How long until the waiting first stays as it is with the best static knobs; ``None``: never.

    Looked at over ``SPAN_S``; a stretch counts as settled from its beginning on.
    """
    at, found = since_s, None
    while at + SPAN_S <= until_s + 1e-6:
        if not waiting(times, at, at + SPAN_S).within(best_s):
            found = None
        elif found is None:
            found = at
        at += STEP_S
    return None if found is None else found - since_s


def _minimum(
    scenario: Scenario, record: Mapping[str, Any], decisions: Sequence[Mapping[str, Any]]
) -> list[Check]:
    """The floor was crossed by others: how soon the loader was at its minimum, and what it gave.

    Frames that are held go before, so it counts from when they are gone.

    Batches that are filled go to the trainer, at its pace, and their pages behind them: so these
    are back when as many batches were taken as lay ready, and two more for what was under way.
    """
    floor, slot = scenario.floor_bytes, max(1, slot_bytes(decisions))
    pinned = pinned_bytes(slot, record["result"]["times"])
    samples = [one for one in record["samples"] if one["frames"] <= pinned]
    crossed = next((one["at"] for one in samples if one["room"] < floor), None)
    if crossed is None:
        return [Check("at minimum after a crossing", "it was not crossed", "≤ 1 s", None)]
    drops = [
        line["at_s"]
        for line in decisions
        if line["kind"] == "reflex" and line["action"] == "drop" and line["at_s"] >= crossed - 0.5
    ]
    took = drops[0] - crossed if drops else None
    before = next(one["ring"] for one in reversed(record["samples"]) if one["at"] <= crossed)
    back = next(
        (
            one["at"]
            for one in record["samples"]
            if one["at"] >= crossed and one["ring"] <= LEAST_SLOTS * slot + MIB
        ),
        None,
    )
    ready = -(-before // slot)
    taken = sum(crossed <= got <= (back or 0.0) for _, got, _ in record["result"]["times"])
    return [
        Check(
            "at minimum after a crossing",
            "never" if took is None else f"{max(0.0, took):.2f} s",
            f"≤ {AT_MINIMUM_S:g} s",
            took is not None and took <= AT_MINIMUM_S,
        ),
        Check(
            "the ring's pages back at the kernel",
            "never"
            if back is None
            else f"{(before - LEAST_SLOTS * slot) / MIB:.0f} MiB after {back - crossed:.1f} s, "
            f"{taken} batches",
            f"≤ {ready + 2} batches",
            back is not None and taken <= ready + 2,
        ),
    ]


def _states(scenario: Scenario, decisions: Sequence[Mapping[str, Any]]) -> Check:
    """Whether the controller went through what the scenario is about.

    Where frames were given back that may have been all that was missing: nothing else shrinks then.
    """
    seen = {line["decision"]["state"]["name"] for line in decisions if line["kind"] == "decision"}
    wanted = set(scenario.states) - ({"SHRINK"} if _frames_lines(decisions) else set())
    found = " ".join(sorted(seen))
    return Check("states", found, " ".join(sorted(wanted)) or "frames go first", seen >= wanted)


def _blind(record: Mapping[str, Any], decisions: Sequence[Mapping[str, Any]]) -> Check:
    """While free memory could not be read, nothing may grow, and the controller must live on."""
    found = {next(iter(one["what"].items())): one["done"] for one in record["events"]}
    since, until = found[("readable", False)] + 1.5, found[("readable", True)]
    made = [
        line for line in decisions if line["kind"] == "decision" and since <= line["at_s"] <= until
    ]
    grown = [line for line in made if (line["decision"]["gain_per_s"] or 0) > 0]
    known = sum(line["observation"]["headroom_bytes"] is not None for line in made)
    text = f"{len(grown)} growths in {len(made)} decisions, headroom known in {known}"
    return Check("blind: nothing grows", text, "0, of some", not grown and len(made) > 0)


def _given_back(
    scenario: Scenario, record: Mapping[str, Any], decisions: Sequence[Mapping[str, Any]]
) -> Check:
    """Knobs at the end against those when the script's last event came."""
    at = max(one["at"] for one in record["events"])
    before = [
        line["observation"]["knobs"]
        for line in decisions
        if line["kind"] == "decision" and line["at_s"] <= at
    ]
    now = record["result"]["knobs"]
    told = [(key, before[-1][key], now[key]) for key in scenario.gives_back] if before else []
    text = ", ".join(f"{key} {was} → {is_}" for key, was, is_ in told)
    less = any(is_ < was for _, was, is_ in told)
    met = bool(told) and less and all(is_ <= was for _, was, is_ in told)
    return Check("given back", text or "no decision was made", "less", met)
