"""Ctrl-C at a safe moment: a step that would be torn by it is finished first.

Python raises ``KeyboardInterrupt`` between any two instructions of the main thread. One that comes
while a message is taken from the child would lose the message, and with it a slot of the ring for
good. A notebook's cell that was interrupted and is run again would then wait for ever.

Not here: what a torn step is (``loader``, ``process.client``).
"""

from __future__ import annotations

import threading

# Their public forms make enums: 60 µs for each batch where nothing of it is in the caches.
from _signal import SIGINT, getsignal, signal  # type: ignore[import-not-found]
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar


class Interrupts:
    """Keeps SIGINT back within a ``with`` block; its handler is called at the end of the block.

    For the main thread, which alone handles signals; elsewhere it does nothing. May be nested: what
    is within another one leaves it to that, since Python takes long to exchange handlers.
    """

    _outermost: ClassVar[Interrupts | None] = None

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._came: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> Interrupts:
        main = threading.current_thread() is threading.main_thread()
        if main and Interrupts._outermost is None:
            handler = getsignal(SIGINT)
            if callable(handler):
                self._handler = handler
                signal(SIGINT, self._note)
                Interrupts._outermost = self
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = (number, frame)

    def heed(self) -> None:
        """Call the handler if a signal came; for moments at which no step would be torn."""
        if self._came is not None and self._handler is not None:
            came, self._came = self._came, None
            self._handler(*came)

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            Interrupts._outermost = None
            signal(SIGINT, self._handler)
            self.heed()
