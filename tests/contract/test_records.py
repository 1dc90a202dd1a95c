"""A dataclass that is compiled when needed behaves as the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from autoloader.host import records


def _declared(decorator: Callable[..., Any], **options: bool) -> type:
    class Told:
        """Of every kind of field."""

        first: int
        second: str = "b"
        third: list[int] = dataclasses.field(default_factory=list, kw_only=True)
        quiet: float = dataclasses.field(default=0.5, repr=False, compare=False)
        own: int = dataclasses.field(default=7, init=False)
        later: int = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "later", self.first + 1)

    return decorator(**options)(Told)


OPTIONS = [
    {},
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"slots": True, "eq": False, "repr": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_holds_shows_and_compares_what_the_standard_one_does(options: dict[str, bool]) -> None:
    ours, theirs = (
        _declared(records.dataclass, **options),
        _declared(dataclasses.dataclass, **options),
    )
    for given, named in [((1,), {}), ((1, "x"), {"third": [3], "quiet": 2.0})]:
        mine, other = ours(*given, **named), theirs(*given, **named)
        assert dataclasses.asdict(mine) == dataclasses.asdict(other)
        assert (mine == ours(*given, **named)) is (other == theirs(*given, **named))
        assert mine != other
        assert (repr(mine) == repr(other)) is options.get("repr", True)
        assert dataclasses.asdict(dataclasses.replace(mine, first=4))["later"] == 5
    assert ours(1, quiet=1.0).third is not ours(1).third
    with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional"):
        ours()


@pytest.mark.parametrize("slots", [False, True])
def test_a_frozen_one_keeps_its_values_and_travels(slots: bool) -> None:
    made = TRAVELLER[slots](1, (2,))
    for change in (lambda: setattr(made, "first", 2), lambda: delattr(made, "first")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    assert hasattr(made, "__dict__") is not slots
    for other in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made)):
        assert other == made
        assert hash(other) == hash(made)
    told = TypeAdapter(TRAVELLER[slots])
    assert told.validate_python({"first": 1, "second": [2]}) == made
    assert told.dump_python(made) == {"first": 1, "second": (2,)}


@records.dataclass(frozen=True)
class Open:
    first: int
    second: tuple[int, ...] = ()


@records.dataclass(frozen=True, slots=True)
class Slotted:
    first: int
    second: tuple[int, ...] = ()


TRAVELLER = {False: Open, True: Slotted}
