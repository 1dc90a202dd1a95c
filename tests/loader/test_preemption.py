"""A loader that opens preempts those that are open: the largest first, and no more than needed."""

from __future__ import annotations

from dataclasses import dataclass, field

from doubles import ManualClock
from hypothesis import given
from hypothesis import strategies as st

from autoloader.process.planning.preemption import OpenLoaders


@dataclass
class FakeLoader:
    """A loader with the sizes that the test wants; its pages are back after ``lasts_s``."""

    spare: int
    reserved: int = 0
    reader: str = "indexed"
    lasts_s: float = 0.0
    clock: ManualClock = field(default_factory=ManualClock)
    shrunk_s: float | None = None

    def reserved_bytes(self) -> int:
        return self.reserved

    def spare_bytes(self) -> int:
        return self.spare if self.shrunk_s is None else 0

    def shrink_to_minimum(self) -> None:
        assert self.shrunk_s is None
        self.shrunk_s = self.clock.now_s()

    def has_shrunk(self) -> bool:
        return self.shrunk_s is not None and self.clock.now_s() >= self.shrunk_s + self.lasts_s


@given(st.lists(st.integers(0, 100), max_size=5), st.integers(-10, 400))
def test_as_few_as_needed_shrink_and_none_that_has_nothing(spares: list[int], missing: int) -> None:
    clock = ManualClock()
    loaders = [FakeLoader(spare, clock=clock) for spare in spares]
    OpenLoaders(loaders, clock).preempt(missing)
    shrunk = [one.spare for one in loaders if one.shrunk_s is not None]
    kept = [one.spare for one in loaders if one.shrunk_s is None]
    assert all(spare > 0 for spare in shrunk)
    assert not shrunk or sum(shrunk) - min(shrunk) < missing
    assert sum(shrunk) >= missing or all(spare == 0 for spare in kept)
    assert all(spare <= min(shrunk, default=100) for spare in kept)


def test_it_is_waited_for_the_pages_but_not_for_ever() -> None:
    clock = ManualClock()
    OpenLoaders([FakeLoader(5, lasts_s=0.5, clock=clock)], clock).preempt(5)
    assert 0.5 <= clock.now_s() < 0.6
    OpenLoaders([FakeLoader(5, lasts_s=100.0, clock=clock)], clock).preempt(5)
    assert clock.now_s() < 3.0


def test_what_others_have_reserved_and_imported_counts() -> None:
    both = OpenLoaders([FakeLoader(0, reserved=3), FakeLoader(0, reserved=4, reader="stream")])
    assert both.reserved_bytes() == 7
    assert both.have_libraries_of("stream")
    assert both.have_libraries_of("indexed")
    assert not OpenLoaders([FakeLoader(0)]).have_libraries_of("stream")
    assert not OpenLoaders().have_libraries_of("indexed")
