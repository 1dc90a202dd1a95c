"""Messages on their way: log records of the child, and a signal's handler amid a message."""

import signal
import socket
import threading

import pytest

from autoloader.pipeline import messages
from autoloader.pipeline.messages import BatchReady, Logged, Stop, Wire


def test_a_record_that_comes_while_a_batch_is_sent_is_sent_after_it():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender, receiver = Wire(ours), Wire(theirs)
        batch = BatchReady(0, 1, {"texts": "x" * 4_000_000})
        begun = threading.Thread(target=sender.send, args=(batch,))
        begun.start()
        # Some of the batch has come: the other thread waits for room in the socket.
        theirs.recv(1, socket.MSG_PEEK)
        sender.send_later(Logged(0, 30, "autoloader", "a decode process is started again"))

        first = receiver.receive(10.0)
        while first is None:
            first = receiver.receive(10.0)
        begun.join()
        sender.send_waiting()
        second = receiver.receive(10.0)
    assert isinstance(first, BatchReady)
    assert isinstance(second, Logged)
    assert second.text == "a decode process is started again"


def test_records_wait_for_a_trainer_that_reads_nothing_and_the_last_64_come():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender, receiver = Wire(ours), Wire(theirs)
        for number in range(1000):
            sender.send_later(Logged(0, 30, "autoloader", f"{number} {'x' * 10_000}"))
        texts = []
        sender.send_waiting()
        while (message := receiver.receive(0.0)) is not None:
            assert isinstance(message, Logged)
            texts.append(int(message.text.split()[0]))
            sender.send_waiting()
    assert texts[0] == 0
    assert texts[-64:] == list(range(936, 1000))


def test_a_handler_may_send_and_close_amid_a_message_which_ends_the_sending(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(messages, "UNREAD_S", 0.01)
    ours, theirs = socket.socketpair()
    wire = Wire(ours, unread=lambda _: signal.raise_signal(signal.SIGALRM))

    def leave(*_: object) -> None:
        with pytest.raises(OSError, match="another message"):
            wire.send(Stop(-1))
        wire.close()

    before = signal.signal(signal.SIGALRM, leave)
    try:
        with theirs, pytest.raises(OSError, match="Bad file descriptor"):
            wire.send(BatchReady(0, 1, {"texts": "x" * 4_000_000}))
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(EOFError):
        wire.receive(0.0)


def test_a_program_that_lets_sigpipe_end_it_outlives_the_other_side():
    ours, theirs = socket.socketpair()
    caught: list[int] = []
    before = signal.signal(signal.SIGPIPE, lambda number, _: caught.append(number))
    try:
        theirs.close()
        wire = Wire(ours)
        wire.send_later(Logged(0, 30, "autoloader", "nobody reads this"))
        with pytest.raises(BrokenPipeError):
            wire.send(Stop(-1))
    finally:
        signal.signal(signal.SIGPIPE, before)
        ours.close()
    assert caught == []


def test_a_default_timeout_of_the_programs_sockets_holds_for_none_of_a_loader():
    socket.setdefaulttimeout(0.01)
    try:
        ours, theirs = socket.socketpair()
    finally:
        socket.setdefaulttimeout(None)
    with ours, theirs:
        sender, receiver = Wire(ours), Wire(theirs)
        sending = threading.Thread(
            target=sender.send, args=(BatchReady(0, 1, {"texts": "x" * 4_000_000}),)
        )
        sending.start()
        sending.join(0.1)
        assert sending.is_alive()  # it waits for the reader
        while receiver.receive(10.0) is None:
            pass
        sending.join()
