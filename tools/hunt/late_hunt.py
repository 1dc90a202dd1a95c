"""Moves and closes loaders while their threads are late, and holds every row against the files.

    python tools/hunt/late_hunt.py --runs 50 --seed 0

A thread is late because a picture takes some 30 s to decode (in the child, in a decode process, in
the trainer's process, in a helper of a Ray cluster) or because a read hangs (a FUSE file system
that does not answer). Meanwhile ``load_state_dict``, ``retune`` and ``close`` with a new loader
come at random. Says what it counted, and ends with 1 where a row was wrong, missing or there twice,
or where anything but the late picture itself took longer than ``HANG_S``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/cluster", "tests", ".")]

from ray_cluster import ray_cluster
from rlds_files import Written, episode, write_dataset
from slow_pictures import SCANS_MOST, slow_jpeg
from streams import endless, spec_of

from autoloader import AutoLoader, PipelineSpec
from autoloader.decode import frames as costs
from autoloader.host.machine import usable_processors
from bench import shown_files
from bench.child import Player
from bench.control.slow_files import slow_files

HANG_S = 35.0
SIDE = 7992
WINDOW = 3
"""Frames of a sample: three that take ten seconds each."""
SLOW_EPISODE, SLOW_STEPS = 4, range(6, 9)
BATCHES = 60
ACTIONS = 3
KINDS = ("child", "processes", "thread", "helpers", "reads")
OPTIONS: dict[str, Any] = {"output": "numpy", "ram_floor": "256MiB", "profile": "local_dev"}
Batch = tuple[list[list[int]], np.ndarray, np.ndarray]


def write(folder: Path, scans: int) -> Written:
    """Ten episodes of twelve steps; three pictures of one have so many scans."""
    episodes = [episode(number, 12) for number in range(10)]
    pictures = list(episodes[SLOW_EPISODE]["observation/image"])
    for step in SLOW_STEPS:
        pictures[step] = slow_jpeg(SIDE, SIDE, scans, grey=40 + 10 * step)
    slow = {**episodes[SLOW_EPISODE], "observation/image": pictures}
    episodes[SLOW_EPISODE] = slow if scans else episodes[SLOW_EPISODE]
    return write_dataset(folder, [episodes[:5], episodes[5:]])


def mixture(path: Path) -> PipelineSpec:
    written = Written("robot", path / "robot/1.0.0", [])
    return spec_of(written, sample={"frame_offsets": list(range(1 - WINDOW, 1))}, reader="indexed")


def shown(batch: dict[str, Any]) -> Batch:
    return (
        batch["provenance"].tolist(),
        batch["images"]["primary"].copy(),
        batch["action"].copy(),
    )


def is_slow(batch: Batch) -> bool:
    slow = range(SLOW_STEPS.start, SLOW_STEPS.stop + WINDOW - 1)
    return any(row[3] + 5 * row[2] == SLOW_EPISODE and row[4] in slow for row in batch[0])


class Hunt:
    """Counts over all runs."""

    def __init__(self, files: dict[str, PipelineSpec], wanted: dict[str, list[Batch]]) -> None:
        self.files, self.wanted = files, wanted
        self.rows = self.wrong = self.hangs = self.restarts = 0
        self.longest: dict[str, float] = {}
        self.faults: list[str] = []

    def timed(self, what: str, do: Callable[[], Any], *, bounded: bool = True) -> Any:
        began = time.monotonic()
        found = do()
        took_s = time.monotonic() - began
        if bounded:
            self.longest[what] = max(self.longest.get(what, 0.0), took_s)
            if took_s > HANG_S:
                self.hangs += 1
                self.faults.append(f"{what} took {took_s:.1f} s")
        return found

    def run(self, kind: str, drawn: random.Random, helpers: str, fuse: Player | None) -> None:
        run = _Run(self, kind, drawn, helpers, fuse)
        try:
            for _ in range(ACTIONS):
                run.take()
                drawn.choice([run.load, run.retune, run.reopen])()
            run.take()
        finally:
            run.close()


class _Run:
    def __init__(
        self, hunt: Hunt, kind: str, drawn: random.Random, helpers: str, fuse: Player | None
    ) -> None:
        self.hunt, self.kind, self.drawn, self.fuse = hunt, kind, drawn, fuse
        self.wanted = hunt.wanted["plain" if kind == "reads" else "slow"]
        self.knobs: dict[str, Any] = {
            "decode_threads": 2,
            "decode_processes": 2 if kind == "processes" else 1,
            "ring_slots": 4,
            "read_ahead": 1,
            "cache_bytes": drawn.choice([0, "8MiB"]),
        }
        self.options = dict(OPTIONS)
        if kind == "thread":
            self.options["isolation"] = "thread"
        if kind == "helpers":
            self.options["helpers"] = helpers
            self.knobs["helper_slots"] = 2
        self.flows: list[threading.Timer] = []
        self.open()
        self.at = 0
        self.states = {0: self.loader.state_dict()}

    def open(self) -> None:
        spec = self.hunt.files["reads" if self.kind == "reads" else "slow"]
        self.loader = AutoLoader(spec, knobs=self.knobs, **self.options)
        self.batches = endless(self.loader)

    def take(self) -> None:
        """Some batches, up to a late one that is next then; sometimes it is awaited."""
        through = self.kind != "reads" and self.drawn.random() < 0.15
        ahead = self.wanted[self.at :]
        near = next((k for k, one in enumerate(ahead) if is_slow(one)), len(ahead))
        count = self.drawn.choice([near, near, self.drawn.randint(0, near)])
        if self.kind == "reads":
            count = self.drawn.randint(0, 15)
        for k in range(min(count + through, len(ahead) - 1)):
            late = self.kind != "reads" and is_slow(ahead[k])
            batch = self.hunt.timed("next", lambda: next(self.batches), bounded=not late)
            self.check(shown(batch), ahead[k])
            self.at += 1
        self.states[self.at] = self.loader.state_dict()
        if self.kind == "reads":
            self.stall()

    def check(self, came: Batch, wanted: Batch) -> None:
        self.hunt.rows += len(came[0])
        for k, row in enumerate(wanted[0]):
            pairs = zip(came[1:], wanted[1:], strict=True)
            same = k < len(came[0]) and came[0][k] == row
            same = same and all(np.array_equal(one[k], other[k]) for one, other in pairs)
            if not same:
                self.hunt.wrong += 1
                self.hunt.faults.append(f"{self.kind}, batch {self.at}: {row}")

    def stall(self) -> None:
        """Reads hang from now on, for up to 15 s."""
        assert self.fuse is not None
        self.fuse.say({"stalls": True})
        for flow in self.flows:
            flow.cancel()
        flow = threading.Timer(self.drawn.uniform(3, 15), self.fuse.tell, [{"stalls": False}])
        self.flows.append(flow)
        flow.start()

    def load(self) -> None:
        self.at = self.drawn.choice(sorted(self.states))
        self.hunt.timed("load", lambda: self.loader.load_state_dict(self.states[self.at]))

    def retune(self) -> None:
        knobs: dict[str, Any] = {
            "decode_threads": self.drawn.randint(1, 3),
            "ring_slots": self.drawn.randint(4, 8),
            "cache_bytes": self.drawn.choice([0, "8MiB"]),
        }
        if self.kind == "processes":
            knobs["decode_processes"] = self.drawn.randint(1, min(3, usable_processors()))
        self.hunt.timed("retune", lambda: self.loader.retune(knobs))
        if self.drawn.random() < 0.5:
            self.load()

    def reopen(self) -> None:
        state = self.loader.state_dict()
        self.hunt.timed("close", self.end)
        self.hunt.timed("open", self.open)
        self.hunt.timed("load", lambda: self.loader.load_state_dict(state))

    def end(self) -> None:
        found = self.loader.statistics()
        self.hunt.restarts += found.restarts
        self.loader.close()

    def close(self) -> None:
        self.hunt.timed("close", self.end)
        for flow in self.flows:
            flow.cancel()
        if self.fuse is not None:
            self.fuse.say({"stalls": False})


def reference(spec: PipelineSpec) -> list[Batch]:
    knobs = {"cache_bytes": 0, "decode_threads": 1}
    with AutoLoader(spec, isolation="thread", controller=False, knobs=knobs, **OPTIONS) as loader:
        batches = endless(loader)
        return [shown(next(batches)) for _ in range(BATCHES)]


def allow_costly_pictures() -> None:
    """Let pictures take half a minute, here and in processes that begin later."""
    os.environ["AUTOLOADER_PICTURE_COST"] = str(2**50)
    costs.most = costs.most_cost()


@contextlib.contextmanager
def prepared(folder: Path) -> Iterator[tuple[Hunt, Player | None]]:
    """The hunt, and the files whose reads hang; ``None`` where nothing can be mounted."""
    for name, scans in (("plain", 0), ("quick", 1), ("slow", SCANS_MOST)):
        (folder / "shown" / name).mkdir(parents=True)
        write(folder / "shown" / name, scans)
    source, target = folder / "under", folder / "mounted"
    shutil.copytree(folder / "shown" / "plain", source / "plain")
    why = shown_files.why_not()
    if why is not None:
        print(f"no reads that hang: {why}")  # noqa: T201
    slow = contextlib.nullcontext() if why else slow_files(source, target)
    with slow as fuse:
        files = {name: mixture(folder / "shown" / name) for name in ("plain", "quick", "slow")}
        files["reads"] = mixture(target / "plain")
        wanted = {"plain": reference(files["plain"]), "slow": reference(files["quick"])}
        yield Hunt(files, wanted), fuse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--kind", choices=KINDS, action="append", help="these alone")
    chosen = parser.parse_args()
    kinds = chosen.kind or KINDS
    folder, began = Path(tempfile.mkdtemp()), time.monotonic()
    os.environ["AUTOLOADER_CACHE_DIR"] = f"{folder}/cache"
    allow_costly_pictures()
    clusters = ray_cluster(nodes=2) if "helpers" in kinds else contextlib.nullcontext()
    try:
        with prepared(folder) as (hunt, fuse), clusters as cluster:
            helpers = f"ray@{cluster.address}" if cluster else ""
            for number in range(chosen.seed, chosen.seed + chosen.runs):
                kind = kinds[number % len(kinds)]
                if kind == "reads" and fuse is None:
                    continue
                hunt.run(kind, random.Random(number), helpers, fuse if kind == "reads" else None)
                print(  # noqa: T201
                    f"{time.monotonic() - began:.0f} s, run {number} ({kind}): {hunt.rows:,} rows, "
                    f"{hunt.wrong} wrong, {hunt.hangs} hangs, {hunt.restarts} restarts, longest "
                    + ", ".join(f"{what} {took:.1f} s" for what, took in hunt.longest.items()),
                    flush=True,
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for fault in hunt.faults[:20]:
        print(fault)  # noqa: T201
    return 1 if hunt.wrong or hunt.hangs else 0


if __name__ == "__main__":
    sys.exit(main())
