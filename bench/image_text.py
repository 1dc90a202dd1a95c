"""A million image–text records: seconds and bytes of the index, memory of each process, the start.

    python -m bench.image_text [RECORDS]
    python -m bench.image_text --exact [BATCHES]    counts alone: shares, kinds, a resume, 2 ranks

Records name one of a thousand pictures, as sets with many questions to a picture do. Memory is
told beside that of a loader over a hundred records: pages of a process's own, and all (PSS).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np

PICTURES = 1000
SAMPLES = 4096


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


def memory(pid: int) -> dict[str, float]:
    """MiB of a process: all of it shared out (PSS), and pages of its own that no file has."""
    found = dict.fromkeys(("Pss", "Pss_Anon"), 0.0)
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(":")
        if name in found:
            found[name] = int(rest.split()[0]) / 1024
    return found


def children(pid: int) -> list[int]:
    """Processes below a process."""
    told = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    below = [int(one) for one in told]
    return below + [other for one in below for other in children(one)]


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
        every = {"trainer": os.getpid(), **{f"child {k}": one for k, one in
                                            enumerate(children(os.getpid()))}}  # fmt: skip
        return {"start_s": start_s, "first_batch_s": first_s,
                "memory": {name: memory(pid) for name, pid in every.items()}}  # fmt: skip


def exact(batches: int) -> None:
    """Mix records with robots, by samples and by batches; count shares, and resume halfway."""
    from autoloader import AutoLoader, PipelineSpec
    from autoloader.cli.demo import ensure_demo

    with tempfile.TemporaryDirectory() as place:
        os.environ["AUTOLOADER_CACHE_DIR"] = f"{place}/cache"
        demo = PipelineSpec.from_yaml(ensure_demo(Path(place, "demo"), datasets=3, scale=0.2))
        plain = demo.model_dump(mode="json", by_alias=True)
        names = [one["name"] for one in plain["datasets"]]
        talk = {"name": "talk", "path": str(write(Path(place, "talk"), 5000)),
                "kind": "image_text", "images": {next(iter(plain["cameras"])): "image_0"},
                "features": {}}  # fmt: skip
        share = {name: k + 1 for k, name in enumerate([*names, "talk"])}
        robots = [one | {"weight": share[one["name"]]} for one in plain["datasets"]]
        plain["datasets"] = [*robots, talk | {"weight": share["talk"]}]
        plain |= {"weights": "explicit", "batch": {"size": 16}, "metadata": "full"}
        for unit in ("sample", "batch"):
            plain["mixing"] = {"epoch": "forever", "unit": unit}
            spec, seen, mixed = PipelineSpec.from_mapping(plain), Counter[int](), 0
            kinds: list[list[bool]] = []
            for rank in range(2):
                own: dict[str, Any] = {"rank": rank, "world_size": 2, "output": "numpy"}

                def rows(loader: Any, count: int) -> list[Any]:
                    taken = islice(loader, count)
                    return [
                        (one["provenance"].tolist(), one["has_action"].tolist()) for one in taken
                    ]

                with AutoLoader(spec, **own) as loader:
                    whole = rows(loader, batches)
                with AutoLoader(spec, **own) as loader:
                    cut, state = rows(loader, batches // 2), loader.state_dict()
                with AutoLoader(spec, **own) as loader:
                    loader.load_state_dict(state)
                    cut += rows(loader, batches - batches // 2)
                print(
                    f"unit: {unit}, rank {rank}: resumed {'equal' if cut == whole else 'DIFFERS'}"
                )
                seen.update(at[0] for places, _ in whole for at in places)
                mixed += sum(len(set(flags)) > 1 for _, flags in whole)
                kinds.append([flags[0] for _, flags in whole])
            total = 2 * 16 * batches
            off = max(abs(seen[k] - total * w / sum(share.values())) for k, w in
                      enumerate(share.values()))  # fmt: skip
            alike = sum(a == b for a, b in zip(*kinds, strict=True))
            print(f"unit: {unit}: {batches} batches a rank, {mixed} of them of two kinds in all")
            print(f"  shares off by {off:.1f} of {total} samples; {alike} steps alike on the ranks")


def asked(path: Path) -> dict[str, Any]:
    """``run`` in a process of its own."""
    command = [sys.executable, "-m", "bench.image_text", "--run", str(path)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(answer.splitlines()[-1])
    return found


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
    elif sys.argv[1:2] == ["--exact"]:
        exact(int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
