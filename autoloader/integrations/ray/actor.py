"""A helper: fills batches of a mixture on another host, for a loader elsewhere.

Runs in a process that Ray starts, with one processor and no GPU. It opens the mixture by the
loader's paths (a file system that both see, or copies), reads by index, and keeps no batch that it
has filled.

Here is no Ray: ``driver`` makes an actor of ``Helper``.

Not here: what becomes of its answers (``driver``).
"""

from __future__ import annotations

import queue
import socket
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from autoloader.decode.batch_builder import BatchBuilder
from autoloader.decode.message import BatchMessage, Quarantine
from autoloader.decode.ring import RingMemory
from autoloader.errors import BudgetInfeasibleError
from autoloader.host.headroom import HeadroomProbe
from autoloader.host.supervision import extend_import_path
from autoloader.host.units import format_bytes
from autoloader.pipeline.builders import identity_of
from autoloader.pipeline.read.planned import IndexedReader
from autoloader.samples.block import Place
from autoloader.samples.resolve import resolve_plain
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec.knobs import THREADS_OF, Knobs

_KNOBS = {"reader": "indexed", "read_ahead": 2, **dict.fromkeys(THREADS_OF.values(), 1)}
CALLS_AT_A_TIME = 2
"""One batch is read while the one before is decoded; more calls wait."""
_SLOTS = CALLS_AT_A_TIME + 1
_POLL_S = 1.0
_LOOK_S = 1.0


class Helper:
    """Fills batches; its methods are called by the loader's driver.

    Args:
        start: ``pipeline.messages.HelpersStart`` as a mapping.
    """

    def __init__(self, start: Mapping[str, Any]) -> None:
        self._wanted = start
        self._knobs = Knobs.build(_KNOBS)
        self._lock, self._taking = threading.Lock(), threading.Lock()
        self._begun = 0
        self._looked_s = 0.0
        self._filled: dict[int, BatchMessage] = {}
        self._bad: list[tuple[list[int], str]] = []
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(_SLOTS):
            self._free.put(slot)
        self._headroom = HeadroomProbe()

    def join(self) -> dict[str, Any]:
        """Open the mixture.

        Returns:
            ``identity`` (field → value), or ``failed``: why this host cannot help, in a line.
        """
        try:
            return {"identity": self._open()}
        except Exception as error:  # noqa: BLE001 code that is older or newer may fail in any way
            return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())}"}

    def _open(self) -> dict[str, str]:
        self._check_memory()
        extend_import_path(self._wanted["import_path"])
        self._mixture = resolve_plain(self._wanted["mixture"])
        order = MixtureOrder.from_plain(self._wanted["order"])
        reader = IndexedReader(self._mixture, order, by_blocks=False)
        reader.open(Quarantine(self._mixture).add)  # the loader knows of records that are damaged
        self._memory = RingMemory(self._mixture.layout)
        self._builder = BatchBuilder(
            self._mixture, reader.source, self._knobs, self._memory, self._note_bad
        )
        return identity_of(self._mixture, self._wanted["order"], reader.opened.indexes)

    def fill(self, start: int, stop: int) -> tuple[dict[str, Any], np.ndarray]:
        """The batch of positions [start, stop): what is said of it, and its slot as one buffer.

        The buffer is the slot itself, which is filled again when nothing refers to the buffer. Ray
        copies it into its object store first.

        Raises:
            AutoloaderError: the batch cannot be filled here; the loader then does it itself.
        """
        slot = self._free.get()
        content = self._memory.base(slot)
        weakref.finalize(content, self._free.put, slot)
        with self._lock:
            self._check_memory()
            number = self._begun
            self._begun += 1
            self._builder.assign([(start, stop)])
            self._builder.give(slot)
        batch = self._taken(number)
        found, self._bad = self._bad, []
        return {"batch": batch.plain(), "bad": found}, content

    def _note_bad(self, place: Place, reason: str) -> None:
        """Keep a bad record for the next answer; the loader counts and judges it."""
        self._bad.append((list(place.numbers()), reason))

    def _taken(self, number: int) -> BatchMessage:
        """The filled batch of a number; the builder gives them in order, to whoever asks first."""
        while True:
            with self._taking:
                if number in self._filled:
                    return self._filled.pop(number)
                batch = self._builder.next(_POLL_S)
                if batch is not None:
                    self._filled[batch.number] = batch

    def _check_memory(self) -> None:
        now, floor = time.monotonic(), int(self._wanted["ram_floor_bytes"])
        if now - self._looked_s < _LOOK_S:
            return
        self._looked_s = now
        free = self._headroom.read().headroom_bytes
        if free is not None and free < floor:
            raise BudgetInfeasibleError(
                f"{socket.gethostname()} has {format_bytes(free)} of free memory, below the floor "
                f"{format_bytes(floor)}",
                remedy="free memory on that host, or start Ray there with a smaller --num-cpus",
            )
