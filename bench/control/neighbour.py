"""Another process on the machine: takes memory, or a core, as it is told on stdin.

``python -m bench.control.neighbour GROUP``; the group's headroom says when it has enough. Commands,
one JSON line each: ``{"take": BYTES_LEFT, "keep": false}`` (take memory until so much headroom is
left, say "reached", hold; with ``keep`` take what comes free, too), ``{"hold": BYTES}``
(take so much, whatever is left), ``{"let_go": true}``, ``{"burn": CORES}``.

Not here: when it is told what (``bench.control.runner``).
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import select
import sys
import time
from typing import Any

from bench.control.group import join
from bench.control.memory import MIB, headroom_bytes

CHUNK = 8 * MIB
MOST_CHUNKS = 8
_FILL = b"\1" * CHUNK
TAKES_PER_S = 512 * MIB
"""About as fast as fresh pages come."""


def main() -> None:
    group = sys.argv[1]
    join(group)
    print("ready", flush=True)
    held: list[mmap.mmap] = []
    burning: list[multiprocessing.Process] = []
    leave: int | None = None
    most, keep, before = sys.maxsize, False, 0.0
    while True:
        readable, _, _ = select.select([0], [], [], 0.01 if leave is not None else None)
        if readable:
            line = sys.stdin.readline()
            if not line:
                break
            command: dict[str, Any] = json.loads(line)
            if "take" in command:
                leave, keep = int(command["take"]), bool(command.get("keep"))
                most, before = sys.maxsize, time.monotonic()
            if "hold" in command:
                leave, keep = -sys.maxsize, False
                most, before = int(command["hold"]) // CHUNK, time.monotonic()
            if "let_go" in command:
                leave, held = None, []
            if "burn" in command:
                _burn(int(command["burn"]), burning)
        elif leave is not None:
            due = int((time.monotonic() - before) * TAKES_PER_S) // CHUNK
            before += due * CHUNK / TAKES_PER_S
            due = min(due, MOST_CHUNKS)  # on a busy machine it hears what it is told all the same
            while due > 0 and len(held) < most and headroom_bytes(group) - CHUNK >= leave:
                held.append(_chunk())
                due -= 1
            if due > 0:
                print("reached", flush=True)
                leave = leave if keep else None
    _burn(0, burning)


def _chunk() -> mmap.mmap:
    """Memory that is really there: every page written."""
    chunk = mmap.mmap(-1, CHUNK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    chunk[:] = _FILL
    return chunk


def _burn(cores: int, burning: list[multiprocessing.Process]) -> None:
    while len(burning) > cores:
        one = burning.pop()
        one.kill()
        one.join()
    while len(burning) < cores:
        one = multiprocessing.Process(target=_spin, daemon=True)
        one.start()
        burning.append(one)


def _spin() -> None:
    until = time.monotonic() + 600
    while time.monotonic() < until:
        pass


if __name__ == "__main__":
    main()
