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
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from autoloader.errors import shown
from autoloader.read.mixer import MAX_DEBTS

STATE_VERSION = 2
_MOST = 2**48
"""More samples than any run takes; arithmetic on positions is exact up to here."""

_Count = Annotated[int, Field(ge=0, le=_MOST)]
_Positive = Annotated[int, Field(ge=1, le=_MOST)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Taken = tuple[_Count, _Positive]
_Number = Annotated[str, Field(pattern=r"^(0|[1-9]\d{0,14})$")]


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
    checksum: str


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
