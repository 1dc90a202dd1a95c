"""Another process has bound the name of a node's loader before the first rank came."""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from autoloader.errors import WorkerError
from autoloader.host.supervision import Supervisor
from autoloader.process.discovery import find_or_start, socket_name
from autoloader.process.ranks import Neighbours


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


@contextlib.contextmanager
def squatting(name: str, said: bytes) -> Iterator[None]:
    """Whoever connects to the name hears these bytes, and then nothing."""
    held = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(name)
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    held.append(listener.accept()[0])
                    held[-1].sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in held:
                connection.close()


def attached(neighbours: Neighbours) -> None:
    supervisor = Supervisor("the loader's child", "autoloader.process.worker", remedy="none")
    try:
        find_or_start(neighbours, [], supervisor)
    finally:
        supervisor.close()


def hello(pid: int) -> bytes:
    return framed(json.dumps({"type": "Hello", "pipeline": 0, "pid": pid}).encode())


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"\xff" * 4096, "a length of 4294967295 bytes"),
        (framed(b'{"type": "Nope"}'), "Nope"),
        (framed(b'{"type": "Hello", "pipeline": 0}'), "Hello"),
        (framed(b"1234"), "1234"),
        (framed(b"[]"), "no message of this version"),
        (framed(b"{"), "no message of this version"),
        (hello(1), "which is not a loader"),
        (hello(2**30), "which is not a loader"),
    ],
)
def test_who_holds_the_socket_and_is_no_loader_is_named_at_once(said: bytes, told: str):
    neighbours = Neighbours(local_world_size=2, job=f"squatted-{os.getpid()}")
    with squatting(socket_name(neighbours), said), pytest.raises(WorkerError, match=told) as caught:
        attached(neighbours)
    assert caught.value.remedy
