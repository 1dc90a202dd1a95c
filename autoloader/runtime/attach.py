"""Starts the loader's child, or joins the one that another trainer of this node has started.

Theory of operation. Trainers that share a machine (``runtime.ranks.Neighbours``) share one child,
which they find by a socket in the abstract namespace, named after user, job, start and node.
Whoever comes first binds the name, which the kernel gives to one process only, and starts the child
with the listening socket inherited; the others find the name taken and connect. The same happens
when a child has died: whoever notices first starts the next one. So nobody waits for a certain
rank, which may itself be waiting in a collective. The child holds the socket as long as it lives,
and the kernel takes the name back with it: nothing can be left over.

A trainer without neighbours takes a name that nobody else can have.

Every connection begins with the child's ``Hello``. A connection that ends before it was made to a
child on its way out, and is tried again.

Not here: what is said over the connection (``runtime.child``), the child's side (``worker``).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoloader.errors import WorkerError
from autoloader.runtime.messages import Hello, Wire
from autoloader.runtime.ranks import Neighbours

ATTACH_S = 60.0
"""How long a trainer waits for its node's child to answer before it gives up."""
_RETRY_S = 0.02
_REAP_S = 0.1
_KEPT_BYTES = 64 * 2**20
"""What malloc keeps of what was freed; less than what a few runs read ahead hold."""
_numbers = itertools.count()
_left: list[subprocess.Popen[bytes]] = []
"""Children that this process started and that serve others: kept to be waited for."""


@dataclass(slots=True)
class Link:
    """A connection to a child.

    Attributes:
        wire: the connection.
        process: the child, where this process started it.
        pid: its process id; 0 until it has said so.
        since_s: when the connection was made, monotonic.
    """

    wire: Wire
    process: subprocess.Popen[bytes] | None
    pid: int
    since_s: float

    def kill(self) -> None:
        """End the child for good, whoever started it, and the connection."""
        self.wire.close()
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()
        elif self.pid:
            _kill(self.pid)

    def leave(self, timeout_s: float, *, shared: bool) -> bool:
        """After ``Stop``: wait until the child has let go; whether it did in time."""
        if shared:
            gone = _ended(self.wire, timeout_s)
        else:
            gone = self.process is not None and _waited(self.process, timeout_s)
        if gone:
            self.drop()
        return gone

    def drop(self) -> None:
        """Close the connection and leave the child to the others."""
        self.wire.close()
        if self.process is not None and not _waited(self.process, _REAP_S):
            _left.append(self.process)
        _left[:] = [process for process in _left if process.poll() is None]


def socket_name(neighbours: Neighbours) -> str:
    """The abstract socket of a node's child; of nobody else's where there are no neighbours."""
    if neighbours.local_world_size > 1:
        digest = hashlib.blake2b(neighbours.job.encode(), digest_size=12).hexdigest()
        return f"\0autoloader-{os.getuid()}-{digest}"
    return f"\0autoloader-{os.getpid()}-{next(_numbers)}-{os.urandom(4).hex()}"


def is_up(neighbours: Neighbours) -> bool:
    """Whether a neighbour has started the child already."""
    if neighbours.local_world_size == 1:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(socket_name(neighbours)) == 0


def attach(neighbours: Neighbours, arguments: Sequence[str], log: int) -> Link:
    """A connection to the child, which is started where there is none.

    Args:
        neighbours: who shares it.
        arguments: of ``python -m autoloader.worker``.
        log: descriptor that a child started here writes to.

    Raises:
        WorkerError: no child answers within ``ATTACH_S``, or it is another user's.
    """
    name = socket_name(neighbours)
    deadline = time.monotonic() + ATTACH_S
    while True:
        link = _start(name, arguments, log)
        if link is None:
            link = _join(name, deadline)
        if link is not None:
            return link
        if time.monotonic() > deadline:
            raise WorkerError(
                f"the loader that serves the {neighbours.local_world_size} ranks of this node has "
                f"not answered for {ATTACH_S:.0f} s (socket @{name[1:]})",
                remedy="look whether a process autoloader.worker of this job hangs, end it, and "
                "start the job again",
            )
        time.sleep(_RETRY_S)


def _start(name: str, arguments: Sequence[str], log: int) -> Link | None:
    """Start the child under this name; ``None`` where the name is taken."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return None
        listener.listen(64)
        os.ftruncate(log, 0)
        os.lseek(log, 0, os.SEEK_SET)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(name)
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "autoloader.worker",
                "--listener",
                str(listener.fileno()),
                "--parent",
                str(os.getpid()),
                *arguments,
            ],
            env=_environment(),
            pass_fds=(listener.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    return Link(Wire(connection), process, process.pid, time.monotonic())


def _join(name: str, deadline: float) -> Link | None:
    """Connect to the child that has the name; ``None`` where it is gone, or not there yet."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(name)
    except OSError:
        connection.close()
        return None
    _check_peer(connection)
    wire = Wire(connection)
    try:
        hello = wire.receive(max(0.0, deadline - time.monotonic()))
    except EOFError:
        hello = None
    if not isinstance(hello, Hello):
        wire.close()
        return None
    return Link(wire, None, hello.pid, time.monotonic())


def _ended(wire: Wire, timeout_s: float) -> bool:
    """Whether the other side closes the connection in time; what it still says is dropped."""
    deadline = time.monotonic() + timeout_s
    try:
        while (left := deadline - time.monotonic()) > 0:
            wire.receive(left)
    except EOFError:
        return True
    return False


def _waited(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            if b"autoloader.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _check_peer(connection: socket.socket) -> None:
    """Refuse a peer of another user (SO_PEERCRED)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", raw)
    if uid != os.getuid():
        connection.close()
        raise WorkerError(
            f"the loader's socket is held by user {uid}", remedy="start the trainer again"
        )


def _environment() -> Mapping[str, str]:
    """The child's environment: no GPU, memory that malloc does not hand back and forth, our path.

    Runs of frames are allocated and freed all the time; without the threshold malloc would give
    their pages back and fault them in anew, a fifth of what reading costs. What is really to go
    back is given back by hand (``control``). No linear algebra is done there: NumPy's BLAS would
    only start a thread and a buffer for every core.
    """
    environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
    environment.update(
        CUDA_VISIBLE_DEVICES="",
        MALLOC_ARENA_MAX="2",
        MALLOC_TRIM_THRESHOLD_=str(_KEPT_BYTES),
        PYTHONPATH=os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        PYTHONFAULTHANDLER="1",
    )
    return environment
