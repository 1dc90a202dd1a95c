"""Which single change would help most: bottleneck, size, price, gain. Pure.

Theory of operation. Each stage's capacity is resource-accounted, as in Plumber (Kuchnik et al.,
MLSys 2022): workers / (service time × share), in samples of the mixture per second. The least is
the bottleneck. How many workers it needs for a rate is Little's law: rate × service time. More than
the next bottleneck, the consumer and the processors allow is not worth having, so a predicted gain
ends there. Of all changes the one with the best predicted gain per byte is taken, where each is
legal, admitted, rested and not known to be useless.

Where no stage is short on average, yet the consumer waits, rates vary: then buffers are what helps,
and a doubled buffer is predicted to halve the waiting.

Threads want idle processors. Where there are none because other processes run there, too, the
scheduler shares time by runnable threads (as CFS and EEVDF do at equal weights): w of ours beside
o of others get w / (w + o) of it. Then more decode threads than processors may pay, and are tried;
once the others have gone, they are too many and are cut.

A second decode process begins without the frames that are held. It is tried where it would decode
more than they save.

Where this host has none left, processors of other hosts may help: as many as Little's law asks for.

The frame cache can be done without: the same batches come, later. So below floor +
margin it gives back first, as many bytes as are missing, and nobody has to wait for it. It grows by
steps while training waits, as long as it is full and more frames are worth holding. Such a step is
not judged by the rate that follows, since a frame pays when it is shown again, a pass later. It is
judged by the hits that were foretold: every frame is held for a position that will show it. Where
many of these positions are past and their frames were not shown, the cache grows no more. It is not
shrunk because training stopped waiting. It displaces the page cache, so files may be read again.
Where that takes longer than decoding would, a part is given back, and for a while it does not grow.

Not here: when to ask, and whether a change paid (``policy``); which frames are held (``cache``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from autoloader.controller.admission import price_change
from autoloader.controller.limits import ControllerLimits, lowered
from autoloader.controller.observation import Observation
from autoloader.controller.reflex import REOPEN_RATIO
from autoloader.controller.states import ControllerState, Event
from autoloader.errors import KnobError
from autoloader.host.frozen import frozen
from autoloader.host.units import MIB
from autoloader.spec.knobs import (
    ORDER_KNOBS,
    PIXEL_THREADS,
    REOPENING_KNOBS,
    STAGES,
    THREADS_OF,
    THREADS_OF_A_PROCESS,
    UNUSED_KNOBS,
    Knobs,
)
from autoloader.telemetry.statistics import StageMoment

LARGEST_STEP = 4
"""Workers added at once, where no more processors are idle."""
SHORT_RATIO = 1.15
"""A stage whose capacity is below the rate × this is short."""
LEAST_GAIN_RATIO = 0.004
BUSY_RATIO = 0.7
SPARE_RATIO = 1.3
"""Capacity that stays above the demand when something is given back."""
_GIVEN_BACK = "training does not wait: spare threads and memory are freed"
FULL_RATIO = 0.5
"""A ring at least so full most of the time has more slots than are needed."""
IDLE_CPUS = 0.15
PROCESS_CPUS = 0.5
"""Idle processors from which on one more decode process is worth its memory and its start."""
OTHERS_CPUS = 0.3
"""Processors used by others, from which on threads are worth adding though none is idle."""


@frozen
class Change:
    """One change, with what it is predicted to bring and to cost.

    Attributes:
        move: name of the change: the knob that moves, with "+" or "-" behind it.
        changes: flat knob → value.
        knobs: the whole set then.
        gain_per_s: predicted, in samples per second.
        price_bytes: predicted bytes of the change.
        rule: name of the rule that proposed it.
    """

    move: str
    changes: Mapping[str, int]
    knobs: Knobs
    gain_per_s: float
    price_bytes: int
    rule: str


def known_stages(seen: Observation) -> list[StageMoment]:
    """Stages whose work was measured lately, the slowest first."""
    known = [(one.bound_per_s, place) for place, one in enumerate(seen.stages) if one.bound_per_s]
    return [seen.stages[place] for _, place in sorted(known)]


def margin(seen: Observation, limits: ControllerLimits) -> int:
    """Distance to the floor that must stay: 256 MiB, or what 300 ms have taken at worst."""
    return max(limits.margin_bytes, seen.growth_bytes)


def admits(price_bytes: int, seen: Observation, limits: ControllerLimits) -> bool:
    """True if there is room for a change; unknown headroom admits nothing.

    Args:
        price_bytes: bytes that the change takes.
        seen: headroom, and room in a budget that is shared.
        limits: RAM floor, margin, and the pipeline's share of what is above both.
    """
    if seen.headroom_bytes is None:
        return False
    if seen.room_bytes is not None and price_bytes > seen.room_bytes:
        return False
    left = seen.headroom_bytes - limits.ram_floor_bytes - margin(seen, limits)
    return left >= 0 and price_bytes <= left * min(1.0, max(0.0, limits.budget_ratio))


@dataclass(frozen=True)
class Situation:
    """One second of a run, as the policy sees it.

    Attributes:
        state: memory of the policy.
        seen: observation of this second.
        limits: limits of the pipeline.
        event: event that the observation amounts to.
    """

    state: ControllerState
    seen: Observation
    limits: ControllerLimits
    event: Event

    @cached_property
    def stages(self) -> list[StageMoment]:
        """Stages whose work was measured lately, the slowest first."""
        return known_stages(self.seen)

    @property
    def context(self) -> tuple[str, float]:
        """The bottleneck, and its service time; "" where none is known."""
        if not self.stages:
            return "", 0.0
        return self.stages[0].name, self.stages[0].service_s or 0.0

    @property
    def ceiling_per_s(self) -> float:
        """Rate beyond which nothing is worth having: the consumer's own pace."""
        return self.seen.demand_per_s or math.inf

    def price(self, knobs: Knobs) -> int:
        """Bytes that must be free to go to ``knobs``."""
        return price_change(self.seen.knobs, knobs, self.limits.knobs.shards, self.seen.prices)

    def admits(self, knobs: Knobs) -> bool:
        """True if there is room to go to ``knobs``; taking a shrink back is a growth too."""
        return admits(self.price(knobs), self.seen, self.limits)

    def legal(self, changes: Mapping[str, int], without: Collection[str] = ()) -> Knobs | None:
        """The knobs with ``changes``; ``None``: a guard refuses them, or the order is promised.

        Args:
            changes: flat knob → value.
            without: flat knobs of datasets that lose their own value.
        """
        if self.limits.order_fixed and any(_plain(key) in ORDER_KNOBS for key in changes):
            return None
        stay = {key: v for key, v in self.seen.knobs.flat().items() if key not in without}
        try:
            wanted = Knobs.build({**stay, **changes})
            wanted.check(self.limits.knobs)
        except KnobError:
            return None
        return wanted

    def rested(self, move: str) -> bool:
        """True if the knob's last move so ("ring_slots-") is past its hold-off."""
        moved_s = self.state.moved.get(move)
        return moved_s is None or self.seen.at_s - moved_s >= self.limits.hold_off_s

    def may(self, move: str) -> bool:
        """True if the knob rested since it moved the other way, and the move did not fail lately.

        A failure counts under circumstances like those of now.
        """
        failure = self.state.failures.get(move)
        if failure is not None and self.seen.at_s < failure.until_s:
            now_stage, now_s = self.context
            stage, service_s = failure.context
            ratio = now_s / service_s if service_s > 0 else 1.0
            if stage == now_stage and 2 / 3 <= ratio <= 1.5:
                return False
        return self.rested(move[:-1] + ("-" if move.endswith("+") else "+"))


def _plain(key: str) -> str:
    """The knob of a flat name, without its dataset."""
    return key.rpartition(".")[2]


def best_growth(here: Situation) -> Change | None:
    """The change with the best predicted gain per byte; ``None`` where none is worth it.

    Nothing is proposed on unknown evidence: headroom, rate, waits and the stages must be known,
    and threads need processors that are known to be idle, or to be shared with others.
    """
    rate, waits = here.seen.rate_per_s, here.seen.wait_ratio
    if not rate or waits is None or here.seen.headroom_bytes is None or not here.stages:
        return None
    found: list[Change] = []
    for knob, changes, target, rule in _growths(here, rate, waits):
        gain = min(target, here.ceiling_per_s) - rate
        if gain < LEAST_GAIN_RATIO * rate or not here.may(f"{knob}+"):
            continue
        if (knobs := here.legal(changes)) is None:
            continue
        price = here.price(knobs)
        if admits(price, here.seen, here.limits):
            found.append(Change(f"{knob}+", changes, knobs, gain, price, rule))
    return max(found, key=lambda c: c.gain_per_s / max(c.price_bytes, MIB), default=None)


_Growth = tuple[str, dict[str, int], float, str]


def _growths(here: Situation, rate: float, waits: float) -> Iterator[_Growth]:
    """(knob, changes, predicted rate, rule) of all changes that might help."""
    idle, knobs = here.seen.idle_cpus, here.seen.knobs
    slowest, *others = here.stages
    slowest_per_s = slowest.bound_per_s or 0.0
    next_per_s = (others[0].bound_per_s or 0.0) if others else math.inf
    is_short = slowest_per_s < rate * SHORT_RATIO
    for stage in here.stages:
        short = stage is slowest and is_short
        if idle is None or (not short and (stage.busy_ratio or 0.0) < BUSY_RATIO):
            continue
        if idle < IDLE_CPUS:
            if short and stage.stage in PIXEL_THREADS:
                yield from _more_helpers(here, stage, rate)
                yield from _against_others(here, stage, rate)
            continue
        limit = max(next_per_s, rate * 1.05) if stage is slowest else rate * 1.05
        wanted = min(limit, here.ceiling_per_s, 1e9)
        most = max(LARGEST_STEP, int(idle)) if stage.stage in PIXEL_THREADS else LARGEST_STEP
        step = max(1, min(most, _needed(stage, wanted) - stage.workers))
        rule = f"{stage.name} {'is the bottleneck' if short else 'is busy'}"
        for knob, changes, more in _of_stage(here, stage, step, idle):
            yield knob, changes, min(rate * more, limit), rule
    if waits > 0:
        # Where a stage is short on average, a longer queue before or behind it is no remedy.
        steadier = rate * (1 + (0.05 if is_short else 1.0) * waits / 2)
        ahead, most = ("queue_samples", here.limits.knobs.block_length * 32)
        if knobs.reader == "indexed":
            ahead, most = "read_ahead", 2
        for knob, step in (("ring_slots", LARGEST_STEP), (ahead, most)):
            now = getattr(knobs, knob)
            yield knob, {knob: now + min(step, now)}, steadier, "rates vary: buffers grow"


def _needed(stage: StageMoment, rate: float) -> int:
    """Workers of a stage for a rate, by Little's law."""
    return math.ceil(rate * (stage.service_s or 0.0) * stage.share)


def _others_share(here: Situation) -> float | None:
    """Share of the processors that others use, where they leave none idle; else ``None``."""
    idle, others = here.seen.idle_cpus, here.seen.others_cpus
    if idle is None or idle >= IDLE_CPUS or others is None or others < OTHERS_CPUS:
        return None
    return min(0.9, others / here.limits.knobs.cpus)


def _against_others(here: Situation, stage: StageMoment, rate: float) -> Iterator[_Growth]:
    """More threads than processors, for a larger share of those that others use, too."""
    theirs = _others_share(here)
    if theirs is None:
        return
    knob = THREADS_OF[stage.stage]
    threads = getattr(here.seen.knobs, knob)
    to = min(threads + min(LARGEST_STEP, threads), 2 * here.limits.knobs.cpus)
    share = 1 - theirs
    runnable = threads * theirs / share  # as many threads of others as make that share of ours
    more = to / (to + runnable) / share
    yield knob, {knob: to}, rate * more, f"{stage.name} shares processors with other programs"


def _more_helpers(here: Situation, stage: StageMoment, rate: float) -> Iterator[_Growth]:
    """More helpers, where other hosts have processors; before they are asked nobody knows."""
    if here.seen.helpers_possible is None:
        return
    now, most = here.seen.knobs.helper_slots, here.seen.helpers_possible or LARGEST_STEP
    service_s = stage.service_s or 0.0
    needed = math.ceil(min(1e6, (here.ceiling_per_s - rate) * service_s))
    to = min(most, now + max(1, min(needed, max(LARGEST_STEP, now))))
    faster = rate + (to - now) / service_s
    yield "helper_slots", {"helper_slots": to}, faster, f"{stage.name}: other hosts may help"


def _fewer_helpers(here: Situation, pace: float) -> Iterator[tuple[str, dict[str, int]]]:
    """Changes that give back helpers which this host's own work makes unnecessary.

    Where helpers do all the work, the rate of this host is not known: then three quarters of them.
    """
    now = here.seen.knobs.helper_slots
    if now:
        ours = [one for one in here.stages if one.stage in PIXEL_THREADS]
        needed = [_needed(one, max(0.0, pace - (one.bound_per_s or 0.0))) for one in ours]
        yield "helper_slots", {"helper_slots": min(now, max(needed, default=now // 4))}


def _of_stage(
    here: Situation, stage: StageMoment, step: int, idle: float
) -> Iterator[tuple[str, dict[str, int], float]]:
    """(knob, changes, predicted factor of the rate) for more of one stage."""
    knobs, workers, knob = here.seen.knobs, stage.workers, THREADS_OF[stage.stage]
    if stage.stage in PIXEL_THREADS:
        has, now = getattr(knobs, knob), knobs.decode_processes
        to = has + step
        gained = min(1.0, idle)
        spread = knobs.reader == "indexed" and idle >= PROCESS_CPUS
        threads = {knob: min(to, max(has + LARGEST_STEP, 2 * THREADS_OF_A_PROCESS * now))}
        if spread and to > THREADS_OF_A_PROCESS * now:
            processes = math.ceil(to / THREADS_OF_A_PROCESS)
            both = {knob: to, "decode_processes": processes}
            wider = here.legal(both)
            threads = both if wider is not None and here.admits(wider) else threads
        yield knob, threads, 1 + min(step, 1.5 * idle) / workers
        if spread:
            yield "decode_processes", {"decode_processes": now + 1}, 1 + gained / workers
        return
    if not stage.dataset:
        yield knob, {knob: getattr(knobs, knob) + step}, 1 + step / workers
        return
    alike = [one.bound_per_s or 0.0 for one in here.stages if one.stage == "read"]
    crowd = sum(bound < (stage.bound_per_s or 0.0) * 1.2 for bound in alike)
    prefix = "" if crowd > len(alike) / 2 else f"{stage.dataset}."
    own = knobs.for_dataset(stage.dataset)
    if not here.limits.order_fixed:
        cycle = own.cycle_length + min(step, max(1, own.cycle_length))
        both = {f"{prefix}cycle_length": cycle, f"{prefix}num_parallel_calls": cycle}
        yield f"{prefix}cycle_length", both, cycle / own.cycle_length
    parse = own.parse_parallel_calls + 1
    more = 1 + 0.25 / own.parse_parallel_calls
    yield f"{prefix}parse_parallel_calls", {f"{prefix}parse_parallel_calls": parse}, more
    prefetch = {f"{prefix}stream_prefetch": own.stream_prefetch + 1}
    yield f"{prefix}stream_prefetch", prefetch, 1 + 0.1 / (own.stream_prefetch + 1)


def best_return(here: Situation) -> Change | None:
    """Change that gives back memory or threads that training does not need; most bytes first.

    Threads go down to what Little's law asks for at the consumer's pace and some to spare; buffers
    and streams are halved while the ring is full anyway.
    """
    seen, flat = here.seen, here.seen.knobs.flat()
    if seen.rate_per_s is None or seen.occupancy_ratio is None:
        return None
    found = []
    for knob, changes in _returns(here, max(seen.demand_per_s or 0.0, seen.rate_per_s)):
        kept = {
            key: max(to, getattr(here.limits.minimum, _plain(key))) for key, to in changes.items()
        }
        if kept[knob] >= flat[knob] or not here.may(f"{knob}-"):
            continue
        knobs = here.legal(kept)
        if knobs is not None:
            price = price_change(knobs, seen.knobs, here.limits.knobs.shards, seen.prices)
            found.append(Change(f"{knob}-", kept, knobs, 0.0, -price, _GIVEN_BACK))
    return min(found, key=lambda change: change.price_bytes, default=None)


def _returns(here: Situation, pace: float) -> Iterator[tuple[str, dict[str, int]]]:
    """(knob, changes) of all that may be too much."""
    knobs, cpus = here.seen.knobs, here.limits.knobs.cpus
    full = (here.seen.occupancy_ratio or 0.0) >= FULL_RATIO
    if full:
        yield from _fewer_helpers(here, pace * SPARE_RATIO)
    for stage in here.stages:
        if stage.dataset:
            continue
        knob = THREADS_OF[stage.stage]
        now = getattr(knobs, knob)
        # More workers than processors make each other's service times look long.
        most = max(cpus, now // 2) if now > cpus else now
        yield knob, {knob: min(max(_needed(stage, pace * SPARE_RATIO), now // 2), most)}
    if not full:
        return
    ahead = "read_ahead" if knobs.reader == "indexed" else "queue_samples"
    for knob in ("ring_slots", ahead):
        now = getattr(knobs, knob)
        yield knob, {knob: now // 2 if now > 8 else math.ceil(now * 0.75)}
    streams = [one.bound_per_s or 0.0 for one in here.stages if one.stage == "read"]
    spare = min(streams, default=0.0) >= 2 * pace * SPARE_RATIO
    if knobs.reader == "indexed" or not spare:
        return
    flat = knobs.flat()
    for prefix in ("", *(f"{name}." for name in knobs.datasets)):
        cycle = flat.get(f"{prefix}cycle_length", 1)
        if cycle > 1:
            halved_cycle = {f"{prefix}cycle_length": cycle // 2}
            if (calls := f"{prefix}num_parallel_calls") in flat:
                halved_cycle[calls] = min(flat[calls], cycle // 2)
            yield f"{prefix}cycle_length", halved_cycle
        for knob in (f"{prefix}stream_prefetch", f"{prefix}parse_parallel_calls"):
            if flat.get(knob, 1) > 1:
                yield knob, {knob: flat[knob] // 2}


def best_cut(here: Situation) -> Change | None:
    """Fewer workers, where more of them than processors stand in each other's way."""
    idle = here.seen.idle_cpus
    if idle is None or not here.stages or _others_share(here) is not None:
        return None
    for stage, knob in THREADS_OF.items():
        now = getattr(here.seen.knobs, knob)
        unused = knob in UNUSED_KNOBS[here.seen.knobs.reader]
        if unused or (STAGES[stage].waits and idle >= IDLE_CPUS):
            continue
        to = max(here.limits.knobs.cpus, math.ceil(now * 0.5))
        knobs = here.legal({knob: to}) if to < now and here.may(f"{knob}-") else None
        if knobs is not None:
            return Change(f"{knob}-", {knob: to}, knobs, 0.0, 0, "more than processors")
    return None


def halved(here: Situation) -> Knobs:
    """All that holds memory, halved towards the minimum: multiplicative shrink.

    A stream that opens anew is held twice for a while; where that would cross the floor, streams
    stay as they are and only rings and queues shrink.
    """
    knobs, headroom = here.seen.knobs, here.seen.headroom_bytes
    least = here.limits.least(knobs).flat()

    def half(key: str, value: int) -> int:
        return max(int(least[key]), value // 2)

    whole = lowered(knobs, half, keep=())
    # Half of what is left, since a price under pressure is no more than a guess.
    if headroom is not None and here.price(whole) <= (headroom - here.limits.ram_floor_bytes) / 2:
        return whole
    return lowered(knobs, half, keep=REOPENING_KNOBS)


STEP_BYTES = 256 * MIB
"""Least step of growth, where so much is there."""
LEAST_STEP_BYTES = 32 * MIB
CACHE_FULL_RATIO = 0.9
"""From so full on it may grow."""
GROWN_RATIO = 0.5
"""A step takes no more than this part of what is free above floor and margin."""


def missing_bytes(headroom_bytes: int, ram_floor_bytes: int, margin_bytes: int) -> int:
    """Bytes that must come back before reads are admitted again; 0 where they are."""
    if headroom_bytes >= ram_floor_bytes + margin_bytes:
        return 0
    return ram_floor_bytes + int(margin_bytes * REOPEN_RATIO) - headroom_bytes


def lowered_cache(knobs: Knobs, held_bytes: int, missing: int) -> Knobs:
    """The knobs once the frame cache has given back ``missing`` bytes, or all that it holds."""
    left = max(0, min(knobs.cache_bytes, held_bytes) - missing)
    return Knobs.build({"cache_bytes": left if left >= LEAST_STEP_BYTES else 0}, base=knobs)


def shrunk_cache(seen: Observation) -> Knobs | None:
    """The knobs with a smaller frame cache, where held frames cost more reading than they save.

    The cache gives up ``STEP_BYTES``, or a quarter of the held bytes if that is more. ``None``
    where held frames save more decoding than they cost, or where there is no frame cache.
    """
    cache = seen.cache
    if cache is None or not seen.knobs.cache_bytes or seen.reread_ratio <= seen.saved_ratio:
        return None
    return lowered_cache(seen.knobs, cache.held_bytes, max(STEP_BYTES, cache.held_bytes // 4))


def grown_cache(seen: Observation, limits: ControllerLimits) -> Knobs | None:
    """The knobs with a larger frame cache.

    ``None`` where the cache is not full, or has no room to grow.
    """
    cache, now = seen.cache, seen.knobs.cache_bytes
    if cache is None or seen.headroom_bytes is None:
        return None
    wanting = cache.threshold is not None  # it left out frames that are shown again
    if now and not (wanting and cache.held_bytes >= CACHE_FULL_RATIO * now):
        return None
    left = seen.headroom_bytes - limits.ram_floor_bytes - margin(seen, limits)
    room = min(left * limits.budget_ratio, left if seen.room_bytes is None else seen.room_bytes)
    step = min(max(STEP_BYTES, now), int(GROWN_RATIO * room))
    caps = (limits.knobs.cache_bytes, limits.most_cache_bytes)
    to = min(now + step, *(most for most in caps if most is not None))
    if to - now < LEAST_STEP_BYTES:
        return None
    return Knobs.build({"cache_bytes": to}, base=seen.knobs)
