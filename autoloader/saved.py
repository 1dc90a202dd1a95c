"""What a saved state says of the loader it was saved by, and whether another one may take it.

A state is a place in an order, so it fits whatever gives the same order: the number of ranks, the
batch size and every free knob may differ. What the order hangs on must be the same.

Not here: the place itself (``runtime.progress``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoloader.errors import UsageError
from autoloader.planning import LoaderPlan

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


def check_state(state: Mapping[str, Any], plan: LoaderPlan) -> None:
    """Refuse a state of another order.

    Raises:
        UsageError: says field by field what was saved and what is here.
    """
    here, differing = described(plan), []
    for key, value in here.items():
        differing += _differences(key, state.get(key), value)
    if differing:
        raise UsageError(
            "the state was saved for another loader: " + "; ".join(differing),
            remedy="resume with the spec and split that the state was saved with; world size, "
            "batch size and knobs that are free may differ",
        )


def _differences(path: str, saved: Any, here: Any) -> list[str]:
    if isinstance(saved, Mapping) and isinstance(here, Mapping):
        found = []
        for key in dict.fromkeys([*saved, *here]):
            found += _differences(f"{path}.{key}", saved.get(key), here.get(key))
        return found
    return [] if saved == here else [f"{path}: saved {saved!r}, here {here!r}"]
