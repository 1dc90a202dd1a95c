"""Stopped processes are replaced in time; those that only get no processor are left alone.

Not here: the judgement (``autoloader.host.supervision``), counting samples
(``bench.endurance.passes``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from autoloader import AutoLoader
from bench.endurance.claims import HELD, Circumstances, Claim
from bench.endurance.passes import Counted, passes_mixture

FOUND_S = 30.0
STARVED_S = 180.0
BUSY = 12
KNOBS = {"reader": "indexed", "decode_processes": 2, "read_ahead": 1, "ring_slots": 4}
_WHICH = {"the child": (0,), "a decode process": (1,), "the child and both": (0, 1, 2)}


def stops(_: Circumstances) -> list[Claim]:
    """SIGSTOP of the child, of a decode process, of all at once, each in a pass of its own."""
    found = []
    for what, numbers in _WHICH.items():
        with AutoLoader(passes_mixture(), **HELD, knobs=KNOBS) as loader:
            counted = Counted(loader)
            for epoch in range(3):
                for number, batch in enumerate(loader):
                    counted.note(batch)
                    if epoch == 0 and number == 20:
                        pids = loader.statistics().worker_pids
                        for one in numbers:
                            os.kill(pids[one], signal.SIGSTOP)
            alive = [pids[one] for one in numbers if Path(f"/proc/{pids[one]}").exists()]
        over, wrong = counted.wrong_passes()
        longest_s = max(counted.gaps_s)
        found += [
            Claim(
                f"SIGSTOP of {what}: longest wait for a batch; stopped ones that are left",
                f"{longest_s:.1f} s; {len(alive)}",
                f"≤ {FOUND_S:.0f} s; 0",
                longest_s <= FOUND_S and not alive,
            ),
            Claim(
                f"SIGSTOP of {what}: passes exact", f"{over - wrong} of {over}", "all", not wrong
            ),
        ]
    return found


def starved(_: Circumstances) -> list[Claim]:
    """Beside busy loops, from before the start on."""
    mixture = passes_mixture()
    with _busy_processors(), AutoLoader(mixture, **HELD, knobs=KNOBS) as loader:
        counted = Counted(loader)
        began_s, batches = time.monotonic(), 0
        pids: list[int] = []
        while (passed_s := time.monotonic() - began_s) < STARVED_S:
            for batch in loader:
                counted.note(batch)
                batches += 1
                if not pids:
                    pids = list(loader.statistics().worker_pids)
                if time.monotonic() - began_s >= STARVED_S:
                    break
        statistics = loader.statistics()
    wrong = counted.wrong_passes()[1]
    same = list(statistics.worker_pids) == list(pids)
    return [
        Claim(
            f"{BUSY} busy loops on two processors for {passed_s:.0f} s: restarts; same processes",
            f"{statistics.restarts}; {'yes' if same else 'no'}",
            "0; yes",
            statistics.restarts == 0 and same,
        ),
        Claim(
            "starved: batches, longest wait, passes that are wrong",
            f"{batches}, {max(counted.gaps_s):.1f} s, {wrong}",
            "0 wrong",
            not wrong,
        ),
    ]


@contextlib.contextmanager
def _busy_processors() -> Iterator[None]:
    """This process and all that it starts share two processors with busy loops."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:2])
    code = f"import os\nwhile os.getppid() == {os.getpid()}: pass"  # no longer than this process
    loops = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
        os.sched_setaffinity(0, before)
