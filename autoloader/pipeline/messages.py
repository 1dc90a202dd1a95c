"""Messages between trainer, child, decode processes and the driver of helpers, and their ends.

A message is JSON with a length before it. No pickle: a message can hold numbers, text, lists and
mappings, and descriptors beside it.

A ``Peer`` is a process at the other end, as the one that started it sees it. A process whose
connection ends has ended, or is ended then. One that hangs may do so while somebody waits for it to
read: whoever sends kills it, and whoever receives finds it gone.

Not here: who sends what when (``process.child``, ``process.control``, ``pipeline.builders``).
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import json
import logging
import os
import select
import socket
import struct
import termios
import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import dataclass_transform

from autoloader import errors
from autoloader.errors import AutoloaderError, PipelineError, WorkerError
from autoloader.host.frozen import frozen
from autoloader.host.supervision import Supervisor
from autoloader.host.threads import Owner

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")
_LARGEST_BYTES = 256 * 2**20
_SHORT_BYTES = 16_384
_AT_ONCE = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
"""A program may have SIGPIPE end it: that is for its own pipes."""
_BOTH = socket.SHUT_RDWR
UNREAD_S = 1.0
_END_S = 2.0
"""A process whose connection has ended mostly ends within so long."""


@dataclass_transform(frozen_default=True)
@frozen
class Message:
    """Base of all messages, each a frozen dataclass; ``pipeline`` says which one it is about."""

    pipeline: int

    def __init_subclass__(cls) -> None:
        frozen(cls, slots=False)


class Hello(Message):
    """Child → trainer: the first message of a connection, and from then on a sign of life.

    Its process id, its memory cgroup ("": not known), and the kills that were counted there when
    the child came into it.
    """

    pid: int
    cgroup: str = ""
    oom_kills: int = 0


class GivesWay(Message):
    """Child → trainer: the child ends, for another one to begin where it cannot."""


class Start(Message):
    """Trainer → child: run a mixture. The descriptor of its ring comes along.

    Also sent again to begin elsewhere: the old generation is dropped.
    """

    generation: int
    mixture: dict[str, Any]
    knobs: dict[str, Any]
    order: dict[str, Any]
    place: dict[str, Any]
    ranks: list[int]
    ranks_here: int
    held_slots: list[int]
    restarts: int
    control: dict[str, Any]
    import_path: list[str]


class Release(Message):
    """Trainer → child: a slot is free again."""

    slot: int


class Retune(Message):
    """Trainer → child: other knobs; child → decode process: its share of them."""

    knobs: dict[str, Any]


class Park(Message):
    """Trainer → child: stop admitting reads, or go on."""

    parked: bool


class AskActivity(Message):
    """Trainer → child: what is every part doing?"""


class Stop(Message):
    """Trainer → child: this pipeline is over.

    The ring may be wanted again: with ``held_slots`` the pages of all other slots are given back.
    """

    held_slots: list[int] | None = None


class BatchReady(Message):
    """A batch is in a slot (``BatchMessage.plain``).

    Child → trainer, with the generation of the pipeline; decode process → child; driver of helpers
    → child, with the number of the batch.
    """

    generation: int
    batch: dict[str, Any]


class Activity(Message):
    """Child → trainer: the answer to ``AskActivity``; decode process → child, unasked."""

    activity: dict[str, Any]
    quarantined: list[dict[str, Any]] = field(default_factory=list)


class Failed(Message):
    """Child → trainer: this pipeline failed; the error's class, and where it happened."""

    kind: str
    what: str
    remedy: str
    place: dict[str, str]

    @classmethod
    def of(cls, pipeline: int, error: AutoloaderError) -> Failed:
        """The message that tells the trainer of an error."""
        names = ("dataset", "stage", "path")
        place = {name: getattr(error, name) for name in names if hasattr(error, name)}
        return cls(pipeline, type(error).__name__, error.what, error.remedy, place)

    def to_error(self) -> AutoloaderError:
        """The error that the message tells of, as an instance of the same class."""
        kind = getattr(errors, self.kind, PipelineError)
        error: AutoloaderError = kind(self.what, remedy=self.remedy)
        vars(error).update(self.place)
        return error


class Retuned(Message):
    """Child → trainer: these knobs are in force now."""

    generation: int
    knobs: dict[str, Any]


class Logged(Message):
    """A log record for the process above: child → trainer, decode process → child."""

    level: int
    name: str
    text: str


class BuildStart(Message):
    """Child → decode process: what is read, and how. Its ring came as an inherited descriptor."""

    mixture: dict[str, Any]
    order: dict[str, Any]
    knobs: dict[str, Any]
    node: dict[str, Any] | None
    on_disk: dict[str, Any] | None
    disk_floor_bytes: int | None = None


class BuildRun(Message):
    """Child → decode process, or driver: the positions [start, stop) of batches to fill.

    With the driver it is one batch, and ``number`` is its number.
    """

    spans: list[list[int]]
    number: int = 0


class BuildSlot(Message):
    """Child → decode process: slot of the next batch that has none; → driver: of that number.

    With ``span`` the slot is for the batch of these positions, which another process had to fill.
    """

    slot: int
    number: int = 0
    span: list[int] = field(default_factory=list)


class BuildPast(Message):
    """Child → decode process: pass over the next batch that has no slot; another one fills it."""


class BuildBegun(Message):
    """Decode process → child: the frames of a further batch are decoded, or are being decoded."""


class AskFrames(Message):
    """Decode process → child: which frames of a run of so many rows, from ``now`` on, are held?

    ``frames`` is camera → [keys, next uses, datasets, uses], see ``cache.slab.CameraFrames``.
    """

    number: int
    files: list[str]
    frames: dict[str, list[list[int]]]
    now: int
    rows: int


class HeldFrames(Message):
    """Child → decode process: camera → slots (−1: none), and whether a frame lies in each already.

    Frames are shown from such slots, and put into the others.
    """

    number: int
    slots: dict[str, list[int]]
    cached: dict[str, list[bool]]


class FramesStored(Message):
    """Decode process → child: a run is filled; camera → which of its frames lie in their slots."""

    number: int
    stored: dict[str, list[int]]


class Bad(Message):
    """Decode process → child: a record is to be quarantined."""

    place: list[int]
    reason: str


class HelpersStart(Message):
    """Child → driver of helpers: what they read, where they are, and what they must agree with.

    ``identity`` is field → value, see ``pipeline.builders``.
    """

    mixture: dict[str, Any]
    order: dict[str, Any]
    identity: dict[str, str]
    address: str
    ram_floor_bytes: int
    import_path: list[str]


class HelpersWanted(Message):
    """Child → driver: have so many helpers."""

    count: int


class HelpersLost(Message):
    """Driver → child: nobody fills these batches any more, ``late``: for want of time."""

    numbers: list[int]
    late: bool = False


class HelperCompared(Message):
    """Driver → child: a helper's batch was filled here too, and compared."""

    same: bool


class HelpersHere(Message):
    """Driver → child: so many helpers work; the cluster has processors for so many."""

    present: int
    possible: int


_KINDS = {kind.__name__: kind for kind in Message.__subclasses__()}


@dataclass(slots=True)
class Wire:
    """One end of a connection; any thread may send, one thread receives.

    The handler of a signal may close it, or try to send, while its own thread sends or receives.

    Attributes:
        socket: a connected stream socket.
        unread: called with this every ``UNREAD_S`` while ``send`` waits for the other side to read;
            may end the other side, or raise an ``OSError``, which ends the sending.
    """

    socket: socket.socket
    unread: Callable[[Wire], object] = lambda _: None
    _sending: threading.RLock = field(default_factory=threading.RLock)
    _midway: bool = False
    _owner: Owner = field(default_factory=lambda: Owner("a connection"))
    _later: collections.deque[bytes] = field(default_factory=lambda: collections.deque(maxlen=64))
    _buffer: bytearray = field(default_factory=bytearray)
    _descriptors: list[int] = field(default_factory=list)
    _inode: int = 0

    def __post_init__(self) -> None:
        self.socket.settimeout(None)  # whatever socket.setdefaulttimeout says
        self._inode = os.fstat(self.socket.fileno()).st_ino

    @property
    def torn(self) -> bool:
        """True where other code of this process closed the socket; a poll of it never ends."""
        number = self.socket.fileno()
        try:
            return number >= 0 and os.fstat(number).st_ino != self._inode
        except OSError:
            return self.socket.fileno() >= 0

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send one message.

        Raises:
            OSError: the other side is gone.
        """
        self._end_forks()
        data = _packed(message)
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))]
        with self._sending:
            if self._midway:
                raise OSError("this thread is sending another message, which a signal interrupted")
            self._midway = True
            try:
                while data:
                    try:
                        sent = self.socket.sendmsg([data], beside if descriptors else [], _AT_ONCE)
                    except BlockingIOError:
                        if not _ready(self.socket, select.POLLOUT, UNREAD_S):
                            self.unread(self)
                    else:
                        data, descriptors = data[sent:], ()
            except BaseException:
                self.shut_down()  # half a message may be sent
                raise
            finally:
                self._midway = False
        self.send_waiting()

    def tell(self, message: Message) -> None:
        """Send; where the other side is gone, whoever receives here is about to find that."""
        with contextlib.suppress(OSError):
            self.send(message)

    def send_later(self, message: Message) -> None:
        """Send a short message, now or after what is being sent; the last 64 may wait."""
        if len(data := _packed(message)) <= _SHORT_BYTES:
            self._later.append(data)
            self.send_waiting()

    def send_waiting(self) -> None:
        """Send what ``send_later`` left, where that does not wait."""
        while self._later and self._sending.acquire(blocking=False):
            try:
                data = self._later.popleft()
                # A stream socket is writable while three quarters of its buffer are free.
                if not _ready(self.socket, select.POLLOUT, 0):
                    self._later.appendleft(data)
                    return
                self.socket.sendall(data, socket.MSG_NOSIGNAL)
            except (OSError, IndexError):  # an end is closed, or another thread sent it
                return
            finally:
                self._sending.release()

    def send_if_read(self, message: Message) -> None:
        """Send a short message where the other side has read all others: a sign of life."""
        unread = array("i", [0])
        with contextlib.suppress(OSError, ValueError):  # an end is closed
            fcntl.ioctl(self.socket, termios.TIOCOUTQ, unread)
            if not unread[0]:
                self.send_later(message)

    def shut_down(self, how: int = _BOTH) -> None:
        """End both directions; ``receive`` raises on both sides, also where it waits.

        Args:
            how: ``SHUT_WR`` ends one direction: the other side finds that, and may still send.
        """
        with contextlib.suppress(OSError):
            self.socket.shutdown(how)

    def receive(self, timeout_s: float | None) -> Message | None:
        """The next message; ``None`` where none came in time.

        Raises:
            EOFError: the other side is gone.
            WorkerError: what came is no message.
        """
        self._end_forks()
        while (message := self._take()) is None:
            try:
                if not _ready(self.socket, select.POLLIN, timeout_s):
                    return None
                data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 4)
            except OSError as error:
                raise EOFError from error
            self._descriptors += descriptors
            if not data:
                raise EOFError
            self._buffer += data
        return message

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the other side is gone."""
        with contextlib.suppress(EOFError):
            while (message := self.receive(None)) is not None:
                yield message

    def _end_forks(self) -> None:
        """End a fork of this process, in which a function of the user's has returned too."""
        if not self._owner.here:
            os._exit(1)

    def descriptor(self) -> int:
        """The next descriptor that came beside messages."""
        return self._descriptors.pop(0)

    def _take(self) -> Message | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > _LARGEST_BYTES:
            raise _no_message(f"a length of {length} bytes")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        try:
            plain = json.loads(body)
            kind = _KINDS[plain.pop("type")]
            return kind(**{name: plain[name] for name in kind.__match_args__ if name in plain})
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise _no_message(str(body[:60])) from error

    def close(self) -> None:
        """Close the socket and whatever descriptors were not taken."""
        with self._sending:
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._descriptors.clear()
            self.socket.close()


class Peer(ABC):
    """A process at the other end of a connection.

    Args:
        what: the process, in messages.
        module: full name of the module that it runs.
        remedy: what the user can do where it cannot be kept alive.

    Attributes:
        supervisor: starts and watches the process.
        closed: whether nothing more is wanted of the process.
    """

    def __init__(self, what: str, module: str, *, remedy: str) -> None:
        self.supervisor = Supervisor(what, module, remedy=remedy)
        self.closed = False
        self._killed = ""

    @property
    def over(self) -> bool:
        """True if the process is to end."""
        return self.closed

    def connected(self, wire: Wire) -> Wire:
        """The connection to a process that was just started or found, which is watched from now."""
        self._killed = ""
        wire.unread = self.unread
        return wire

    def hear(self, wire: Wire, within_s: float) -> str:
        """Take the next message, if one comes in time; why the process is lost, "" where not."""
        try:
            message = wire.receive(within_s)
        except EOFError:
            ended = self._killed or ("" if self.over else self.supervisor.how_it_ended(_END_S))
            return ended or "it closed its connection"
        if message is None:
            ended = "" if self.over else self.supervisor.how_it_ended(0.0) or self.hung()
            return ended and (self._killed or ended)
        self.supervisor.saw_life()
        self.take(message)
        return ""

    @abstractmethod
    def take(self, message: Message) -> None:
        """Heed what the process says."""
        if isinstance(message, Logged):
            logging.getLogger(message.name).log(message.level, "%s", message.text)

    def hung(self) -> str:
        """Reason for which the process is taken for hung; "" while it is not."""
        return self.supervisor.hung()

    def unread(self, wire: Wire) -> None:
        """Kill a process that hangs, and so reads nothing: who watches it may be who sends."""
        if reason := self.hung():
            logger.warning("%s is killed: %s", self.supervisor.what, reason)
            self.kill(wire, reason)
        elif self.closed:
            raise TimeoutError  # who closes this waits no longer

    def kill(self, wire: Wire, reason: str) -> None:
        """Kill the process, which does not do what it should; ``hear`` gives the reason."""
        self._killed = reason
        self.supervisor.kill()
        wire.shut_down()  # a killed process may wait inside the kernel, with its socket open


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The process at the other end, or that made the socket, and its user (SO_PEERCRED)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def _no_message(what: str) -> WorkerError:
    """The error for bytes that are no message."""
    return WorkerError(
        f"the loader's socket got {what}, which is no message of this version of autoloader",
        remedy="list the processes that use sockets named @autoloader-… (`ss -xap`), and end those "
        "that are neither a trainer nor named autoloader",
    )


def _packed(message: Message) -> bytes:
    """A message as bytes: its length, then JSON."""
    values = {name: getattr(message, name) for name in message.__match_args__}
    body = json.dumps({"type": type(message).__name__, **values}).encode()
    return _LENGTH.pack(len(body)) + body


def _ready(connection: socket.socket, event: int, timeout_s: float | None) -> bool:
    """True if the event, or the connection's end, comes in time. Raises OSError if it is closed."""
    poll = select.poll()
    try:
        poll.register(connection, event)
    except ValueError as error:
        raise OSError(errno.EBADF, "closed from here") from error
    return bool(poll.poll(None if timeout_s is None else max(0, int(timeout_s * 1000))))
