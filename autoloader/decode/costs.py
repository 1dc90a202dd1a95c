"""Costs of decoding one picture: which pictures are refused, and how many large ones run at a time.

Theory of operation. libjpeg goes over the whole picture once for each scan, and a scan may have few
bytes. So pixels × scans may be ``MOST_COST`` at most: ten seconds or so of a processor. A picture
with more than one scan also has its coefficients in memory while it is decoded, two bytes for each
value. A picture that takes more than ``SMALL_BYTES`` waits for room: pictures that are decoded at
the same time take ``DECODED_TOGETHER_BYTES``, and a larger one is decoded alone. No picture begins
that takes more than the memory which is free. Decode processes of one pipeline take turns.

Ordinary pictures neither count nor wait: two multiplications tell them.

Not here: decoding (``decode.frames``), the price of a start (``controller.admission``).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator

from autoloader.errors import PipelineError
from autoloader.host.headroom import HeadroomProbe
from autoloader.host.units import MIB, format_bytes
from autoloader.samples.block import DECODED_TOGETHER_BYTES

MOST_COST = 2**28
"""Pixels × scans of a picture; ``VARIABLE`` gives another number."""
VARIABLE = "AUTOLOADER_PICTURE_COST"
SMALL_BYTES = 16 * MIB
"""Bytes that each thread may take at any time."""
MEMORY_WAIT_S = 10.0
"""Seconds that a large picture waits for memory, until it is refused."""
SHORTEST_SCAN = 10
"""Bytes of a scan, at least."""
SMALL_PIXELS = SMALL_BYTES // 16
"""Pixels that take less than ``SMALL_BYTES`` in any JPEG."""
_LOOK_S = 0.2
_RGB = 3
_START_OF_SCAN = 0xDA
_NO_FRAME_HEADERS = (0xC4, 0xC8, 0xCC)
_ONE_AFTER_THE_OTHER = (0xC0, 0xC1, 0xC9)
_ALONE = (0x01, *range(0xD0, 0xD8))


class CostlyPictureError(ValueError):
    """Decoding a picture would take too much time or memory; becomes a quarantine."""


def most_cost() -> int:
    """Pixels × scans that one picture may have."""
    with contextlib.suppress(KeyError, ValueError):
        return int(float(os.environ[VARIABLE]))
    return MOST_COST


most = most_cost()
"""``most_cost`` at the start of the process."""


def jpeg_bytes(encoded: bytes | memoryview, height: int, width: int) -> int:
    """Bytes that decoding a JPEG takes for a moment, about.

    Raises:
        CostlyPictureError: it has too many pixels × scans.
    """
    pixels = height * width
    scans, components = scans_of(encoded)
    if pixels * scans > most:
        times = f" in {scans} scans" if scans > 1 else ""
        raise CostlyPictureError(
            f"a picture of {height}×{width} pixels{times} takes too long to decode: "
            f"{pixels * scans:.3g} pixels × scans, and {most:.3g} may be ({VARIABLE})"
        )
    return pixels * (_RGB + (2 * components if scans > 1 else 0))


def scans_of(encoded: bytes | memoryview) -> tuple[int, int]:
    """(scans, components) of a JPEG: 1 where the first scan of a plain picture holds it all."""
    at, end, components, plain = 2, len(encoded) - 9, _RGB, False
    while at < end and encoded[at] == 0xFF:
        marker = encoded[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _ALONE:
            at += 2
        elif marker == _START_OF_SCAN:
            if plain and encoded[at + 4] == components:
                return 1, components
            break
        else:
            if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME_HEADERS:
                components, plain = encoded[at + 9], marker in _ONE_AFTER_THE_OTHER
            at += 2 + (encoded[at + 2] << 8 | encoded[at + 3])
    # Within a scan 0xFF is followed by 0, so its start is found by its two bytes alone.
    return max(1, bytes(encoded[at:]).count(b"\xff\xda")), components


class DecodeRoom:
    """Lets large pictures in, as far as memory reaches; any thread.

    Args:
        headroom: reads the bytes of memory that are free; ``None`` where not known.
    """

    def __init__(self, headroom: Callable[[], int | None]) -> None:
        self._headroom = headroom
        self._changed = threading.Condition()
        self._taken = 0
        self._shared = -1

    def share(self, descriptor: int) -> None:
        """Take turns with all processes that share the same file."""
        self._shared = descriptor

    @contextlib.contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Room for a picture while it is decoded.

        Raises:
            CostlyPictureError: the memory cannot be had.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: not self._taken or self._taken + size <= DECODED_TOGETHER_BYTES
            )
            if not self._taken and self._shared >= 0:
                fcntl.lockf(self._shared, fcntl.LOCK_EX, 1, 0)
            self._taken += size
        try:
            self._await_memory(size)
            yield
        finally:
            with self._changed:
                self._taken -= size
                if not self._taken and self._shared >= 0:
                    fcntl.lockf(self._shared, fcntl.LOCK_UN, 1, 0)
                self._changed.notify_all()

    def _await_memory(self, size: int) -> None:
        """Wait until all pictures under way would fit, or this one where it is alone."""
        deadline = time.monotonic() + MEMORY_WAIT_S
        while (headroom := self._headroom()) is not None and headroom < self._taken:
            if self._taken == size and time.monotonic() > deadline:
                raise CostlyPictureError(
                    f"decoding it takes {format_bytes(size)} of memory for a moment, and "
                    f"{format_bytes(headroom)} can be had"
                )
            time.sleep(_LOOK_S)


def _headroom() -> Callable[[], int | None]:
    probe = HeadroomProbe()

    def read() -> int | None:
        try:
            return probe.read().headroom_bytes
        except PipelineError:  # nothing says what can be had
            return None

    return read


room = DecodeRoom(_headroom())
"""Of this process."""


def _forget() -> None:
    """In a fork: the threads that decoded are not here."""
    global room
    room = DecodeRoom(_headroom())


os.register_at_fork(after_in_child=_forget)
