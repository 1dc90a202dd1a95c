"""Long runs over damaged files: records of an index, and real LeRobot episodes.

    python tools/hunt/damage.py records --count 200000 --seed 0
    python tools/hunt/damage.py lerobot --count 60

Records end with an error where one is not what protobuf reads; LeRobot episodes with 1 where a row
is wrong or gone without a word.

Not here: how they are damaged and compared (``tests/index/fuzz_index.py``,
``tests/lerobot/real_damage.py``).
"""

from __future__ import annotations

import argparse
import logging
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[2] / "tests"
sys.path[:0] = [str(TESTS / folder) for folder in ("index", "lerobot", ".")]

import fuzz_index
from real_damage import Damaged, damages


def records(count: int, seed: int) -> int:
    """Index so many damaged records, and say what became of them."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    report = fuzz_index.run(count, seed)
    took = time.perf_counter() - begun
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    out = sys.stdout.write
    out(f"{report.cases} records in {took:.0f} s: {report.whole} indexed with {report.steps} ")
    out(f"steps, all as protobuf reads them; slowest {report.slowest_s * 1e3:.2f} ms a record, ")
    out(f"peak memory grew by {grown:.1f} MiB\n")
    for reason, number in report.reasons.most_common():
        out(f"{number:8d}  {reason}\n")
    return 0


def lerobot(count: int) -> int:
    """Do so many damages, and say what became of each."""
    logging.disable(logging.WARNING)
    np.seterr(all="raise")
    bad = right = 0
    with tempfile.TemporaryDirectory() as folder:
        damaged = Damaged(Path(folder))
        for version, damage, seed in damages(count):
            done, found, said, wrong = damaged.attempt(version, damage, seed)
            rows = len(damaged.whole[version])
            right += not said and not wrong
            bad += bool(wrong)
            first = said.splitlines()[0][:150] if said else "all right"
            sys.stdout.write(f"{version} {done}: {len(found)} of {rows} rows; {first}\n")
            for one in wrong:
                sys.stdout.write(f"    WRONG: {one}\n")
    sys.stdout.write(f"{count} damages: {bad} wrong, {right} right in all, others named\n")
    return int(bad > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("records", "lerobot"))
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of records")
    chosen = parser.parse_args()
    if chosen.kind == "records":
        return records(chosen.count, chosen.seed)
    return lerobot(chosen.count)


if __name__ == "__main__":
    sys.exit(main())
