"""Retunes, kills and stops: nothing is lost, nothing comes twice, and what that costs.

Stopped processes are replaced in time; those that only get no processor are left alone.

Not here: the judgement of the loader (``autoloader.host.supervision``), counting samples
(``bench.endurance.passes``).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from autoloader import AutoLoader
from bench.checks import Check, all_of, reported
from bench.control.trainer import endless
from bench.endurance.passes import HELD, Circumstances, Counted, passes_mixture

KILLS, DECODE_KILLS = 50, 20
FOUND_S, STARVED_S, BUSY = 30.0, 180.0, 12
KNOBS = {"reader": "indexed", "decode_processes": 2, "read_ahead": 1, "ring_slots": 4}
_WHICH = {"the child": (0,), "a decode process": (1,), "the child and both": (0, 1, 2)}


def retunes(given: Circumstances) -> list[Check]:
    """Ten epochs, and ten with a random retune about every third batch."""
    gaps: dict[int, Any] = {}
    for every in (0, 3):
        drawn, acted = random.Random(7), 0
        with AutoLoader(passes_mixture(), **HELD, knobs=given.start) as loader:
            counted = Counted(loader)
            for _ in range(10):
                for batch in loader:
                    counted.note(batch)
                    if every and drawn.random() < 1 / every:
                        _random_retune(loader, drawn)
                        acted += 1
        gaps[every] = np.array(counted.gaps_s[8:])
    p50, p99 = np.percentile(gaps[3], [50, 99])
    most, calm = gaps[3].max(), gaps[0].max()
    return [
        counted.exact(f"{acted} random retunes"),
        Check("retunes: p99 gap / p50 gap", f"{p99 / p50:.1f}", "≤ 5", bool(p99 <= 5 * p50)),
        Check(
            "retunes: largest gap / undisturbed largest",
            f"{most / calm:.2f} ({most:.3f} s / {calm:.3f} s)",
            "≤ 2",
            bool(most <= 2 * calm),
        ),
    ]


def _random_retune(loader: AutoLoader, drawn: random.Random) -> None:
    # Σ cycle_length is bounded by 4 × cpus + datasets: eight datasets may have two on two cpus.
    name = drawn.choice(loader.dataset_names[:8])
    own = min(drawn.randint(1, 2), loader.plan.mixture.shards[name])
    loader.retune(
        **{
            f"{name}.cycle_length": own,
            f"{name}.num_parallel_calls": drawn.randint(1, own),
            "parse_parallel_calls": drawn.randint(1, 2),
            "stream_prefetch": drawn.randint(0, 2),
            "queue_samples": drawn.choice([8, 16, 32, 64]),
            "shuffle_samples": drawn.choice([0, 0, 0, 32]),
            "decode_threads": drawn.randint(1, 3),
            "ring_slots": drawn.randint(4, 12),
            "min_ready_datasets": drawn.randint(1, 29),
        }
    )


def kills(given: Circumstances) -> list[Check]:
    """The child is killed at random; then two epochs in peace."""
    drawn, killed = random.Random(11), 0
    with AutoLoader(passes_mixture(), **HELD, knobs=given.start) as loader:
        counted = Counted(loader)
        slot_bytes = loader.plan.mixture.layout.slot_bytes
        calm_epochs = 0
        while calm_epochs < 2:
            calm_epochs += killed == KILLS
            for batch in loader:
                counted.note(batch)
                if drawn.random() < 0.12 and killed < KILLS:
                    os.kill(loader.statistics().worker_pids[0], signal.SIGKILL)
                    killed += 1
        statistics = loader.statistics()
        held = statistics.ring.allocated_bytes / slot_bytes
        slots = loader.knobs.ring_slots
    slow = [gap for gap in counted.gaps_s if gap > 0.5]
    return [
        counted.exact(f"{killed} × kill -9"),
        reported(
            "kills: restarts, and slow batches behind them (median, longest)",
            f"{statistics.restarts}, {np.median(slow):.2f} s, {max(slow):.2f} s",
        ),
        Check(
            "kills: ring pages held at the end / slots",
            f"{held:.1f} / {slots}",
            "≤ slots",
            held <= slots,
        ),
    ]


def decode_kills(_: Circumstances) -> list[Check]:
    """A decode process killed 20 times over a pass: the sequence is the undisturbed one."""
    calm, disturbed = _sequence(0), _sequence(DECODE_KILLS)
    same = sum(a == b for a, b in zip(calm, disturbed, strict=True))
    name = f"{DECODE_KILLS} × kill -9 of a decode process over a pass: same samples"
    return [all_of(name, same, len(calm))]


def _sequence(kills: int) -> list[tuple[int, ...]]:
    """The samples of a pass during which decode processes are killed."""
    drawn, killed = random.Random(5), 0
    found: list[tuple[int, ...]] = []
    with AutoLoader(passes_mixture(), **HELD, knobs=KNOBS) as loader:
        every = max(1, len(loader) // (kills + 1))
        for number, batch in enumerate(loader):
            found += map(tuple, batch["provenance"].tolist())
            if killed < kills and number % every == every - 1:
                os.kill(drawn.choice(loader.statistics().worker_pids[1:]), signal.SIGKILL)
                killed += 1
    assert killed == kills
    return found


def stops(_: Circumstances) -> list[Check]:
    """SIGSTOP of the child, of a decode process, of all at once, each in a pass of its own."""
    found = []
    for what, numbers in _WHICH.items():
        with AutoLoader(passes_mixture(), **HELD, knobs=KNOBS) as loader:
            counted = Counted(loader)
            for epoch in range(3):
                for number, batch in enumerate(loader):
                    counted.note(batch)
                    if epoch == 0 and number == 20:
                        pids = [loader.statistics().worker_pids[one] for one in numbers]
                        for pid in pids:
                            os.kill(pid, signal.SIGSTOP)
            alive = sum(Path(f"/proc/{pid}").exists() for pid in pids)
        longest_s = max(counted.gaps_s)
        found += [
            Check(
                f"SIGSTOP of {what}: longest wait for a batch; stopped ones that are left",
                f"{longest_s:.1f} s; {alive}",
                f"≤ {FOUND_S:.0f} s; 0",
                longest_s <= FOUND_S and not alive,
            ),
            counted.exact(f"SIGSTOP of {what}"),
        ]
    return found


def starved(_: Circumstances) -> list[Check]:
    """Beside busy loops, from before the start on."""
    mixture = passes_mixture()
    with _busy_processors(), AutoLoader(mixture, **HELD, knobs=KNOBS) as loader:
        counted, pids = Counted(loader), list[int]()
        until, batches = time.monotonic() + STARVED_S, endless(loader)
        while time.monotonic() < until:
            counted.note(next(batches))
            pids = pids or list(loader.statistics().worker_pids)
        statistics = loader.statistics()
    same = list(statistics.worker_pids) == pids
    return [
        Check(
            f"{BUSY} busy loops on two processors for {STARVED_S:.0f} s: restarts; same processes",
            f"{statistics.restarts}; {'yes' if same else 'no'}",
            "0; yes",
            statistics.restarts == 0 and same,
        ),
        reported(
            "starved: batches, longest wait",
            f"{len(counted.gaps_s) + 1}, {max(counted.gaps_s):.1f} s",
        ),
        counted.exact("starved"),
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
