"""Which slots are free, and how many filled ones wait for the consumer on the other side."""

from __future__ import annotations

from typing import Any

import pytest

from autoloader.runtime.slots import SlotBook


class Pages:
    """A ring's memory that only counts."""

    def __init__(self) -> None:
        self.punched: list[int] = []

    def punch(self, slot: int) -> bool:
        self.punched.append(slot)
        return True


@pytest.fixture
def book() -> SlotBook:
    pages: Any = Pages()
    return SlotBook(pages, 6)


def test_what_was_handed_out_waits_there_but_for_the_one_in_work(book: SlotBook) -> None:
    assert book.untaken == 0
    slots = [book.acquire() for _ in range(4)]
    for number, slot in enumerate(slots):
        assert slot is not None
        book.hand_out(slot)
        assert book.untaken == number
    for slot in slots:
        assert slot is not None
        book.release(slot)
    assert book.untaken == 0


def test_a_slot_that_an_earlier_consumer_holds_is_not_waiting() -> None:
    pages: Any = Pages()
    book = SlotBook(pages, 6, held=[0, 1, 2])
    assert book.untaken == 0
    book.release(1)
    assert book.untaken == 0
