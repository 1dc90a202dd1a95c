"""A million image–text records: seconds and bytes of the index, memory of each process, the start.

    python -m bench.image_text [RECORDS]

Records name one of a thousand pictures, as sets with many questions to a picture do. Memory is
told beside that of a loader over a hundred records: pages of a process's own, and all (PSS).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from bench.child import answer
from bench.processes import rollup, tree

PICTURES, SAMPLES = 1000, 4096


def write(folder: Path, records: int) -> Path:
    """A JSONL file of records, and their pictures."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(PICTURES):
        small = rng.integers(0, 255, (24, 32, 3), np.uint8)
        cv2.imwrite(str(folder / f"{number:04}.jpg"), cv2.resize(small, (320, 240)))
    answer = "a kitchen with a table, two chairs and a window. " * 8
    with (folder / "talk.jsonl").open("w", encoding="utf-8") as file:
        for number in range(records):
            turns = [{"from": "human", "value": f"<image>\nWhat is in picture {number}?"},
                     {"from": "gpt", "value": answer}]  # fmt: skip
            one = {"id": number, "image": f"{number * 7 % PICTURES:04}.jpg", "conversations": turns}
            file.write(json.dumps(one) + "\n")
    return folder / "talk.jsonl"


def run(path: str) -> dict[str, Any]:
    """Start a loader over records, take samples, and tell its times and memory."""
    from autoloader import AutoLoader, PipelineSpec

    spec = PipelineSpec.from_mapping(
        {
            "datasets": [{"name": "talk", "path": path, "kind": "image_text",
                          "vision": {"slots": 1, "size": [64, 64]}, "language": "prompt"}],
            "cameras": {}, "batch": {"size": 64}, "mixing": {"epoch": "forever"},
        }
    )  # fmt: skip
    began = time.perf_counter()
    with AutoLoader(spec, output="numpy", ram_floor="64MiB") as loader:
        start_s = time.perf_counter() - began
        taken = 0
        for batch in loader:
            taken += len(batch["language"])
            if taken == 64:
                first_s = time.perf_counter() - began
            if taken >= SAMPLES:
                break
        trainer, *children = map(rollup, tree(os.getpid()))
        held = {"trainer": trainer, **{f"child {k}": one for k, one in enumerate(children)}}
        return {"start_s": start_s, "first_batch_s": first_s,
                "memory": {name: {key: one[key] / 2**20 for key in ("Pss", "Pss_Anon")}
                           for name, one in held.items()}}  # fmt: skip


def asked(path: Path) -> Any:
    """``run`` in a process of its own."""
    return answer("bench.image_text", "--run", str(path))


def main(records: int) -> None:
    """Write, index and read; print each figure."""
    with tempfile.TemporaryDirectory() as place:
        os.environ["AUTOLOADER_CACHE_DIR"] = f"{place}/cache"
        few, many = write(Path(place, "few"), 100), write(Path(place, "many"), records)
        asked(few)
        began = time.perf_counter()
        cold = asked(many)
        took = time.perf_counter() - began
        print(f"{records:,} records: first start {took:.1f} s, of it {cold['start_s']:.1f} s index")
        size = sum(one.stat().st_size for one in Path(place, "cache").rglob("*.index"))
        print(f"index: {size / records:.1f} bytes a record with one picture")
        base, found = asked(few), asked(many)
        for name in ("start_s", "first_batch_s"):
            print(f"{name}: {found[name]:.2f} s; of 100 records {base[name]:.2f} s")
        for name, own in found["memory"].items():
            other = base["memory"].get(name, dict.fromkeys(own, 0.0))
            more = ", ".join(f"{key} {own[key] - other[key]:+.1f} MiB" for key in own)
            print(f"{name}: {more} over a loader of 100 records, {SAMPLES} samples taken")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(run(sys.argv[2])))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
