"""A mixture behind a link of 50 ms and 1 Gb/s: the first batch, the link's use, the second pass.

    python -m bench.remote.link [--spec MIX] [--latency 0.05] [--rate 125e6] [--seconds 10]

A server of its own process serves a copy of the mixture's files with index files beside them. A
loader on an empty cache is timed to its first batch, and taken from until all shards have arrived;
the server says how many bytes it sent in which time. What the link can give is what a plain client
gets of the same server, which fetches the same files and keeps nothing. Then loaders over the
cache, which is whole now, and over the local files run in turn.

Result on stdout as JSON.

Not here: faults (``tests/remote``), kills (``bench.remote.kills``).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import queue
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autoloader import AutoLoader, PipelineSpec
from autoloader.cli.app import main as command
from autoloader.storage.shards import REQUEST_BYTES
from bench.child import Player, environment
from bench.control.trainer import endless
from bench.data import ensure_data
from bench.host import load
from bench.paired import estimate, in_turn, paired_ratios

_FLOOR = "1GB"
_PLAIN_CONNECTIONS = 16


class Server(Player):
    """A server of files in a process of its own.

    Args:
        folder: what it serves.
        latency_s: before every answer.
        bytes_per_s: of its link.
    """

    def __init__(self, folder: Path, latency_s: float, bytes_per_s: float) -> None:
        self._said = queue.Queue[Any]()
        words = (str(folder), "--latency", str(latency_s), "--rate", str(bytes_per_s))
        super().__init__("bench.remote.server", *words, env=environment(), hears=self._said.put)
        self.address = f"http://127.0.0.1:{self._said.get().strip()}"

    def sent(self) -> dict[str, float]:
        """Bytes since the last time, and the seconds from the first to the last of them."""
        self.say({})
        found: dict[str, float] = json.loads(self._said.get())
        return found


def main() -> int:
    """Run it."""
    chosen = _arguments()
    began = load()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=chosen.folder)))
        near, served = _served(Path(chosen.spec or ensure_data("demo")), folder)
        os.environ.update(AUTOLOADER_CACHE_DIR=str(folder / "here"), AUTOLOADER_DISK_FLOOR="1GB")
        server = stack.enter_context(Server(served, chosen.latency, chosen.rate))
        away_spec = _at(near, server.address)
        plain = _plain(served, server, chosen.rate)
        first = _first_pass(away_spec, server, folder / "here" / "shards", chosen.rate)
        rates: dict[str, list[float]] = {"away": [], "local": []}
        specs = {"away": away_spec, "local": PipelineSpec.from_yaml(near)}
        for order in in_turn(list(rates), chosen.pairs):
            for name in order:
                rates[name].append(_rate(specs[name], chosen.seconds))
        answer = {
            **first,
            "link_used_by_plain_client_ratio": plain,
            "link_used_to_plain_client": round(first["link_used_ratio"] / plain, 3),
            "second_pass": {name: [round(rate) for rate in found] for name, found in rates.items()},
            "second_pass_to_local": asdict(estimate(paired_ratios(rates["away"], rates["local"]))),
            "fetched_in_second_pass": server.sent()["sent"],
            "load": [began, load()],
        }
    print(json.dumps(answer, indent=2))
    return 0


def _served(spec: Path, folder: Path) -> tuple[Path, Path]:
    """(the mixture's spec over a copy of its files with index files, a folder of it)."""
    served = folder / "served"
    shutil.copytree(spec.parent, served, copy_function=_link)
    near = served / spec.name
    os.environ["AUTOLOADER_CACHE_DIR"] = str(folder / "there")
    with contextlib.redirect_stdout(sys.stderr):
        if command(["index", "--spec", str(near), "--beside"]):
            raise SystemExit("the mixture cannot be indexed")
    return near, served


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _at(near: Path, address: str) -> PipelineSpec:
    """The same mixture on the server."""
    plain: dict[str, Any] = PipelineSpec.from_yaml(near).model_dump(mode="json", exclude_unset=True)
    for one in plain["datasets"]:
        where = Path(one["path"])
        where = where if where.is_absolute() else near.parent / where
        one["path"] = f"{address}/{where.relative_to(near.parent)}"
    return PipelineSpec.from_mapping(plain)


def _loader(spec: PipelineSpec) -> AutoLoader:
    return AutoLoader(spec, ram_floor=_FLOOR, rank=0, world_size=1)


def _first_pass(spec: PipelineSpec, server: Server, shards: Path, rate: float) -> dict[str, Any]:
    """Time to the first batch, then batches until every shard is here."""
    server.sent()
    began = time.monotonic()
    batches, samples = 0, 0
    with _loader(spec) as loader:
        count = sum(len(one.slices) for one in loader.plan.mixture.datasets)
        for batch in endless(loader):
            if not batches:
                first_s, before = time.monotonic() - began, server.sent()["sent"]
            batches += 1
            samples += len(batch["provenance"])
            if batches % 8 == 0 and len(list(shards.glob("*.shard"))) >= count:
                break
        whole_s = time.monotonic() - began
    sent = server.sent()
    return {
        "first_batch_s": round(first_s, 2),
        "all_here_s": round(whole_s, 2),
        "samples_meanwhile": samples,
        "fetched_bytes": before + sent["sent"],
        "link_used_ratio": round(sent["sent"] / sent["seconds"] / rate, 3),
    }


def _plain(served: Path, server: Server, rate: float) -> float:
    """The share of the link that a client gets which fetches all shards and keeps nothing."""
    files = [path for path in served.rglob("*.tfrecord-*") if path.suffix != ".index"]
    own, host = threading.local(), server.address.partition("://")[2]
    stretches = [
        (str(path.relative_to(served)), start, min(start + REQUEST_BYTES, path.stat().st_size))
        for path in files
        for start in range(0, path.stat().st_size, REQUEST_BYTES)
    ]

    def get(stretch: tuple[str, int, int]) -> None:
        name, start, stop = stretch
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection(host)
        own.connection.request("GET", f"/{name}", headers={"Range": f"bytes={start}-{stop - 1}"})
        own.connection.getresponse().read()

    server.sent()
    with ThreadPoolExecutor(_PLAIN_CONNECTIONS) as pool:
        list(pool.map(get, stretches))
    sent = server.sent()
    return round(sent["sent"] / sent["seconds"] / rate, 3)


def _rate(spec: PipelineSpec, seconds: float) -> float:
    """Samples a second, once it runs."""
    with _loader(spec) as loader:
        batches = endless(loader)
        for _ in range(8):
            next(batches)
        began, samples = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            samples += len(next(batches)["provenance"])
        return samples / (time.monotonic() - began)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.remote.link")
    parser.add_argument("--spec", help="a local mix.yaml; default: the demo mixture")
    parser.add_argument("--folder", help="where files and cache lie meanwhile")
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--rate", type=float, default=125e6)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--pairs", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
