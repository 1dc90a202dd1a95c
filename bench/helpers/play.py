"""Starts trainers that only take batches, in cgroups and networks, and reads what they say.

Not here: the trainer (``bench.helpers.trainer``), what is measured (the scenarios).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from autoloader import PipelineSpec
from autoloader.demo.build import ensure_demo
from bench.helpers.nodes import inside


def demo_spec(size: int, batch: int, file: Path | None = None) -> dict[str, Any]:
    """The demo mixture, or that of a file, with frames of a size."""
    plain = PipelineSpec.from_yaml(file or ensure_demo()).model_dump(mode="json")
    for camera in plain["cameras"].values():
        camera["size"] = [size, size]
    plain["batch"]["size"] = batch
    return plain


@contextlib.contextmanager
def trainer(
    wanted: dict[str, Any], group: Path, network: str = ""
) -> Iterator[Iterator[dict[str, Any]]]:
    """What a trainer in a cgroup says, as it says it; it is gone afterwards, with its children."""
    command = [sys.executable, "-m", "bench.helpers.trainer", json.dumps(wanted)]
    process = subprocess.Popen(
        inside(group, network, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield _said(process.stdout)
    finally:
        process.kill()
        process.wait()


def _said(stream: IO[str] | None) -> Iterator[dict[str, Any]]:
    assert stream is not None
    for line in stream:
        if line.startswith("{"):
            yield json.loads(line)


def played(wanted: dict[str, Any], group: Path, network: str = "") -> dict[str, Any]:
    """What a trainer said in the end."""
    with trainer(wanted, group, network) as saying:
        *_, last = saying
    if "end" not in last:
        raise SystemExit(f"the trainer ended early: {last}")
    return last


def same_alone(wanted: dict[str, Any], said: dict[str, Any], group: Path) -> bool:
    """Whether the same batches without helpers have the checksums of those that were said."""
    count = len(said["sums"])
    alone = {**wanted, "helpers": None, "batches": count, "seconds": 1e6}
    alone |= {"step_s": 0, "present": 0, "knobs": {"decode_threads": 2}}
    print(f"the same {count} batches without helpers", file=sys.stderr)
    return bool(played(alone, group)["sums"] == said["sums"])


def rate(said: dict[str, Any], wanted: dict[str, Any]) -> float:
    """Samples a second."""
    return float(said["batches"] * wanted["spec"]["batch"]["size"] / said["seconds"])
