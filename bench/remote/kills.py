"""Kills processes that fetch a shard, at random moments, and looks at what they left.

    python -m bench.remote.kills [--kills 300] [--processes 4] [--mib 24] [--seed 0]

Processes fetch one shard into one cache, several at a time, and read stretches of it meanwhile,
each of which is held against the file. One after another is killed at a random moment and a new
one begins. Where the shard is whole it is held against the file, and deleted, and all begins anew.
The server counts the bytes that it sent: beside one shard for each time that it was whole, at most
what a process had under way may be sent again for each kill.

Result on stdout as JSON. Exit code 1 where a byte was wrong, or more was fetched than that.

Not here: faults one by one (``tests/remote``).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from autoloader.storage.shards import IN_FLIGHT_BYTES, ShardCache
from bench.remote.server import serve

BYTES_PER_S = 12e6
"""Of the link: so that a shard takes long enough to be killed in."""


@dataclass
class Killed:
    """What came of it.

    Attributes:
        kills: processes that were killed.
        wholes: times that the shard was whole, and right.
        wrong: stretches or shards that held a wrong byte.
        failed: processes that ended with an error of their own.
        sent_bytes: by the server.
        most_bytes: that it may have sent.
    """

    kills: int = 0
    wholes: int = 0
    wrong: int = 0
    failed: int = 0
    sent_bytes: int = 0
    most_bytes: int = 0

    @property
    def good(self) -> bool:
        """Whether nothing was wrong, and nothing fetched twice beyond what kills cut off."""
        return not (self.wrong or self.failed) and self.sent_bytes <= self.most_bytes


def kill_fetchers(
    folder: Path, *, kills: int, processes: int, nbytes: int, seed: int, longest_s: float = 1.0
) -> Killed:
    """Kill processes that fetch a shard of so many bytes.

    Args:
        folder: empty; for the shard and its cache.
        kills: so many.
        processes: at a time.
        nbytes: of the shard.
        seed: of its bytes and of the moments.
        longest_s: between two kills at most.
    """
    draw = random.Random(seed)
    (folder / "served").mkdir()
    original = folder / "served" / "shard"
    original.write_bytes(draw.randbytes(nbytes))
    found, cache = Killed(), folder / "cache"
    with serve(folder / "served") as server:
        server.bytes_per_s = BYTES_PER_S
        address = f"{server.address}/shard"
        running: list[subprocess.Popen[bytes]] = []
        try:
            while found.kills < kills:
                while len(running) < processes:
                    running.append(_fetcher(address, original, cache))
                time.sleep(draw.uniform(0.0, longest_s))
                ended = [one for one in running if one.poll() is not None]
                for one in ended:
                    found.wrong += one.returncode == 2
                    found.failed += one.returncode not in (0, 2)
                    running.remove(one)
                if running:
                    victim = running.pop(draw.randrange(len(running)))
                    victim.send_signal(signal.SIGKILL)
                    victim.wait()
                    found.kills += 1
                _harvest(cache, original, found)
        finally:
            for one in running:
                one.wait()
            _harvest(cache, original, found)
        found.sent_bytes = server.sent
        found.most_bytes = (found.wholes + 1) * nbytes + found.kills * IN_FLIGHT_BYTES
    return found


def _harvest(cache: Path, original: Path, found: Killed) -> None:
    """Hold a whole shard against the file, and delete it; the next one is fetched anew."""
    for shard in cache.glob("*.shard"):
        found.wholes += 1
        found.wrong += shard.read_bytes() != original.read_bytes()
        shard.unlink()


def _fetcher(address: str, original: Path, cache: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.remote.kills", "--fetch", address, str(original), str(cache)],
        env={**os.environ, "AUTOLOADER_CACHE_DIR": str(cache.parent / "user")},
        cwd=Path(__file__).parents[2],
    )


def _fetch(address: str, original: Path, cache: Path) -> int:
    """Read stretches of a shard and fetch all of it; 2 where a byte is wrong."""
    content, draw = original.read_bytes(), random.Random()
    shards = ShardCache(cache, floor_bytes=0)
    for _ in range(4):
        start = draw.randrange(len(content))
        stretch = bytearray(min(draw.randrange(1, 2**17), len(content) - start))
        shards.read({address: [(start, memoryview(stretch))]})
        if stretch != content[start : start + len(stretch)]:
            return 2
    shards.shard(address).fetch_whole()
    return 0


def main() -> int:
    """Run it, or be one of the processes."""
    parser = argparse.ArgumentParser(prog="python -m bench.remote.kills")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--mib", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fetch", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.fetch:
        return _fetch(chosen.fetch[0], Path(chosen.fetch[1]), Path(chosen.fetch[2]))
    with tempfile.TemporaryDirectory() as folder:
        found = kill_fetchers(
            Path(folder),
            kills=chosen.kills,
            processes=chosen.processes,
            nbytes=chosen.mib * 2**20 + 12_345,
            seed=chosen.seed,
        )
    print(json.dumps({**asdict(found), "good": found.good}, indent=2))
    return not found.good


if __name__ == "__main__":
    sys.exit(main())
