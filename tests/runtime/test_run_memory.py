"""Runs are read into memory that earlier runs have left, and never into memory still in use."""

from hypothesis import given
from hypothesis import strategies as st

from autoloader.pipeline.read.frame_reads import RunMemory


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(0, 2**19)),
            st.tuples(st.just("drop"), st.integers(0, 10)),
            st.tuples(st.just("release"), st.integers(0, 3)),
        ),
        max_size=30,
    )
)
def test_whatever_comes_and_goes_what_is_held_is_never_overwritten(doings: list[tuple[str, int]]):
    memory = RunMemory(kept=2)
    held: list[tuple[memoryview, int]] = []
    for number, (what, value) in enumerate(doings):
        if what == "take":
            view = memory.take(value)
            mark = number % 251 + 1
            view[:] = bytes([mark]) * value
            # A part of it, as a frame is a part of a run.
            held.append((view[value // 3 : value // 2], mark))
            del view
        elif what == "drop" and held:
            held.pop(value % len(held))
        elif what == "release":
            memory.release(value)
        for part, mark in held:
            assert bytes(part).count(mark) == len(part)
    assert len(memory._free) <= memory.kept
