"""Runs loader machines until so many rows were held against what lies on disk.

    python tools/hunt/hunt.py --rows 2000000 --seed 0

Between machines come the other hunts, in turn: pairs of entries that differ in one field, signals
that strike a loop, lines that are struck in one, threads that are late. Says what it counted, and
ends with 1 where a row was wrong, missing or there twice, or where anything else did not go as it
must: with the steps that led there.

Not here: what the machines do (``loader_machine``), what the other hunts do (``entry_pairs``,
``strikes``, ``late_hunt``).
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

TESTS = Path(__file__).parents[2] / "tests"
sys.path[:0] = [str(TESTS / folder) for folder in ("isolation", "loader", ".")]

import strikes
from coded_rows import CodedRows, write_coded
from entry_pairs import Pairs
from late_hunt import allow_costly_pictures, prepared
from loader_machine import Tally
from machines import SORTS, run_machines
from pairs import drawn_pairs, write_data

HANG_S = 900.0
"""So long without the end of a machine is taken for a hang, and every thread's place is told."""
TIMES = 5
EVERY = 5
"""Machines between two of the other hunts."""
PAIRS, SIGNALS, LINES = 3, 20, 7
"""Of one turn: pairs of entries, signals; one of so many lines is struck."""
LATE = ("child", "processes", "thread", "reads")


class OtherHunts:
    """The other hunts, a turn of one after a turn of another; their rows are added to a tally.

    Args:
        folder: for data and caches.
        tally: where rows are counted.
        seed: of all draws.
    """

    def __init__(self, folder: Path, tally: Tally, seed: int) -> None:
        for name in ("pairs", "late", "struck"):
            (folder / name).mkdir()
        self._tally, self._seed = tally, seed
        self._stack = contextlib.ExitStack()
        with patch.dict(os.environ):  # pairs have a cache directory of their own
            self._pairs = Pairs(folder / "pairs")
            self._pair_caches = os.environ["AUTOLOADER_CACHE_DIR"]
        self._drawn = drawn_pairs(seed, write_data(folder / "pairs" / "data"))
        self._late, self._fuse = self._stack.enter_context(prepared(folder / "late"))
        self._spec = strikes.mixture(folder / "struck")
        self._sequences = strikes.Sequences(self._spec)
        self._stack.callback(self._sequences.close)
        self._turns = itertools.cycle([self._pair, self._signal, self._line, self._be_late])

    def turn(self) -> str:
        """A turn of the next one; says which."""
        self._seed += 1
        act = next(self._turns)
        return act()

    def close(self) -> None:
        """Leave nothing behind."""
        self._stack.close()

    def _count(self, what: str, rows: int, wrong: int, faults: object) -> str:
        self._tally.rows += rows
        self._tally.wrong += wrong
        self._tally.events[what] += 1
        assert not faults, f"{what}, seed {self._seed}: {faults}"
        return what

    def _pair(self) -> str:
        seen = self._pairs.seen
        rows, wrong = seen.rows, seen.wrong
        with patch.dict(os.environ, {"AUTOLOADER_CACHE_DIR": self._pair_caches}):
            for pair in itertools.islice(self._drawn, PAIRS):
                self._pairs.check(pair)
        return self._count("pairs of entries", seen.rows - rows, seen.wrong - wrong, seen.faults)

    def _signal(self) -> str:
        loop = strikes.LOOPS[random.Random(self._seed).choice(sorted(strikes.LOOPS))]
        by_next = bool(self._seed % 2)
        run = strikes.SignalRun(self._spec, self._sequences, loop, self._seed, by_next=by_next)
        return self._struck("signals", run.run(SIGNALS))

    def _line(self) -> str:
        drawn = random.Random(self._seed)
        loop = strikes.LOOPS[drawn.choice(sorted(strikes.LOOPS))]
        isolation = drawn.choice(["process", "thread"])
        run = strikes.LineRun(self._spec, self._sequences, isolation, loop)
        return self._struck("struck lines", run.run(1, every=LINES))

    def _struck(self, what: str, found: strikes.Tally) -> str:
        return self._count(what, found.rows, 0, "" if found.clean else found)

    def _be_late(self) -> str:
        hunt, kinds = self._late, LATE if self._fuse else LATE[:-1]
        kind = random.Random(self._seed).choice(kinds)
        rows, wrong = hunt.rows, hunt.wrong
        fuse = self._fuse if kind == "reads" else None
        hunt.run(kind, random.Random(self._seed), "", fuse)
        return self._count(f"late: {kind}", hunt.rows - rows, hunt.wrong - wrong, hunt.faults)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows to compare at least")
    parser.add_argument("--seed", type=int, default=0, help="of the first machine")
    parser.add_argument("--reader", choices=["indexed", "stream"], help="this one alone")
    chosen = parser.parse_args()
    sorts = [sort for sort in SORTS if chosen.reader in (None, sort.reader)]
    tally, began = Tally(), time.monotonic()
    # Not a TemporaryDirectory: a fork that ends as programs do would remove it.
    folder = Path(tempfile.mkdtemp())
    os.environ["AUTOLOADER_CACHE_DIR"] = f"{folder}/cache"
    allow_costly_pictures()
    rows, others = CodedRows(write_coded(folder)), OtherHunts(folder, tally, chosen.seed)
    running = run_machines(
        rows, chosen.rows, tally, first_seed=chosen.seed, sorts=sorts, times=TIMES, stops=True
    )
    try:
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        for number, machine in enumerate(running, start=1):
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            what = machine
            if not number % EVERY:
                what += f", {others.turn()}"
                faulthandler.dump_traceback_later(HANG_S, exit=True)
            since_s = time.monotonic() - began
            print(f"{since_s:.0f} s, {what}: {tally.rows:,} rows", flush=True)  # noqa: T201
    finally:
        faulthandler.cancel_dump_traceback_later()
        others.close()
        print(f"{time.monotonic() - began:.0f} s: {tally}", flush=True)  # noqa: T201
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
