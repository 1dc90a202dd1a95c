"""Damages the metadata of videos and Parquet files, and holds the indexer to what it promises.

    python tests/lerobot/fuzz_lerobot.py --cases 100000 --seed 0

Whatever the bytes say, the tables come in a bounded time and memory: each episode is damaged with a
reason, or every one of its ranges lies inside its files. The cases run in processes of their own,
so that a crash of FFmpeg or pyarrow is counted and named by its seed.

Not here: damage that people have met (``test_lerobot_damage.py``).
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from lerobot_files import LeRobotFiles

from autoloader.errors import SourceError
from autoloader.formats.lerobot.metadata import metadata_of, open_lerobot
from autoloader.index.format import Section, ShardTables
from autoloader.index.lerobot import LeRobotShards
from autoloader.samples.schema import RecordSchema, StoredFeature

TOP, SIDE = "observation.images.top", "observation.images.side"
SCHEMA = RecordSchema(
    (
        StoredFeature("column", "action", "action", "float", 3, True),
        StoredFeature("frames", TOP, TOP, "bytes", 1, True),
        StoredFeature("text", "task", "task", "bytes", 1, True),
        StoredFeature("frames", SIDE, SIDE, "bytes", 1, True),
    )
)
CASES_A_PROCESS = 2_000
LONGEST_S = 10
"""A signal ends a case that takes more of a processor's time."""
MOST_GROWTH_BYTES = 600 * 2**20
_WORDS = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\1", b"\x80\0\0\0")


def mutated(rng: random.Random, data: bytes, first: int, stop: int) -> bytes:
    """``data`` with some bytes between ``first`` and ``stop`` changed, left out or put in."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        at = rng.randrange(first, min(stop, len(found)))
        way = rng.randrange(5)
        if way == 0:
            found[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            found[at] = rng.randrange(256)
        elif way == 2:
            found[at : at + 4] = rng.choice(_WORDS)
        elif way == 3:
            del found[at : at + rng.choice([1, 4, 16])]
        else:
            found[at:at] = rng.randbytes(rng.choice([1, 4, 16]))
    return bytes(found)


def check(tables: ShardTables, video: Path, parquet: Path) -> None:
    """Every episode is damaged with a reason, or its ranges lie inside its files.

    Raises:
        AssertionError: one is neither.
    """
    size = video.stat().st_size
    rows = 0
    for record, steps in enumerate(tables.steps.tolist()):
        assert (steps < 0) == bool(tables.damage.get(record))
        rows += max(0, steps)
    offsets = tables.sections[Section.FRAME_OFFSETS, 1]
    lengths = tables.sections[Section.FRAME_LENGTHS, 1]
    assert len(offsets) == len(lengths) == rows == len(tables.sections[Section.COLUMN, 0])
    if rows:
        assert offsets.min() >= 0
        assert lengths.min() > 0
        assert int((offsets + lengths).max()) <= size
        packets = len(tables.sections[Section.PACKET_SIZES, 1])
        keys = tables.sections[Section.FRAME_KEYS, 1]
        ends = tables.sections[Section.FRAME_PACKETS, 1]
        assert 0 <= keys.min() <= ends.max() < packets
        assert (keys <= ends).all()
        sections = {
            kind: tables.sections[kind, 3] for kind, number in tables.sections if number == 3
        }
        offsets, lengths = sections[Section.FRAME_OFFSETS], sections[Section.FRAME_LENGTHS]
        assert offsets.min() >= 0
        assert lengths.min() >= 0
        assert int((offsets + lengths).max()) <= parquet.stat().st_size
        starts, sizes = sections[Section.PICTURE_STARTS], sections[Section.PICTURE_BYTES]
        assert starts.min() >= 0
        assert (starts + sizes <= sections[Section.UNPACKED_BYTES]).all()


def run(cases: int, seed: int, folder: Path) -> Counter[str]:
    """Tries ``cases`` mutants; how each kind ended.

    Raises:
        AssertionError: the tables of one are not what they may be, or it took too much memory.
    """
    files = LeRobotFiles(lengths=(6, 5), gop=4, pictures=[SIDE])
    root = files.write(folder / "arm")
    video, rows = files.video(root, TOP, 0), root / "data/chunk-000/file-000.parquet"
    listed = root / "meta/episodes/chunk-000/file-000.parquet"
    whole = {path: path.read_bytes() for path in (video, rows, listed)}
    moov = whole[video].index(b"moov")
    first_of = {video: moov - 4, rows: 0, listed: 0}
    rng, ended = random.Random(seed), Counter[str]()

    def tables_now() -> ShardTables:
        known = metadata_of(open_lerobot(root, dataset="arm"))
        return LeRobotShards(known).tables(str(rows), SCHEMA)

    tables_now()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for _ in range(cases):
        path = rng.choice((video, video, rows, listed))
        path.write_bytes(mutated(rng, whole[path], first_of[path], len(whole[path])))
        signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
        try:
            tables = tables_now()
        except (SourceError, KeyError):  # no such list of episodes, or none of this file
            ended[f"{path.suffix}: refused"] += 1
        else:
            check(tables, video, rows)
            kind = "left out" if (tables.steps < 0).any() else "whole"
            ended[f"{path.suffix}: {kind}"] += 1
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            path.write_bytes(whole[path])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    assert grown < MOST_GROWTH_BYTES, f"{grown} bytes more"
    return ended


def main() -> int:
    """Run many cases in processes of their own; 1 where one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args()
    if given.here:
        with tempfile.TemporaryDirectory() as folder:
            for kind, count in sorted(run(given.cases, given.seed, Path(folder)).items()):
                sys.stdout.write(f"{kind}\t{count}\n")
        return 0
    ended, failed, began = Counter[str](), 0, time.monotonic()
    for number, first in enumerate(range(0, given.cases, CASES_A_PROCESS)):
        cases, seed = min(CASES_A_PROCESS, given.cases - first), given.seed + number
        words = [sys.executable, __file__, "--here", "--cases", str(cases), "--seed", str(seed)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            failed += 1
            sys.stdout.write(f"seed {seed}: ended with {done.returncode}\n{done.stderr[-2000:]}\n")
        for line in done.stdout.splitlines():
            kind, count = line.split("\t")
            ended[kind] += int(count)
    seconds = time.monotonic() - began
    sys.stdout.write(f"{sum(ended.values())} cases in {seconds:.0f} s, {failed} runs failed\n")
    for kind, count in sorted(ended.items()):
        sys.stdout.write(f"  {kind}: {count}\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
