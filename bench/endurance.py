"""What the loader survives, counted and measured: retunes, kills, opening and closing, hoarding.

``python -m bench.endurance [--only NAME ...] [--json]`` prints one row for each claim, with the
figure measured here and what is wanted of it. Samples are counted, never trusted: a pass is right
when every valid sample came exactly once.

Not here: throughput against others (``bench.runner``).
"""

from __future__ import annotations

import argparse
import collections
import gc
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from autoloader import AutoLoader, PipelineSpec
from autoloader.catalog.demo import ensure_demo
from bench.data import ensure_data
from bench.host import load
from bench.interpreter import held_per_frame
from bench.validations import run_validations

HELD: dict[str, Any] = {"output": "numpy", "profile": "local_dev", "controller": False}
"""Knobs move where a check moves them, and nowhere else."""

START: dict[str, Any] = {"ring_slots": 8, "queue_samples": 32, "reader": "stream"}


def passes_mixture(scale: float = 0.08) -> PipelineSpec:
    """The demo mixture in small, each epoch one pass of every dataset."""
    spec = PipelineSpec.from_yaml(ensure_demo(scale=scale))
    plain = spec.model_dump(mode="json")
    plain["weights"] = "natural"
    return PipelineSpec.from_mapping(plain)


class Counted:
    """Counts samples by dataset and pass, and times the gaps between batches."""

    def __init__(self, loader: AutoLoader) -> None:
        self._loader = loader
        self._names = loader.dataset_names
        self._sizes = {name: count.samples for name, count in loader.plan.counts.items()}
        self._seen: dict[tuple[str, int], collections.Counter[tuple[int, ...]]] = (
            collections.defaultdict(collections.Counter)
        )
        self._last_s: float | None = None
        self.gaps_s: list[float] = []

    def note(self, batch: dict[str, Any]) -> None:
        now = time.perf_counter()
        if self._last_s is not None:
            self.gaps_s.append(now - self._last_s)
        for dataset, pass_, *place in batch["provenance"].tolist():
            self._seen[self._names[dataset], pass_][tuple(place)] += 1
        self._last_s = time.perf_counter()

    def wrong_passes(self) -> tuple[int, int]:
        """(passes that are over, those of them that are not exactly their sample set)."""
        over = [key for key in self._seen if (key[0], key[1] + 1) in self._seen]
        wrong = [
            key
            for key in over
            if len(self._seen[key]) != self._sizes[key[0]] or max(self._seen[key].values()) > 1
        ]
        return len(over), len(wrong)


def row(claim: str, figure: str, wanted: str, met: bool | None) -> dict[str, Any]:
    return {"claim": claim, "figure": figure, "wanted": wanted, "met": met}


def run_epochs(
    epochs: int, act: Callable[[AutoLoader, random.Random], None] | None, every: int
) -> tuple[Counted, AutoLoader, int]:
    """Read ``epochs`` passes, acting on the loader about every so many batches."""
    drawn, acted, number = random.Random(7), 0, 0
    with AutoLoader(passes_mixture(), **HELD, knobs=START) as loader:
        counted = Counted(loader)
        for _ in range(epochs):
            for batch in loader:
                counted.note(batch)
                number += 1
                if act is not None and drawn.random() < 1 / every:
                    act(loader, drawn)
                    acted += 1
        counted.restarts = loader.statistics().restarts  # type: ignore[attr-defined]
        return counted, loader, acted


def random_retune(loader: AutoLoader, drawn: random.Random) -> None:
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


def retunes() -> list[dict[str, Any]]:
    calm, _, _ = run_epochs(10, None, 1)
    counted, _, acted = run_epochs(10, random_retune, 3)
    over, wrong = counted.wrong_passes()
    gaps, before = np.array(counted.gaps_s[8:]), np.array(calm.gaps_s[8:])
    p50, p99 = np.percentile(gaps, [50, 99])
    return [
        row(f"{acted} random retunes: passes exact", f"{over - wrong} of {over}", "all", not wrong),
        row("retunes: p99 gap / p50 gap", f"{p99 / p50:.1f}", "≤ 5", bool(p99 <= 5 * p50)),
        row(
            "retunes: largest gap / undisturbed largest",
            f"{gaps.max() / before.max():.2f} ({gaps.max():.3f} s / {before.max():.3f} s)",
            "≤ 2",
            bool(gaps.max() <= 2 * before.max()),
        ),
    ]


def kills() -> list[dict[str, Any]]:
    recovered: list[float] = []

    def kill(loader: AutoLoader, drawn: random.Random) -> None:
        del drawn
        os.kill(loader.statistics().worker_pids[0], signal.SIGKILL)

    drawn, killed = random.Random(11), 0
    with AutoLoader(passes_mixture(), **HELD, knobs=START) as loader:
        counted = Counted(loader)
        slot_bytes = loader.plan.mixture.layout.slot_bytes
        most_pages = 0
        while killed < 50:
            for batch in loader:
                counted.note(batch)
                if drawn.random() < 0.12 and killed < 50:
                    kill(loader, drawn)
                    killed += 1
                    recovered.append(len(counted.gaps_s))
        for _ in range(2):
            for batch in loader:
                counted.note(batch)
        statistics = loader.statistics()
        most_pages = statistics.ring.allocated_bytes
        slots = loader.knobs.ring_slots
    over, wrong = counted.wrong_passes()
    slow = [gap for gap in counted.gaps_s if gap > 0.5]
    return [
        row(f"{killed} × kill -9: passes exact", f"{over - wrong} of {over}", "all", not wrong),
        row(
            "kills: restarts, and slow batches behind them (median, longest)",
            f"{statistics.restarts}, {np.median(slow):.2f} s, {max(slow):.2f} s",
            "reported",
            None,
        ),
        row(
            "kills: ring pages held at the end / slots",
            f"{most_pages / slot_bytes:.1f} / {slots}",
            "≤ slots",
            most_pages <= slots * slot_bytes,
        ),
    ]


def open_and_close() -> list[dict[str, Any]]:
    spec, times, resident = passes_mixture(0.02), [], []

    def held() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for number in range(100):
        with AutoLoader(spec, output="numpy", profile="local_dev", knobs=START) as loader:
            left = 20
            while left:
                for _ in loader:
                    left -= 1
                    if not left:
                        break
            started = time.perf_counter()
            loader.close()
            times.append(time.perf_counter() - started)
        gc.collect()
        if number in (9, 99):
            resident.append(held())
            descriptors = len(list(Path("/proc/self/fd").iterdir()))
    children = subprocess.run(
        ["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False
    ).stdout.split()
    return [
        row(
            "100 × open, 20 batches, close: longest close",
            f"{max(times):.2f} s",
            "≤ 2 s",
            max(times) <= 2,
        ),
        row(
            "children left, descriptors open",
            f"{max(0, len(children) - 1)}, {descriptors}",
            "0 children",
            len(children) <= 1,
        ),
        row(
            "resident memory from the 10th to the 100th",
            f"{(resident[1] - resident[0]) / 2**20:+.1f} MiB",
            "flat (≤ 5 MiB)",
            resident[1] - resident[0] <= 5 * 2**20,
        ),
    ]


TRAINER = """
import sys, json
import torch
def held():
    return {k: int(v.split()[0]) * 1024 for k, v in
            (l.split(":") for l in open("/proc/self/smaps_rollup").read().splitlines()[1:])}
before = held()["Rss"]
from autoloader import AutoLoader
loader = AutoLoader(sys.argv[1], profile="local_dev")
for number, batch in enumerate(loader):
    if number == 100:
        break
del batch
print(json.dumps([held()["Rss"] - before, "tensorflow" in sys.modules]))
loader.close()
"""


def trainer_memory() -> list[dict[str, Any]]:
    answer = subprocess.run(
        [sys.executable, "-c", TRAINER, str(ensure_demo())],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    added, has_tensorflow = json.loads(answer)
    return [
        row(
            "trainer: resident memory added, ring excluded",
            f"{added / 2**20:.1f} MiB",
            "≤ 40 MiB",
            added <= 40 * 2**20,
        ),
        row("trainer: TensorFlow imported", str(has_tensorflow), "False", not has_tensorflow),
    ]


def state_size() -> list[dict[str, Any]]:
    with AutoLoader(ensure_demo(), output="numpy", profile="local_dev") as loader:
        for number, _ in enumerate(loader):
            if number == 200:
                break
        size = len(json.dumps(loader.state_dict()))
    return [row("state of 29 datasets", f"{size} bytes", "≤ 64 kB", size <= 64_000)]


def ring() -> list[dict[str, Any]]:
    with AutoLoader(ensure_demo(), **HELD, knobs={"ring_slots": 16}) as loader:
        batches = iter(loader)
        for _ in range(60):
            next(batches)
        time.sleep(1.0)
        full = loader.statistics().ring.allocated_bytes
        loader.retune(ring_slots=2)
        for _ in range(20):
            next(batches)
        less = loader.statistics().ring.allocated_bytes
        slot = loader.plan.mixture.layout.slot_bytes
    back = (full - less) / slot
    return [
        row("ring 16 → 2 slots: pages back at the kernel", f"{back:.1f} slots", "14", back >= 13.9)
    ]


def work() -> list[dict[str, Any]]:
    """Counted by the kernel: what reading by index asks of it, with many datasets and with one."""
    told, rows = {}, []
    for name in ("even_1", "even_29"):
        knobs = {"reader": "indexed"}
        with AutoLoader(ensure_data(name), **HELD, knobs=knobs) as loader:
            batches = (batch for _ in itertools.count() for batch in loader)
            for _ in range(20):
                next(batches)
            before = io_counters(loader.statistics().worker_pids[0])
            samples = 0
            for _ in range(400):
                samples += len(next(batches)["dataset_index"])
            after = io_counters(loader.statistics().worker_pids[0])
            decodes = loader.statistics().decodes_per_sample or 0.0
        calls, read = ((after[key] - before[key]) / samples for key in ("syscr", "rchar"))
        told[name] = (decodes, calls, read)
    for number, (what, unit) in enumerate(
        (("decodes", ""), ("read calls", ""), ("bytes read", " bytes"))
    ):
        one, many = (told[name][number] for name in ("even_1", "even_29"))
        rows.append(
            row(
                f"{what} per sample, 29 datasets / one of the same files",
                f"{many:.3f} / {one:.3f}{unit}",
                "equal to 3 %",
                abs(many - one) <= 0.03 * one,
            )
        )
    return rows


def io_counters(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return {key: int(value) for key, _, value in (line.partition(": ") for line in lines)}


MEMORY = """
import sys, json
from autoloader import AutoLoader
from autoloader.controller.process_memory import pss_bytes, descendants
import os
before = pss_bytes(os.getpid(), shared_memory=False)
loader = AutoLoader(sys.argv[1], output="numpy", profile="local_dev", knobs={"reader": "indexed"})
most = 0
for number, batch in enumerate(loader):
    if number % 20 == 0:
        pids = (os.getpid(), *descendants(os.getpid()))
        held = [pss_bytes(pid, shared_memory=False) for pid in pids]
        most = max(most, sum(held) - before)
    if number == 300:
        break
print(json.dumps([most, "tensorflow" in sys.modules]))
loader.close()
"""


def memory() -> list[dict[str, Any]]:
    answer = subprocess.run(
        [sys.executable, "-c", MEMORY, str(ensure_demo())],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    most, _ = json.loads(answer)
    return [
        row(
            "by index: PSS of loader and child, ring excluded, 29 datasets",
            f"{most / 2**20:.0f} MiB",
            "≤ 250 MiB",
            most <= 250 * 2**20,
        )
    ]


def decode_kills() -> list[dict[str, Any]]:
    """A decode process killed 20 times over a pass: the sequence is the undisturbed one."""

    def rows_of(kills: int) -> list[tuple[int, ...]]:
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

    calm, disturbed = rows_of(0), rows_of(20)
    same = sum(a == b for a, b in zip(calm, disturbed, strict=False))
    return [
        row(
            "20 × kill -9 of a decode process over a pass: same samples",
            f"{same} of {len(calm)}",
            "all",
            calm == disturbed,
        )
    ]


def interpreter() -> list[dict[str, Any]]:
    """What a frame costs beside its decoding, where frames are so small that it shows."""
    used, decoding = held_per_frame(**HELD)
    return [
        row(
            "16×16: child's user time, the decoder's, interpreter held",
            f"{used:.1f}, {decoding:.1f}, {used - decoding:.1f} µs/frame",
            "reported",
            None,
        )
    ]


def validation() -> list[dict[str, Any]]:
    """Both readers: first batches of validations, and what they do to training and to memory."""
    rows = []
    for reader in ("indexed", "stream"):
        seen = run_validations(reader)
        first, *later = seen.first_s
        held = [bytes_ / 2**20 for bytes_ in seen.held_bytes]
        opened = sum(seen.train_generations.values())
        again = seen.train_starts - 1 + opened - len(seen.train_generations)
        rows += [
            row(
                f"{reader}: first batch of the first validation",
                f"{first:.3f} s",
                "≤ 3 s",
                first <= 3,
            ),
            row(
                f"{reader}: of later ones, the last right behind another",
                ", ".join(f"{one:.3f}" for one in later) + " s",
                "≤ 1 s",
                max(later) <= 1,
            ),
            row(
                f"{reader}: samples of each validation",
                ", ".join(map(str, seen.samples)),
                "the same",
                len(set(seen.samples)) == 1,
            ),
            row(
                f"{reader}: training pipelines or streams opened again",
                str(again),
                "0",
                again == 0,
            ),
            row(
                f"{reader}: loader's memory: training, validations, end",
                ", ".join(f"{one:.0f}" for one in held) + " MiB",
                "end ≤ 1.1 × first validation",
                held[-1] <= 1.1 * held[1],
            ),
        ]
    return rows


ALL: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "trainer": trainer_memory,
    "state": state_size,
    "ring": ring,
    "retunes": retunes,
    "kills": kills,
    "lifecycle": open_and_close,
    "work": work,
    "memory": memory,
    "decode-kills": decode_kills,
    "interpreter": interpreter,
    "validation": validation,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.endurance", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(ALL), default=list(ALL))
    parser.add_argument("--reader", choices=["stream", "indexed"], default="stream")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    START["reader"] = chosen.reader
    rows = []
    for name in chosen.only:
        print(f"{name} … (load {load()})", file=sys.stderr)
        rows += ALL[name]()
    if chosen.json:
        print(json.dumps(rows, indent=2))
        return
    for one in rows:
        mark = {True: "met", False: "MISSED", None: ""}[one["met"]]
        print(f"{one['claim']:<62} {one['figure']:<32} {one['wanted']:<16} {mark}")


if __name__ == "__main__":
    main()
