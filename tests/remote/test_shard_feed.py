"""Shards are fetched ahead in the order in which the plan needs them."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rlds_files import Written, episode, write_dataset
from streams import dataset_of, mixture_of, until

from autoloader.index import open_dataset_index
from autoloader.index.dataset import DatasetIndex
from autoloader.index.valid import table_of
from autoloader.pipeline.read import shards
from autoloader.pipeline.read.shards import ShardFeed, ShardOrder
from autoloader.sampling.dealing import NodePart
from autoloader.sampling.mixture import mixture_order
from autoloader.sampling.plan import SamplePlan
from autoloader.storage.faults import UnreachableError
from autoloader.storage.shards import RemoteShard, ShardCache
from bench.remote.server import FileServer, serve

SHARDS = 6


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FileServer, Written]]:
    folder = tmp_path_factory.mktemp("web")
    written = write_dataset(
        folder, [[episode(8 * s + e, 2 + s % 3) for e in range(2)] for s in range(SHARDS)]
    )
    with serve(folder) as server:
        yield server, written


@pytest.fixture
def planned(
    web: tuple[FileServer, Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[FileServer, SamplePlan, DatasetIndex]:
    """The plan of the dataset on the server, whose shards the cache has."""
    server, written = web
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path / "user"))
    path = f"{server.address}/{written.name}/1.0.0"
    mixture = mixture_of(dataset_of(written, path=path), mixing={"epoch": "forever"})
    index = open_dataset_index(mixture.datasets[0])
    order = mixture_order(mixture, {written.name: 1000})
    table = table_of(mixture.datasets[0], index)
    server.asked.clear()
    return server, SamplePlan(order, [table]), index


def order_of(plan: SamplePlan, index: DatasetIndex, node: NodePart | None = None) -> ShardOrder:
    return ShardOrder(plan, [index.dataset], [index.slice_of], node)


def test_what_is_needed_ahead_is_what_the_samples_of_the_positions_lie_in(
    planned: tuple[FileServer, SamplePlan, DatasetIndex],
):
    _, plan, index = planned
    samples = plan.samples(10, 40)
    slices = index.dataset.slices
    paths = [slices[index.slice_of[episode]].path for episode in samples.episode.tolist()]
    expected: dict[str, int] = {}
    for position, path in enumerate(paths, 10):
        expected.setdefault(path, position)
    assert list(order_of(plan, index).ahead(10, 30).items()) == list(expected.items())
    node = NodePart(base=0, batch=4, first=1, here=1, world_size=2)
    own: dict[str, int] = {}
    for position, path in enumerate(paths, 10):
        if position // 4 % 2 == 1:
            own.setdefault(path, position)
    assert order_of(plan, index, node).ahead(10, 30) == own


def test_shards_arrive_in_the_order_of_the_plan_and_those_that_are_there_are_not_fetched(
    planned: tuple[FileServer, SamplePlan, DatasetIndex],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(shards, "_THREADS", 1)
    server, plan, index = planned
    cache = ShardCache(tmp_path / "cache", floor_bytes=0)
    order = order_of(plan, index)
    first, *others = order.ahead(0)
    cache.shard(first).fetch_whole()
    server.asked.clear()
    feed = ShardFeed(order, cache)
    feed.follow(0)
    until(lambda: all(cache.shard(path).whole_path.exists() for path in others))
    known = {path for path in (first, *others) if cache.room.needed(cache.shard(path).key) < 99}
    feed.close()
    assert feed.join(30)
    assert known == {first, *others}
    assert cache.room.needed(cache.shard(first).key) == float("inf")
    asked = [f"{server.address}/{one.name}" for one in server.of("tfrecord", "GET")]
    assert asked == others


def test_where_no_shard_can_be_looked_at_one_thread_looks_again_at_a_time(
    planned: tuple[FileServer, SamplePlan, DatasetIndex],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    _, plan, index = planned
    looks, waiting, wait = list[int](), set[threading.Thread](), threading.Condition.wait

    class Order(ShardOrder):
        def ahead(self, position: int, count: int = 0) -> dict[str, int]:
            looks.append(position)
            raise OSError(errno.EMFILE, "too many open files")

    def noted(self: threading.Condition, timeout: float | None = None) -> bool:
        if threading.current_thread().name.startswith("autoloader-feed"):
            waiting.add(threading.current_thread())
        return wait(self, timeout)

    monkeypatch.setattr(threading.Condition, "wait", noted)
    monkeypatch.setattr(shards, "_PAUSE_S", 60.0)
    feed = ShardFeed(
        Order(plan, [index.dataset], [index.slice_of]), ShardCache(tmp_path / "c", floor_bytes=0)
    )
    feed.follow(7)
    until(lambda: len(waiting) == shards._THREADS)
    feed.close()
    assert feed.join(30)
    assert looks == [7]


@pytest.mark.parametrize(("owner", "name"), [(ShardCache, "shard"), (RemoteShard, "fetch_ahead")])
def test_after_an_outage_shards_are_fetched_ahead_again(
    planned: tuple[FileServer, SamplePlan, DatasetIndex],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
):
    """Each thread meets it, when it asks which version a shard has or when it fetches one."""
    monkeypatch.setattr(shards, "_PAUSE_S", 0.01)
    _, plan, index = planned
    order, there, out = order_of(plan, index), getattr(owner, name), list(range(9))

    def asked(self: Any, *given: Any) -> Any:
        if out and threading.current_thread().name.startswith("autoloader-feed"):
            out.pop()
            raise UnreachableError(errno.EIO, "no answer", "shard")
        return there(self, *given)

    monkeypatch.setattr(owner, name, asked)
    cache = ShardCache(tmp_path / "cache", floor_bytes=0)
    feed = ShardFeed(order, cache)
    feed.follow(0)
    until(lambda: all(cache.shard(path).whole_path.exists() for path in order.ahead(0)))
    feed.close()
    assert feed.join(30)
