"""Shards that arrive through the cache: what is read is the store's, once, or an error says why."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import platform
import random
import socket
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from autoloader.errors import SpecError, UsageError
from autoloader.host import storage
from autoloader.storage import shards, store
from autoloader.storage.clients.client import RemoteIdentity, client_of, of_entry
from autoloader.storage.faults import ChangedError, PassingError, UnreachableError, of_status
from autoloader.storage.part import CHUNK_BYTES, DamagedError, ShardPart, open_or_begin
from autoloader.storage.shards import Room, ShardCache
from bench.remote.server import FileServer, serve

SIZE = 5 * CHUNK_BYTES + 1000


@pytest.fixture(scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    with serve(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture
def far(_served: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    """A server with one file of its own for each test, quick to be asked again."""
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path / "user"))
    monkeypatch.setattr(store, "FIRST_S", 0.01)
    _served.fault, _served.tags = (lambda _: None), True
    _served.asked.clear()
    _served.sent = _served.most_at_once = 0
    (_served.folder / tmp_path.name).write_bytes(random.Random(tmp_path.name).randbytes(SIZE))
    return _served


@pytest.fixture
def address(far: FileServer, tmp_path: Path) -> str:
    return f"{far.address}/{tmp_path.name}"


@pytest.fixture
def content(far: FileServer, tmp_path: Path) -> bytes:
    return (far.folder / tmp_path.name).read_bytes()


@pytest.fixture
def cache(tmp_path: Path) -> ShardCache:
    return ShardCache(tmp_path / "cache", floor_bytes=0)


def read(cache: ShardCache, address: str, start: int, stop: int) -> bytes:
    data = bytearray(stop - start)
    cache.read({address: [(start, memoryview(data))]})
    return bytes(data)


def test_a_stretch_fetches_its_chunks_alone_and_a_second_reader_fetches_nothing(
    far: FileServer, address: str, content: bytes, cache: ShardCache
):
    at = 2 * CHUNK_BYTES - 10
    assert read(cache, address, at, at + 20) == content[at : at + 20]
    assert [(one.start, one.stop) for one in far.of("", "GET")] == [(CHUNK_BYTES, 3 * CHUNK_BYTES)]
    again = ShardCache(cache.room.folder, floor_bytes=0)
    assert read(again, address, at - 5, at + 30) == content[at - 5 : at + 30]
    assert len(far.of("", "GET")) == 1


def test_a_whole_shard_is_published_and_asks_the_server_for_each_byte_once(
    far: FileServer, address: str, content: bytes, cache: ShardCache
):
    read(cache, address, 0, 10)
    path = cache.shard(address).fetch_whole()
    assert path.read_bytes() == content
    assert far.sent == SIZE
    assert {one.suffix for one in path.parent.iterdir()} == {".shard", ".json", ""}
    assert cache.shard(address).fetch_whole() == path
    assert read(cache, address, 0, SIZE) == content
    assert far.sent == SIZE


@pytest.mark.parametrize("fault", [503, 500, (429, "0"), "cut"])
def test_what_fails_for_a_moment_is_asked_again_and_arrives_whole(
    far: FileServer, address: str, content: bytes, cache: ShardCache, fault: Any
):
    far.fault = lambda asked: fault if len(far.of("", "GET")) in (1, 2, 3) else None
    assert cache.shard(address).fetch_whole().read_bytes() == content


def test_a_pause_that_the_server_asks_for_is_kept_by_all_of_this_process():
    assert store.pause_s(1, 7.0, 0.0) == 7.0
    assert store.pause_s(1, None, 0.5) == store.FIRST_S
    assert store.pause_s(30, None, 0.999) < store.LONGEST_S
    for status in (429, 503):
        error = of_status(status, "x", "7")
        assert isinstance(error, PassingError)
        assert (error.kind, error.after_s) == ("busy", 7.0)
    own = store.Store()
    asked: list[str] = []

    def busy_once() -> str:
        asked.append("once")
        if len(asked) == 1:
            raise PassingError("busy", "gs://b/x", "busy", after_s=0.05)
        return "told"

    assert own._ask("gs://b/x", busy_once) == "told"
    assert own._servers["gs://b"].not_before_s > 0


@pytest.mark.parametrize(
    ("status", "kind"),
    [(403, PermissionError), (401, PermissionError), (404, FileNotFoundError), (412, ChangedError)],
)
def test_what_will_not_pass_is_not_asked_again(
    far: FileServer, address: str, cache: ShardCache, status: int, kind: type[OSError]
):
    cache.shard(address)
    far.fault = lambda _: status
    with pytest.raises(kind) as raised:
        read(cache, address, 0, 10)
    assert raised.value.filename == address
    assert len(far.of("", "GET")) == 1


def test_the_first_refusal_of_a_shard_ends_its_other_requests(
    far: FileServer, address: str, cache: ShardCache, tmp_path: Path
):
    os.truncate(far.folder / tmp_path.name, 128 * shards.REQUEST_BYTES)
    shard = cache.shard(address)
    far.fault = lambda _: 403
    with pytest.raises(PermissionError):
        shard.fetch_whole()
    assert len(far.of("", "GET")) < 128


@pytest.mark.parametrize("tags", [True, False])
def test_an_object_that_changed_is_refused(
    far: FileServer, address: str, cache: ShardCache, tmp_path: Path, tags: bool
):
    far.tags = tags
    read(cache, address, 0, 10)
    file = far.folder / tmp_path.name
    file.write_bytes(bytes(SIZE))
    os.utime(file, (1e9, 1e9))
    with pytest.raises(ChangedError, match="changed"):
        read(cache, address, SIZE - 10, SIZE)


def test_a_server_that_is_gone_is_waited_for(
    far: FileServer, address: str, content: bytes, monkeypatch: pytest.MonkeyPatch
):
    identity = store.store.identity(address)
    monkeypatch.setattr(store, "LONGEST_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/{address.rpartition('/')[2]}"
    own, looks, got = store.Store(), iter(range(40)), bytearray(10)
    with contextlib.ExitStack() as back:

        def wanted() -> bool:
            if next(looks) == 20:
                back.enter_context(serve(far.folder, port))
            return True

        with store.while_wanted(wanted):
            own.read_into(address, 0, memoryview(got), identity)
        assert got == content[:10]
    left = iter(range(3))
    with (
        store.while_wanted(lambda: next(left, None) is not None),
        pytest.raises(UnreachableError, match="cannot be resolved"),
    ):
        own.read_into("http://nowhere.invalid/x", 0, memoryview(got), identity)


def test_bytes_that_were_damaged_on_the_disk_are_never_published(
    far: FileServer, address: str, content: bytes, cache: ShardCache
):
    read(cache, address, 0, 10)
    part = next(cache.room.folder.glob("*.part"))
    with part.open("r+b") as file:
        file.write(b"damage")
    assert cache.shard(address).fetch_whole().read_bytes() == content


def test_a_whole_that_is_not_what_the_store_tells_is_refused(tmp_path: Path):
    part = ShardPart(tmp_path, "k", 100)
    part.claim([0])
    part.fill(0, memoryview(bytes(100)))
    with pytest.raises(DamagedError):
        part.publish(crc32c=1)
    assert part.missing_bytes == 100
    part.close()


def test_a_fault_of_the_local_disk_is_not_taken_for_one_of_the_store(
    address: str, cache: ShardCache
):
    cache.shard(address)
    for path in cache.room.folder.iterdir():
        path.unlink()
    cache.room.folder.rmdir()
    with pytest.raises(OSError, match="the cache in") as raised:
        read(cache, address, 0, 10)
    assert (raised.value.errno, raised.value.filename) == (errno.EIO, address)


@pytest.mark.parametrize("call", ["fcntl.flock", "try_lock", "open_or_begin", "mmap.mmap"])
def test_a_part_that_cannot_be_opened_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
):
    ShardPart(tmp_path, "k", 100).close()

    def refused(path: object, *given: object, linked: bool = False) -> int:
        if call == "open_or_begin" and not linked:  # the map is opened first
            return open_or_begin(tmp_path / "k.map")
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(f"autoloader.storage.part.{call}", refused)
        with pytest.raises(OSError, match="too many open files"):
            ShardPart(tmp_path, "k", 100)
    left = [os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()]
    assert not [one for one in left if one.startswith(str(tmp_path))]
    ShardPart(tmp_path, "k", 100).close()


def test_a_chunk_has_one_fetcher_and_who_ends_lets_go_of_it(tmp_path: Path):
    first, second = (ShardPart(tmp_path, "k", SIZE) for _ in range(2))
    assert first.claim([0, 1]) == [0, 1]
    assert second.claim(range(3)) == [2]
    first.close()
    assert second.claim(range(3)) == [0, 1]
    second.close()


def test_chunks_that_a_stopped_process_fetches_are_fetched_here_too(
    address: str, content: bytes, cache: ShardCache, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shards, "_STOPPED_S", 0.0)
    shard = cache.shard(address)
    stopped = ShardPart(cache.room.folder, shard.key, SIZE)
    assert stopped.claim([0, 1]) == [0, 1]
    assert read(cache, address, 0, SIZE) == content
    other = bytes(2 * CHUNK_BYTES)  # nothing pins the version where the store tells no tag
    stopped.fill(0, memoryview(other))  # it goes on
    stopped.close()
    assert shard.fetch_whole().read_bytes() == content


class SmallDisk(Room):
    """A disk with room for so many bytes."""

    room_bytes = 0

    def free_bytes(self) -> int:
        taken = sum(one.stat().st_blocks * 512 for one in self.folder.glob("*.shard"))
        return self.room_bytes - taken - self.floor_bytes


@pytest.fixture
def three(
    far: FileServer, tmp_path: Path, cache: ShardCache
) -> tuple[ShardCache, SmallDisk, list[str]]:
    """Three shards, and a disk for two and a half of them."""
    cache.room.close()
    room = cache.room = SmallDisk(cache.room.folder, 0)
    names = [f"{tmp_path.name}-{number}" for number in range(3)]
    for name in names:
        (far.folder / name).write_bytes(random.Random(name).randbytes(SIZE))
    room.room_bytes = int(2.5 * SIZE)
    return cache, room, [f"{far.address}/{name}" for name in names]


def test_at_the_floor_what_the_plan_needs_last_goes_first(
    three: tuple[ShardCache, SmallDisk, list[str]],
):
    cache, room, addresses = three
    first, second, third = map(cache.shard, addresses)
    room.plan("one", {first.key: 50.0, second.key: 900.0})
    room.plan("another", {first.key: 5000.0, third.key: 100.0})
    first.fetch_whole()
    second.fetch_whole()
    third.fetch_whole()
    assert [one.whole_path.exists() for one in (first, second, third)] == [True, False, True]
    with pytest.raises(OSError, match="no room above the disk floor"):
        second.fetch_whole()


def test_at_the_floor_what_is_left_of_an_object_that_changed_goes_and_what_is_open_stays(
    three: tuple[ShardCache, SmallDisk, list[str]],
):
    room = three[1]
    keys = ["a" * 40, "b" * 40, "c" * 40]
    for key in keys:
        part = ShardPart(room.folder, key, SIZE)
        part.claim([0])
        part.fill(0, memoryview(bytes(CHUNK_BYTES)))
        part.close()
    (room.folder / f"{keys[2]}.map").write_bytes(bytes(100))
    used = ShardPart(room.folder, keys[1], SIZE)
    room.room_bytes = 0
    assert not room.make(SIZE)
    assert [(room.folder / f"{key}.part").exists() for key in keys] == [False, True, True]
    assert not (room.folder / f"{keys[0]}.map").exists()
    assert used.missing_bytes == SIZE - CHUNK_BYTES
    used.close()
    assert not room.make(SIZE)
    left = {one.name for one in room.folder.iterdir()} - {"leases"}
    assert left == {f"{keys[2]}.part", f"{keys[2]}.map"}, "a foreign file lives"


def test_a_floor_is_its_loaders_own_and_ends_with_it(
    far: FileServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AUTOLOADER_DISK_FLOOR", "3GB")
    room, before = shards.shard_cache().room, dict(os.environ)
    with shards.kept_free(2 * 10**9):
        assert room.floor_bytes == 2 * 10**9
        with shards.kept_free(None):  # a loader that says nothing
            assert room.floor_bytes == 3 * 10**9
            with shards.kept_free(7 * 10**9):
                assert room.floor_bytes == shards.shard_cache().room.floor_bytes == 7 * 10**9
            assert room.floor_bytes == 3 * 10**9
        assert room.floor_bytes == 2 * 10**9
    assert room.floor_bytes == 3 * 10**9
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        (suffix, kind)
        for suffix in (".shard", ".part", ".map", "leases")
        for kind in ("link", "dangling", "folder", "written by all")
    ]
    + [(".shard", "text")],
)
def test_what_is_not_the_caches_in_a_files_place_is_set_aside_as_it_is_and_said_once(
    far: FileServer, address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    suffix: str, kind: str
):  # fmt: skip
    content, target = (far.folder / tmp_path.name).read_bytes(), tmp_path / "precious"
    target.write_bytes(b"mine")
    folder = tmp_path / "other"
    key = ShardCache(folder).shard(address).key
    place = folder / (f"{key}{suffix}" if suffix != "leases" else suffix)
    place.unlink(missing_ok=True)
    if kind == "folder":
        place.mkdir()
    elif kind in ("link", "dangling"):
        place.symlink_to(target if kind == "link" else tmp_path / "nowhere")
    else:
        place.write_bytes(b"mine" if suffix != ".shard" or kind == "text" else bytes(SIZE))
        place.chmod(0o666 if kind == "written by all" else 0o600)
    with caplog.at_level(logging.WARNING):
        cache = ShardCache(folder, floor_bytes=0)
        assert read(cache, address, 0, SIZE) == content
        assert cache.shard(address).fetch_whole().read_bytes() == content
    assert caplog.text.count("is not used") == 1
    assert len(list(folder.glob("*.aside-*"))) == 1
    assert target.read_bytes() == b"mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_that_others_may_write_to_keeps_no_shards(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "all"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv(shards.FOLDER_VARIABLE, str(folder))
    with pytest.raises(UsageError, match="others may write to it") as raised:
        shards.shard_cache()
    assert shards.FOLDER_VARIABLE in str(raised.value)
    assert not list(folder.iterdir())


def test_an_address_with_a_secret_is_refused_without_saying_it():
    for address in ("https://ann:hunter2@h/x", "https://h/x?sig=hunter2"):
        with pytest.raises(SpecError) as raised:
            client_of(address)
        assert "hunter2" not in str(raised.value)


def test_what_a_store_says_of_a_file_tells_its_versions_apart():
    cloud = of_entry({"size": 5, "generation": "17", "crc32c": "AAAAAQ=="})
    assert cloud == RemoteIdentity(5, 17, "17", 1)
    plain = {"size": 5, "Last-Modified": "Thu, 01 Jan 1970 00:00:02 GMT", "ETag": '"a"'}
    assert of_entry(plain) == RemoteIdentity(5, 2 * 10**9, '"a"')
    assert of_entry({"size": 5, "ETag": "a"}).number != of_entry({"size": 5, "ETag": "b"}).number
    with pytest.raises(ValueError, match="how large"):
        of_entry({"size": None})
    assert json.loads(json.dumps(asdict(cloud)))["size"] == 5


def test_a_map_that_another_process_keeps_locked_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("autoloader.storage.part._OPENED_WITHIN_S", 0.1)
    ShardPart(tmp_path, "k", 100).close()
    with (tmp_path / "k.map").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match=r"shard of .*k\.map has waited"):
            ShardPart(tmp_path, "k", 100)
    ShardPart(tmp_path, "k", 100).close()


def test_on_a_network_file_system_each_machine_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(shards.FOLDER_VARIABLE, str(tmp_path / "local"))
    assert shards.shards_folder() == tmp_path / "local"
    monkeypatch.setattr(storage, "by_file_system", lambda files: {"nfs4": files})
    assert shards.shards_folder() == tmp_path / "local" / platform.node()


def test_a_shard_of_a_server_without_tags_is_published_and_found_again(
    far: FileServer, address: str, content: bytes, cache: ShardCache
):
    far.tags = False
    read(cache, address, 0, 10)
    path = cache.shard(address).fetch_whole()
    assert path.read_bytes() == content
    again = ShardCache(cache.room.folder, floor_bytes=0)
    assert again.shard(address).fetch_whole() == path
    assert far.sent == SIZE


def test_a_map_has_its_blocks_from_the_start_so_no_write_to_it_finds_the_disk_full(tmp_path: Path):
    part = ShardPart(tmp_path, "k", 2**34)
    found = (tmp_path / "k.map").stat()
    part.discard()
    part.close()
    assert found.st_blocks * 512 >= found.st_size > 2**18
