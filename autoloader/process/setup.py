"""Parts of a pipeline that the trainer and the loader's process share: its setup, the control page.

The page carries signs of life one way and the consumer's counts the other. Each number has one
writer; a torn read cannot happen (aligned 64-bit words).

Not here: opening and governing a pipeline (``process.control``), use of the page's numbers
(``process.child``, ``controller``).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass

from autoloader.controller.request import ControlRequest
from autoloader.decode.message import PipelineStart
from autoloader.decode.ring import RingMemory
from autoloader.host.files import memory_file
from autoloader.samples.resolve import ResolvedMixture
from autoloader.sampling.dealing import Ranks
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec.knobs import Knobs


@dataclass(frozen=True, slots=True)
class PipelineSetup:
    """Everything that one pipeline needs from its loader.

    Attributes:
        mixture: what it reads: the rank's part.
        order: the rank's part of the order.
        knobs: the values to begin with; checked by the caller.
        memory: shared memory of the batch ring.
        page: where the consumer's doings are read.
        control: what the controller is asked.
        ranks: which of how many trainers the loader is of.
        ranks_here: trainers whose pipelines share the process, and its memory.
        position: says where to begin, whenever it begins.
        lent: says which slots of the ring the consumer still has.
        stuck: slots that threads of an earlier pipeline still write to.
    """

    mixture: ResolvedMixture
    order: MixtureOrder
    knobs: Knobs
    memory: RingMemory
    page: ControlPage
    control: ControlRequest
    ranks: Ranks
    ranks_here: int
    position: Callable[[], PipelineStart]
    lent: Callable[[], Collection[int]]
    stuck: frozenset[int] = frozenset()


PAGE_BYTES = 4096
_HEARTBEAT_NS = 0
_OOM_KILLS_AT_START = 1
_FRAME_BYTES = 2
_GIVES_WAY = 3
_BATCHES = 8
_WAIT_NS = 9
_WAITING_SINCE_NS = 10
_RESTARTS = 11
_TEXT_AT = 1024
_WORD = struct.Struct("=q")


class ControlPage:
    """The page; made by the trainer, mapped by the child.

    Args:
        descriptor: an existing page's memfd; without one a new page is made.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = memory_file("autoloader-control", PAGE_BYTES)
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, PAGE_BYTES)

    def beat(self, now_ns: int) -> None:
        """Child: alive at ``now_ns`` (monotonic)."""
        self._set(_HEARTBEAT_NS, now_ns)

    @property
    def heartbeat_ns(self) -> int:
        """When the child was last alive; 0 before it was."""
        return self._get(_HEARTBEAT_NS)

    def note_frames(self, held_bytes: int) -> None:
        """Child: decoded frames take so many bytes of its own memory."""
        self._set(_FRAME_BYTES, held_bytes)

    @property
    def frame_bytes(self) -> int:
        """Bytes of the child's own memory that decoded frames take."""
        return self._get(_FRAME_BYTES)

    def note_gives_way(self) -> None:
        """Child: it ends now, for another one to begin where this one cannot."""
        self._set(_GIVES_WAY, 1)

    @property
    def gives_way(self) -> bool:
        """True if the child has ended for another one to begin."""
        return bool(self._get(_GIVES_WAY))

    def note_cgroup(self, path: str, oom_kills: int) -> None:
        """Child: its memory cgroup, and the kills counted there when it first looked."""
        self._set(_OOM_KILLS_AT_START, oom_kills)
        text = path.encode()[: PAGE_BYTES - _TEXT_AT - 1]
        self._map[_TEXT_AT : _TEXT_AT + len(text) + 1] = text + b"\0"

    @property
    def cgroup(self) -> tuple[str, int]:
        """The child's memory cgroup directory ("" where unknown), and its first count of kills."""
        text = bytes(self._map[_TEXT_AT:]).split(b"\0", 1)[0].decode("utf-8", "replace")
        return text, self._get(_OOM_KILLS_AT_START)

    def waiting(self, since_ns: int) -> None:
        """Trainer: the consumer waits since then; 0 where it does not."""
        self._set(_WAITING_SINCE_NS, since_ns)

    def delivered(self, wait_ns: int) -> None:
        """Trainer: one more batch, waited for so long."""
        self._set(_BATCHES, self._get(_BATCHES) + 1)
        self._set(_WAIT_NS, self._get(_WAIT_NS) + wait_ns)
        self._set(_WAITING_SINCE_NS, 0)

    @property
    def consumer(self) -> tuple[int, int, int]:
        """(batches, nanoseconds waited, waiting since) of the consumer."""
        return self._get(_BATCHES), self._get(_WAIT_NS), self._get(_WAITING_SINCE_NS)

    @property
    def restarts(self) -> int:
        """Times the trainer had its child started again."""
        return self._get(_RESTARTS)

    def renew(self) -> None:
        """Trainer: before another child begins."""
        self._set(_RESTARTS, self.restarts + 1)
        self._set(_HEARTBEAT_NS, 0)
        self._set(_FRAME_BYTES, 0)
        self._set(_GIVES_WAY, 0)
        self._map[_TEXT_AT] = 0

    def close(self) -> None:
        """Unmap the page and close its descriptor."""
        if self.descriptor >= 0:
            self._map.close()
            os.close(self.descriptor)
            self.descriptor = -1

    def _get(self, word: int) -> int:
        if self.descriptor < 0:  # closed while its loader was asked for a batch
            return 0
        return int(_WORD.unpack_from(self._map, word * _WORD.size)[0])

    def _set(self, word: int, value: int) -> None:
        if self.descriptor < 0:
            return
        _WORD.pack_into(self._map, word * _WORD.size, value)
