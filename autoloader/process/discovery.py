"""Starts the loader's child, or joins the one that another trainer of this node has started.

Theory of operation. Trainers that share a machine (``process.ranks.Neighbours``) share one child.
They find it by a socket in the abstract namespace, named after user, job, start and node.
Whoever comes first binds the name, which the kernel gives to one process only, and starts the child
with the listening socket inherited; the others find the name taken and connect. The same happens
when a child has died: whoever notices first starts the next one. So nobody waits for a certain
rank, which may itself be waiting in a collective. The child holds the socket as long as it lives,
and the kernel takes the name back with it: nothing can be left over.

Any user of the machine may bind any name. Where a stranger has bound this one, the first trainer to
notice makes up another name that nobody can guess. It writes that into the runtime folder of its
own user (``host.files``), where the others look first. A lock there keeps two trainers from
deciding differently.

A trainer without neighbours takes a name that nobody else can have.

Every connection begins with the child's ``Hello``. A connection that ends before it belonged to a
child that was ending: the trainer tries again. A trainer that finds a child hung before its
``Hello`` kills it and starts another one; it waits for a child that only gets no processor.

Not here: what is said over the connection (``process.child``), the child's side
(``process.worker``), starting and watching a process (``host.supervision``).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import logging
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from autoloader.errors import WorkerError
from autoloader.host import files
from autoloader.host.processes import descendants
from autoloader.host.supervision import Supervisor, runs
from autoloader.pipeline.messages import Hello, Wire, peer_of
from autoloader.process.ranks import Neighbours

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_RETRY_S = 0.02
_UNANSWERED_S = 5.0
_DECIDED_WITHIN_S = 120.0
_NAME_BYTES = 107
"""Of a socket's name, at most."""
_TIMEVAL = struct.Struct("ll")
_KEPT_BYTES = 64 * 2**20
"""What malloc keeps of what was freed; less than what a few runs read ahead hold."""
_MOST_PIXELS = str(64_000_000)
"""Of a picture that OpenCV decodes, of whatever format; see ``decode.frames``."""
_numbers = itertools.count()


def socket_name(neighbours: Neighbours) -> str:
    """The abstract socket of a node's child; without neighbours, a name that nobody else has."""
    if neighbours.local_world_size > 1:
        digest = hashlib.blake2b(neighbours.job.encode(), digest_size=12).hexdigest()
        return f"\0autoloader-{os.getuid()}-{digest}"
    return f"\0autoloader-{os.getpid()}-{next(_numbers)}-{os.urandom(4).hex()}"


def is_up(neighbours: Neighbours) -> bool:
    """True if a neighbour has started the child already."""
    if neighbours.local_world_size == 1:
        return False
    found = _connected(_published(neighbours) or socket_name(neighbours))
    if found is None:
        return False
    with found:
        return _is_own(found)


def find_or_start(neighbours: Neighbours, arguments: Sequence[str], supervisor: Supervisor) -> Wire:
    """A connection to the child, which is started where there is none.

    Args:
        neighbours: ranks of this node that share the child.
        arguments: command-line arguments of ``autoloader.process.worker``.
        supervisor: starts and watches the child.

    Raises:
        WorkerError: the process that has the socket does not answer, or is no loader.
        UsageError: another rank holds the lock for too long.
    """
    supervisor.adopt()
    while True:
        name, listener, connection = _agreed_socket(neighbours)
        if listener is not None:
            return _start(name, listener, arguments, supervisor)
        if connection is not None:
            wire = _join(name, connection, supervisor)
            if wire is not None:
                return wire
        if reason := supervisor.hung():
            if not supervisor.pid:
                raise WorkerError(
                    f"the loader that serves the {neighbours.local_world_size} ranks of this node "
                    f"does not answer (socket @{name[1:]}): {reason}",
                    remedy="check whether a process autoloader.process.worker of this job hangs, "
                    "end it, and start the job again",
                )
            supervisor.try_again(reason)
            supervisor.end()
            supervisor.saw_life()
        time.sleep(_RETRY_S)


_Ends: TypeAlias = tuple[str, socket.socket | None, socket.socket | None]
"""A name, and the listening socket where this process has bound it, else a connection to it."""


def _agreed_socket(neighbours: Neighbours) -> _Ends:
    """The socket that all neighbours use: bound here, or connected to; neither: it is ending."""
    if neighbours.local_world_size == 1:
        name = socket_name(neighbours)
        return name, _bound(name), None
    try:
        folder = files.own_folder(files.runtime_folder())
        waits = files.Waiting("a rank of this node", _DECIDED_WITHIN_S, say=logger.debug)
        with files.locked(folder / "sockets.lock", waits):
            ends = _bound_or_connected(_published(neighbours) or socket_name(neighbours))
            if ends is None:
                name = f"{socket_name(neighbours)}-{os.urandom(8).hex()}"
                files.write_whole(folder / _publication(neighbours), name[1:], mode=0o600)
                logger.warning(
                    "another user's process has bound the name of this node's loader; the socket "
                    "is @%s instead",
                    name[1:],
                )
                ends = name, _bound(name), None
            return ends
    except OSError as error:
        name = socket_name(neighbours)
        ends = _bound_or_connected(name)
        if ends is None:
            raise _held(name, f"another user, and there is no runtime folder ({error})") from error
        return ends


def _bound_or_connected(name: str) -> _Ends | None:
    """This process's end of a socket; ``None`` where a stranger has the name."""
    unanswered_until = time.monotonic() + _UNANSWERED_S
    while True:
        listener = _bound(name)
        if listener is not None:
            return name, listener, None
        connection = _connected(name)
        if connection is not None:
            if _is_own(connection):
                return name, None, connection
            connection.close()
            return None
        if time.monotonic() > unanswered_until:
            return None  # bound, and nobody listens or accepts: no loader does that
        time.sleep(_RETRY_S)


def _publication(neighbours: Neighbours) -> str:
    """The file in the runtime folder that holds another name for the socket."""
    return f"{socket_name(neighbours)[1:]}.socket"


def _published(neighbours: Neighbours) -> str:
    """The other name that the neighbours agreed on; "" where there is none."""
    place = files.runtime_folder() / _publication(neighbours)
    with contextlib.suppress(OSError):
        text = files.read_own(place, _NAME_BYTES).decode("ascii", "replace")
        return f"\0{text}" if text.startswith("autoloader-") else ""
    return ""


def _bound(name: str) -> socket.socket | None:
    """A socket that listens under a name; ``None`` where the name is taken."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(name)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return listener


def _connected(name: str) -> socket.socket | None:
    """A connection to whoever listens; ``None`` where nobody does, or the queue there is full."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(1, 0))
    try:
        connection.connect(name)
    except OSError:
        connection.close()
        return None
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(0, 0))
    return connection


def _start(
    name: str, listener: socket.socket, arguments: Sequence[str], supervisor: Supervisor
) -> Wire:
    """Start the child with a listening socket, and connect to it."""
    with listener:
        connection = _connected(name)
        if connection is None:
            raise _held(name, "a process of another user")
        supervisor.start({"listener": listener.fileno()}, arguments, changes=_environment())
    return Wire(connection)


def _join(name: str, connection: socket.socket, supervisor: Supervisor) -> Wire | None:
    """Wait for a child's ``Hello``; ``None`` where the child is gone, or hangs.

    Args:
        name: abstract name of the socket.
        connection: connected socket to the child.
        supervisor: watches it, and learns from its ``Hello`` which process it is.
    """
    starter, _ = peer_of(connection)
    wire = Wire(connection)
    with contextlib.ExitStack() as stack:
        stack.callback(wire.close)
        stack.enter_context(contextlib.suppress(EOFError))
        while not supervisor.hung():
            hello = wire.receive(_LOOK_S)
            if isinstance(hello, Hello):
                if not runs(hello.pid, supervisor.module):
                    raise _held(name, f"process {starter}, which is not a loader")
                supervisor.adopt(hello.pid)
                stack.pop_all()
                return wire
            children = (pid for pid in descendants(starter) if runs(pid, supervisor.module))
            supervisor.pid = next(children, 0)
    return None


def _is_own(connection: socket.socket) -> bool:
    """True if a process of this user made the socket at the other end."""
    return peer_of(connection)[1] == os.geteuid()


def _held(name: str, by: str) -> WorkerError:
    """The error for a socket's name that another process has."""
    return WorkerError(
        f"the socket @{name[1:]} of this node's loader is held by {by}",
        remedy="end that process, or start the job under another id (TORCHELASTIC_RUN_ID, "
        "MASTER_PORT), which gives the socket another name",
    )


def _environment() -> Mapping[str, str]:
    """Changes of the child's environment: no GPU, and memory that malloc keeps.

    Runs of frames are allocated and freed all the time. Without the threshold malloc would give
    their pages back and fault them in anew: a fifth of what reading costs. What is really to go
    back is given back by hand (``host.allocator.give_memory_back``). Decoders of videos and the
    stream reader set a second threshold (``host.allocator.reuse_freed``).

    NumPy's BLAS computes in the threads that decode (``decode.resize``): its own threads would
    only cost memory.
    """
    return {
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),
        "CUDA_VISIBLE_DEVICES": "",
        "OPENCV_IO_MAX_IMAGE_PIXELS": os.environ.get("OPENCV_IO_MAX_IMAGE_PIXELS", _MOST_PIXELS),
        "MALLOC_ARENA_MAX": "2",
        "MALLOC_TRIM_THRESHOLD_": str(_KEPT_BYTES),
        "PYTHONFAULTHANDLER": "1",
    }
