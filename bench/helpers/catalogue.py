"""The scenario of a large catalogue: an index of many shards, built on one node and on two.

The shards are links to a few files, under names of their own; each holds the records of a shard of
a demo dataset several times, so that the work outlasts the start of Ray's workers.

Not here: how parts are spread (``cluster.spread``), that a job goes on (``tests/cluster``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autoloader import PipelineSpec
from autoloader.demo.build import ensure_demo
from autoloader.samples.resolve import resolve
from bench.helpers.nodes import cpu_group, node
from bench.paired import estimate, in_turn, paired_ratios

_TIMES = 8


def index(stack: contextlib.ExitStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """``autoloader index --ray`` on nodes of one core each: files as built here, and how fast."""
    place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catalogue")))
    spec = _catalogue(place, chosen.shards)
    seconds, expected = _indexed(spec, place / "here", "")
    print(f"here: {seconds:.1f} s", file=sys.stderr)
    addresses: dict[str, str] = {}
    for count in (1, 2):
        own = stack.enter_context(cpu_group(float(os.cpu_count() or 1)))
        head = addresses[str(count)] = stack.enter_context(node(0, group=own, number=count))
        for _ in range(count):
            group = stack.enter_context(cpu_group(1.0))
            stack.enter_context(node(1, group=group, head=head))
    took_s: dict[str, list[float]] = {nodes: [] for nodes in addresses}
    same = True
    for turn, order in enumerate(in_turn(list(addresses), chosen.pairs)):
        for nodes in order:
            seconds, built = _indexed(spec, place / f"{nodes}-{turn}", addresses[nodes])
            took_s[nodes].append(seconds)
            same &= built == expected
            print(f"{nodes} nodes: {seconds:.1f} s", file=sys.stderr)
    faster = estimate(paired_ratios(took_s["1"], took_s["2"]))
    return {
        "shards": len(expected),
        "seconds_by_nodes": took_s,
        "same": same,
        "ratio": faster.as_dict(),
        "kept": same and len(expected) == chosen.shards and faster.median > 1,
    }


def _catalogue(place: Path, shards: int) -> Path:
    """A spec of one dataset with so many shards."""
    demo = ensure_demo()
    plain = PipelineSpec.from_yaml(demo).model_dump(mode="json")
    plain["datasets"] = plain["datasets"][:1]
    source = Path(resolve(PipelineSpec.from_yaml(demo), "train").datasets[0].slices[0].path).parent
    version = place / source.parent.name / source.name
    version.mkdir(parents=True)
    (version / "features.json").symlink_to(source / "features.json")
    said = json.loads((source / "dataset_info.json").read_text())
    said["splits"] = [one for one in said["splits"] if one["name"] == "train"]
    (train,) = said["splits"]
    links = [k % len(train["shardLengths"]) for k in range(shards)]
    train["shardLengths"] = [str(_TIMES * int(train["shardLengths"][k])) for k in links]
    (version / "dataset_info.json").write_text(json.dumps(said))
    found = sorted(source.glob("*-train.tfrecord-*"))
    files = [place / f"records-{k}" for k in range(len(found))]
    for shard, file in zip(found, files, strict=True):
        file.write_bytes(_TIMES * shard.read_bytes())
    for number, k in enumerate(links):
        name = found[k].name.partition("-train")[0]
        shard = version / f"{name}-train.tfrecord-{number:05}-of-{shards:05}"
        shard.symlink_to(files[k])
    plain["datasets"][0]["path"] = str(version)
    spec = place / "mix.json"
    spec.write_text(json.dumps(plain))
    return spec


def _indexed(spec: Path, cache: Path, address: str) -> tuple[float, dict[str, bytes]]:
    """Seconds that an index takes, and its files; with an address by that cluster."""
    command = [sys.executable, "-m", "autoloader", "index", "--spec", str(spec), "--json"]
    environment = {**os.environ, "AUTOLOADER_CACHE_DIR": str(cache)}
    if address:
        command.append("--ray")
        environment["RAY_ADDRESS"] = address
    begun = time.monotonic()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    took_s = time.monotonic() - begun
    files = {one.name: one.read_bytes() for one in sorted((cache / "index").glob("*.index"))}
    return took_s, files
