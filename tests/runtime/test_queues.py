"""Queues: admission, order, shuffling within a pass, and nothing lost when closed."""

from __future__ import annotations

import collections
import random
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoloader.pipeline.read.queues import SampleQueue
from autoloader.samples.block import Place, SampleBlock


def episode(pass_: int, record: int, samples: int) -> SampleBlock:
    ledger = [(0, pass_, 0, record, t, samples) for t in range(samples)]
    return SampleBlock(
        columns={"ledger": np.array(ledger, np.int64).reshape(samples, 6)},
        texts=(b"",),
        frames={},
        frame_row=np.zeros((samples, 1), np.int64),
        frame_zeroed=np.zeros((samples, 1), np.bool_),
        datasets=[0] * samples,
        nbytes=100 * samples,
    )


def queue(capacity: int = 1000, shuffle: int = 0, key: int = 1) -> SampleQueue:
    return SampleQueue(key, threading.Condition(), capacity=capacity, shuffle=shuffle)


def taken(one: SampleQueue) -> tuple[int, int, int]:
    found, number = one.take()
    return found.place.pass_, found.place.record, number


EPISODES = st.lists(st.integers(1, 6), min_size=1, max_size=8)


@given(EPISODES)
def test_samples_come_episode_by_episode_in_their_own_order(lengths: list[int]) -> None:
    one = queue()
    for record, samples in enumerate(lengths):
        assert one.put(episode(0, record, samples), 0)
    found = [taken(one) for _ in range(sum(lengths))]
    assert found == [(0, r, k) for r, samples in enumerate(lengths) for k in range(samples)]
    assert (one.pending, one.held_bytes) == (0, 0)


@given(st.lists(EPISODES, min_size=1, max_size=3), st.integers(1, 50), st.integers(0, 2**63))
def test_shuffling_keeps_an_episodes_order_and_never_crosses_a_pass(
    passes: list[list[int]], shuffle: int, key: int
) -> None:
    one = queue(shuffle=shuffle, key=key)
    total = 0
    for pass_, lengths in enumerate(passes):
        for record, samples in enumerate(lengths):
            one.put(episode(pass_, record, samples), 0)
            total += samples
    found = [taken(one) for _ in range(total)]
    assert [pass_ for pass_, _, _ in found] == sorted(pass_ for pass_, _, _ in found)
    next_of: collections.Counter[tuple[int, int]] = collections.Counter()
    for pass_, record, number in found:
        assert number == next_of[pass_, record]
        next_of[pass_, record] += 1
    assert len(set(found)) == total


def test_shuffling_mixes_the_episodes_that_wait_and_is_keyed() -> None:
    def run(key: int) -> list[tuple[int, int, int]]:
        one = queue(shuffle=100, key=key)
        for record in range(10):
            one.put(episode(0, record, 5), 0)
        return [taken(one) for _ in range(50)]

    assert run(1) == run(1)
    assert run(1) != run(2)
    switches = sum(a[1] != b[1] for a, b in zip(run(1), run(1)[1:], strict=False))
    assert switches > 25


def test_an_episode_resumed_in_the_midst_gives_what_is_left_of_it() -> None:
    one = queue()
    one.put(episode(0, 3, 5), 2)
    assert one.pending == 3
    assert [taken(one) for _ in range(3)] == [(0, 3, 2), (0, 3, 3), (0, 3, 4)]


@pytest.mark.parametrize("shuffle", [0, 7])
def test_an_episode_is_admitted_only_while_fewer_than_the_capacity_wait(shuffle: int) -> None:
    one = queue(capacity=5, shuffle=shuffle)
    rng = random.Random(0)
    lengths = [rng.randrange(1, 9) for _ in range(60)]
    before: list[int] = []

    def feed() -> None:
        for record, samples in enumerate(lengths):
            one.put(episode(0, record, samples), 0)
            before.append(one.pending)

    reader = threading.Thread(target=feed)
    reader.start()
    most = 0
    for _ in range(sum(lengths)):
        while not one.pending:
            pass
        most = max(most, one.pending)
        taken(one)
    reader.join()
    assert most <= one.capacity - 1 + max(lengths)
    assert one.capacity == max(5, shuffle)
    assert one.pending == 0


def blocked_put(one: SampleQueue, samples: int = 1) -> tuple[threading.Thread, list[bool]]:
    """A thread that puts one episode; its answer comes into the list."""
    answer: list[bool] = []
    thread = threading.Thread(target=lambda: answer.append(one.put(episode(0, 99, samples), 0)))
    thread.start()
    return thread, answer


def test_a_full_queue_admits_again_when_one_sample_is_taken() -> None:
    one = queue(capacity=2)
    one.put(episode(0, 0, 2), 0)
    thread, answer = blocked_put(one)
    assert answer == []
    taken(one)
    thread.join(30)
    assert answer == [True]


def test_a_raised_limit_admits_at_once_and_a_lowered_one_drains() -> None:
    one = queue(capacity=1)
    one.put(episode(0, 0, 3), 0)
    thread, answer = blocked_put(one)
    one.limit(capacity=10, shuffle=0)
    thread.join(30)
    assert answer == [True]
    one.limit(capacity=1, shuffle=0)
    assert one.pending == 4
    thread, answer = blocked_put(one)
    for _ in range(3):
        taken(one)
        assert answer == []
    taken(one)
    thread.join(30)
    assert answer == [True]


def test_a_parked_queue_admits_nothing_until_it_goes_on() -> None:
    one = queue()
    one.park(True)
    thread, answer = blocked_put(one)
    assert (answer, one.pending) == ([], 0)
    one.park(False)
    thread.join(30)
    assert (answer, one.pending) == ([True], 1)


def test_closing_wakes_who_waits_and_admits_nothing_more() -> None:
    one = queue(capacity=1)
    one.put(episode(0, 0, 3), 0)
    thread, answer = blocked_put(one)
    one.close()
    thread.join(30)
    assert answer == [False]
    assert one.pending == 0
    assert not one.put(episode(0, 1, 1), 0)


def test_records_without_samples_are_reported_once() -> None:
    one = queue()
    places = [Place(0, 0, 0, record) for record in range(3)]
    for place in places:
        one.put_empty(place)
    assert one.take_empties() == places
    assert one.take_empties() == []


def test_arriving_samples_wake_the_mixer() -> None:
    arrived = threading.Condition()
    one = SampleQueue(1, arrived, capacity=4, shuffle=0)
    woken: list[bool] = []

    def wait() -> None:
        with arrived:
            woken.append(arrived.wait_for(lambda: one.pending > 0, timeout=30))

    thread = threading.Thread(target=wait)
    thread.start()
    one.put(episode(0, 0, 1), 0)
    thread.join(30)
    assert woken == [True]
