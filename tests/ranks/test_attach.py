"""A trainer starts the child of its node or joins it, and waits for neither of them for ever."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from autoloader.errors import WorkerError
from autoloader.runtime.attach import attach, is_up, socket_name
from autoloader.runtime.messages import Hello, Stop
from autoloader.runtime.ranks import Neighbours

PAIR = Neighbours(0, 2, f"test-attach:{os.getpid()}")


@pytest.fixture
def log() -> Iterator[int]:
    descriptor = os.memfd_create("log")
    yield descriptor
    os.close(descriptor)


def test_neighbours_look_for_one_name_and_everybody_else_has_a_name_of_its_own() -> None:
    assert socket_name(PAIR) == socket_name(Neighbours(1, 2, PAIR.job))
    assert socket_name(PAIR) != socket_name(Neighbours(0, 2, "another job"))
    assert socket_name(Neighbours()) != socket_name(Neighbours())


def test_a_child_that_does_not_answer_is_given_up_with_what_to_look_for(
    log: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoloader.runtime.attach.ATTACH_S", 0.1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(socket_name(PAIR))
        silent.listen(4)
        with pytest.raises(WorkerError, match="serves the 2 ranks of this node has not answered"):
            attach(PAIR, [], log)


def test_a_child_on_its_way_out_is_replaced_and_joined_by_the_next(log: int) -> None:
    ending = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    ending.bind(socket_name(PAIR))
    ending.listen(4)

    def end() -> None:
        connection, _ = ending.accept()
        connection.close()
        ending.close()

    thread = threading.Thread(target=end)
    thread.start()
    first = attach(PAIR, [], log)
    thread.join()
    second = attach(PAIR, [], log)
    assert first.process is not None
    assert second.process is None
    assert first.wire.receive(30.0) == Hello(-1, first.process.pid)
    assert second.pid == first.pid
    assert is_up(PAIR)
    for link in (first, second):
        link.wire.send(Stop(-1))
        assert link.leave(10.0, shared=True)
    assert first.process.wait(10.0) == 0
    assert not is_up(PAIR)
