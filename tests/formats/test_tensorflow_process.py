"""The process that answers for TensorFlow is asked one question at a time."""

import signal
import socket
import subprocess
import sys

import pytest

from autoloader.formats.tensorflow_process import TensorFlowProcess

INTERRUPTS = """
import os, signal, sys
sys.stdin.buffer.read(1)
os.kill(os.getppid(), signal.SIGALRM)
sys.stdin.buffer.read()
"""


def asking(*command: str) -> TensorFlowProcess:
    """One that asks the process of a command line, which has the other end as its stdin."""
    asked = TensorFlowProcess()
    asked._link, theirs = socket.socketpair()
    with theirs:
        asked._process = subprocess.Popen(command, stdin=theirs.fileno())
    asked._answers = asked._link.makefile("rb")
    asked._path = list(sys.path)
    return asked


def test_a_question_that_ctrl_c_cuts_leaves_no_answer_for_the_next_one():
    asked = asking(sys.executable, "-c", INTERRUPTS)
    process = asked._process
    assert process is not None
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            asked.ask(("files", "list", ()))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert asked._process is None
    assert process.returncode == 0


def test_a_program_that_lets_sigpipe_end_it_outlives_the_process():
    asked = asking("/bin/true")
    assert asked._process is not None
    asked._process.wait()
    caught: list[int] = []
    before = signal.signal(signal.SIGPIPE, lambda number, _: caught.append(number))
    try:
        with pytest.raises(EOFError, match="TensorFlow ended"):
            asked.ask(("files", "list", ("x" * 2**20,)))
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert caught == []
