"""The scenario of hosts that are not the same: other code, another library, changed shards.

Each node sees its own things: a changed package through PYTHONPATH, changed shards through mounts
in a mount namespace. Index files are its own too.

Not here: what is compared (``sharing.identity``, ``cluster.comparison``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import simplejpeg

import autoloader
from autoloader import PipelineSpec
from autoloader.catalog.tfrecord import masked_crc32c
from autoloader.demo.build import ensure_demo
from autoloader.samples.resolve import resolve
from bench.helpers.nodes import cpu_group, node
from bench.helpers.play import demo_spec, same_alone, trainer

_JPEG = re.compile(b"\xff\xd8\xff.*?\xff\xd9", re.DOTALL)
_HEADER = struct.Struct("<QI")


def strangers(stack: contextlib.ExitStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """Four nodes that differ, each in its own way; none may help, and the log says why."""
    group = stack.enter_context(cpu_group(float(os.cpu_count() or 1)))
    place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strangers")))
    file = ensure_demo(datasets=4, scale=0.05)
    spec = demo_spec(64, 16, file)
    dataset = resolve(PipelineSpec.from_yaml(file), "train").datasets[0]
    shards = sorted({Path(piece.path) for piece in dataset.slices})
    address = stack.enter_context(node(0, group=group))
    for name, environment, mounted in (
        ("code", {"PYTHONPATH": str(_changed_code(place / "code"))}, {}),
        ("library", {"PYTHONPATH": str(_other_numpy(place / "library"))}, {}),
        ("numbers", {}, _changed(shards, place / "numbers", swapped)),
        ("frames", {}, _changed(shards, place / "frames", inverted)),
    ):
        own = {**environment, "AUTOLOADER_CACHE_DIR": str(place / f"cache-{name}")}
        helping = node(1, group=group, head=address, environment=own, prefix=_mounting(mounted))
        stack.enter_context(helping)
    expected = {
        "code": "not the same: code: ",
        "library": "numpy: ",
        "numbers": f"index of {dataset.name}: ",
        "frames": f"(dataset {dataset.name!r})",
    }
    wanted: dict[str, Any] = {"spec": spec, "seconds": chosen.seconds, "sums": True}
    wanted |= {"helpers": f"ray@{address}", "step_s": 0.02}
    wanted["knobs"] = {"decode_threads": 1, "ring_slots": 8, "helper_slots": len(expected)}
    found: dict[str, str] = {}
    with trainer(wanted, group) as saying:
        for said in saying:
            for name, words in expected.items():
                if words in said.get("warned", ""):
                    found[name] = said["warned"]
                    print(said["warned"], file=sys.stderr)
    same = same_alone(wanted, said, group)
    kept = same and set(found) == set(expected) and not said["helped"]
    return {"refused": found, "helped": said["helped"], "same": same, "kept": kept}


def _changed_code(place: Path) -> Path:
    package = Path(autoloader.__file__).parent
    shutil.copytree(package, place / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    with (place / package.name / "units.py").open("a") as source:
        source.write("# other\n")
    return place


def _other_numpy(place: Path) -> Path:
    """A folder that says that NumPy has another version."""
    own = place / "numpy-0.0.1.dist-info"
    own.mkdir(parents=True)
    (own / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.0.1\n")
    return place


def _changed(shards: list[Path], place: Path, change: Any) -> dict[Path, Path]:
    """Shard → a changed copy of it."""
    place.mkdir()
    copies = {shard: place / shard.name for shard in shards}
    for shard, copy in copies.items():
        with copy.open("wb") as file:
            for payload in change(list(_records(shard.read_bytes()))):
                length = struct.pack("<Q", len(payload))
                file.write(length + struct.pack("<I", masked_crc32c(length)))
                file.write(payload + struct.pack("<I", masked_crc32c(payload)))
    return copies


def _records(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        length, _ = _HEADER.unpack_from(data, position)
        begin = position + _HEADER.size
        yield data[begin : begin + length]
        position = begin + length + 4


def swapped(records: list[bytes]) -> list[bytes]:
    """The same episodes in another order: other numbers at every position."""
    return records[::-1]


def inverted(records: list[bytes]) -> list[bytes]:
    """The same records, but for what frames show: the index of both is the same."""

    def inverse(found: re.Match[bytes]) -> bytes:
        whole = found[0]
        other = simplejpeg.encode_jpeg(255 - simplejpeg.decode_jpeg(whole), quality=40)
        return bytes(other).ljust(len(whole), b"\0") if len(other) <= len(whole) else whole

    return [_JPEG.sub(inverse, record) for record in records]


def _mounting(copies: dict[Path, Path]) -> list[str]:
    """A command that runs another one where each copy lies at its shard's path."""
    if not copies:
        return []
    mounts = "".join(f"mount --bind '{copy}' '{shard}'; " for shard, copy in copies.items())
    return ["unshare", "--mount", "sh", "-c", f'set -e; {mounts}exec "$@"', "sh"]
