"""Servers that answer without end, too slowly, with less, with something else or elsewhere."""

from __future__ import annotations

import contextlib
import json
import re
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from doubles import ManualClock
from ended import python
from http_answers import running
from rlds_files import Written, written_steps
from streams import dataset_of, spec_file, spec_of

from autoloader import PipelineSpec
from autoloader.errors import AutoloaderError, SourceError
from autoloader.process.planning import plan_loader
from autoloader.storage import store
from autoloader.storage.clients import client as clients
from autoloader.storage.faults import VARIABLES, LimitError, Limits, Meter, PassingError, Traffic

QUICK = Limits(document_bytes=2**20, rate_over_s=0.3, deadline_s=20.0)
BOUND_S = 60.0
KINDS = ["dataset_info.json", "features.json", "tfrecord"]


class Handler(BaseHTTPRequestHandler):
    """Serves ``folder``, or what ``behaviour`` does to the files whose names hold ``kind``."""

    protocol_version = "HTTP/1.1"
    server: Hostile
    answered = False

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def answer(self) -> None:
        """Any request."""
        hostile = self.server
        hostile.asked.append((self.path, dict(self.headers)))
        if hostile.kind in self.path:
            hostile.behaviour(self)
        else:
            self.serve()

    do_GET = do_HEAD = do_PUT = answer  # noqa: N815  http.server's names

    def serve(self, tag: str = '"one"') -> None:
        """The file as it is."""
        file = self.server.folder / self.path.lstrip("/")
        if not file.is_file():
            self.head(404, 0)
            return
        content, status, more = file.read_bytes(), 200, {"ETag": tag}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            first, last = int(asked[1]), int(asked[2])
            more["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            content, status = content[first : last + 1], 206
        self.head(status, len(content), **more)
        if self.command == "GET":
            self.wfile.write(content)

    def head(self, status: int, length: int | str | None, **more: str) -> None:
        """The head of an answer."""
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in more.items():
            self.send_header(name, value)
        self.end_headers()
        self.answered = True

    def forever(self, piece: bytes, pause_s: float = 0.0) -> None:
        """Send it again and again, until the client hangs up or the test ends."""
        self.close_connection = True
        if self.command == "HEAD" and self.answered:
            return
        with contextlib.suppress(OSError):
            while not self.server.over.wait(pause_s):
                self.wfile.write(piece)


class Hostile(socketserver.ThreadingTCPServer):
    """A server of files that misbehaves."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kind = "nothing"
        self.behaviour: Callable[[Handler], object] = Handler.serve
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.over = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client may hang up."""


def endless(of: Handler) -> None:
    """Without a length."""
    of.head(200, None, Connection="close")
    of.forever(b" " * 2**16)


def endless_chunks(of: Handler) -> None:
    """In chunks."""
    of.head(200, None, **{"Transfer-Encoding": "chunked"})
    of.forever(b"10000\r\n" + b" " * 2**16 + b"\r\n")


def one_endless_chunk(of: Handler) -> None:
    """A chunk of 2⁶⁰ bytes."""
    of.head(200, None, **{"Transfer-Encoding": "chunked"})
    of.wfile.write(b"1000000000000000\r\n")
    of.forever(b" " * 2**16)


def huge(of: Handler) -> None:
    """2⁶⁰ bytes, as announced."""
    of.head(200, 2**60, ETag='"one"')
    of.forever(b" " * 2**16)


def dripping_head(of: Handler) -> None:
    """A header line a byte at a time."""
    of.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    of.forever(b"x", 0.02)


def dripping_body(of: Handler) -> None:
    """A body a byte at a time."""
    of.head(200, 100_000, ETag='"one"')
    of.forever(b" ", 0.02)


def short(of: Handler) -> None:
    """Less than was announced."""
    of.head(200, 1000, ETag='"one"')
    of.wfile.write(b"{}")
    of.close_connection = True


def no_number(of: Handler) -> None:
    """A length that is none."""
    of.head(200, "many", ETag='"one"', Connection="close")
    of.close_connection = True


def in_circles(of: Handler) -> None:
    """Elsewhere, which is here."""
    of.head(302, 0, Location=of.path)


def to_a_local_file(of: Handler) -> None:
    """To a file of the machine that asks."""
    of.head(302, 0, Location="file:///etc/hostname")


def a_page(of: Handler) -> None:
    """A page of a portal that wants a password."""
    page = b"<html>please log in</html>"
    of.head(200, len(page), ETag='"one"')
    if of.command == "GET":
        of.wfile.write(page)


def changing(of: Handler) -> None:
    """Another version each time."""
    of.serve(f'"{len(of.server.asked)}"')


BEHAVIOURS: list[tuple[Callable[[Handler], object], str]] = [
    (endless, "LIMIT"),
    (endless_chunks, "LIMIT"),
    (one_endless_chunk, "LIMIT"),
    (huge, "LIMIT"),
    (dripping_head, "RATE"),
    (dripping_body, "RATE"),
    (short, "cut off|broken"),
    (no_number, "no sense|broken"),
    (in_circles, "again and again"),
    (to_a_local_file, "not a web address"),
    (a_page, "broken|record|changed"),
]


@dataclass
class Far:
    """A hostile server, and what a spec says of the dataset there."""

    server: Hostile
    dataset: dict[str, Any]

    @property
    def spec(self) -> PipelineSpec:
        return spec_of(self.dataset)


written = written_steps([[4] * 3])


@pytest.fixture
def far(written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOLOADER_DISK_FLOOR", "64MiB")
    monkeypatch.setattr(store, "FIRST_S", 0.001)
    monkeypatch.setattr(store, "PATIENCE_S", 1.0)
    monkeypatch.setattr(store.store, "_limits", lambda: QUICK)
    root = written.path.parents[1]
    with Hostile(root) as server, running(server):
        path = f"{server.address}/{written.path.relative_to(root)}"
        yield Far(server, dataset_of(written, path=path))
        server.over.set()


def refusal(far: Far) -> tuple[SourceError, float]:
    """What a plan of the dataset is told, and how long that took."""
    begun = time.monotonic()
    with pytest.raises(SourceError) as caught:
        plan_loader(far.spec, ram_floor="64MiB")
    return caught.value, time.monotonic() - begun


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("behaviour", "told"), BEHAVIOURS, ids=lambda one: getattr(one, "__name__", "")
)
def test_a_server_that_answers_otherwise_is_named_in_bounded_time(
    kind: str, behaviour: Callable[[Handler], object], told: str, far: Far
):
    if kind == "tfrecord" and told == "LIMIT":
        told = "LIMIT|cut off|no sense|changed|size|room|cannot be"
    far.server.kind, far.server.behaviour = kind, behaviour
    error, took_s = refusal(far)
    assert re.search(told, str(error)), str(error)
    assert far.server.address in error.what
    assert took_s < BOUND_S


def test_a_shard_that_is_another_one_with_each_answer_is_refused(far: Far):
    far.server.kind, far.server.behaviour = "tfrecord", changing
    error, _ = refusal(far)
    assert "changed" in error.what


def test_credentials_do_not_go_along_to_another_host(
    far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with Hostile(far.server.folder) as other, running(other):
        far.server.kind = "features.json"
        far.server.behaviour = lambda of: of.head(302, 0, Location=f"{other.address}{of.path}")
        plan_loader(far.spec, ram_floor="64MiB")
    assert all("Authorization" in headers for _, headers in far.server.asked)
    assert other.asked
    assert not any("Authorization" in headers for _, headers in other.asked)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_an_endless_description_costs_little_memory_with_the_usual_limits(
    kind: str, far: Far, tmp_path: Path
):
    far.server.kind, far.server.behaviour = kind, endless
    spec = spec_file(
        tmp_path, {"cameras": {"primary": {"size": [12, 16]}}, "datasets": [far.dataset]}
    )
    code = (
        "import sys; from autoloader.cli.app import main\n"
        "code = main(['plan', '--spec', sys.argv[1], '--ram-floor', '64MiB', '--json'])\n"
        "status = open('/proc/self/status').read()\n"
        "print(status.partition('VmHWM:')[2].split()[0], file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = python("-c", code, spec, timeout=BOUND_S, code=4)
    assert "AUTOLOADER_LIMIT_DOCUMENT" in done.stdout
    assert int(done.stderr.split()[-1]) < 400 * 1024


def test_a_limit_that_is_lifted_lets_a_file_pass(far: Far, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store.store, "_limits", Limits.of_environment)
    monkeypatch.setenv("AUTOLOADER_LIMIT_DOCUMENT", "10")
    error, _ = refusal(far)
    assert "AUTOLOADER_LIMIT_DOCUMENT" in error.remedy
    monkeypatch.setenv("AUTOLOADER_LIMIT_DOCUMENT", "1MB")
    plan_loader(far.spec, ram_floor="64MiB")


@pytest.mark.parametrize("variable", VARIABLES.values())
def test_a_limit_that_says_nothing_is_refused(variable: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(variable, "much")
    with pytest.raises(AutoloaderError, match=variable):
        Limits.of_environment()


def test_a_meter_bounds_bytes_rate_names_and_time():
    clock = ManualClock()
    limits = Limits(document_bytes=100, names=3)

    def metered(most: str) -> Meter:
        return Meter("gs://lab/x", limits, Traffic(), most, clock)

    with pytest.raises(LimitError, match=r"more than 0\.1 KiB"):
        metered("document_bytes").came(100 + 2**16 + 1)
    with pytest.raises(LimitError, match="more than"):
        metered("document_bytes").promised(101)
    slow, document = metered(""), metered("document_bytes")
    clock.advance(30.0)
    with pytest.raises(PassingError, match="AUTOLOADER_LIMIT_RATE"):
        slow.came(10)
    with pytest.raises(LimitError, match="AUTOLOADER_LIMIT_RATE"):
        document.came(10)
    steady = metered("")
    for _ in range(59):
        clock.advance(30.0)
        steady.came(300_000)
    clock.advance(60.0)
    with pytest.raises(LimitError, match="1800 s"):
        steady.came(600_000)
    listing = metered("document_bytes")
    for count in (1, 2, 2):
        listing.named(count)
    with pytest.raises(LimitError, match="more than 3 names"):
        listing.named(2)


def test_requests_beside_each_other_share_the_least_rate():
    clock, traffic = ManualClock(), Traffic()
    first, second = (Meter("gs://lab/x", Limits(), traffic, "", clock) for _ in range(2))
    clock.advance(31.0)
    first.came(310_000)
    second.came(1)


def pages(entry: Callable[[int], object]) -> Callable[[Handler], object]:
    """A listing of the hub whose pages never end, of a hundred entries each."""

    def behaviour(of: Handler) -> None:
        number = len(of.server.asked)
        body = json.dumps([entry(100 * number + k) for k in range(100)]).encode()
        more = f'<{of.server.address}{of.path}>; rel="next"'
        of.head(200, len(body), Link=more)
        of.wfile.write(body)

    return behaviour


@pytest.mark.parametrize(
    ("behaviour", "told"),
    [
        (pages(lambda n: {"type": "file", "path": f"a/{n}", "size": 1, "oid": "x"}), "1,000 names"),
        (pages(lambda _: {"type": "file", "path": "a/one", "size": 1, "oid": "x"}), "1,000 names"),
        (pages(lambda _: {"type": "file", "path": "a/one", "size": "much"}), "no sense"),
        (pages(lambda n: n), "no sense"),
        (endless, "more than 1.0 MiB"),
        (a_page, "no sense"),
    ],
)
def test_a_listing_without_end_or_sense_is_refused(
    behaviour: Callable[[Handler], object], told: str, far: Far, monkeypatch: pytest.MonkeyPatch
):
    from autoloader.storage.clients.hugging_face import HuggingFaceClient

    client = HuggingFaceClient()
    client._hub = far.server.address
    monkeypatch.setattr(store, "client_of", lambda _: client)
    own = store.Store(lambda: replace(QUICK, names=1000))
    far.server.kind, far.server.behaviour = "", behaviour
    with pytest.raises(OSError, match=told) as caught:
        own.listing("hf://datasets/lab/arm")
    assert caught.value.filename == "hf://datasets/lab/arm"


def test_an_answer_without_end_to_what_is_put_is_refused(far: Far, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", far.server.address)
    monkeypatch.setattr(clients, "_clients", {})
    far.server.kind, far.server.behaviour = "index", endless
    with pytest.raises(LimitError, match="AUTOLOADER_LIMIT_DOCUMENT"):
        store.Store(lambda: QUICK).write("s3://lab/index", b"index")


def test_the_hubs_token_does_not_go_along_to_the_next_page_of_another_host(
    far: Far, monkeypatch: pytest.MonkeyPatch
):
    from autoloader.storage.clients.hugging_face import HuggingFaceClient

    client = HuggingFaceClient()
    client._hub, client._token = far.server.address, lambda: "secret"
    with Hostile(far.server.folder) as other, running(other):

        def first(of: Handler) -> None:
            of.head(200, 2, Link=f'<{other.address}/more>; rel="next"')
            of.wfile.write(b"[]")

        def last(of: Handler) -> None:
            of.head(200, 2)
            of.wfile.write(b"[]")

        far.server.kind, far.server.behaviour = "", first
        other.kind, other.behaviour = "", last
        arm = "hf://datasets/lab/arm"
        assert client.listing(arm, Meter(arm, QUICK, Traffic())) == {}
    assert far.server.asked[0][1]["Authorization"] == "Bearer secret"
    assert "Authorization" not in other.asked[0][1]
