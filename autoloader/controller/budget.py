"""One budget of memory for all pipelines of a process: train, validation, and the node's ranks.

Theory of operation. Headroom is one number that all of them read, and it falls only when pages are
touched, seconds after a change was admitted. Two that each trust it would spend it twice. So what
is admitted is promised first, under one lock, against the reading it was admitted on; for
``PROMISED_S`` it counts as gone for everybody. By then the pages are there, and the reading shows
them. Of what is left above floor, margin and promises each pipeline in use may take its share
(``admission.split_budget``); one that is parked keeps what it was promised and gets no more. The
highest floor of all counts.

What is not coordinated: processes. Each trainer that has a child of its own reads the same
headroom, but does not see the others' promises; the margin and the reflex stand between them and
the floor.

A start was planned by its trainer, seconds ago and without a view of the other pipelines. So the
process that runs them all prices it again before anything is opened (``admit_opening``). Where
there is no room for the knobs asked for, the pipeline opens with the least knobs, which is what the
plan made sure of.

Any thread may call.

Invariants:
    1. Promises that were admitted never sum to more than what was above floor + margin then.
    2. Shares sum to at most the whole.
    3. Unknown headroom has no room.

Not here: prices (``admission``), refusing a start (``process.planning``), which change
(``policy``), who shrinks for a loader that opens (``autoloader.process.child``).
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from autoloader.controller.admission import price_start
from autoloader.controller.limits import ControllerLimits
from autoloader.host.clock import Clock, SystemClock
from autoloader.host.probes.headroom import HeadroomSource, headroom_or_none
from autoloader.host.units import format_bytes
from autoloader.samples.resolve import MixtureSizes
from autoloader.spec.knobs import Knobs

logger = logging.getLogger(__name__)

PROMISED_S = 5.0
"""How long what was admitted counts as gone: fresh pages come at 0.4 GiB/s (design: "Reflex")."""
OPENING_S = 15.0
"""The same for a pipeline that opens: libraries, streams and the first fill of its ring."""


@dataclass(slots=True, eq=False)
class Share:
    """One pipeline's part of a budget.

    Attributes:
        name: name of the share in refusals.
        floor_bytes: bytes of its RAM floor.
        in_use: whether it may grow; one that is parked may not.
    """

    name: str
    floor_bytes: int
    in_use: bool = True
    _promises: list[tuple[float, int]] = field(default_factory=list)

    def promised_bytes(self, now_s: float) -> int:
        """What it was promised and may not hold yet."""
        self._promises = [one for one in self._promises if one[0] > now_s]
        return sum(size for _, size in self._promises)

    def promise(self, size: int, until_s: float) -> None:
        """Count ``size`` bytes as its own until then."""
        self._promises.append((until_s, size))


class SharedBudget:
    """What several pipelines may take together.

    Args:
        clock: time source of the promises' ages.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.forget_all()

    def forget_all(self) -> None:
        """In a fork: the pipelines, and whoever asks at this moment, are the parent's."""
        self._lock = threading.Lock()
        self._shares: list[Share] = []

    def join(self, name: str, floor_bytes: int) -> Share:
        """One more pipeline."""
        share = Share(name, floor_bytes)
        with self._lock:
            self._shares.append(share)
        return share

    def leave(self, share: Share) -> None:
        """It is over; its promises with it. May be called twice."""
        with self._lock:
            self._shares = [one for one in self._shares if one is not share]

    def room_bytes(self, share: Share, headroom_bytes: float | None, margin_bytes: int) -> int:
        """What a pipeline may take now, of a reading of headroom; 0 where there is no reading."""
        with self._lock:
            return self._room(share, headroom_bytes, margin_bytes)

    def promised(
        self,
        share: Share,
        size: int,
        *,
        headroom_bytes: float | None,
        margin_bytes: int,
        opening: bool = False,
    ) -> bool:
        """Whether ``size`` bytes may be taken; where they may, they are promised.

        Args:
            share: share that the promise belongs to.
            size: bytes above what it holds.
            headroom_bytes: a fresh reading; ``None``: unknown.
            margin_bytes: distance to the floor that must stay.
            opening: it takes its place among the others, from all that is left and not from a
                share of it.
        """
        with self._lock:
            if opening:
                room = self._left(headroom_bytes, margin_bytes) - self._promises()
            else:
                room = self._room(share, headroom_bytes, margin_bytes)
            if size > 0 and size > room:
                return False
            self._promise(share, size, opening)
            return True

    def take(self, share: Share, size: int, *, opening: bool = False) -> None:
        """Count ``size`` bytes as promised, whether there is room or not: somebody else decided."""
        with self._lock:
            self._promise(share, size, opening)

    def _promise(self, share: Share, size: int, opening: bool) -> None:
        if size > 0:
            share.promise(size, self._clock.now_s() + (OPENING_S if opening else PROMISED_S))

    def _room(self, share: Share, headroom_bytes: float | None, margin_bytes: int) -> int:
        if share not in self._shares or not share.in_use:
            return 0
        left = max(0, self._left(headroom_bytes, margin_bytes) - self._promises())
        return left // sum(one.in_use for one in self._shares)

    def _left(self, headroom_bytes: float | None, margin_bytes: int) -> int:
        floor = max((one.floor_bytes for one in self._shares), default=0)
        return -1 if headroom_bytes is None else int(headroom_bytes) - floor - margin_bytes

    def _promises(self) -> int:
        now = self._clock.now_s()
        return sum(one.promised_bytes(now) for one in self._shares)


@dataclass(frozen=True, slots=True)
class PipelineSizes:
    """What a pipeline's price hangs on beside its knobs.

    Attributes:
        mixture: of its episodes and batches.
        ring_bytes: pages that its ring holds already.
        has_tensorflow: whether this process has imported it.
    """

    mixture: MixtureSizes
    ring_bytes: int
    has_tensorflow: bool

    def price(self, knobs: Knobs) -> int:
        """Bytes that opening takes from now on."""
        joining = knobs.reader != "stream" or self.has_tensorflow
        start = price_start(knobs, self.mixture, joining=joining)
        return start.total_bytes - min(self.ring_bytes, start.ring_bytes)


@dataclass(frozen=True, slots=True)
class Opening:
    """A pipeline that may open.

    Attributes:
        share: its part of the budget.
        knobs: to begin with: those asked for, or the least.
        price_bytes: what they were priced at.
        headroom_bytes: the reading they were held against; ``None``: unknown.
        as_asked: whether they are those asked for.
    """

    share: Share
    knobs: Knobs
    price_bytes: int
    headroom_bytes: int | None
    as_asked: bool


def admit_opening(
    budget: SharedBudget,
    source: HeadroomSource,
    knobs: Knobs,
    limits: ControllerLimits,
    pipes: PipelineSizes,
    *,
    name: str,
    moves: bool,
) -> Opening:
    """Give a pipeline its place in the budget, and the knobs it may open with.

    Args:
        budget: memory budget shared by this process.
        source: source of headroom readings.
        knobs: values that were asked for.
        limits: limits of the pipeline's knobs.
        pipes: what its price hangs on.
        name: name of its share of the budget.
        moves: whether knobs may move by themselves; without that they stay as they are asked for,
            and only count.
    """
    share = budget.join(name, limits.ram_floor_bytes)
    headroom, price = headroom_or_none(source), pipes.price(knobs)
    least = limits.least(knobs)
    if not moves or least == knobs:
        budget.take(share, price, opening=True)
        return Opening(share, knobs, price, headroom, as_asked=True)
    margin = limits.margin_bytes
    may = budget.promised(share, price, headroom_bytes=headroom, margin_bytes=margin, opening=True)
    if may:
        return Opening(share, knobs, price, headroom, as_asked=True)
    logger.warning(
        "opens with the least knobs: those asked for need %s; headroom is %s, %s stay free",
        format_bytes(price),
        "unknown" if headroom is None else format_bytes(headroom),
        format_bytes(limits.ram_floor_bytes + margin),
    )
    price = pipes.price(least)
    budget.take(share, price, opening=True)
    return Opening(share, least, price, headroom, as_asked=False)
