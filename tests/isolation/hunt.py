"""Runs loader machines until so many rows were held against what lies on disk.

    python tests/isolation/hunt.py --rows 2000000 --seed 0

Says what it counted, and ends with 1 where a row was wrong, missing or there twice, or where
anything else did not go as it must: with the steps that led there.

Not here: what the machines do (``loader_machine``).
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

sys.path.insert(0, str(Path(__file__).parents[1]))

from coded_rows import CodedRows, write_coded
from loader_machine import FoundError, LoaderMachine, Tally

from autoloader import delivery

HANG_S = 900.0
"""So long without the end of a machine is taken for a hang, and every thread's place is told."""
TIMES = 5


class Sort(NamedTuple):
    """What machines are about: a reader, and the world sizes that a run may be resumed with."""

    reader: str
    world_sizes: tuple[int, ...]


SORTS = tuple(Sort(reader, sizes) for reader in ("indexed", "stream") for sizes in ((1,), (1, 2)))


def run_machines(
    rows: CodedRows,
    at_least: int,
    tally: Tally,
    *,
    first_seed: int = 0,
    sorts: Sequence[Sort] = SORTS,
    times: int = 1,
    stops: bool = False,
) -> Iterator[str]:
    """Run machines of each sort in turn until at least so many rows were compared; says which.

    Each reads so many ``times`` what is drawn; with ``stops`` one of four also stops processes for
    good. However soon the next batch is asked for, it is made beside, where it has come.
    """
    for number in itertools.count(first_seed):
        if tally.rows >= at_least:
            return
        sort = sorts[number % len(sorts)]
        what = f"seed {number}, {sort.reader}, ranks {' or '.join(map(str, sort.world_sizes))}"
        values = {
            "rows": rows,
            "tally": tally,
            "reader": sort.reader,
            "world_sizes": sort.world_sizes,
            "times": times,
            "may_stop": stops and number // len(sorts) % 4 == 0,
        }
        machine: type[LoaderMachine] = type("LoaderMachine", (LoaderMachine,), values)
        try:
            with patch.object(delivery, "_SHORT_STEP_S", 0.0):
                run_state_machine_as_test(
                    seed(number)(machine),
                    settings=settings(
                        max_examples=2,  # the first is the shortest there is
                        stateful_step_count=10,
                        deadline=None,
                        database=None,
                        derandomize=False,
                        phases=[Phase.explicit, Phase.generate],
                        suppress_health_check=list(HealthCheck),
                    ),
                )
        except FoundError as found:
            raise AssertionError(f"{what}: after\n{found}\n{found.__cause__}") from found.__cause__
        yield what


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
    rows = CodedRows(write_coded(folder))
    running = run_machines(
        rows, chosen.rows, tally, first_seed=chosen.seed, sorts=sorts, times=TIMES, stops=True
    )
    try:
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        for what in running:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            since_s = time.monotonic() - began
            print(f"{since_s:.0f} s, {what}: {tally.rows:,} rows", flush=True)  # noqa: T201
    finally:
        faulthandler.cancel_dump_traceback_later()
        print(f"{time.monotonic() - began:.0f} s: {tally}", flush=True)  # noqa: T201
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
