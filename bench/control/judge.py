"""Holds a run's record against the promises of the controller.

Theory of operation. Waiting is the trainer's own account, batch by batch. Memory is the sampler's.
The loader is to blame for a moment below the floor when headroom would be at the floor or above it
had the loader not grown since headroom was last at floor + margin or above, and it grew by more
than the two batches that always pass; otherwise others have crossed it. What is within half a
second of a crossing by others is theirs, and so is what follows it until headroom is back. A
trainer that computes nothing waits all the time, and how long for a batch depends on the minute:
such scenarios are held against static knobs by pairs of turns (``bench.control.static``).
Decoded frames are surplus: where headroom is below floor + margin, as many bytes of them as are
missing must lie with the kernel a second later, or all of them but those of two planned runs (that
which batches are made of and that which is next), which stay until they are shown.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.checks import Check, most
from bench.control.memory import MIB
from bench.control.scenario import Scenario

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
BACK_S = 1.0
PINNED_RUNS, RUN_SAMPLES = 2, 256


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
    if record["result"] is None or record["first_s"] is None or not record["alive"]:
        return [Check("finished", record["said"][-300:], "to the end", False)]
    return list(_Run(scenario, record).checks(best))


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


def pinned_bytes(slot_bytes: int, times: Sequence[Sequence[float]]) -> int:
    """What may stay, with batches of so many bytes.

    Args:
        slot_bytes: of a batch.
        times: (asked, got, samples) of each batch.
    """
    samples = max((int(one[2]) for one in times), default=1)
    return PINNED_RUNS * RUN_SAMPLES * slot_bytes // max(1, samples)


def given_back(
    samples: Sequence[Mapping[str, Any]], floor: int, margin: int, pinned: int
) -> tuple[int, float | None]:
    """(bytes that were due at most at once, seconds until such were back at worst).

    Seconds are ``None`` where some never came back. Nothing was due: (0, 0).

    Args:
        samples: the sampler's.
        floor: what must stay free.
        margin: the distance to it that must.
        pinned: what may stay.
    """
    most, worst = 0, 0.0
    for n, one in enumerate(samples):
        need = floor + margin - one["room"]
        left = max(pinned, one["frames"] - need)
        if need <= 0 or one["frames"] <= left:
            continue
        most = max(most, one["frames"] - left)
        back = next(
            (
                later["at"] - one["at"]
                for later in samples[n:]
                if later["frames"] <= left or later["room"] >= floor + margin
            ),
            None,
        )
        if back is None:
            return most, None
        worst = max(worst, back)
    return most, worst


def reversals(decisions: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """(knob, seconds of the log) of knobs that turned round within their hold-off."""
    found: list[tuple[str, float]] = []
    last: dict[tuple[int, str], tuple[int, float]] = {}
    for line in decisions:
        made, before = line["decision"], line["observation"]["knobs"]
        if not made["changes"] or made["knobs"] is None:
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


class _Run:
    """A run that came to its end, and each promise held against it."""

    def __init__(self, scenario: Scenario, record: Mapping[str, Any]) -> None:
        self.scenario, self.record, self.result = scenario, record, record["result"]
        self.samples, self.times = record["samples"], self.result["times"]
        log = [json.loads(line) for line in record["decisions"]]
        self.decisions = [line for line in log if line["kind"] == "decision"]
        self.reflexes = [line for line in log if line["kind"] == "reflex"]
        self.frames_lines = [line for line in self.reflexes if line["action"] == "frames"]
        """Lines of the log that say that frames were given back."""
        self.slot_bytes = next(
            (int(one["observation"]["prices"]["slot_bytes"]) for one in self.decisions), 0
        )
        """Bytes of a batch in the ring, from the log's prices; 0 where there is no decision."""
        self.pinned = pinned_bytes(self.slot_bytes, self.times)

    def checks(self, best: Mapping[str, Any] | None) -> Iterator[Check]:
        """Those that the scenario has."""
        scenario, exact, kills = self.scenario, self.result["exact"], self.record["oom_kills"]
        samples, passes, lost = exact["samples"], exact["passes"], exact["incomplete"]
        yield Check("nothing twice", f"{exact['twice']} of {samples}", "0", exact["twice"] == 0)
        met = lost == 0 if passes else None
        yield Check("nothing lost", f"{lost} of {passes} passes", "0", met)
        yield Check("killed for memory", str(kills), "0", kills == 0)
        yield self.floor()
        if any(one["frames"] for one in self.samples):
            yield self.frames()
        turned = reversals(self.decisions)
        found = f"{len(turned)} {', '.join(sorted({key for key, _ in turned}))}".strip()
        yield Check("reversals within the hold-off", found, "0", not turned)
        yield _replayed(self.record["decisions"])
        yield self.cost()
        yield from self.waits(best)
        if scenario.states:
            yield self.states()
        if scenario.at_minimum:
            yield from self.minimum()
        if scenario.own_meminfo:
            yield self.blind()
        if scenario.gives_back:
            yield self.given_back()

    def floor(self) -> Check:
        """Memory left, and who crossed the floor."""
        samples, floor = self.samples, self.scenario.floor_bytes
        passes = PASSING_BATCHES * self.slot_bytes + PASSING_RUN_BYTES
        below, own, deepest = below_floor(samples, floor, passes)
        least = min(one["room"] for one in samples)
        found = f"{own} of {len(samples)} samples"
        if own:
            found += f", by {deepest / MIB:.0f} MiB"
        if below > own:
            found += f" ({below - own} by others)"
        found += f"; least {(least - floor) / MIB:+.0f} MiB"
        return Check("below the floor by the loader", found, "never", own == 0)

    def frames(self) -> Check:
        """Decoded frames go first, at once, and the log says so."""
        due, back_s = given_back(self.samples, self.scenario.floor_bytes, MARGIN_BYTES, self.pinned)
        found, lines = "nothing was due", len(self.frames_lines)
        if due:
            found = f"up to {due / MIB:.0f} MiB due, "
            found += "never back" if back_s is None else f"back after {back_s:.2f} s"
        met = None if not due else back_s is not None and back_s <= BACK_S and lines > 0
        found += f", {lines} lines in the log"
        return Check("the frame cache back at the kernel", found, f"≤ {BACK_S:g} s", met)

    def cost(self) -> Check:
        """Processor time of the controller's threads."""
        spent = [
            (one["at"], one["pid"], sum(one["cpu"].values()))
            for one in self.samples
            if one.get("cpu") and one["at"] >= self.record["first_s"]
        ]
        spent = [one for one in spent if one[1] == spent[-1][1]]  # of the child that lives now
        name, wanted = "controller's processor time", f"≤ {CPU_RATIO:.0%} of a core"
        if len(spent) < 2 or spent[-1][0] - spent[0][0] < 5:
            return Check(name, "not seen", wanted, None)
        ratio = (spent[-1][2] - spent[0][2]) / (spent[-1][0] - spent[0][0])
        return Check(name, f"{ratio:.2%}", wanted, ratio <= CPU_RATIO)

    def waits(self, best: Mapping[str, Any] | None) -> Iterator[Check]:
        """The trainer's waiting at the end, and when it became so."""
        scenario, ends = self.scenario, self.record["stopped_s"]
        found = _at_the_end(scenario, self.record)
        name = "waiting at the end"
        text = f"{found.a_batch_s * 1e3:.0f} ms a batch, {found.ratio:.1%} of the time"
        if best is None and found.ratio > ENOUGH_RATIO:
            yield Check(name, text, "", None)
            return
        best_s = 0.0 if best is None else best["wait_a_batch_s"]
        wanted = f"≤ {ENOUGH_RATIO:.0%}"
        if scenario.paired:  # pairs say how the waiting compares; this, when it became steady
            best_s = found.a_batch_s
            yield Check(name, text, "see the pairs", None)
        else:
            if best is not None:
                wanted = f"≤ {WAIT_FACTOR} × the best static's {best_s * 1e3:.0f} ms, or {wanted}"
            yield Check(name, text, wanted, found.within(best_s))
        disturbed = max((one["done"] for one in self.record["events"]), default=None)
        if scenario.jump_at_batch:
            disturbed = self.times[min(scenario.jump_at_batch, len(self.times) - 1)][1]
        since_s = self.record["first_s"] if disturbed is None else disturbed
        yield most("settles", settle_s(self.times, since_s, ends, best_s), SETTLES_S, "s", 0)

    def minimum(self) -> Iterator[Check]:
        """The floor was crossed by others: how soon the loader was at its minimum, what it gave.

        Frames that are held go before, so it counts from when they are gone.

        Batches that are filled go to the trainer, at its pace, and their pages behind them: so
        these are back when as many batches were taken as lay ready, and two more for what was under
        way.
        """
        slot, name = max(1, self.slot_bytes), "at minimum after a crossing"
        gone = (one for one in self.samples if one["frames"] <= self.pinned)
        floor = self.scenario.floor_bytes
        crossed = next((one["at"] for one in gone if one["room"] < floor), None)
        if crossed is None:
            yield Check(name, "it was not crossed", "≤ 1 s", None)
            return
        drops = [one["at_s"] for one in self.reflexes if one["action"] == "drop"]
        took = next((max(0.0, at - crossed) for at in drops if at >= crossed - 0.5), None)
        yield most(name, took, AT_MINIMUM_S, "s")
        before = next(one["ring"] for one in reversed(self.samples) if one["at"] <= crossed)
        least = LEAST_SLOTS * slot
        later = (one for one in self.samples if one["at"] >= crossed)
        back = next((one["at"] for one in later if one["ring"] <= least + MIB), None)
        ready = -(-before // slot)
        taken = sum(crossed <= got <= (back or 0.0) for _, got, _ in self.times)
        found = "never"
        if back is not None:
            found = (
                f"{(before - least) / MIB:.0f} MiB after {back - crossed:.1f} s, {taken} batches"
            )
        met = back is not None and taken <= ready + 2
        yield Check("the ring's pages back at the kernel", found, f"≤ {ready + 2} batches", met)

    def states(self) -> Check:
        """Whether the controller went through what the scenario is about.

        Where frames were given back that may have been all that was missing: nothing else shrinks.
        """
        seen = {line["decision"]["state"]["name"] for line in self.decisions}
        wanted = set(self.scenario.states) - ({"SHRINK"} if self.frames_lines else set())
        told = " ".join(sorted(wanted)) or "frames go first"
        return Check("states", " ".join(sorted(seen)), told, seen >= wanted)

    def blind(self) -> Check:
        """While free memory could not be read, nothing may grow; the controller must live on."""
        found = {next(iter(one["what"].items())): one["done"] for one in self.record["events"]}
        since, until = found["readable", False] + 1.5, found["readable", True]
        made = [line for line in self.decisions if since <= line["at_s"] <= until]
        grown = sum((line["decision"]["gain_per_s"] or 0) > 0 for line in made)
        known = sum(line["observation"]["headroom_bytes"] is not None for line in made)
        text = f"{grown} growths in {len(made)} decisions, headroom known in {known}"
        return Check("blind: nothing grows", text, "0, of some", not grown and len(made) > 0)

    def given_back(self) -> Check:
        """Knobs at the end against those when the script's last event came."""
        at = max(one["at"] for one in self.record["events"])
        before = [line["observation"]["knobs"] for line in self.decisions if line["at_s"] <= at]
        now, keys = self.result["knobs"], self.scenario.gives_back if before else ()
        told = [(key, before[-1][key], now[key]) for key in keys]
        text = ", ".join(f"{key} {was} → {is_}" for key, was, is_ in told)
        less = any(is_ < was for _, was, is_ in told)
        met = less and all(is_ <= was for _, was, is_ in told)
        return Check("given back", text or "no decision was made", "less", met)
