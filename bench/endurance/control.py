"""What the controller costs: processor time of its two threads in the child, as the kernel counts.

Processor time is fair on a loaded machine, where the clock's is not. Two consumers are measured:
one that takes whatever comes (the policy then has the most to do), and one at a tenth of that pace.

Not here: whether its decisions are good (``bench.control``).
"""

from __future__ import annotations

import time

from autoloader import AutoLoader
from autoloader.catalog.demo import ensure_demo
from bench.control.memory import threads_cpu_s
from bench.endurance.claims import Circumstances, Claim

THREADS = ("loader-control", "loader-reflex")
WARM_S = 15.0
MEASURED_S = 45.0
MOST_RATIO = 0.01


def control(given: Circumstances) -> list[Claim]:
    knobs = {"reader": given.reader}
    claims = []
    with AutoLoader(ensure_demo(), output="numpy", profile="local_dev", knobs=knobs) as loader:
        batches = (batch for _ in iter(int, 1) for batch in loader)

        def run(seconds: float, step_s: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                next(batches)
                time.sleep(step_s)

        run(WARM_S, 0.0)
        pace = loader.statistics().samples_per_s or 1.0
        slow_s = min(1.0, 10 * loader.plan.mixture.layout.batch_size / pace)
        for kind, step_s in (("takes all", 0.0), ("takes a tenth of that", slow_s)):
            child = loader.statistics().worker_pids[0]
            before, began = threads_cpu_s(child, THREADS), time.monotonic()
            run(MEASURED_S, step_s)
            after, passed = threads_cpu_s(child, THREADS), time.monotonic() - began
            spent = {name: (after[name] - before[name]) / passed for name in THREADS}
            ratio = sum(spent.values())
            claims.append(
                Claim(
                    f"controller, {given.reader}, 29 datasets, a consumer that {kind}: of a core",
                    f"{ratio:.2%} (policy {spent[THREADS[0]]:.2%}, reflex {spent[THREADS[1]]:.2%})",
                    f"≤ {MOST_RATIO:.0%}",
                    ratio <= MOST_RATIO,
                )
            )
    return claims
