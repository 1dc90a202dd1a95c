"""Loaders that are open give way to one that opens: the largest first, and no more than needed."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from autoloader.clock import ManualClock
from autoloader.planning.preemption import Beside


@dataclass
class Told:
    """A loader that says what the test wants; its pages are back after ``lasts_s``."""

    spare: int
    owed: int = 0
    reader: str = "indexed"
    lasts_s: float = 0.0
    clock: ManualClock = field(default_factory=ManualClock)
    gave_s: float | None = None

    def owed_bytes(self) -> int:
        return self.owed

    def spare_bytes(self) -> int:
        return self.spare if self.gave_s is None else 0

    def give_way(self) -> None:
        assert self.gave_s is None
        self.gave_s = self.clock.now_s()

    def has_given_way(self) -> bool:
        return self.gave_s is not None and self.clock.now_s() >= self.gave_s + self.lasts_s


@given(st.lists(st.integers(0, 100), max_size=5), st.integers(-10, 400))
def test_as_few_as_do_give_way_and_none_that_has_nothing(spares: list[int], missing: int) -> None:
    clock = ManualClock()
    loaders = [Told(spare, clock=clock) for spare in spares]
    Beside(loaders, clock).make_room(missing)
    gave = [one.spare for one in loaders if one.gave_s is not None]
    kept = [one.spare for one in loaders if one.gave_s is None]
    assert all(spare > 0 for spare in gave)
    assert not gave or sum(gave) - min(gave) < missing
    assert sum(gave) >= missing or all(spare == 0 for spare in kept)
    assert all(spare <= min(gave, default=100) for spare in kept)


def test_it_is_waited_for_the_pages_but_not_for_ever() -> None:
    clock = ManualClock()
    Beside([Told(5, lasts_s=0.5, clock=clock)], clock).make_room(5)
    assert 0.5 <= clock.now_s() < 0.6
    Beside([Told(5, lasts_s=100.0, clock=clock)], clock).make_room(5)
    assert clock.now_s() < 3.0


def test_what_others_are_owed_and_have_imported_counts() -> None:
    both = Beside([Told(0, owed=3), Told(0, owed=4, reader="stream")])
    assert both.owed_bytes() == 7
    assert both.have_libraries_of("stream")
    assert both.have_libraries_of("indexed")
    assert not Beside([Told(0)]).have_libraries_of("stream")
    assert not Beside().have_libraries_of("indexed")
