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

The frame cache is surplus: without held frames the same batches come, later. So below floor +
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoloader.controller.admission import GENERATION_KNOBS, admits, price_change
from autoloader.controller.limits import ORDER_KNOBS, ControllerLimits, lowered
from autoloader.controller.observation import Observation, StageReading, fresh
from autoloader.controller.reflex import REOPEN_RATIO
from autoloader.controller.states import ControllerState
from autoloader.errors import KnobError
from autoloader.host.units import MIB
from autoloader.spec.knobs import Knobs

LARGEST_STEP = 4
"""Workers added at once: growth is additive."""
SHORT_RATIO = 1.15
"""A stage whose capacity is below the rate × this is short."""
LEAST_GAIN_RATIO = 0.004
BUSY_RATIO = 0.7
SPARE_RATIO = 1.3
"""Capacity that stays above the demand when something is given back."""
_GIVEN_BACK = "training does not wait: what it does not need is given back"
FULL_RATIO = 0.5
"""A ring at least so full most of the time has more slots than are needed."""
IDLE_CPUS = 0.15
PROCESS_CPUS = 0.5
"""Idle processors from which on one more decode process is worth its memory and its start."""
OTHERS_CPUS = 0.3
"""Processors used by others, from which on threads are worth adding though none is idle."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change, with what it is predicted to bring and to cost.

    Attributes:
        knob: what it is remembered by.
        changes: flat knob → value.
        knobs: the whole set then.
        gain_per_s: predicted, in samples per second.
        price_bytes: predicted bytes of the change.
        context: the bottleneck, and its service time.
        rule: name of the rule that proposed it.
    """

    knob: str
    changes: Mapping[str, int]
    knobs: Knobs
    gain_per_s: float
    price_bytes: int
    context: tuple[str, float]
    rule: str


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage whose service time is known and fresh."""

    reading: StageReading
    service_s: float
    capacity_per_s: float

    @property
    def name(self) -> str:
        """Stage and dataset."""
        one = self.reading
        return f"{one.stage}:{one.dataset}" if one.dataset else one.stage


def known_stages(seen: Observation, limits: ControllerLimits) -> list[Stage]:
    """Stages with fresh evidence, the slowest first."""
    found = []
    for one in seen.stages:
        service = fresh(one.service_s, limits.oldest_s)
        if service is not None and service > 0 and one.share > 0 and one.workers > 0:
            found.append(Stage(one, service, one.workers / (service * one.share)))
    return sorted(found, key=lambda stage: stage.capacity_per_s)


def best_growth(
    state: ControllerState, seen: Observation, limits: ControllerLimits
) -> Change | None:
    """The change with the best predicted gain per byte; ``None`` where none is worth it.

    Nothing is proposed on unknown evidence: headroom, rate, waits and the stages must be fresh,
    and threads need processors that are known to be idle, or to be shared with others.
    """
    rate = fresh(seen.rate_per_s, limits.oldest_s)
    waits = fresh(seen.wait_ratio, limits.oldest_s)
    headroom = fresh(seen.headroom_bytes, limits.oldest_s)
    stages = known_stages(seen, limits)
    if rate is None or rate <= 0 or waits is None or headroom is None or not stages:
        return None
    context = (stages[0].name, stages[0].service_s)
    found: list[Change] = []
    for knob, changes, target, rule in _growths(seen, limits, stages, rate, waits):
        knobs = legal(seen.knobs, changes, limits)
        gain = min(target, _ceiling(seen, limits)) - rate
        if knobs is None or gain < LEAST_GAIN_RATIO * rate:
            continue
        if not _may_grow(knob, context, state, seen, limits):
            continue
        price = price_change(seen.knobs, knobs, limits.knobs.shards, seen.prices)
        if admits(
            price,
            headroom_bytes=headroom,
            ram_floor_bytes=limits.ram_floor_bytes,
            margin_bytes=margin(seen, limits),
            budget_ratio=limits.budget_ratio,
            room_bytes=seen.room_bytes,
        ):
            found.append(Change(knob, changes, knobs, gain, price, context, rule))
    return max(found, key=lambda c: c.gain_per_s / max(c.price_bytes, MIB), default=None)


def margin(seen: Observation, limits: ControllerLimits) -> int:
    """Distance to the floor that must stay: 256 MiB, or what 300 ms have taken at worst."""
    growth = fresh(seen.growth_bytes, limits.oldest_s)
    return max(limits.margin_bytes, int(growth or 0))


def _ceiling(seen: Observation, limits: ControllerLimits) -> float:
    """The rate beyond which nothing is worth having: the consumer's own pace."""
    demand = fresh(seen.demand_per_s, limits.oldest_s)
    return math.inf if demand is None or demand <= 0 else demand


_Growth = tuple[str, dict[str, int], float, str]


def _growths(
    seen: Observation, limits: ControllerLimits, stages: list[Stage], rate: float, waits: float
) -> Iterator[_Growth]:
    """(knob, changes, predicted rate, rule) of all changes that might help."""
    idle = fresh(seen.idle_cpus, limits.oldest_s)
    slowest = stages[0]
    others = stages[1].capacity_per_s if len(stages) > 1 else math.inf
    for stage in stages:
        short = stage is slowest and stage.capacity_per_s < rate * SHORT_RATIO
        busy = fresh(stage.reading.busy_ratio, limits.oldest_s)
        if not short and (busy is None or busy < BUSY_RATIO):
            continue
        if idle is None:
            continue
        if idle < IDLE_CPUS:
            if short and stage.reading.stage == "decode":
                yield from _more_helpers(seen, stage, rate, _ceiling(seen, limits))
                yield from _against_others(seen, stage, rate, limits)
            continue
        limit = max(others, rate * 1.05) if stage is slowest else rate * 1.05
        wanted = min(limit, _ceiling(seen, limits), 1e9)
        workers = stage.reading.workers
        need = math.ceil(wanted * stage.service_s * stage.reading.share)
        step = max(1, min(LARGEST_STEP, need - workers))
        rule = f"{stage.name} {'is the bottleneck' if short else 'is busy'}"
        for knob, changes, more in _of_stage(seen, stage, stages, step, idle, limits):
            yield knob, changes, min(rate * more, limit), rule
    if waits > 0:
        # Where a stage is short on average, a longer queue before or behind it is no remedy.
        even = 1.0 if slowest.capacity_per_s >= rate * SHORT_RATIO else 0.05
        steadier = rate * (1 + even * waits / 2)
        slots = seen.knobs.ring_slots
        rule = "rates vary: buffers"
        yield "ring_slots", {"ring_slots": slots + min(LARGEST_STEP, slots)}, steadier, rule
        if seen.knobs.reader == "indexed":
            ahead = seen.knobs.read_ahead
            yield "read_ahead", {"read_ahead": ahead + min(2, ahead)}, steadier, rule
        else:
            queue = seen.knobs.queue_samples
            more = queue + min(limits.knobs.block_length * 32, queue)
            yield "queue_samples", {"queue_samples": more}, steadier, rule


def _others_share(seen: Observation, limits: ControllerLimits) -> float | None:
    """Share of the processors that others use, where they leave none idle; else ``None``."""
    idle = fresh(seen.idle_cpus, limits.oldest_s)
    others = fresh(seen.others_cpus, limits.oldest_s)
    if idle is None or idle >= IDLE_CPUS or others is None or others < OTHERS_CPUS:
        return None
    return min(0.9, others / limits.knobs.cpus)


def _against_others(
    seen: Observation, stage: Stage, rate: float, limits: ControllerLimits
) -> Iterator[_Growth]:
    """More decode threads than processors, for a larger share of those that others use, too."""
    theirs = _others_share(seen, limits)
    if theirs is None:
        return
    threads = seen.knobs.decode_threads
    to = min(threads + min(LARGEST_STEP, threads), 2 * limits.knobs.cpus)
    share = 1 - theirs
    runnable = threads * theirs / share  # as many threads of others as make that share of ours
    more = to / (to + runnable) / share
    yield "decode_threads", {"decode_threads": to}, rate * more, f"{stage.name} shares processors"


def _more_helpers(
    seen: Observation, decode: Stage, rate: float, ceiling: float
) -> Iterator[_Growth]:
    """More helpers, where other hosts have processors; before they are asked nobody knows."""
    if seen.helpers_possible is None:
        return
    now, most = seen.knobs.helper_slots, seen.helpers_possible or LARGEST_STEP
    needed = math.ceil(min(1e6, (ceiling - rate) * decode.service_s))
    to = min(most, now + max(1, min(needed, max(LARGEST_STEP, now))))
    faster = rate + (to - now) / decode.service_s
    yield "helper_slots", {"helper_slots": to}, faster, f"{decode.name}: other hosts may help"


def _fewer_helpers(
    seen: Observation, stages: list[Stage], pace: float
) -> Iterator[tuple[str, dict[str, int]]]:
    """Those that are not needed beyond what this host does itself.

    Where they do all the work nobody knows what this host would do: then three quarters of them.
    """
    now = seen.knobs.helper_slots
    if now:
        needed = now // 4
        for decode in (one for one in stages if one.reading.stage == "decode"):
            needed = math.ceil(max(0.0, pace - decode.capacity_per_s) * decode.service_s)
        yield "helper_slots", {"helper_slots": min(now, needed)}


def _of_stage(
    seen: Observation,
    stage: Stage,
    stages: list[Stage],
    step: int,
    idle: float,
    limits: ControllerLimits,
) -> Iterator[tuple[str, dict[str, int], float]]:
    """(knob, changes, predicted factor of the rate) for more of one stage."""
    knobs, workers = seen.knobs, stage.reading.workers
    if stage.reading.stage == "decode":
        to = knobs.decode_threads + step
        yield "decode_threads", {"decode_threads": to}, 1 + min(step, 1.5 * idle) / workers
        gained = min(1.0, idle)
        lost = seen.cache.saved_ratio if seen.cache is not None and seen.cache.private else 0.0
        if knobs.reader == "indexed" and idle >= PROCESS_CPUS and gained > lost:
            processes = {"decode_processes": knobs.decode_processes + 1}
            yield "decode_processes", processes, 1 + gained / workers
        return
    if knobs.reader == "indexed":
        yield "io_threads", {"io_threads": knobs.io_threads + step}, 1 + step / workers
        return
    name = stage.reading.dataset
    alike = [s for s in stages if s.reading.stage == "read"]
    crowd = sum(s.capacity_per_s < stage.capacity_per_s * 1.2 for s in alike)
    prefix = "" if crowd > len(alike) / 2 or not name else f"{name}."
    own = knobs.for_dataset(name or None)
    if not limits.order_fixed:
        cycle = own.cycle_length + min(step, max(1, own.cycle_length))
        both = {f"{prefix}cycle_length": cycle, f"{prefix}num_parallel_calls": cycle}
        yield f"{prefix}cycle_length", both, cycle / own.cycle_length
    parse = own.parse_parallel_calls + 1
    more = 1 + 0.25 / own.parse_parallel_calls
    yield f"{prefix}parse_parallel_calls", {f"{prefix}parse_parallel_calls": parse}, more
    prefetch = {f"{prefix}stream_prefetch": own.stream_prefetch + 1}
    yield f"{prefix}stream_prefetch", prefetch, 1 + 0.1 / (own.stream_prefetch + 1)


def best_return(
    state: ControllerState, seen: Observation, limits: ControllerLimits
) -> Change | None:
    """Change that gives back memory or threads that training does not need; most bytes first.

    Threads go down to what Little's law asks for at the consumer's pace and some to spare; buffers
    and streams are halved while the ring is full anyway.
    """
    demand = fresh(seen.demand_per_s, limits.oldest_s)
    rate = fresh(seen.rate_per_s, limits.oldest_s)
    full = fresh(seen.occupancy_ratio, limits.oldest_s)
    if rate is None or full is None:
        return None
    pace = rate if demand is None else max(demand, rate)
    stages = known_stages(seen, limits)
    context = (stages[0].name, stages[0].service_s) if stages else ("", 0.0)
    found = []
    for knob, changes in _returns(seen, stages, pace, full, limits.knobs.cpus):
        kept = {
            key: max(to, getattr(limits.minimum, key.rpartition(".")[2]))
            for key, to in changes.items()
        }
        flat = seen.knobs.flat()
        if kept[knob] >= flat[knob] or _remembered(f"{knob}-", context, state, seen.at_s):
            continue
        knobs = legal(seen.knobs, kept, limits)
        if knobs is None or not rested(f"{knob}+", state, seen.at_s, limits):
            continue
        price = price_change(knobs, seen.knobs, limits.knobs.shards, seen.prices)
        found.append(Change(f"{knob}-", kept, knobs, 0.0, -price, context, _GIVEN_BACK))
    return min(found, key=lambda change: change.price_bytes, default=None)


def _returns(
    seen: Observation, stages: list[Stage], pace: float, full: float, cpus: int
) -> Iterator[tuple[str, dict[str, int]]]:
    """(knob, changes) of all that may be too much."""
    knobs = seen.knobs
    if full >= FULL_RATIO:
        yield from _fewer_helpers(seen, stages, pace * SPARE_RATIO)
    for stage in stages:
        if stage.reading.dataset:
            continue
        knob = "decode_threads" if stage.reading.stage == "decode" else "io_threads"
        now = getattr(knobs, knob)
        need = math.ceil(pace * stage.service_s * stage.reading.share * SPARE_RATIO)
        # More workers than processors make each other's service times look long.
        most = max(cpus, now // 2) if now > cpus else now
        yield knob, {knob: min(max(need, now // 2), most)}
    if full < FULL_RATIO:
        return
    ahead = "read_ahead" if knobs.reader == "indexed" else "queue_samples"
    for knob in ("ring_slots", ahead):
        now = getattr(knobs, knob)
        yield knob, {knob: now // 2 if now > 8 else math.ceil(now * 0.75)}
    if knobs.reader == "indexed":
        return
    streams = [s for s in stages if s.reading.stage == "read"]
    spare = min((s.capacity_per_s for s in streams), default=0.0) >= 2 * pace * SPARE_RATIO
    for prefix in ("", *(f"{name}." for name in knobs.datasets)):
        flat = knobs.flat()
        cycle = flat.get(f"{prefix}cycle_length", 1)
        if spare and cycle > 1:
            calls = min(flat.get(f"{prefix}num_parallel_calls", 1), cycle // 2)
            halved_cycle = {f"{prefix}cycle_length": cycle // 2}
            if f"{prefix}num_parallel_calls" in flat:
                halved_cycle[f"{prefix}num_parallel_calls"] = calls
            yield f"{prefix}cycle_length", halved_cycle
        for knob in ("stream_prefetch", "parse_parallel_calls"):
            if spare and flat.get(f"{prefix}{knob}", 1) > 1:
                yield f"{prefix}{knob}", {f"{prefix}{knob}": flat[f"{prefix}{knob}"] // 2}


def best_cut(state: ControllerState, seen: Observation, limits: ControllerLimits) -> Change | None:
    """Fewer workers, where more of them than processors stand in each other's way."""
    stages = known_stages(seen, limits)
    idle = fresh(seen.idle_cpus, limits.oldest_s)
    if idle is None or not stages or _others_share(seen, limits) is not None:
        return None
    context = (stages[0].name, stages[0].service_s)
    for knob in ("decode_threads", "io_threads"):
        now = getattr(seen.knobs, knob)
        # Readers mostly wait for storage: more of them than processors is no fault by itself.
        if knob == "io_threads" and (seen.knobs.reader != "indexed" or idle >= IDLE_CPUS):
            continue
        to = max(limits.knobs.cpus, math.ceil(now * 0.5))
        knobs = legal(seen.knobs, {knob: to}, limits) if to < now else None
        if knobs is None or _remembered(f"{knob}-", context, state, seen.at_s):
            continue
        if rested(f"{knob}+", state, seen.at_s, limits):
            return Change(f"{knob}-", {knob: to}, knobs, 0.0, 0, context, "more than processors")
    return None


def halved(seen: Observation, limits: ControllerLimits) -> Knobs:
    """All that holds memory, halved towards the minimum: multiplicative shrink.

    A stream that opens anew is held twice for a while; where that would cross the floor, streams
    stay as they are and only rings and queues shrink.
    """
    headroom = fresh(seen.headroom_bytes, limits.oldest_s)
    whole = _halved(seen, limits, keep=())
    price = price_change(seen.knobs, whole, limits.knobs.shards, seen.prices)
    # Half of what is left, since a price under pressure is no more than a guess.
    if headroom is not None and price <= (headroom - limits.ram_floor_bytes) / 2:
        return whole
    return _halved(seen, limits, keep=GENERATION_KNOBS)


def _halved(seen: Observation, limits: ControllerLimits, *, keep: tuple[str, ...]) -> Knobs:
    least = limits.least(seen.knobs).flat()
    return lowered(seen.knobs, lambda key, value: max(least[key], value // 2), keep=keep)


def legal(knobs: Knobs, changes: Mapping[str, int], limits: ControllerLimits) -> Knobs | None:
    """The knobs with ``changes``; ``None`` where a guard refuses them, or the order is promised."""
    if limits.order_fixed and any(key.rpartition(".")[2] in ORDER_KNOBS for key in changes):
        return None
    try:
        wanted = Knobs.build(changes, base=knobs)
        wanted.check(limits.knobs)
    except KnobError:
        return None
    return wanted


def _may_grow(
    knob: str,
    context: tuple[str, float],
    state: ControllerState,
    seen: Observation,
    limits: ControllerLimits,
) -> bool:
    if _remembered(f"{knob}+", context, state, seen.at_s):
        return False
    return rested(f"{knob}-", state, seen.at_s, limits)


def rested(move: str, state: ControllerState, now_s: float, limits: ControllerLimits) -> bool:
    """True if the knob's last move the other way ("ring_slots-") is past its hold-off."""
    return all(name != move or now_s - at_s >= limits.hold_off_s for name, at_s in state.moved)


def _remembered(
    knob: str, context: tuple[str, float], state: ControllerState, now_s: float
) -> bool:
    """True if this did not pay lately, under circumstances like these."""
    for failure in state.failures:
        if failure.knob != knob or now_s >= failure.until_s:
            continue
        stage, service_s = failure.context
        ratio = context[1] / service_s if service_s > 0 else 1.0
        if stage == context[0] and 2 / 3 <= ratio <= 1.5:
            return True
    return False


STEP_BYTES = 256 * MIB
"""Least step of growth, where so much is there."""
LEAST_STEP_BYTES = 32 * MIB
LATE_RATIO = 0.25
"""With such a part of what is held late, the hits fall short of those foretold."""
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
    """The knobs once the frame cache has given back ``missing`` of what it holds, or all."""
    left = max(0, min(knobs.cache_bytes, held_bytes) - missing)
    return Knobs.build({"cache_bytes": left if left >= LEAST_STEP_BYTES else 0}, base=knobs)


def cheaper_cache(seen: Observation) -> Knobs | None:
    """The knobs with fewer frames held, where they cost more reading than they save decoding."""
    cache = seen.cache
    if cache is None or not seen.knobs.cache_bytes or cache.reread_ratio <= cache.saved_ratio:
        return None
    return lowered_cache(seen.knobs, cache.held_bytes, max(STEP_BYTES, cache.held_bytes // 4))


def grown_cache(seen: Observation, limits: ControllerLimits, margin_bytes: int) -> Knobs | None:
    """The knobs with a larger frame cache.

    ``None`` where it is not full, where it hits less than was foretold, or where there is no room.
    """
    cache, now = seen.cache, seen.knobs.cache_bytes
    headroom = fresh(seen.headroom_bytes, limits.oldest_s)
    if cache is None or headroom is None:
        return None
    if now and not (cache.wanting and cache.held_bytes >= CACHE_FULL_RATIO * now):
        return None
    if cache.late_bytes > LATE_RATIO * cache.held_bytes:
        return None
    room = headroom - limits.ram_floor_bytes - margin_bytes
    room = min(room * limits.budget_ratio, room if seen.room_bytes is None else seen.room_bytes)
    step = min(max(STEP_BYTES, now), int(GROWN_RATIO * room))
    caps = (limits.knobs.cache_bytes, limits.most_cache_bytes)
    to = min(now + step, *(most for most in caps if most is not None))
    if to - now < LEAST_STEP_BYTES:
        return None
    return Knobs.build({"cache_bytes": to}, base=seen.knobs)
