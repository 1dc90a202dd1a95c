"""A device without hardware: copies happen when they are told to, and every rule is checked."""

from __future__ import annotations

import collections
import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import torch


class FakeDevice:
    """Passes the suite that the real one passes, and asserts what the driver would not forgive.

    A copy is begun by ``copy`` and done by ``advance``; until then its target holds nothing, so a
    source that is refilled too early gives the wrong batch.
    """

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}
        self.registrations = 0
        self.copies = 0
        self.refuses = False
        self._queue: collections.deque[tuple[int, Callable[[], Any]]] = collections.deque()
        self._targets: list[torch.Tensor] = []
        self._begun = 0
        self._finished = 0

    def register(self, address: int, nbytes: int) -> bool:
        assert address % 4096 == 0, "the driver pins whole pages"
        assert address not in self.registered, "registered twice"
        if self.refuses:
            return False
        self.registered[address] = nbytes
        self.registrations += 1
        return True

    def unregister(self, address: int) -> None:
        end = address + self.registered.pop(address)
        assert not any(address <= start < end for start, _ in self._queue), "under a copy"

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        target = torch.empty_like(tensor).fill_(1)
        if target.stride() != tensor.stride():
            target.copy_(tensor)  # the real one gathers such a view on the host first
        size = tensor.numel() * tensor.element_size()
        start = (target if target.stride() != tensor.stride() else tensor).data_ptr()
        # By address: it is not this device that keeps the source alive.
        self._queue.append((start, partial(ctypes.memmove, target.data_ptr(), start, size)))
        self._targets.append(target)
        self._begun += 1
        self.copies += 1
        return target

    def event(self, copies: list[torch.Tensor]) -> FakeEvent:
        return FakeEvent(self, self._begun)

    def advance(self, events: int | None = None) -> None:
        """Do all copies, or those of so many."""
        while self._queue and events != 0:
            self._queue.popleft()[1]()
            self._finished += 1
            events = None if events is None else events - 1

    @property
    def finished(self) -> int:
        return self._finished

    def synchronize(self) -> None:
        self.advance()

    def holds(self, address: int) -> bool:
        return address in self.registered


class FakeEvent:
    def __init__(self, device: FakeDevice, after: int) -> None:
        self._device, self._after = device, after

    def query(self) -> bool:
        return self._device.finished >= self._after

    def synchronize(self) -> None:
        self._device.advance(self._after - self._device.finished)
