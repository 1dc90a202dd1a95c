"""Retunes and kills: nothing is lost, nothing comes twice, and what that costs.

Not here: counting samples (``bench.endurance.passes``).
"""

from __future__ import annotations

import os
import random
import signal

import numpy as np

from autoloader import AutoLoader
from bench.endurance.claims import HELD, Circumstances, Claim
from bench.endurance.passes import Counted, passes_mixture, run_epochs

KILLS, DECODE_KILLS = 50, 20


def retunes(given: Circumstances) -> list[Claim]:
    calm, _ = run_epochs(10, None, 1, given.start)
    counted, acted = run_epochs(10, _random_retune, 3, given.start)
    over, wrong = counted.wrong_passes()
    gaps, before = np.array(counted.gaps_s[8:]), np.array(calm.gaps_s[8:])
    p50, p99 = np.percentile(gaps, [50, 99])
    return [
        Claim(
            f"{acted} random retunes: passes exact", f"{over - wrong} of {over}", "all", not wrong
        ),
        Claim("retunes: p99 gap / p50 gap", f"{p99 / p50:.1f}", "≤ 5", bool(p99 <= 5 * p50)),
        Claim(
            "retunes: largest gap / undisturbed largest",
            f"{gaps.max() / before.max():.2f} ({gaps.max():.3f} s / {before.max():.3f} s)",
            "≤ 2",
            bool(gaps.max() <= 2 * before.max()),
        ),
    ]


def _random_retune(loader: AutoLoader, drawn: random.Random) -> None:
    cycle = drawn.randint(1, 2)
    # Σ cycle_length is bounded by 4 × cpus + datasets: eight datasets may have two on two cpus.
    name = drawn.choice(loader.dataset_names[:8])
    most = loader.plan.mixture.shards[name]
    own = min(cycle, most)
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


def kills(given: Circumstances) -> list[Claim]:
    drawn, killed = random.Random(11), 0
    with AutoLoader(passes_mixture(), **HELD, knobs=given.start) as loader:
        counted = Counted(loader)
        slot_bytes = loader.plan.mixture.layout.slot_bytes
        while killed < KILLS:
            for batch in loader:
                counted.note(batch)
                if drawn.random() < 0.12 and killed < KILLS:
                    os.kill(loader.statistics().worker_pids[0], signal.SIGKILL)
                    killed += 1
        for _ in range(2):
            for batch in loader:
                counted.note(batch)
        statistics = loader.statistics()
        held = statistics.ring.allocated_bytes
        slots = loader.knobs.ring_slots
    over, wrong = counted.wrong_passes()
    slow = [gap for gap in counted.gaps_s if gap > 0.5]
    return [
        Claim(f"{killed} × kill -9: passes exact", f"{over - wrong} of {over}", "all", not wrong),
        Claim(
            "kills: restarts, and slow batches behind them (median, longest)",
            f"{statistics.restarts}, {np.median(slow):.2f} s, {max(slow):.2f} s",
            "reported",
            None,
        ),
        Claim(
            "kills: ring pages held at the end / slots",
            f"{held / slot_bytes:.1f} / {slots}",
            "≤ slots",
            held <= slots * slot_bytes,
        ),
    ]


def decode_kills(_: Circumstances) -> list[Claim]:
    """A decode process killed 20 times over a pass: the sequence is the undisturbed one."""
    calm, disturbed = _sequence(0), _sequence(DECODE_KILLS)
    same = sum(a == b for a, b in zip(calm, disturbed, strict=False))
    return [
        Claim(
            f"{DECODE_KILLS} × kill -9 of a decode process over a pass: same samples",
            f"{same} of {len(calm)}",
            "all",
            calm == disturbed,
        )
    ]


def _sequence(kills: int) -> list[tuple[int, ...]]:
    """The samples of a pass during which decode processes are killed."""
    drawn, killed = random.Random(5), 0
    found: list[tuple[int, ...]] = []
    knobs = {"reader": "indexed", "decode_processes": 2, "read_ahead": 1, "ring_slots": 4}
    with AutoLoader(passes_mixture(), **HELD, knobs=knobs) as loader:
        every = max(1, len(loader) // (kills + 1))
        for number, batch in enumerate(loader):
            found += map(tuple, batch["provenance"].tolist())
            if killed < kills and number % every == every - 1:
                os.kill(drawn.choice(loader.statistics().worker_pids[1:]), signal.SIGKILL)
                killed += 1
    assert killed == kills
    return found
