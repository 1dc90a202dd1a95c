"""Weights that are set while running: what they make of the order, and from which position on.

They hold from a batch on that all ranks know by its number: its first position follows from the
number, the batch size and the epochs, whoever asks. Where that lies within a block of the mixing
schedule, the block is finished first. A loader begins anew at the batch that it would hand out
next, so whatever was read ahead in the order before is dropped.

A stream that owes datasets their turns has dealt blocks of later turns meanwhile, at most
``MAX_DEBTS``: those stay as they were dealt.

Not here: the legs of an order (``sampling.schedule``), what a state says of it
(``process.checkpoint``).
"""

from __future__ import annotations

from collections.abc import Mapping

from autoloader.errors import UsageError, nearest, shown
from autoloader.pipeline.progress import DeliveryProgress
from autoloader.process.planning.start import LoaderPlan
from autoloader.sampling.dealing import Deal, Ranks
from autoloader.sampling.mixture import MixtureOrder, shares_of
from autoloader.spec.block import is_number


def reweighted(
    plan: LoaderPlan,
    order: MixtureOrder,
    progress: DeliveryProgress,
    ranks: Ranks,
    weights: Mapping[str, float],
    at_batch: int | None,
) -> MixtureOrder:
    """The order with other weights from a batch on.

    Args:
        plan: what the loader was begun with.
        order: the order of samples in force.
        progress: what was handed out; where a stream's mixer begins is told anew in it.
        ranks: which of how many trainers asks.
        weights: dataset name → weight, as ``AutoLoader.set_weights``.
        at_batch: number of the first batch; ``None`` is the next one.

    Raises:
        UsageError: the weights, the batch or the spec allow no such change.
    """
    _check_spec(plan)
    _check_weights(weights, plan.mixture.names)
    if not any(weights.get(one.name, one.weight) for one in plan.mixture.datasets):
        raise UsageError(
            "set_weights: every dataset would have weight 0",
            remedy="give one of them a weight above 0",
        )
    samples = {name: count.samples for name, count in plan.counts.items()}
    sizes = {name: count.size for name, count in plan.counts.items()}
    shares = shares_of(plan.mixture, samples, sizes, weights)
    start = progress.start()
    number = _number(at_batch, start.first_number, ranks)
    deal = Deal.of(
        order,
        plan.mixture.spec.batch,
        ranks,
        base=start.position,
        in_epoch=start.in_epoch,
        first_number=start.first_number,
    )
    order = progress.told_from_last_change(order)
    return progress.told_from_last_change(order.changed(deal.step(number)[0], shares))


def _check_spec(plan: LoaderPlan) -> None:
    if plan.order.pass_samples is not None:
        raise UsageError(
            "set_weights: an epoch is one pass of every dataset (mixing.epoch: pass), whatever its "
            "weight",
            remedy="set mixing: {epoch: N}, in samples, or forever, and weights: explicit or "
            "natural_scaled",
        )
    if plan.mixture.spec.weights == "natural":
        raise UsageError(
            "set_weights: the spec says weights: natural, which asks for no weight",
            remedy="set weights: natural_scaled (weight × samples), or explicit",
        )


def _check_weights(weights: object, names: tuple[str, ...]) -> None:
    if not isinstance(weights, Mapping):
        raise UsageError(
            f"set_weights: {shown(weights)} is no mapping",
            remedy=f"pass dataset names and weights, such as {{{names[0]!r}: 2.0}}",
        )
    for name, weight in weights.items():
        if name not in names:
            raise UsageError(
                f"set_weights: there is no dataset {shown(name)}", remedy=nearest(str(name), names)
            )
        if not is_number(weight) or weight < 0:
            raise UsageError(
                f"set_weights: weight {shown(weight)} of dataset {name!r}",
                remedy="pass a number from 0 on, which is relative to those of the others",
            )


def _number(at_batch: int | None, following: int, ranks: Ranks) -> int:
    if at_batch is None:
        if ranks.world_size > 1:
            raise UsageError(
                f"set_weights without at_batch, on {ranks.world_size} ranks: one that calls it a "
                "step later than another would have other samples",
                remedy=f"pass the same at_batch on every rank, such as loader.batches + 10; the "
                f"next batch is number {following}",
            )
        return following
    if isinstance(at_batch, bool) or not isinstance(at_batch, int):
        raise UsageError(
            f"set_weights: at_batch is {shown(at_batch)}",
            remedy="pass the number of a batch, as loader.batches counts them",
        )
    if at_batch < following:
        raise UsageError(
            f"set_weights: batch {at_batch} was handed out already",
            remedy=f"pass at_batch={following} (the next one) or a later one, the same on every "
            "rank",
        )
    return at_batch
