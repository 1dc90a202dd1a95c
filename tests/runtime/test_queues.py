"""Queues: admission, order, shuffling within a pass, and nothing lost when closed."""

import threading

import numpy as np

from autoloader.pipeline.read.streams import SampleQueue
from autoloader.samples.block import SampleBlock
from autoloader.spec.knobs import Knobs


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


def limits(capacity: int = 1000, shuffle: int = 0) -> Knobs:
    return Knobs.build({"queue_samples": capacity, "shuffle_samples": shuffle})


def queue(capacity: int = 1000, shuffle: int = 0, key: int = 1) -> SampleQueue:
    return SampleQueue(key, threading.Condition(), limits(capacity, shuffle))


def taken(one: SampleQueue) -> tuple[int, int, int]:
    found, number = one.take()
    return found.place.pass_, found.place.record, number


def test_shuffling_mixes_the_episodes_that_wait_and_is_keyed():
    def run(key: int) -> list[tuple[int, int, int]]:
        one = queue(shuffle=100, key=key)
        for record in range(10):
            one.put(episode(0, record, 5), 0)
        return [taken(one) for _ in range(50)]

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert sum(a[1] != b[1] for a, b in zip(run(1), run(1)[1:], strict=False)) > 25


def blocked_put(one: SampleQueue, samples: int = 1) -> tuple[threading.Thread, list[bool]]:
    """A thread that puts one episode; its answer comes into the list."""
    answer: list[bool] = []
    thread = threading.Thread(target=lambda: answer.append(one.put(episode(0, 99, samples), 0)))
    thread.start()
    return thread, answer


def test_a_raised_limit_admits_at_once_and_a_lowered_one_drains():
    one = queue(capacity=1)
    one.put(episode(0, 0, 3), 0)
    thread, answer = blocked_put(one)
    one.limit(limits(10))
    thread.join(30)
    assert answer == [True]
    one.limit(limits(1))
    assert one.pending == 4
    thread, answer = blocked_put(one)
    for _ in range(3):
        taken(one)
        assert answer == []
    taken(one)
    thread.join(30)
    assert answer == [True]
