"""What a saved state says of the loader it was saved by, and whether another one may take it.

A state is a place in an order, so it fits whatever gives the same order: the number of ranks, the
batch size and every free knob may differ. What the order hangs on must be the same.

Not here: the place itself (``runtime.progress``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autoloader.errors import UsageError
from autoloader.planning import LoaderPlan
from autoloader.sampling.order import MixtureOrder

STATE_VERSION = 1


def described(plan: LoaderPlan) -> dict[str, Any]:
    """What a state must have in common with the loader that resumes from it; plain values."""
    spec, order = plan.mixture.spec, plan.order
    return {
        "schema_version": STATE_VERSION,
        "split": plan.mixture.split,
        "seed": spec.seed,
        "reader": plan.knobs.reader,
        "mixing": {
            "strategy": spec.mixing.strategy,
            "chain": order.chain,
            "block_length": order.block_length,
            "epoch": "pass" if order.pass_samples is not None else order.epoch_samples,
        },
        "datasets": {
            dataset.name: {
                "share": order.shares[dataset.index],
                "samples": plan.counts[dataset.name].samples,
                "stride": dataset.stride,
                "per_episode": dataset.sample.per_episode,
            }
            for dataset in plan.mixture.datasets
        },
    }


def join_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state out of those of all ranks; it resumes any number of ranks.

    Needed with the stream reader, whose ranks know nothing of each other's places; by index any
    rank's state is as good, and the first one comes back.

    Args:
        states: ``loader.state_dict()`` of each rank, in the order of the ranks, at the same step.

    Raises:
        UsageError: they are not the states of all ranks at one step.
    """
    parts = [tuple(state.get("part", (0, 1))) for state in states]
    if not states or "part" not in states[0] or parts == [(0, 1)]:
        return dict(states[0]) if states else {}
    places = {state["position"] for state in states}
    if parts != [(rank, len(states)) for rank in range(len(states))] or len(places) > 1:
        raise UsageError(
            f"states of (rank, world size) {', '.join(map(str, parts))} at positions "
            f"{', '.join(map(str, sorted(places)))} are not those of all ranks at one step",
            remedy="gather the state of every rank, in their order, after the same step",
        )
    kept = {
        str(rank): {"cursors": state["cursors"], "mixer": state["mixer"]}
        for rank, state in enumerate(states)
    }
    return {**states[0], "parts": kept}


def order_from(state: Mapping[str, Any], plan: LoaderPlan, order: MixtureOrder) -> MixtureOrder:
    """The order that a loader goes on in behind a state, where it may go on from it at all.

    Other weights, and datasets that were added, hold from the state's position on: what a dataset
    has given it does not give again before its pass is over. The position, and what each dataset
    had given by then, are the order's ``base`` and ``given``.

    Args:
        state: ``loader.state_dict()``.
        plan: of the loader that resumes.
        order: its order from position 0.

    Raises:
        UsageError: the state is of another order; says field by field what was saved and what is
            here.
    """
    if "samples" in (state.get("mixer") or {}):  # of versions that mixed in TensorFlow's graph
        raise UsageError(
            f"the state's mixing.strategy {state['mixing']['strategy']!r} ran in TensorFlow's "
            "graph when it was saved, and its place is none of this mixer's",
            remedy="start the run's data anew, or finish it with the version that saved it",
        )
    here, differing = described(plan), []
    for key, value in here.items():
        differing += _differences(key, state.get(key), value)
    turned = state.get("turned") or {"base": 0, "given": {}}
    given: Mapping[str, int] = turned["given"]
    base = int(turned["base"])
    if differing:
        if not _may_turn(state, here, plan):
            raise UsageError(
                "the state was saved for another loader: " + "; ".join(differing),
                remedy="resume with the spec and split that the state was saved with; world size, "
                "batch size and free knobs may differ, and, where an epoch is no pass and "
                "nothing is chained, weights, and datasets may be added",
            )
        saved = state["datasets"]
        phases = dict(zip(plan.mixture.names, order.phases, strict=True))
        before = replace(
            order,
            shares=tuple(one["share"] for one in saved.values()),
            phases=tuple(phases[name] for name in saved),
            base=base,
            given=tuple(given.get(name, 0) for name in saved),
        )
        base = int(state["position"])
        given = dict(zip(saved, before.samples_before(base), strict=True))
    if not base:
        return order
    return replace(order, base=base, given=tuple(given.get(n, 0) for n in plan.mixture.names))


def turned(order: MixtureOrder, names: Sequence[str]) -> dict[str, Any]:
    """What a state says of an order that did not begin at position 0."""
    if not order.base:
        return {}
    return {"turned": {"base": order.base, "given": dict(zip(names, order.given, strict=True))}}


def is_turned(state: Mapping[str, Any], plan: LoaderPlan) -> bool:
    """Whether a loader would go on from a state with other datasets or weights."""
    return bool(_differences("datasets", state["datasets"], described(plan)["datasets"]))


def _may_turn(state: Mapping[str, Any], here: Mapping[str, Any], plan: LoaderPlan) -> bool:
    """Whether nothing differs but weights, datasets that were added, and the epoch's length."""
    saved, now = dict(state), dict(here)
    old, new = dict(saved.get("datasets") or {}), dict(now["datasets"])
    mixing = dict(saved.get("mixing") or {})
    if "pass" in (mixing.get("epoch"), now["mixing"]["epoch"]) or not set(old) <= set(new):
        return False
    if plan.order.chain:
        return False
    mixing["epoch"] = now["mixing"]["epoch"]
    saved["mixing"] = mixing
    saved["datasets"] = {name: {**one, "share": 0} for name, one in old.items()}
    now["datasets"] = {name: {**new[name], "share": 0} for name in old}
    return all(saved.get(key) == value for key, value in now.items())


def _differences(path: str, saved: Any, here: Any) -> list[str]:
    if isinstance(saved, Mapping) and isinstance(here, Mapping):
        found = []
        for key in dict.fromkeys([*saved, *here]):
            found += _differences(f"{path}.{key}", saved.get(key), here.get(key))
        return found
    return [] if saved == here else [f"{path}: saved {saved!r}, here {here!r}"]
