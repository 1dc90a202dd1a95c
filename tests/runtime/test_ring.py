"""The batch ring: slots are in one hand at a time, lent memory stays, and pages are given back."""

import fcntl
import gc
import os
import random
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.decode.ring import COPY_RESERVE, MAX_SLOTS, Lender, RingMemory, SlotPool
from autoloader.samples.layout import BatchLayout

LAYOUT = BatchLayout(2, {"primary": (64, 64)}, 1, 1, 3, 1, 0)


@pytest.fixture
def memory() -> Iterator[RingMemory]:
    made = RingMemory(LAYOUT)
    yield made
    made.close()


def pages(memory: RingMemory, slots: int) -> None:
    """Write to every page of the first ``slots`` slots."""
    for slot in range(slots):
        memory.base(slot)[:] = slot + 1


# --- memory -------------------------------------------------------------------------------------


def test_a_ring_costs_only_what_was_written(memory: RingMemory):
    assert memory.allocated_bytes() == 0
    pages(memory, 3)
    assert memory.allocated_bytes() == 3 * LAYOUT.slot_bytes


def test_the_file_cannot_be_shrunk_under_a_reader(memory: RingMemory):
    with pytest.raises(PermissionError):
        os.ftruncate(memory.descriptor, 0)
    assert fcntl.fcntl(memory.descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


# --- lending ------------------------------------------------------------------------------------


def test_a_slot_is_lent_without_a_copy_until_its_last_array_is_gone(memory: RingMemory):
    lender = Lender(memory)
    memory.base(0)[:] = 5
    views, copied = lender.lend(0, 8)
    assert not copied
    piece = views["images/primary"][1, 0, 3:5]
    del views
    gc.collect()
    assert lender.collect() == []
    assert lender.lent == {0}
    memory.base(0)[:] = 6
    assert (piece == 6).all()
    del piece
    gc.collect()
    assert lender.collect() == [0]
    assert lender.lent == frozenset()
    assert lender.collect() == []


def test_hoarding_gets_copies_so_that_two_slots_always_stay_free(memory: RingMemory):
    lender = Lender(memory)
    kept = []
    for slot in range(6):
        memory.base(slot)[:] = slot
        views, copied = lender.lend(slot, 6)
        kept.append(views["images/primary"])
        assert copied == (slot >= 6 - COPY_RESERVE)
    assert lender.copies == 2
    assert lender.collect() == [4, 5]
    memory.base(4)[:] = 99
    assert (kept[4] == 4).all()  # a copy is nobody else's
    assert lender.lent == {0, 1, 2, 3}


def test_a_finalizer_does_nothing_in_a_forked_child(memory: RingMemory):
    lender = Lender(memory)
    views, _ = lender.lend(3, 8)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        del views
        gc.collect()
        os.write(write, b"%d" % len(lender.collect()))
        os._exit(0)
    os.close(write)
    assert os.read(read, 10) == b"0"
    os.close(read)
    os.waitpid(child, 0)
    assert lender.collect() == []
    del views
    gc.collect()
    assert lender.collect() == [3]


def test_ctrl_c_while_a_batch_is_let_go_loses_no_slot(memory: RingMemory):
    lender = Lender(memory)
    views, _ = lender.lend(3, 8)
    before = sys.gettrace()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    sys.settrace(interrupt)  # heard as soon as any Python function begins
    del views
    sys.settrace(before)
    assert lender.collect() == [3]


# --- slots --------------------------------------------------------------------------------------


@given(st.integers(0, 2**32))
def test_a_slot_is_in_one_hand_at_a_time_whatever_the_ring_is_resized_to(seed: int):
    rng = random.Random(seed)
    memory = RingMemory(LAYOUT)
    book = SlotPool(memory, 8)
    out: list[int] = []
    for _ in range(200):
        what = rng.random()
        if what < 0.4 and len(out) < book.slots:
            slot = book.acquire()
            assert slot is not None
            assert slot not in out
            assert slot < book.slots
            memory.base(slot)[0] = 1
            out.append(slot)
        elif what < 0.8 and out:
            book.release(out.pop(rng.randrange(len(out))))
        elif what >= 0.9:
            book.resize(rng.randint(max(4, len(out)), 12))
            out_of_range = [slot for slot in out if slot >= book.slots]
            for slot in out_of_range:
                out.remove(slot)
                book.release(slot)
        assert book.out == len(out)
    used = {*out, *range(book.slots)}
    memory_slots = [slot for slot in range(12) if slot not in used]
    assert not any(memory.base(slot)[0] for slot in memory_slots)
    memory.close()


def test_there_is_room_for_the_largest_ring(memory: RingMemory):
    memory.base(MAX_SLOTS - 1)[:] = 1
    assert memory.allocated_bytes() == LAYOUT.slot_bytes


def test_batches_and_waits_of_the_consumer_are_those_of_one_ring(memory: RingMemory):
    """Two loaders of a process: what is read of one shows nothing of the other."""
    mapped, other = RingMemory(LAYOUT, descriptor=os.dup(memory.descriptor)), RingMemory(LAYOUT)
    memory.note_batch(0.5)
    memory.note_wait(1.5)
    assert (mapped.consumed(), mapped.waiting_since_ns()) == ((1, 500_000_000), 1_500_000_000)
    assert (other.consumed(), other.waiting_since_ns()) == ((0, 0), 0)
    memory.note_wait(0.0)
    assert mapped.waiting_since_ns() == 0
    for one in (mapped, other):
        one.close()
        one.note_batch(1.0)
        assert (one.consumed(), one.waiting_since_ns()) == ((0, 0), 0)
