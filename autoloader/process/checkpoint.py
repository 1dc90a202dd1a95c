"""Saved states: their contents, whether one is whole, which loader may resume; weights set later.

A state is a place in an order, so it fits whatever gives the same order: the number of ranks, the
batch size and every free knob may differ. What the order depends on must be the same; that part of
a state is its ``fingerprint``.

Nothing of a state is believed before ``read_state`` has checked its types and its checksum. The
checksum is taken over a canonical JSON text, so a state may go through JSON, ``torch.save`` or a
change of tuples into lists.

Weights that are set while running hold from a batch on that all ranks know by its number. Its first
position follows from the number, the batch size and the epochs. Where that lies within a block of
the mixing schedule, the block is finished first. A loader begins anew at the batch that it would
hand out next, so batches read ahead in the earlier order are dropped. A stream that owes datasets
their turns has dealt blocks of later turns meanwhile, at most ``MAX_DEBTS``: those stay as dealt.

Not here: the place itself (``pipeline.progress``), the schedules of an order
(``sampling.schedule``).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from autoloader.errors import UsageError, nearest, shown
from autoloader.pipeline.progress import DeliveryProgress
from autoloader.process.planning import LoaderPlan
from autoloader.samples.draws import dataset_key
from autoloader.sampling.dealing import Ranks
from autoloader.sampling.mixture import MixtureOrder, phase_of, shares_of
from autoloader.spec.block import is_number
from autoloader.spec.mixture import MOST_WEIGHT

logger = logging.getLogger(__name__)

STATE_VERSION = 2


def fingerprint(plan: LoaderPlan) -> dict[str, Any]:
    """Fields of a state that must equal those of the loader that resumes from it; plain values."""
    spec, order = plan.mixture.spec, plan.order
    return {
        "split": plan.mixture.split,
        "seed": spec.seed,
        "reader": plan.knobs.reader,
        "mixing": {
            "strategy": spec.mixing.strategy,
            "chain": order.chain,
            "block_length": order.block_length,
            "epoch": "pass" if order.pass_samples is not None else order.epoch_samples,
            **_curriculum(order, plan.mixture.names),
            **_locality(order, plan.mixture.names),
            **({} if order.steps is None else {"unit": "batch"}),
        },
        "datasets": {
            dataset.name: {
                "share": order.shares[dataset.index],
                "samples": plan.counts[dataset.name].samples,
                "stride": dataset.stride,
                "per_episode": dataset.sample.per_episode,
                **({"sample_weight": known.digest} if known and dataset.drawn_by_weight else {}),
            }
            for dataset, known in ((one, one.weights) for one in plan.mixture.datasets)
        },
    }


_VALUES = ("sample", "cameras", "augment", "normalize", "pad_to", "batch", "errors")
_DATASET_VALUES = (
    "images", "files", "action", "state", "language", "features", "normalize", "transform", "steps",
    "sample", "stride", "timestamps", "vision",
)  # fmt: skip
_CHOICES = ("keep", "fps", "sample_weight")


def values_of(plan: LoaderPlan) -> dict[str, str]:
    """Digest of each part of a spec that decides what samples hold, or which of a split there are.

    So has each dataset's content. A resume takes others, if there are as many samples, and
    ``tell_of_values`` names the parts. Places of files are left out, as they differ from host to
    host.
    """
    mixture = plan.mixture
    # Without defaults, so that a field that a later version adds makes no difference.
    whole = mixture.spec.model_dump(mode="json", exclude_defaults=True)
    whole.get("normalize", {}).pop("statistics", None)
    for block, key in (("batch", "size"), ("batch", "drop_last"), ("errors", "dead_dataset"),
                       ("errors", "max_corrupt_ratio")):  # fmt: skip
        whole.get(block, {}).pop(key, None)
    parts, beside = {key: whole.get(key) for key in _VALUES}, mixture.beside
    for one in whole["datasets"]:
        parts[f"datasets[{one['name']}]"] = {key: one.get(key) for key in _DATASET_VALUES}
        for block in (one.get("keep", {}).get("ranges"), one.get("sample_weight")):
            (block or {}).pop("file", None)
        chosen = [*map(one.get, _CHOICES), beside.get(one["name"])]
        parts[f"datasets[{one['name']}] ({', '.join(_CHOICES)}, module of transform)"] = chosen
    for name, count in plan.counts.items():
        # Indexes of different features cannot be compared: each has a name of its own.
        parts[f"content of datasets[{name}] (index {count.files[0]})"] = count.files[1]
    parts["module of batch.call"] = mixture.call
    return {path: _checksum(value)[:8] for path, value in parts.items()}


def tell_of_values(state: Mapping[str, Any], here: Mapping[str, str]) -> None:
    """Log a line where samples behind a state are chosen otherwise, or hold other values."""
    saved = state.get("values", {})  # a state that an earlier version saved has none
    if changed := [path for path, value in saved.items() if here.get(path, value) != value]:
        logger.warning(
            "from here on, samples differ from those of the run that saved the state: it had "
            "another %s",
            ", ".join(changed),
        )


def _curriculum(order: MixtureOrder, names: Sequence[str]) -> dict[str, Any]:
    """Fields of a state about moving weights; {}: they do not move."""
    moves = order.curriculum
    if moves is None:
        return {}
    return {"curriculum": {"to": dict(zip(names, moves.to, strict=True)), "over": moves.over}}


def _locality(order: MixtureOrder, names: Sequence[str]) -> dict[str, Any]:
    """Fields of a state about locality; {}: there is none."""
    near = order.locality
    if near is None:
        return {}
    blocks = dict(zip(names, near.blocks, strict=True))
    # Batches may change their size where no lane hangs on it.
    batch = near.batch if near.lanes > 1 else 1
    own = {"window": near.window, "lanes": near.lanes, "batch": batch, "blocks": blocks}
    return {"locality": own}


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state of plain values, with the version of its form and a checksum over all of it."""
    rest = {key: value for key, value in state.items() if key != "checksum"}
    whole = {"schema_version": STATE_VERSION, **rest}
    return {**whole, "checksum": _checksum(whole)}


def _checksum(whole: Any) -> str:
    canonical = json.dumps(whole, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def read_state(state: object) -> dict[str, Any]:
    """A state as plain values, once all of it can be believed.

    Args:
        state: plain value that ``state_dict`` returned.

    Raises:
        UsageError: ``state`` is no state, or a damaged one.
    """
    plain = _plain(state)
    if plain.get("schema_version") != STATE_VERSION:
        raise UsageError(
            f"the state has schema_version {shown(plain.get('schema_version'))}; this version of "
            f"autoloader reads {STATE_VERSION}; fields of the state: {shown(sorted(plain))}",
            remedy="load it with the version of autoloader that saved it; if it is no state of an "
            "AutoLoader, pass what state_dict() returned",
        )
    rest = {key: value for key, value in plain.items() if key != "checksum"}
    if plain.get("checksum") != (computed := _checksum(rest)):
        raise UsageError(
            f"the state is damaged: its checksum is {shown(plain.get('checksum'))}, and the rest "
            f"of it gives {computed!r}, so something in it was changed after it was saved",
            remedy="load what state_dict() returned, unchanged; if the file is damaged, "
            "load an earlier checkpoint",
        )
    return plain


def _plain(state: object) -> dict[str, Any]:
    """The state as JSON holds it, a copy of its own."""
    if not isinstance(state, Mapping):
        raise UsageError(
            f"a state is a mapping, and this is {type(state).__name__}: {shown(state)}",
            remedy="pass what state_dict() returned",
        )
    for key, value in state.items():
        try:
            json.dumps({key: value}, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"the state's field {shown(key)} is {shown(value)}, which no state_dict() holds "
                f"({error})",
                remedy="load what state_dict() returned: numbers, text, lists and mappings, "
                "none of them NaN or infinite",
            ) from error
    plain: dict[str, Any] = json.loads(json.dumps(dict(state)))
    return plain


def join_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the states of all ranks to one, which resumes any number of ranks.

    Needed with the stream reader, whose ranks know nothing of each other's places; by index any
    rank's state is as good, and the first one comes back.

    Args:
        states: ``loader.state_dict()`` of each rank, in the order of the ranks, at the same step.

    Raises:
        UsageError: the states are not the states of all ranks at one step, or one is damaged.
    """
    if isinstance(states, (Mapping, str, bytes)) or not isinstance(states, Sequence) or not states:
        raise UsageError(
            f"join_states takes a list of states, and this is {shown(states)}",
            remedy="pass [state of rank 0, state of rank 1, …]",
        )
    read = [read_state(state) for state in states]
    first = read[0]
    of_part = "part" in first
    parts = [tuple(state.get("part", (0, 1))) for state in read]
    places = sorted({state["position"] for state in read})
    if len(places) > 1 or (of_part and parts != [(rank, len(read)) for rank in range(len(read))]):
        lost = min({*range(len(read) + 1)} - {rank for rank, _ in parts})
        missing = f" (none is of rank {lost})" * (of_part and lost < parts[0][1])
        raise UsageError(
            f"join_states needs one state of each rank, saved after the same step; these are of "
            f"(rank, world size) {', '.join(map(str, parts))}{missing}, saved after "
            f"{', '.join(map(str, places))} samples",
            remedy="gather the states after the same step, and pass them in the order of the ranks",
        )
    for rank, state in enumerate(read):
        shared = {key: first.get(key) for key in _SHARED}
        differing = _all_differences(shared, state, (f"rank {rank}", "rank 0"))
        if differing:
            raise UsageError(
                f"the states of rank 0 and rank {rank} are of different loaders: {differing}",
                remedy="gather the states of all ranks of one run",
            )
    if not of_part or len(read) == 1:
        return sealed(first)
    kept = {
        str(rank): {"cursors": state["cursors"], "mixer": state["mixer"]}
        for rank, state in enumerate(read)
    }
    return sealed({**first, "parts": kept})


_SHARED = ("split", "seed", "reader", "mixing", "datasets", "rebased", "weights")
"""What the states of all ranks have in common."""


def order_from(state: Mapping[str, Any], plan: LoaderPlan, order: MixtureOrder) -> MixtureOrder:
    """The order that a loader goes on in behind a state, where it may go on from it at all.

    Where nothing differs it is the order that the state was saved in, whatever weights were set
    (``set_weights``). Where the spec has other weights or datasets, they hold from the state's
    position on, and weights set before are forgotten. A dataset does not repeat a sample before
    its pass is over. The position, and the number of samples of each dataset by then, are the
    order's ``base`` and ``given``.

    Args:
        state: a state that ``read_state`` returned.
        plan: plan of the loader that resumes.
        order: order of the plan, from position 0.

    Raises:
        UsageError: the state is of another order; says field by field what was saved and what is
            here.
    """
    here = fingerprint(plan)
    position, names = int(state["position"]), plan.mixture.names
    if differing := _all_differences(here, state):
        if not _may_rebase(state, here, plan):
            raise UsageError(
                f"the state was saved for another loader: {differing}",
                remedy="set these fields as in the saved run; world size, batch size and "
                "knobs may differ. If mixing.epoch is a number or forever, and the spec has no "
                "mixing.chain and no mixing.locality.lanes, weights and datasets may differ too",
            )
        saved = tuple(state["datasets"])
        before = _saved_order(state, order, saved).samples_before(position)
        given = dict(zip(saved, before, strict=True))
        if not position:
            return order
        logger.warning(
            "from sample %d of the run on, the order is that of this spec, not the saved one: %s",
            position,
            differing,
        )
        found = replace(order, base=position, given=tuple(given.get(n, 0) for n in names))
        return _at(found, state)
    found = _saved_order(state, order, names)
    if found.steps is not None and order.steps is not None:
        other = (found.steps.batch, found.steps.world_size, found.steps.drop_last)
        if other != (order.steps.batch, order.steps.world_size, order.steps.drop_last):
            return _at(replace(found.from_position(position), steps=order.steps), state)
    moves = found.curriculum is not None or bool(found.changes)
    _, world_size = state.get("part") or (0, plan.world_size)
    # Streams that are dealt anew count their blocks from here.
    return found.from_position(position) if moves and world_size != plan.world_size else found


def _at(order: MixtureOrder, state: Mapping[str, Any]) -> MixtureOrder:
    """An order that begins at a state's position, whose steps begin there."""
    if order.steps is None:
        return order
    return replace(order, steps=replace(order.steps, in_epoch=int(state["in_epoch"])))


def _saved_order(
    state: Mapping[str, Any], order: MixtureOrder, names: Sequence[str]
) -> MixtureOrder:
    """The order that a state was saved in, over the datasets ``names``.

    Args:
        state: a state that ``read_state`` returned.
        order: says what has no say in the datasets.
        names: names of the state's datasets, in any order.
    """

    def by_place(by_name: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(by_name[name] for name in names)

    rebased = state.get("rebased") or {"position": 0, "given": {}}
    chosen = state.get("weights") or {"shares": None, "later": []}
    moves = state["mixing"].get("curriculum")
    steps = None if order.steps is None else state.get("steps")
    own = chosen["shares"] or {name: one["share"] for name, one in state["datasets"].items()}
    base = int(rebased["position"])
    found = {
        "shares": by_place(own),
        "phases": [phase_of(dataset_key(state["seed"], name)) for name in names],
        "base": base,
        "given": [rebased["given"].get(name, 0) for name in names] if base else [],
        "curriculum": {**moves, "to": by_place(moves["to"])}
        if moves and chosen["shares"] is None
        else None,
        "changes": [{**one, "shares": by_place(one["shares"])} for one in chosen["later"]],
        "steps": {**steps, "kinds": by_place(steps["kinds"])} if steps else None,
    }
    return MixtureOrder.from_plain({**asdict(order), **found})


def order_state(order: MixtureOrder, plan: LoaderPlan) -> dict[str, Any]:
    """Fields of a state for the order, beside the fingerprint: where it began, what was set."""
    found: dict[str, Any] = {}
    names = plan.mixture.names
    if order.base:
        given = dict(zip(names, order.given, strict=True))
        found["rebased"] = {"position": order.base, "given": given}
    if order.steps is not None:
        kinds = dict(zip(names, order.steps.kinds, strict=True))
        found["steps"] = {**asdict(order.steps), "kinds": kinds}
    declared = plan.order
    as_declared = (order.shares, order.curriculum) == (declared.shares, declared.curriculum)
    if not as_declared or order.changes:
        found["weights"] = {
            "shares": None if as_declared else dict(zip(names, order.shares, strict=True)),
            "later": [
                {"position": one.position, "shares": dict(zip(names, one.shares, strict=True))}
                for one in order.changes
            ],
        }
    return found


def is_rebased(state: Mapping[str, Any], plan: LoaderPlan) -> bool:
    """True if a loader would continue from a state with other datasets or weights."""
    here = fingerprint(plan)
    moves = (state["mixing"].get("curriculum"), here["mixing"].get("curriculum"))
    return moves[0] != moves[1] or bool(
        _differences("datasets", state["datasets"], here["datasets"])
    )


def _may_rebase(state: Mapping[str, Any], here: Mapping[str, Any], plan: LoaderPlan) -> bool:
    """True if only weights, the list of datasets and the epoch's length differ."""
    old, new = state["datasets"], here["datasets"]
    both = [name for name in old if name in new]
    if "pass" in (state["mixing"]["epoch"], here["mixing"]["epoch"]) or not both:
        return False
    if plan.order.chain or plan.order.lanes > 1:
        return False

    def fixed(one: Mapping[str, Any]) -> dict[str, Any]:
        mixing = {**one["mixing"], "epoch": 0, "curriculum": None}
        if (near := mixing.get("locality")) is not None:
            mixing["locality"] = {**near, "blocks": {name: near["blocks"][name] for name in both}}
        datasets = {name: {**one["datasets"][name], "share": 0} for name in both}
        return {**{key: one[key] for key in here}, "mixing": mixing, "datasets": datasets}

    return fixed(state) == fixed(here)


_NAMES = ("the saved run", "this run")
"""What differs, in messages."""


def _all_differences(
    here: Mapping[str, Any], state: Mapping[str, Any], names: tuple[str, str] = _NAMES
) -> str:
    """Clauses about every field in which a state differs from the plan; "": none does."""
    found = []
    for key, value in here.items():
        found += _differences(key, state.get(key), value, names)
    return "; ".join(found)


def _differences(path: str, saved: Any, here: Any, names: tuple[str, str] = _NAMES) -> list[str]:
    """Clauses about the leaves in which two values differ."""
    if isinstance(saved, Mapping) and isinstance(here, Mapping):
        found = []
        for key in dict.fromkeys([*saved, *here]):
            found += _differences(f"{path}.{key}", saved.get(key), here.get(key), names)
        return found
    if isinstance(saved, Mapping) or isinstance(here, Mapping):
        return [f"{path} is only in {names[saved is None]}"]
    told = [f"{value!r} in {name}" for name, value in zip(names, (saved, here), strict=True)]
    return [] if saved == here else [f"{path}: {', '.join(told)}"]


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
        plan: plan of the loader.
        order: the order of samples in force.
        progress: progress of the delivery; a stream's mixer is set in it anew.
        ranks: rank of the asking trainer, and number of trainers.
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
            remedy="give at least one dataset a weight above 0",
        )
    samples = {name: count.samples for name, count in plan.counts.items()}
    sizes = {name: count.size for name, count in plan.counts.items()}
    shares = shares_of(plan.mixture, samples, sizes, weights)
    start = progress.start()
    number = _number(at_batch, start.first_number, ranks)
    deal = start.deal(plan.mixture, order, ranks)
    order = progress.told_from_last_change(order)
    return progress.told_from_last_change(order.changed(deal.step(number)[0], shares))


def _check_spec(plan: LoaderPlan) -> None:
    """Refuse ``set_weights`` for a spec whose weights cannot change."""
    if plan.order.pass_samples is not None:
        raise UsageError(
            "set_weights: an epoch is one pass of every dataset (mixing.epoch: pass), whatever its "
            "weight",
            remedy="set mixing: {epoch: SAMPLES} or {epoch: forever}, and weights: explicit or "
            "natural_scaled",
        )
    if plan.mixture.spec.weights == "natural":
        raise UsageError(
            "set_weights: the spec has weights: natural, which takes no weights",
            remedy="set weights: natural_scaled (weight × samples), or explicit",
        )


def _check_weights(weights: object, names: tuple[str, ...]) -> None:
    """Refuse weights that are none, or of unknown datasets."""
    if not isinstance(weights, Mapping):
        raise UsageError(
            f"set_weights: {shown(weights)} is not a mapping",
            remedy=f"pass dataset names and weights, such as {{{names[0]!r}: 2.0}}",
        )
    for name, weight in weights.items():
        if name not in names:
            raise UsageError(
                f"set_weights: there is no dataset {shown(name)}", remedy=nearest(str(name), names)
            )
        if not is_number(weight) or not 0 <= weight <= MOST_WEIGHT:
            raise UsageError(
                f"set_weights: the weight of dataset {name!r} is {shown(weight)}; a weight is a "
                f"number from 0 to {MOST_WEIGHT:g}",
                remedy="pass 0 to leave the dataset out, 1 for an equal share",
            )


def _number(at_batch: int | None, following: int, ranks: Ranks) -> int:
    """Number of the first batch with other weights."""
    if at_batch is None:
        if ranks.world_size > 1:
            raise UsageError(
                f"set_weights without at_batch, on {ranks.world_size} ranks: a rank that calls it "
                "a step later would get other samples",
                remedy="pass the same at_batch on every rank, some batches ahead, such as "
                f"at_batch={following + 10}; the next batch here is number {following}",
            )
        return following
    if isinstance(at_batch, bool) or not isinstance(at_batch, int):
        raise UsageError(
            f"set_weights: at_batch must be a whole number, and is {shown(at_batch)}",
            remedy="pass the number of a batch, as loader.batches counts them",
        )
    if at_batch < following:
        raise UsageError(
            f"set_weights: at_batch={at_batch} lies before the next batch, {following}",
            remedy=f"pass at_batch={following} or a later one, the same on every rank",
        )
    return at_batch
