"""What ``autoloader top`` costs that is attached to a running loader, and whether a batch is later.

    python -m bench.top_cost [--spec mix.yaml] [--seconds 20] [--pairs 5] [--json]

A consumer takes batches at a fixed pace. It is watched in turns (no, yes, yes, no, …), each of
``--seconds``; ``top`` runs in a terminal of 80 × 24 as a person would start it. Told are:

- processor time of ``top`` itself once it is up, as a share of one core: the kernel's nanoseconds
  (``/proc/PID/task/*/schedstat``), since the first frame;
- processor time of one snapshot in the loader's child (made, written), measured here on what the
  running loader last said, as a share of one core at one a second;
- how long the consumer waited for its batches, watched and not: p50, p99 and the longest, and the
  median over pairs of turns of the difference of the p99s.

Not here: what the run record and metrics cost.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autoloader import AutoLoader
from autoloader.demo.build import ensure_demo
from autoloader.telemetry.runtime import RunFile, living_runs
from autoloader.telemetry.snapshot import Snapshot
from bench.paced import PacedConsumer, options, p99, waits_told

_WARM_S = 10.0
_WRITES = 200


def main(arguments: list[str] | None = None) -> int:
    chosen = options("What `autoloader top` costs.").parse_args(arguments)
    spec = chosen.spec or ensure_demo()
    with AutoLoader(spec, ram_floor="1GB", output="numpy") as loader:
        consumer = PacedConsumer(loader, chosen.step_ms / 1e3)
        consumer.take(_WARM_S)
        plain, watched, shares = [], [], []
        for pair in range(chosen.pairs):
            for with_top in (False, True) if pair % 2 == 0 else (True, False):
                if not with_top:
                    plain.append(consumer.take(chosen.seconds))
                    continue
                with _top() as top:
                    watched.append(consumer.take(chosen.seconds))
                    shares.append(top.share())
        written_s = _written_s(living_runs()[0])
    told = {
        "load": os.getloadavg()[0],
        "turns_s": chosen.seconds,
        "pairs": chosen.pairs,
        "top_core_ratio": statistics.median(shares),
        "snapshot_core_ratio": written_s,
        "waits_ms": {"alone": waits_told(plain), "watched": waits_told(watched)},
        "p99_difference_ms": statistics.median(
            p99(two) - p99(one) for one, two in zip(plain, watched, strict=True)
        ),
    }
    if chosen.json:
        print(json.dumps(told))
        return 0
    print(f"load {told['load']:.1f}, {chosen.pairs} pairs of {chosen.seconds:.0f} s")
    print(f"top: {told['top_core_ratio']:.3%} of a core (every turn: {_percents(shares)})")
    print(f"a snapshot, once a second: {written_s:.3%} of a core")
    for name, waits in (("alone", plain), ("watched", watched)):
        one = waits_told(waits)
        print(
            f"waits {name}: p50 {one['p50']:.2f}, p99 {one['p99']:.2f}, longest "
            f"{one['longest']:.2f} ms over {one['batches']} batches"
        )
    print(f"p99 watched less alone, median of pairs: {told['p99_difference_ms']:+.2f} ms")
    return 0


class _Top:
    """A ``top`` in a terminal."""

    def __init__(self, pid: int, screen: int) -> None:
        self._pid, self._screen = pid, screen
        self._up = threading.Event()
        self._began = (0.0, 0)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def share(self) -> float:
        """Of one core, since its first frame."""
        if not self._up.is_set():
            raise SystemExit("top showed nothing within a turn: take longer ones (--seconds)")
        at_s, spent = self._began
        return (_spent_ns(self._pid) - spent) / 1e9 / (time.monotonic() - at_s)

    def _read(self) -> None:
        seen = 0
        while True:
            try:
                seen += len(os.read(self._screen, 1 << 16))
            except OSError:  # it has ended
                return
            if seen > 1000 and not self._up.is_set():
                self._began = time.monotonic(), _spent_ns(self._pid)
                self._up.set()


@contextmanager
def _top() -> Iterator[_Top]:
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    surroundings = {**os.environ, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        surroundings.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "autoloader", "top", str(os.getpid())],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=surroundings,
    )
    os.close(terminal)
    try:
        yield _Top(process.pid, screen)
    finally:
        process.kill()
        process.wait()
        os.close(screen)


def _spent_ns(pid: int) -> int:
    """Processor time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)


def _written_s(moment: Snapshot) -> float:
    """Processor time of making a snapshot's text and writing it, in seconds."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.environ["AUTOLOADER_RUNTIME_DIR"] = folder
        file = RunFile("bench", 0)
        began = time.thread_time()
        for _ in range(_WRITES):
            file.write(moment)
        spent = (time.thread_time() - began) / _WRITES
        file.close()
    return spent


def _percents(shares: list[float]) -> str:
    return ", ".join(f"{one:.3%}" for one in shares)


if __name__ == "__main__":
    sys.exit(main())
