"""A frozen class is like ``dataclass(frozen=True, slots=True)``, but refuses no change."""

import copy
import pickle
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest

from autoloader.host.frozen import frozen


def made(decorate: Any) -> Any:
    class Place:
        path: str
        record: int = 0
        notes: tuple[str, ...] = field(default=(), repr=False, compare=False)

        def __post_init__(self) -> None:
            assert self.record >= 0

    Place.__qualname__ = "Place"
    return decorate(Place)


@frozen
class Kept:
    """Found by its name, as pickling needs."""

    one: int
    two: list[int]


def test_a_frozen_class_is_compared_hashed_and_shown_as_a_frozen_dataclass_is():
    ours, theirs = made(frozen), made(dataclass(frozen=True, slots=True))
    for of in (ours, theirs):
        one, same, other = of("a", 1, ("x",)), of("a", 1), of("a", 2)
        assert one == same != other
        assert hash(one) == hash(("a", 1))
        assert one not in ({}, None, ("a", 1))
        assert repr(one) == "Place(path='a', record=1)"
        assert asdict(one) == {"path": "a", "record": 1, "notes": ("x",)}
        assert replace(one, record=2).notes == ("x",)
        assert not hasattr(one, "__dict__")
        with pytest.raises(AssertionError):
            of("a", -1)
    assert ours("a") != theirs("a")


def test_a_frozen_class_is_copied_and_pickled():
    kept = Kept(1, [2])
    assert copy.deepcopy(kept) == pickle.loads(pickle.dumps(kept)) == kept
    with pytest.raises(TypeError, match="unhashable"):
        hash(kept)


def test_what_a_class_says_itself_stays():
    class Named:
        one: int

        def __repr__(self) -> str:
            return "named"

    assert repr(frozen(Named)(1)) == "named"
