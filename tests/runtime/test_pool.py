"""The decode pool: grows at once, shrinks after the item in hand, and passes exceptions on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from autoloader.decode.jobs import DecodePool, Job

LONG_S = 30.0


def work(do: Callable[[], object]) -> Job:
    """A job that calls ``do``."""

    def run() -> int:
        do()
        return 0

    return Job(run, dataset=0, rows=1, slot=0)


class Pool(DecodePool):
    """A pool for two datasets in which nothing may fail unseen."""

    def __init__(self, threads: int) -> None:
        super().__init__({"decode": threads}, datasets=2, failed=lambda _: None)


@pytest.fixture
def pools() -> object:
    made: list[Pool] = []

    def make(threads: int) -> Pool:
        made.append(Pool(threads))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def test_a_shrunk_pool_lets_the_item_in_hand_finish_and_takes_no_other(
    pools: Callable[[int], Pool],
) -> None:
    pool = pools(3)
    release = threading.Event()
    barrier = threading.Barrier(4)
    finished: list[str] = []
    who: list[str] = []
    done = threading.Event()

    def in_hand() -> None:
        barrier.wait(LONG_S)
        release.wait(LONG_S)
        finished.append(threading.current_thread().name)

    def queued() -> None:
        who.append(threading.current_thread().name)
        if len(who) == 50:
            done.set()

    for _ in range(3):
        pool.submit(work(in_hand))
    barrier.wait(LONG_S)
    for _ in range(50):
        pool.submit(work(queued))
    pool.resize({"decode": 1})
    release.set()
    assert done.wait(LONG_S)
    assert len(finished) == 3
    assert len(set(who)) == 1


def test_work_counts_for_its_own_stage_and_for_the_price_of_a_frame() -> None:
    pool = DecodePool({"decode": 1, "turn": 2}, datasets=2, failed=lambda _: None)
    names: SimpleQueue[str] = SimpleQueue()

    def decode() -> int:
        names.put(threading.current_thread().name)
        pool.submit(Job(turn, dataset=1, rows=3, slot=0), "turn")
        return 4

    def turn() -> int:
        names.put(threading.current_thread().name)
        return 0

    pool.submit(Job(decode, dataset=1, rows=3, slot=0))
    seen = [names.get(timeout=LONG_S) for _ in range(2)]
    pool.close()
    assert pool.join(LONG_S)
    assert [name.split("-")[1] for name in seen] == ["decode", "turn"]
    own, work = pool.service()
    assert {stage: rows for stage, (_, rows) in work.items()} == {"decode": 3, "turn": 3}
    assert (own[1]["decoded"], own[1]["frames"]) == (3, 4)
    assert own[1]["decode_s"] == pytest.approx(sum(seconds for seconds, _ in work.values()))
