"""Whether a pipeline may open with the knobs asked for: a fresh reading and the budget decide.

A start was planned by its trainer, seconds ago and without a view of the other pipelines; here, in
the process that runs them all, it is priced again before anything is opened. Where there is no room
for the knobs asked for, the pipeline opens with the least, which is what the plan made sure of.

Not here: the budget (``budget``), prices (``admission``), refusing a start (``planning``).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from autoloader.controller.admission import price_start
from autoloader.controller.budget import Share, SharedBudget
from autoloader.controller.limits import ControllerLimits
from autoloader.controller.probes.headroom import HeadroomSource, headroom_or_none
from autoloader.knobs import Knobs
from autoloader.units import format_bytes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pipes:
    """What a pipeline's price hangs on beside its knobs.

    Attributes:
        record_bytes: mean bytes of a record, by dataset.
        batch_bytes: of a ring slot.
        ring_bytes: pages that its ring holds already.
        has_tensorflow: whether this process has imported it.
    """

    record_bytes: dict[str, int]
    batch_bytes: int
    ring_bytes: int
    has_tensorflow: bool

    def price(self, knobs: Knobs) -> int:
        """Bytes that opening takes from now on."""
        start = price_start(
            knobs,
            record_bytes=self.record_bytes,
            batch_bytes=self.batch_bytes,
            with_tensorflow=knobs.reader == "stream",
            joining=knobs.reader != "stream" or self.has_tensorflow,
        )
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
    pipes: Pipes,
    *,
    name: str,
    moves: bool,
) -> Opening:
    """Give a pipeline its place in the budget, and the knobs it may open with.

    Args:
        budget: of this process.
        source: of headroom.
        knobs: asked for.
        limits: the pipeline's.
        pipes: what its price hangs on.
        name: of its share.
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
