"""The line between child and parent: what is sent arrives, and its end is noticed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from autoloader.tune.trial import ProgressLines, ProgressWriter, TrialProgress

messages = st.lists(
    st.builds(
        TrialProgress,
        batches=st.integers(0, 10**6),
        samples_per_s=st.floats(0, 1e9),
        cpu_s_per_sample=st.none() | st.floats(0, 1e3),
    )
)


@given(messages, st.integers(1, 50))
def test_messages_arrive_whole_however_they_are_cut(sent: list[TrialProgress], cut: int) -> None:
    data = b"".join(json.dumps(asdict(message)).encode() + b"\n" for message in sent)
    lines = ProgressLines()
    found = [
        message
        for start in range(0, len(data), cut)
        for message in lines.feed(data[start : start + cut])
    ]
    assert found == sent


def test_foreign_lines_are_skipped() -> None:
    lines = ProgressLines()
    found = lines.feed(b'W0000 noise\n[1]\n{"batches": 1}\n{"batches": 2, "samples_per_s": 3}\n')
    assert found == [TrialProgress(2, 3.0)]


def test_a_writer_sends_and_notices_that_the_parent_is_gone() -> None:
    ours, theirs = socket.socketpair()
    gone = threading.Event()
    writer = ProgressWriter(theirs.detach(), parent_gone=gone.set)
    writer.send(TrialProgress(1, 2.0))
    assert ProgressLines().feed(ours.recv(4096)) == [TrialProgress(1, 2.0)]
    ours.close()
    assert gone.wait(30)
    writer.send(TrialProgress(2, 2.0))  # nobody hears it, and nothing is raised
    writer.close()


def test_closing_the_writer_is_not_the_end_of_the_parent() -> None:
    ours, theirs = socket.socketpair()
    gone = threading.Event()
    writer = ProgressWriter(theirs.detach(), parent_gone=gone.set)
    writer.close()
    assert not gone.is_set()
    assert ours.recv(1) == b""
    ours.close()


def test_a_child_ends_with_its_whole_group_when_the_parent_is_killed() -> None:
    """A parent, killed without a chance to clean up; its child tells by closing a pipe."""
    seen, held = os.pipe()
    child = (
        "import sys, time\n"
        "from autoloader.tune.trial import ProgressWriter\n"
        "ProgressWriter(int(sys.argv[1]))\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = (
        "import socket, subprocess, sys, time\n"
        "ours, theirs = socket.socketpair()\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}, str(theirs.fileno())],\n"
        f"    pass_fds=[theirs.fileno(), {held}], start_new_session=True)\n"
        "theirs.close()\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], pass_fds=[held], stdout=subprocess.PIPE
    ) as process:
        os.close(held)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGKILL)
        assert os.read(seen, 1) == b"", "the pipe closes when the last of them has ended"
        os.close(seen)
