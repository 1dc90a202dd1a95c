"""Plants a regression in the loader: Python imports this at the start of every process of a test.

``PLANTED`` names which. The product's own classes are changed when their module has been imported,
in the process where they work, so that nothing in the product knows of it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def extra_copy(line: Any) -> None:
    """A batch's pictures are copied once more before it is handed out."""
    plain = line.Assembler.next

    def copying(self: Any, timeout_s: float) -> Any:
        batch = plain(self, timeout_s)
        if batch is not None:
            views = self._layout.views(self._memory.base(batch.slot))
            for name, view in views.items():
                if name.startswith("images/"):
                    view[:] = view.copy()
        return batch

    line.Assembler.next = copying


def lost_thread(pool: Any) -> None:
    """The decode pool works with a thread less than its knob says."""
    plain = pool.DecodePool.resize
    pool.DecodePool.resize = lambda self, threads: plain(self, max(0, threads - 1))


def leaked_frame(line: Any) -> None:
    """One decoded frame of every batch is kept for ever."""
    plain, kept = line.Assembler.next, []

    def keeping(self: Any, timeout_s: float) -> Any:
        batch = plain(self, timeout_s)
        if batch is not None:
            views = self._layout.views(self._memory.base(batch.slot))
            kept.append(next(v for n, v in views.items() if n.startswith("images/"))[0, 0].copy())
        return batch

    line.Assembler.next = keeping


PLANTS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "extra_copy": ("autoloader.runtime.assembler", extra_copy),
    "lost_thread": ("autoloader.runtime.pool", lost_thread),
    "leaked_frame": ("autoloader.runtime.assembler", leaked_frame),
}


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Has a module changed as soon as it is imported."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self._name = name
        self._change = change
        self._real: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        self._real, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        self._change(module)


if os.environ.get("PLANTED"):
    sys.meta_path.insert(0, _AfterImport(*PLANTS[os.environ["PLANTED"]]))
