"""Copies batches to a CUDA device beside the training loop.

Theory of operation. A copy runs beside the host only from pinned memory. So a ring slot is
registered with the driver in place, once, with its first batch. The batch is copied on a separate
stream, and an event is recorded behind the copies. The device's current stream waits for
that event, not the host. Until the event is done ``Transfer`` holds the source tensors, and with
them the slot stays lent. A slot that is to be given back to the kernel is unregistered first.

torch's allocator does not know this memory and ignores events on it. Another copy from a pinned
slot with ``non_blocking=True`` could see the slot refilled under it. So slots are pinned only while
this transfer is the loader's consumer (``active``); other consumers get pageable memory.

The training loop's thread calls a ``Transfer``. The loader's thread ``autoloader-hand``, in the
same process, calls ``drop_copied``, ``close`` and ``unpin``.

Invariants:
    1. A slot is not returned before the event behind its copies is done.
    2. A slot is registered once at a time, however often it comes by.
    3. Memory is never given back to the kernel while it is registered.

Not here: the ring (``decode.ring``), who lends (``process.delivery``), Lightning
(``integrations.lightning``).
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Any

import torch

from autoloader.decode.ring import RingMemory
from autoloader.errors import UsageError, many
from autoloader.host.threads import Owner

logger = logging.getLogger(__name__)


class Device:
    """A device that batches are copied to; this one is the CPU, where batches stay as they are."""

    def register(self, address: int, nbytes: int) -> bool:
        """Pin host memory; false where the driver refuses, or nothing is pinned."""
        return False

    def unregister(self, address: int) -> None:
        """Undo ``register``."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begin to copy a host tensor; same shape, type and strides where it is dense."""
        return tensor

    def event(self, copies: list[torch.Tensor]) -> Any:
        """The point at which all copies begun so far are done; later work on ``copies`` waits.

        Has the methods ``query`` and ``synchronize`` of ``torch.cuda.Event``.
        """
        return self

    def query(self) -> bool:
        """True if the point of ``event`` has been reached; does not wait."""
        return True

    def synchronize(self) -> None:
        """Block the host until the point of ``event`` is reached."""


class CudaDevice(Device):
    """A CUDA device; copies run on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]

    def register(self, address: int, nbytes: int) -> bool:
        """See ``Device.register``."""
        with torch.cuda.device(self.device):
            code = int(self._runtime.cudaHostRegister(address, nbytes, 0))
        if code:
            logger.warning("CUDA does not pin the memory of batches (cudaError %d)", code)
            # The driver keeps the error for whoever asks next: that must not be a training step.
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self.device)
        return code == 0

    def unregister(self, address: int) -> None:
        """See ``Device.unregister``."""
        with torch.cuda.device(self.device):
            code = int(self._runtime.cudaHostUnregister(address))
        if code:
            logger.warning("cudaHostUnregister: cudaError %d", code)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``Device.copy``."""
        with torch.cuda.stream(self._stream):
            copied = torch.empty_like(tensor, device=self.device)
            copied.copy_(tensor, non_blocking=True)
        return copied

    def event(self, copies: list[torch.Tensor]) -> torch.cuda.Event:
        """See ``Device.event``."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        current = torch.cuda.current_stream(self.device)
        current.wait_event(event)
        for copied in copies:
            copied.record_stream(current)
        return event


def open_device(device: torch.device | str) -> Device:
    """The adapter that copies batches to a CUDA device, or leaves them on the CPU.

    Raises:
        UsageError: there is none for this kind of device.
    """
    try:
        wanted = torch.device(device)
    except (TypeError, RuntimeError) as error:
        raise UsageError(
            f"device={device!r:.80} is not allowed",
            remedy='pass a torch.device, or its name: "cuda:0"',
        ) from error
    if wanted.type == "cpu":
        return Device()
    if wanted.type != "cuda":
        raise UsageError(
            f"transfer to {wanted}: only CUDA devices have a transfer of their own",
            remedy="move the tensors yourself: tensor.to(device)",
        )
    if (wanted.index or 0) >= (found := torch.cuda.device_count()):
        raise UsageError(
            f"transfer to {wanted}: torch {torch.__version__} finds {many(found, 'CUDA device')}",
            remedy='pass "cpu", or a device that is there; nvidia-smi lists them'
            if torch.version.cuda or torch.version.hip
            else 'pass "cpu", or install a torch that is built with CUDA',
        )
    return CudaDevice(wanted)


@dataclasses.dataclass(slots=True, eq=False)
class _UnderWay:
    """Copies of a batch that are being begun, or are under way; equal to itself alone.

    Attributes:
        event: the point at which they are done; ``None`` while they are being begun.
        sources: host tensors that are copied.
        slots: slots that these lie in.
    """

    event: Any = None
    sources: list[torch.Tensor] = dataclasses.field(default_factory=list)
    slots: set[int] = dataclasses.field(default_factory=set)


class Transfer:
    """Copies a loader's batches to a device: ``batch = transfer(batch)``.

    ``AutoLoader.transfer`` makes one.

    Args:
        device: device that batches are copied to.
        memory: memory of the loader's ring, whose slots are pinned.

    Attributes:
        active: whether this is the loader's consumer; while false, batches come in pageable memory.
        pinned: slots that are registered now.
    """

    def __init__(self, device: Device, memory: RingMemory) -> None:
        self._device = device
        self._memory = memory
        self._lock = threading.RLock()
        self.pinned: set[int] = set()
        self._under_way: collections.deque[_UnderWay] = collections.deque()
        self._refused = False
        self._closed = False
        self._owner = Owner("the transfer of a loader")
        self.active = True

    def __call__(self, batch: Any) -> Any:
        """The batch on the device: every tensor in it, through dicts, lists and tuples.

        The tensors may be used at once by work on the device's current stream.

        Raises:
            UsageError: another process made the loader, or it is closed.
        """
        self._owner.check()
        if self._closed:
            raise UsageError(
                "the loader of this transfer is closed",
                remedy="move batches before the loader is closed, inside its with block",
            )
        self.drop_copied()
        copies: list[torch.Tensor] = []
        entry = _UnderWay()  # known before its first copy is begun: other threads unpin slots

        def move(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type != "cpu":
                return tensor
            self._pin(tensor, entry)
            copied = self._device.copy(tensor)
            entry.sources.append(tensor)
            copies.append(copied)
            return copied

        self._under_way.append(entry)
        try:
            return mapped(batch, move)
        finally:
            if copies:
                entry.event = self._device.event(copies)
            else:
                self._drop(entry)
            if self._closed:
                self.close()

    def _pin(self, tensor: torch.Tensor, entry: _UnderWay) -> None:
        """Register the slot that a tensor lies in, if any, and note it in ``entry``."""
        slot = (tensor.data_ptr() - self._memory.address) // self._memory.slot_bytes
        if not 0 <= slot < self._memory.slots:
            return
        with self._lock:
            entry.slots.add(slot)
            if slot not in self.pinned and self.active and not (self._refused or self._closed):
                start = self._memory.address + slot * self._memory.slot_bytes
                if self._device.register(start, self._memory.slot_bytes):
                    self._memory.note_pinned(slot, True)
                    self.pinned.add(slot)
                else:
                    self._refused = True

    def drop_copied(self, ring_slots: int | None = None) -> None:
        """Drop the source tensors of copies that are done, without waiting for others.

        Args:
            ring_slots: number of slots in the ring now: pinned slots beyond are unregistered,
                unless a copy from them is under way. ``None``: none is unregistered.
        """
        for entry in tuple(self._under_way):
            if entry.event is None or not entry.event.query():
                break
            self._drop(entry)
        for slot in [s for s in tuple(self.pinned) if ring_slots is not None and s >= ring_slots]:
            self.unpin(slot)

    def _drop(self, entry: _UnderWay) -> None:
        with contextlib.suppress(ValueError):  # another thread was sooner
            self._under_way.remove(entry)

    def unpin(self, slot: int) -> bool:
        """Unregister a slot unless a copy from it is begun; true if it is unregistered then."""
        with self._lock:
            if any(slot in one.slots for one in list(self._under_way)):
                return False
            if slot in self.pinned:
                self._device.unregister(self._memory.address + slot * self._memory.slot_bytes)
                self.pinned.discard(slot)
                self._memory.note_pinned(slot, False)
            return True

    def close(self) -> None:
        """Wait for the copies under way and unregister everything; may be called twice.

        The thread that is just beginning copies does this again, for these.
        """
        self._closed = True
        for entry in tuple(self._under_way):
            if entry.event is not None:
                entry.event.synchronize()
                self._drop(entry)
        for slot in list(self.pinned):
            self.unpin(slot)


def mapped(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A tree of dicts, lists, tuples and named tuples, of their own types, with tensors changed."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        made = copy.copy(tree)
        made.update({key: mapped(value, change) for key, value in tree.items()})
        return made
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(value, change) for value in tree))
    if isinstance(tree, (list, tuple)) and not (tree and isinstance(tree[0], str)):
        return type(tree)(mapped(value, change) for value in tree)
    return tree
