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

from autoloader.controller.limits import ControlRequest
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
_TEXT_AT = 1024
_WORD = struct.Struct("=q")


class _Word:
    """A 64-bit number of the page; 0 at first, and once the page is closed.

    Args:
        number: place of the word in the page.
    """

    def __init__(self, number: int) -> None:
        self._at = number * _WORD.size

    def __get__(self, page: ControlPage, owner: type[ControlPage]) -> int:
        if page.descriptor < 0:  # closed while its loader was asked for a batch
            return 0
        return int(_WORD.unpack_from(page.map, self._at)[0])

    def __set__(self, page: ControlPage, value: int) -> None:
        if page.descriptor >= 0:
            _WORD.pack_into(page.map, self._at, value)


class ControlPage:
    """The page; made by the trainer, mapped by the child.

    Args:
        descriptor: an existing page's memfd; without one a new page is made.

    Attributes:
        map: memory of the page, mapped here.
        heartbeat_ns: last sign of life of the child, of the monotonic clock.
        oom_kills_at_start: kills that the child's memory cgroup had counted when it first looked.
        frame_bytes: bytes of the child's own memory that decoded frames take.
        gives_way: 1 once the child ends for another one to begin where it cannot.
        batches: batches that the consumer has got.
        waited_ns: time that the consumer has waited for them.
        waiting_since_ns: begin of the consumer's wait; 0: it does not wait.
        restarts: times that the trainer had its child started again.
    """

    heartbeat_ns = _Word(0)
    oom_kills_at_start = _Word(1)
    frame_bytes = _Word(2)
    gives_way = _Word(3)
    batches = _Word(8)
    waited_ns = _Word(9)
    waiting_since_ns = _Word(10)
    restarts = _Word(11)

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = memory_file("autoloader-control", PAGE_BYTES)
        self.descriptor = descriptor
        self.map = mmap.mmap(descriptor, PAGE_BYTES)

    def note_cgroup(self, path: str, oom_kills: int) -> None:
        """Child: its memory cgroup, and the kills counted there when it first looked."""
        self.oom_kills_at_start = oom_kills
        text = path.encode()[: PAGE_BYTES - _TEXT_AT - 1]
        self.map[_TEXT_AT : _TEXT_AT + len(text) + 1] = text + b"\0"

    @property
    def cgroup(self) -> tuple[str, int]:
        """The child's memory cgroup directory ("" where unknown), and its first count of kills."""
        text = bytes(self.map[_TEXT_AT:]).split(b"\0", 1)[0].decode("utf-8", "replace")
        return text, self.oom_kills_at_start

    def delivered(self, wait_ns: int) -> None:
        """Trainer: one more batch, waited for so long."""
        self.batches += 1
        self.waited_ns += wait_ns
        self.waiting_since_ns = 0

    def renew(self) -> None:
        """Trainer: before another child begins."""
        self.restarts += 1
        self.heartbeat_ns = self.frame_bytes = self.gives_way = 0
        self.map[_TEXT_AT] = 0

    def close(self) -> None:
        """Unmap the page and close its descriptor."""
        if self.descriptor >= 0:
            self.map.close()
            os.close(self.descriptor)
            self.descriptor = -1
