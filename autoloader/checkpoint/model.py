"""The shape of a saved state: which fields it has, and what each of them may hold.

A state comes from a file that anything may have happened to, and from versions that are gone, so
it is checked whole before any of it is used. Here is what can be said without a loader: types and
ranges, and what the numbers of one state say of each other.

Not here: which loader a state fits (``checkpoint``), whether its cursors fit the files
(``order.cursor``).
"""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from autoloader.errors import shown
from autoloader.read.mixer import MAX_DEBT, MAX_DEBTS

STATE_VERSION = 2
_MOST = 2**48
"""More samples than any run takes; arithmetic on positions is exact up to here."""

_Count = Annotated[int, Field(ge=0, le=_MOST)]
_Positive = Annotated[int, Field(ge=1, le=_MOST)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Taken = tuple[_Count, _Positive]
_Number = Annotated[str, Field(pattern=r"^(0|[1-9]\d{0,14})$")]
_PASSES_EMPTY = 1000
"""Passes of a dataset that may have given no sample, where all others gave one at least."""
_PASSES_AHEAD = 2**20
"""Passes of a dataset that may be begun at a time: a shuffle buffer's samples, and some."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class _Dataset(_Model):
    share: _Share
    samples: _Count
    stride: _Positive
    per_episode: Literal["all"] | _Positive


class _Curriculum(_Model):
    to: dict[str, _Share]
    over: _Positive


class _Locality(_Model):
    window: _Positive
    lanes: _Positive
    batch: _Positive
    blocks: dict[str, _Positive]


class _Mixing(_Model):
    strategy: str
    chain: bool
    block_length: _Positive
    epoch: Literal["pass"] | _Positive | None
    curriculum: _Curriculum | None = None
    locality: _Locality | None = None


class _Pass(_Model):
    shards_done: _Count
    records_done: list[_Taken]
    beyond: list[tuple[_Count, list[_Count]]]
    open: list[tuple[_Count, _Count, _Positive]]


class _Cursor(_Model):
    pass_: _Count = Field(alias="pass")
    records: str
    passes: dict[_Number, _Pass]


class _Turns(_Model):
    next: _Count
    debts: Annotated[list[tuple[str, _Positive]], Field(max_length=MAX_DEBTS)]
    left: tuple[str, _Positive] | None
    dropped: list[str]


class _Planned(_Model):
    position: _Count


def _kind(mixer: Any) -> str:
    return "planned" if isinstance(mixer, dict) and "position" in mixer else "turns"


_Mixer = Annotated[
    Annotated[_Planned, Tag("planned")] | Annotated[_Turns, Tag("turns")],
    Discriminator(_kind),
]
_TAGS = {"planned", "turns"}


class _Part(_Model):
    cursors: dict[str, _Cursor]
    mixer: _Mixer | None


class _Rebased(_Model):
    position: _Positive
    given: dict[str, _Count]


class _Change(_Model):
    position: _Count
    shares: dict[str, _Share]


class _Set(_Model):
    shares: dict[str, _Share] | None
    later: list[_Change]


class _State(_Part):
    schema_version: int
    split: str
    seed: int
    reader: Literal["stream", "indexed"]
    mixing: _Mixing
    datasets: Annotated[dict[str, _Dataset], Field(min_length=1)]
    part: tuple[_Count, _Positive] | None = None
    parts: dict[_Number, _Part] | None = None
    position: _Count
    in_epoch: Annotated[int, Field(ge=-_MOST, le=_MOST)]
    epoch_steps: _Count
    batches: _Count
    taken: dict[str, _Count]
    rebased: _Rebased | None = None
    weights: _Set | None = None
    checksum: str = ""


def faults(plain: Mapping[str, Any]) -> list[str]:
    """Fields of a state whose type or range is wrong: each with what was saved and is allowed."""
    try:
        _State.model_validate_json(json.dumps(plain))
    except ValidationError as error:
        found: dict[str, list[str]] = collections.defaultdict(list)
        for fault in error.errors(include_url=False):
            path = ".".join(str(part) for part in fault["loc"] if part not in _TAGS)
            allowed = fault["msg"].replace("Input should be", "allowed is")
            if fault["type"] == "missing":
                found[path].append("is missing")
            elif fault["type"] == "extra_forbidden":
                found[path].append("is no field of a state")
            elif found[path]:
                found[path].append(allowed)
            else:
                found[path].append(f"saved {shown(fault['input'])}, {allowed}")
        return [f"{path}: {', or '.join(said)}" for path, said in found.items()]
    return []


def contradictions(state: Mapping[str, Any]) -> list[str]:
    """What the numbers of a state without ``faults`` say against each other; empty where nothing.

    Only what holds for every state that a loader can save, whatever it resumed from before.
    """
    return [said for said, holds in _rules(state) if not holds]


def _rules(state: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    position, in_epoch, batches = state["position"], state["in_epoch"], state["batches"]
    datasets, given = state["datasets"], sum(state["taken"].values())
    rebased = state.get("rebased")
    names = set(datasets)
    at = f"position {position}"
    yield (
        f"epoch_steps: saved {state['epoch_steps']}, with {batches} batches in all",
        (state["epoch_steps"] <= batches),
    )
    yield f"batches: saved {batches}, allowed are at most those of {at}", batches <= position
    yield f"taken: saved {given} samples in all, with {at}", given <= position
    yield (
        f"taken: saved of {shown(sorted(state['taken']))}, allowed are the state's datasets",
        (set(state["taken"]) == names),
    )
    epoch = state["mixing"]["epoch"]
    if epoch == "pass":
        epoch = sum(one["samples"] for one in datasets.values() if one["share"])
    if rebased is None:  # epochs have had this length from the beginning
        fits = (
            in_epoch == position
            if epoch is None
            else in_epoch <= epoch and (position - in_epoch) % max(epoch, 1) == 0
        )
        yield f"in_epoch: saved {in_epoch}, with {at} and epochs of {epoch} samples", fits
    else:
        yield f"in_epoch: saved {in_epoch}, with {at}", in_epoch <= position
    yield from _rules_of_shares(state)
    if rebased is not None:
        base, before = rebased["position"], sum(rebased["given"].values())
        yield f"rebased.position: saved {base}, with {at}", base <= position
        # Samples of datasets that were left out since are counted by the position alone.
        yield f"rebased.given: saved {before} samples in all, with position {base}", before <= base
        yield (
            f"rebased.given: saved of {shown(sorted(rebased['given']))}",
            (set(rebased["given"]) == names),
        )
    for path, part in _parts(state):
        for what, holds in _rules_of_part(part, state):
            yield f"{path}{what}", holds
    yield from _rules_of_reader(state)


def _rules_of_shares(state: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    names = set(state["datasets"])
    found = {"datasets": {name: one["share"] for name, one in state["datasets"].items()}}
    if (curriculum := state["mixing"].get("curriculum")) is not None:
        found["mixing.curriculum.to"] = curriculum["to"]
    chosen = state.get("weights") or {"shares": None, "later": []}
    if chosen["shares"] is not None:
        found["weights.shares"] = chosen["shares"]
    found |= {f"weights.later.{k}": one["shares"] for k, one in enumerate(chosen["later"])}
    for path, shares in found.items():
        total = sum(shares.values())
        yield (
            f"{path}: saved shares that sum to {total}, not to 1",
            math.isclose(total, 1, rel_tol=1e-12),
        )
        yield f"{path}: saved of {shown(sorted(shares))}", set(shares) == names
    base = (state.get("rebased") or {"position": 0})["position"]
    block = state["mixing"]["block_length"]
    places = [one["position"] for one in chosen["later"]]
    yield (
        f"weights.later: saved for positions {shown(places)}, with blocks of {block} from {base}",
        places == sorted(set(places))
        and all(at >= base and (at - base) % block == 0 for at in places),
    )


def _parts(state: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "", state
    for rank, part in (state.get("parts") or {}).items():
        yield f"parts.{rank}.", part


def _rules_of_reader(state: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    part, parts, mixer = state.get("part"), state.get("parts"), state["mixer"]
    if state["reader"] == "indexed":
        position = state["position"]
        at = {"position": position} if position else None
        yield f"mixer: saved {shown(mixer)}, with position {position}", mixer == at
        yield f"part: saved {part}, allowed is none with reader: indexed", part is parts is None
        begun = [n for n, one in state["cursors"].items() if one["pass"] or one["passes"]]
        yield (
            f"cursors: saved places in {shown(begun)}, allowed are none with reader: indexed",
            (not begun),
        )
        return
    yield "part: missing, and required with reader: stream", part is not None
    rank, world_size = part or (0, 1)
    yield f"part: saved rank {rank} of {world_size}", rank < world_size
    if parts is not None:
        yield (
            f"parts: saved of ranks {shown(sorted(parts))}, with a world size of {world_size}",
            (set(parts) == {str(rank) for rank in range(min(world_size, len(parts) + 1))}),
        )
        own = parts.get(str(rank))
        yield (
            f"parts.{rank}: differs from the cursors and the mixer beside it",
            own == {"cursors": state["cursors"], "mixer": mixer},
        )


def _rules_of_part(part: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    names, position = set(state["datasets"]), state["position"]
    yield (
        f"cursors: saved of {shown(sorted(part['cursors']))}, allowed are the state's datasets",
        (set(part["cursors"]) == names),
    )
    for name, cursor in part["cursors"].items():
        first, numbers = cursor["pass"], [int(number) for number in cursor["passes"]]
        yield (
            f"cursors.{name}.pass: saved {first}, with position {position}",
            (first <= position + _PASSES_EMPTY),
        )
        yield (
            f"cursors.{name}.passes: saved {shown(numbers)}, with pass {first}",
            all(first <= number <= first + _PASSES_AHEAD for number in numbers),
        )
    mixer = part["mixer"] or {}
    if "next" not in mixer:
        return
    debts, left, dropped = mixer["debts"], mixer["left"], mixer["dropped"]
    owed = collections.Counter(name for name, _ in debts)
    longest = state["mixing"]["block_length"]
    yield (
        f"mixer.debts: saved more than {MAX_DEBT} of a dataset",
        (not owed or max(owed.values()) <= MAX_DEBT),
    )
    yield (
        f"mixer.dropped: saved {shown(dropped)}, and one dataset at least must live",
        (len(set(dropped)) == len(dropped) and set(dropped) < names),
    )
    for path, name, size in (
        *(("debts", name, size) for name, size in debts),
        *([("left", *left)] if left else []),
    ):
        yield (
            f"mixer.{path}: saved {size} samples of {shown(name)}, in blocks of {longest}",
            (name in names and size <= longest),
        )
    yield (
        f"mixer.next: saved {mixer['next']}, with position {position}",
        (bool(dropped) or mixer["next"] <= position + len(debts) + 1),
    )
