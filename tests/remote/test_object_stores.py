"""``s3://`` against a server that speaks its language, ``hf://`` against a hub of our own."""

import hashlib
import json
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from botocore.session import Session
from http_answers import Answering, answering
from moto.server import ThreadedMotoServer

from autoloader.storage import store as stores
from autoloader.storage.clients import client as clients
from autoloader.storage.clients.client import client_of
from autoloader.storage.clients.s3 import S3Client
from autoloader.storage.clients.web import Request
from autoloader.storage.faults import ChangedError, Limits, Meter, NoFileSystemError, Traffic
from autoloader.storage.part import CHUNK_BYTES
from autoloader.storage.shards import ShardCache
from autoloader.storage.store import Store, store

SIZE = 3 * CHUNK_BYTES + 1000
SECRET = "wJalrXUtnFEMI-hunter2"
CONTENT = random.Random(1).randbytes(SIZE)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy between, no listing of another test, a client for each test."""
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path / "user"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(stores, "FIRST_S", 0.01)
    monkeypatch.setattr(clients, "_clients", {})
    monkeypatch.setattr(store, "_listings", {})


@pytest.fixture(scope="module")
def _moto() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(_moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """botocore's own client of a bucket ``lab``, and its credentials in the environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", _moto)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ann")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    client = Session().create_client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="lab")
    client.put_object(Bucket="lab", Key="arm/1.0.0/a shard+1", Body=CONTENT)
    yield client
    for one in client.list_objects_v2(Bucket="lab").get("Contents", ()):
        client.delete_object(Bucket="lab", Key=one["Key"])
    client.close()


ADDRESS = "s3://lab/arm/1.0.0/a shard+1"


def meter() -> Meter:
    """One that begins now: an answer must come within its time."""
    return Meter("s3://lab", Limits(), Traffic())


def test_s3_lists_pages_and_folders_and_tells_what_it_lists_as_each_file_does(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
):
    for number in range(3):
        bucket.put_object(Bucket="lab", Key=f"arm/1.0.0/beside/{number}", Body=b"x")
    own = client_of(ADDRESS)
    assert isinstance(own, S3Client)
    send = S3Client._send

    def two_at_a_time(own: S3Client, request: Request) -> Any:
        more = "&max-keys=2" if "list-type" in request.address else ""
        return send(own, replace(request, address=request.address + more))

    monkeypatch.setattr(S3Client, "_send", two_at_a_time)
    found = own.listing("s3://lab/arm/1.0.0", meter())
    assert found == {"a shard+1": own.identity(ADDRESS, meter()), "beside": None}
    assert list(own.listing("s3://lab/arm/1.0.0/beside", meter())) == ["0", "1", "2"]
    assert own.listing("s3://lab", meter()) == {"arm": None}
    with pytest.raises(FileNotFoundError):
        own.identity("s3://lab/arm/none", meter())
    with pytest.raises(FileNotFoundError):
        own.listing("s3://nobodys/arm", meter())


def test_a_shard_arrives_from_s3_and_another_version_of_it_is_refused(
    bucket: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.DEBUG):
        cache = ShardCache(tmp_path / "cache", floor_bytes=0)
        assert cache.shard(ADDRESS).fetch_whole().read_bytes() == CONTENT
        other = ShardCache(tmp_path / "other", floor_bytes=0)
        data = memoryview(bytearray(20))
        other.read({ADDRESS: [(10, data)]})
        assert data == CONTENT[10:30]
        bucket.put_object(Bucket="lab", Key="arm/1.0.0/a shard+1", Body=bytes(SIZE))
        with pytest.raises(ChangedError) as raised:
            other.read({ADDRESS: [(SIZE - 20, data)]})
    mine = [one.getMessage() for one in caplog.records if one.name.startswith("autoloader")]
    told = [str(raised.value), *mine]
    told += [one.read_bytes().hex() for one in tmp_path.rglob("*") if one.is_file()]
    assert not [one for one in told if SECRET in one or SECRET.encode().hex() in one]


def test_small_files_are_put_on_s3_and_read_again(bucket: Any):
    own, address = Store(), "s3://lab/arm/1.0.0/.autoloader-index/one"
    own.write(address, b"index")
    assert own.read_all(address) == b"index"
    assert bucket.get_object(Bucket="lab", Key=address[9:])["Body"].read() == b"index"


def test_a_bucket_of_amazons_is_asked_in_its_own_region_by_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    own = S3Client()
    assert own._place("lab", "eu-west-1") == "https://lab.s3.eu-west-1.amazonaws.com/"
    assert own._place("my.lab", "eu-west-1") == "https://s3.eu-west-1.amazonaws.com/my.lab/"
    own._regions["lab"] = "us-west-2"
    assert own._place("lab", "us-west-2") == "https://lab.s3.us-west-2.amazonaws.com/"


@dataclass
class Hub:
    """A hub with one dataset ``lab/arm``, its files on a server of their own, as the hub has them.

    Attributes:
        files: path → content; names that end in ``tfrecord`` lie on the other server.
        asked: path and ``Authorization`` of each request.
    """

    files: dict[str, bytes]
    address: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    served = Hub({"1.0.0/features.json": b"{}", "1.0.0/arm.tfrecord": CONTENT})

    class Handler(Answering, BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            served.asked.append((self.path, self.headers.get("Authorization")))
            if path.startswith("/api/datasets/lab/arm/tree/v 1/"):
                inside = path.removeprefix("/api/datasets/lab/arm/tree/v 1/")
                page = [one for one in tree(served.files) if one["path"].startswith(f"{inside}/")]
                if "?" not in self.path:
                    more = f'<{served.address}{self.path}?cursor=1>; rel="next"'
                    self.answer(200, json.dumps(page[:1]).encode(), Link=more)
                else:
                    self.answer(200, json.dumps(page[1:]).encode())
                return
            content = served.files[path.partition("/1.0.0/")[1][1:] + path.partition("/1.0.0/")[2]]
            tag = hashlib.sha256(content).hexdigest()
            first, last = (self.headers.get("Range") or "bytes=0-")[6:].split("-")
            part = content[int(first) : int(last) + 1 if last else None]
            span = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
            if path.startswith("/blobs"):
                self.answer(206, part, ETag='"of the other server"', Content_Range=span)
            elif path.endswith("tfrecord"):
                where = served.address.replace("127.0.0.1", "localhost")
                self.answer(302, Location=f"{where}/blobs{self.path}?sig=signed",
                            X_Linked_ETag=f'"{tag}"')  # fmt: skip
            else:
                self.answer(200 if part == content else 206, part, ETag=f'"{tag}"')

    def tree(files: dict[str, bytes]) -> list[dict[str, Any]]:
        found = []
        for path, content in files.items():
            oid = hashlib.sha256(content).hexdigest()
            large = {"lfs": {"oid": oid, "size": len(content)}} if "tfrecord" in path else {}
            oid = "of the pointer" if large else oid
            one = {"type": "file", "path": path, "size": len(content), "oid": oid, **large}
            found.append(one)
        return found

    from huggingface_hub import constants

    monkeypatch.setenv("HF_TOKEN", SECRET)
    with answering(Handler) as served.address:
        monkeypatch.setattr(constants, "ENDPOINT", served.address)
        yield served


def test_a_dataset_of_the_hub_is_read_in_its_version_and_the_token_stays_with_the_hub(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    address = "hf://datasets/lab/arm@v 1/1.0.0/arm.tfrecord"
    caplog.set_level(logging.DEBUG)
    cache = ShardCache(tmp_path / "cache", floor_bytes=0)
    assert cache.shard(address).fetch_whole().read_bytes() == CONTENT
    assert store.read_all("hf://datasets/lab/arm@v 1/1.0.0/features.json") == b"{}"
    for path, token in hub.asked:
        assert token == (None if path.startswith("/blobs") else f"Bearer {SECRET}"), path
    assert {path for path, _ in hub.asked if path.startswith("/blobs")}
    other = ShardCache(tmp_path / "other", floor_bytes=0)
    other.shard(address)
    hub.files["1.0.0/arm.tfrecord"] = bytes(SIZE)
    with pytest.raises(ChangedError):
        other.read({address: [(0, memoryview(bytearray(10)))]})
    with pytest.raises(NoFileSystemError, match="hf://datasets/"):
        store.listing("hf://lab/arm")
    assert "signed" not in caplog.text
    assert SECRET not in caplog.text
