"""The decode pool: grows at once, shrinks after the item in hand, and passes exceptions on."""

import threading
from collections.abc import Callable

import pytest
from streams import until

from autoloader.decode.jobs import DecodePool, Job
from autoloader.host.threads import APART, work_of

LONG_S = 30.0


def work(do: Callable[[], object]) -> Job:
    """A job that calls ``do``."""

    def run() -> int:
        do()
        return 0

    return Job(run, dataset=0, rows=1)


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
):
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


class Crowd:
    """Jobs in a stage: how many are there at a time, at most."""

    def __init__(self, pool: DecodePool) -> None:
        self.pool = pool
        self.over: list[int] = []
        self.most = self.put = 0
        self._inside: set[int] = set()

    def come(self) -> None:
        """Stay until every thread has begun a job: then others would be here."""
        self._inside.add(threading.get_ident())
        until(lambda: self.put - self.pool._jobs.qsize() >= sum(self.pool.threads.values()))
        self.most = max(self.most, len(self._inside))
        self._inside.remove(threading.get_ident())

    def run(self, do: Callable[[], object], count: int) -> int:
        """Have so many jobs done; most that were there at a time."""
        self.over, self.most, self.put = [], 0, 0

        def run() -> int:
            do()
            self.over.append(1)
            return 4

        for _ in range(count):
            self.pool.submit(Job(run, dataset=1, rows=3))
            self.put += 1
        until(lambda: len(self.over) == count)
        return self.most


def test_a_stage_has_seats_and_seconds_of_its_own_and_a_part_of_the_price_of_a_frame():
    pool = DecodePool({"decode": 1, "turn": 2}, datasets=2, failed=lambda _: None)
    crowd, both = Crowd(pool), threading.Barrier(2)

    @work_of("turn")
    def turn() -> None:
        both.wait(LONG_S)  # two are here at a time

    def decode() -> None:
        crowd.come()
        turn()

    assert crowd.run(decode, 8) == 1
    pool.close()
    assert pool.join(LONG_S)
    own, work = pool.service()
    assert {stage: rows for stage, (_, rows) in work.items()} == {"decode": 24, "turn": 24}
    assert (own[1]["decoded"], own[1]["frames"]) == (24, 32)
    assert own[1]["decode_s"] == pytest.approx(sum(seconds for seconds, _ in work.values()))
    assert all(seconds > 0 for seconds, _ in work.values())


def test_a_thread_waits_for_a_lock_in_no_stage_as_who_has_it_may_wait_for_a_seat():
    pool = DecodePool({"decode": 1, "turn": 1}, datasets=2, failed=lambda _: None)
    lock, asked, had = threading.Lock(), list[int](), list[int]()

    def locked() -> None:
        asked.append(1)
        with work_of(APART):
            lock.acquire()
        with work_of("turn"):
            until(lambda: len(asked) > len(had) + 1 or len(had) == 3)
        had.append(1)
        lock.release()

    Crowd(pool).run(locked, 4)
    pool.close()
    assert pool.join(LONG_S)


def test_seats_follow_the_knobs_while_jobs_are_in_other_stages():
    pool = DecodePool({"decode": 2, "turn": 3}, datasets=2, failed=lambda _: None)
    crowd = Crowd(pool)

    def settled() -> bool:
        return sum(own.thread.is_alive() for own in pool._workers) == sum(pool.threads.values())

    for widths in ({"decode": 1, "turn": 1}, {"decode": 3, "turn": 2}, {"decode": 2, "turn": 1}):
        pool.resize(widths)
        until(settled)
        assert crowd.run(work_of("turn")(crowd.come), 10) <= widths["turn"]
        assert crowd.run(crowd.come, 10) <= widths["decode"]
    pool.close()
    assert pool.join(LONG_S)
