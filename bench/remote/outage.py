"""The name of a server is gone for a minute while a shard arrives, by a resolver that fails.

    python -m bench.remote.outage [--seconds 60] [--bytes N]

A process in a mount namespace of its own has an ``/etc/hosts`` that names a server on this host,
and an ``/etc/resolv.conf`` whose server does not answer. When a part of a shard has come, the name
is taken out of the file, and all connections are cut. It is put back after ``--seconds``. Then the
shard has to arrive, whole and right, without a byte fetched twice beyond what was cut.

Result on stdout as JSON. Exit code 1 where that is not so. Needs root (``why_not`` says).

Not here: faults that a server answers with (``tests/remote``).
"""

from __future__ import annotations

import argparse
import json
import logging
import logging.handlers
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from autoloader.storage import store
from autoloader.storage.shards import IN_FLIGHT_BYTES, ShardCache
from bench.remote.server import serve

NAME = "bucket.autoloader.test"
BYTES_PER_S = 12e6
_ALONE = ("unshare", "--mount", "--propagation", "private")
_LOOK_S = 0.01


def why_not() -> str | None:
    """What is missing on this machine; ``None`` where a name can be taken away."""
    if shutil.which("unshare") is None:
        return "unshare is not installed (util-linux)"
    tried = subprocess.run([*_ALONE, "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else "mount namespaces are not allowed here"


def outage(seconds: float, nbytes: int) -> dict[str, Any]:
    """Take the name away for so long while so many bytes arrive; in a process of its own.

    Raises:
        RuntimeError: it failed; says how.
    """
    command = [*_ALONE, sys.executable, "-m", "bench.remote.outage", "--inside"]
    done = subprocess.run(
        [*command, "--seconds", str(seconds), "--bytes", str(nbytes)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _inside(seconds: float, nbytes: int, folder: Path) -> dict[str, Any]:
    """The same, in a namespace of this process alone."""
    hosts, resolver = folder / "hosts", folder / "resolv.conf"
    there = f"127.0.0.1 localhost\n127.0.0.1 {NAME}\n"
    hosts.write_text(there)
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    for own, place in ((hosts, "/etc/hosts"), (resolver, "/etc/resolv.conf")):
        subprocess.run(["mount", "--bind", str(own), place], check=True)
    os.environ.update(AUTOLOADER_CACHE_DIR=str(folder / "user"), no_proxy="*")
    store.LONGEST_S = min(store.LONGEST_S, max(0.5, seconds / 2))
    store._SAY_EVERY_S = min(store._SAY_EVERY_S, seconds / 20)  # noqa: SLF001 once in a while
    said = logging.handlers.BufferingHandler(10**6)
    logging.getLogger("autoloader.storage").addHandler(said)
    (folder / "served").mkdir()
    original = folder / "served" / "shard"
    original.write_bytes(random.Random(0).randbytes(nbytes))
    with serve(folder / "served") as server:
        server.bytes_per_s = BYTES_PER_S
        cache = ShardCache(folder / "cache", floor_bytes=0)
        shard = cache.shard(f"http://{NAME}:{server.port}/shard")
        fetching = threading.Thread(target=shard.fetch_whole)
        fetching.start()
        while server.sent < nbytes / 4:
            time.sleep(_LOOK_S)
        server.fault = lambda _: "cut"
        server.cut_all()
        hosts.write_text("127.0.0.1 localhost\n")
        time.sleep(seconds)
        lines = [record.getMessage() for record in said.buffer]
        unresolved = [line for line in lines if "cannot be resolved" in line]
        whole_meanwhile = shard.whole_path.exists()
        server.fault = lambda _: None
        hosts.write_text(there)
        back_s = time.monotonic()
        fetching.join()
        return {
            "outage_s": seconds,
            "whole_meanwhile": whole_meanwhile,
            "told": unresolved[:1],
            "told_times": len(unresolved),
            "whole_after_s": round(time.monotonic() - back_s, 2),
            "right": shard.whole_path.read_bytes() == original.read_bytes(),
            "bytes": nbytes,
            "sent_bytes": server.sent,
            "most_bytes": nbytes + IN_FLIGHT_BYTES,
        }


def is_good(found: dict[str, Any]) -> bool:
    """Whether it waited, said so, and went on with what it had."""
    waited = bool(found["told"]) and not found["whole_meanwhile"]
    return waited and bool(found["right"]) and found["sent_bytes"] <= found["most_bytes"]


def main() -> int:
    """Run it, or be the process inside."""
    parser = argparse.ArgumentParser(prog="python -m bench.remote.outage")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--bytes", type=int, default=48 * 2**20 + 12_345)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(_inside(chosen.seconds, chosen.bytes, Path(folder))))
        return 0
    if (why := why_not()) is not None:
        print(why, file=sys.stderr)
        return 2
    found = outage(chosen.seconds, chosen.bytes)
    print(json.dumps(found, indent=2))
    return not is_good(found)


if __name__ == "__main__":
    sys.exit(main())
