"""A trainer starts the child of its node or joins it, and waits for neither of them for ever."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from leftovers import until_let_go

from autoloader.errors import WorkerError
from autoloader.host.supervision import LIMITS_S, Kind, Supervisor
from autoloader.pipeline.messages import Hello
from autoloader.process.discovery import find_or_start, is_up, socket_name
from autoloader.process.ranks import Neighbours

PAIR = Neighbours(2, f"test-find_or_start:{os.getpid()}")


@pytest.fixture
def supervisors() -> Iterator[list[Supervisor]]:
    """Those of two trainers."""
    both = [Supervisor("the child", "autoloader.process.worker", remedy="look") for _ in range(2)]
    yield both
    for one in both:
        one.end()
        one.close()


def test_neighbours_look_for_one_name_and_everybody_else_has_a_name_of_its_own():
    assert socket_name(PAIR) == socket_name(Neighbours(2, PAIR.job))
    assert socket_name(PAIR) != socket_name(Neighbours(2, "another job"))
    assert socket_name(Neighbours()) != socket_name(Neighbours())


def test_a_child_that_does_not_answer_is_given_up_with_what_to_look_for(
    supervisors: list[Supervisor], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(LIMITS_S, Kind.UNKNOWN, 1.0)  # type: ignore[attr-defined]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(socket_name(PAIR))
        silent.listen(4)
        with pytest.raises(WorkerError, match="serves the 2 ranks of this node does not answer"):
            find_or_start(PAIR, [], supervisors[0])


def test_a_child_that_is_stopped_before_it_answers_is_replaced(
    supervisors: list[Supervisor], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(LIMITS_S, Kind.STOPPED, LIMITS_S[Kind.STOPPED] / 5)  # type: ignore[attr-defined]
    first = find_or_start(PAIR, [], supervisors[0])
    os.kill(supervisors[0].pid, signal.SIGSTOP)
    began = time.monotonic()
    second = find_or_start(PAIR, [], supervisors[1])
    assert time.monotonic() - began <= 30.0
    assert supervisors[1].process
    assert supervisors[0].how_it_ended(1.0) == "it was killed by SIGKILL"
    hello = second.receive(60.0)
    assert isinstance(hello, Hello)
    assert hello.pid == supervisors[1].pid
    first.close()
    second.close()


def test_a_child_on_its_way_out_is_replaced_and_joined_by_the_next(supervisors: list[Supervisor]):
    ending = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    ending.bind(socket_name(PAIR))
    ending.listen(4)

    def end() -> None:
        connection, _ = ending.accept()
        connection.close()
        ending.close()

    thread = threading.Thread(target=end)
    thread.start()
    first = find_or_start(PAIR, [], supervisors[0])
    thread.join()
    second = find_or_start(PAIR, [], supervisors[1])
    assert supervisors[0].process
    assert not supervisors[1].process
    hello = first.receive(30.0)
    assert isinstance(hello, Hello)
    assert hello.pid == supervisors[0].pid
    assert supervisors[1].pid == supervisors[0].pid
    assert is_up(PAIR)
    for wire in (first, second):
        until_let_go(wire)
    assert supervisors[0].how_it_ended(10.0) == "it exited with status 0"
    assert not is_up(PAIR)
