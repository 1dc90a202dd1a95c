"""Which slots are free, and how many filled ones wait for the consumer on the other side."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from autoloader.decode.ring import slots
from autoloader.decode.ring.slots import SlotPool


class Pages:
    """A ring's memory that only counts."""

    def __init__(self) -> None:
        self.punched: list[int] = []

    def punch(self, slot: int) -> bool:
        self.punched.append(slot)
        return True


@pytest.fixture
def book() -> SlotPool:
    pages: Any = Pages()
    return SlotPool(pages, 6)


def test_what_was_handed_out_waits_there_but_for_the_one_in_work(book: SlotPool) -> None:
    assert book.untaken == 0
    taken = [book.acquire() for _ in range(4)]
    for number, slot in enumerate(taken):
        assert slot is not None
        book.hand_out(slot)
        assert book.untaken == number
    for slot in taken:
        assert slot is not None
        book.release(slot)
    assert book.untaken == 0


def test_a_slot_that_an_earlier_consumer_holds_is_not_waiting() -> None:
    pages: Any = Pages()
    book = SlotPool(pages, 6, held=[0, 1, 2])
    assert book.untaken == 0
    book.release(1)
    assert book.untaken == 0


def test_a_ring_that_was_made_smaller_drains_before_it_is_filled_anew(
    book: SlotPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "DRAIN_S", 1e6)
    out = [book.acquire() for _ in range(6)]
    book.resize(4)
    given: list[int | None] = []
    thread = threading.Thread(target=lambda: given.append(book.acquire()))
    for slot in (0, 1):  # slots that stay in use come free, and are not taken: four are still out
        book.release(slot)
    thread.start()
    assert given == []
    book.release(4)  # retired
    thread.join(30.0)
    assert given[0] in (0, 1)
    assert set(out) == {0, 1, 2, 3, 4, 5}


def test_a_consumer_that_keeps_batches_does_not_stop_a_smaller_ring(
    book: SlotPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "DRAIN_S", 0.01)
    for _ in range(6):
        book.acquire()
    book.resize(2)
    book.release(0)
    assert book.acquire() == 0
