"""Holds our samples of LeRobot data against lerobot's own: what it reads, and what it writes.

    make lerobot [ARGS="--folder FOLDER --g1 shared/data/g1_lerobot_v21"]

Two releases of lerobot are asked, each in an environment of its own (gigabytes, once): 0.3.3 reads
v2.1, 0.4.4 writes, converts to and reads v3.0. Numbers, masks and texts must be equal; frames may
differ by one grey level in the mean. At the end the rates of both loaders are measured in turn.

Not here: what runs without lerobot (``tests/lerobot/test_lerobot_samples.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from autoloader import AutoLoader, PipelineSpec

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".venv-lerobot"
READS_V21, WRITES_V30 = "0.3.3", "0.4.4"
PACKAGES = (
    "torch==2.7.1", "torchvision==0.22.1", "datasets>=4,<5", "huggingface-hub<0.36", "av==15.1.0",
    "accelerate", "deepdiff", "draccus==0.10.0", "einops", "imageio", "jsonlines", "numpy<2.3",
    "opencv-python-headless", "packaging", "pandas", "safetensors", "termcolor", "torchcodec==0.5",
    "tqdm",
)  # fmt: skip
"""What the datasets of lerobot import; the rest of it needs far more."""
OFFSETS = (-1, 0, 2)
MOST_GREY = 1.0


def environment(place: Path) -> None:
    """Have both releases; torch and the like are shared by them."""
    python = place / "bin/python"
    if (place / "ready").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    install = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, *PACKAGES], check=True)
    for version, more in ((READS_V21, ["datasets==3.6.0"]), (WRITES_V30, [])):
        folder = ["--no-deps", "--target", place / version, f"lerobot=={version}", *more]
        subprocess.run([*install, *folder], check=True)
    (place / "ready").touch()


def peer(place: Path, version: str, *words: object) -> str:
    """Run the peer's script; what it prints."""
    more = {"PYTHONPATH": str(place / version), "HF_HUB_OFFLINE": "1"}
    command = [place / "bin/python", HERE / "peer_script.py", *map(str, words)]
    done = subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"lerobot {version}: {done.stderr[-3000:]}")
    return done.stdout


def g1_subset(source: Path, root: Path) -> None:
    """The episodes of a v2.1 dataset whose videos are there, numbered anew from 0."""
    info = json.loads((source / "meta/info.json").read_text())
    (root / "meta").mkdir(parents=True)
    cameras = [name for name, one in info["features"].items() if one["dtype"] == "video"]
    kept, first = [], 0
    rows = [json.loads(line) for line in (source / "meta/episodes.jsonl").open() if line.strip()]
    stats = [json.loads(line) for line in (source / "meta/episodes_stats.jsonl").open()]
    for row in rows:
        old, new = row["episode_index"], len(kept)
        videos = [f"videos/chunk-000/{name}/episode_{{:06d}}.mp4" for name in cameras]
        if not all((source / video.format(old)).exists() for video in videos):
            continue
        for video in videos:
            (root / video.format(new)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / video.format(old), root / video.format(new))
        data = "data/chunk-000/episode_{:06d}.parquet"
        table = pq.read_table(source / data.format(old))
        for name, values in (
            ("episode_index", np.full(table.num_rows, new)),
            ("index", first + np.arange(table.num_rows)),
        ):
            at = table.column_names.index(name)
            table = table.set_column(at, table.schema.field(name), pa.array(values))
        (root / data.format(new)).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, root / data.format(new))
        first += table.num_rows
        told = next(one for one in stats if one["episode_index"] == old)
        kept.append(({**row, "episode_index": new}, {**told, "episode_index": new}))
    shutil.copy(source / "meta/tasks.jsonl", root / "meta/tasks.jsonl")
    for number, name in enumerate(("episodes.jsonl", "episodes_stats.jsonl")):
        lines = "".join(json.dumps(pair[number]) + "\n" for pair in kept)
        (root / "meta" / name).write_text(lines)
    count = len(kept)
    info |= {"total_episodes": count, "total_frames": first, "splits": {"train": f"0:{count}"}}
    info |= {"total_videos": count * len(cameras)}
    (root / "meta/info.json").write_text(json.dumps(info))


def spec_of(root: Path, offsets: tuple[int, ...] = OFFSETS, size: int = 0) -> PipelineSpec:
    info = json.loads((root / "meta/info.json").read_text())
    features, fps = info["features"], info["fps"]
    seconds = {"frames": [k / fps for k in offsets], "action": [k / fps for k in range(3)]}
    shapes = {
        name: one["shape"][:2]
        for name, one in features.items()
        if one["dtype"] in ("video", "image")
    }
    names = {name: name.rpartition(".")[2] for name in shapes}
    sizes = {names[n]: {"size": [size, size] if size else shape} for n, shape in shapes.items()}
    return PipelineSpec.model_validate(
        {
            "schema_version": 1,
            "datasets": [
                {
                    "name": "one",
                    "path": str(root),
                    "images": {short: name for name, short in names.items()},
                    "action": "action",
                    "state": "observation.state",
                    "language": "task",
                    "split": {"train": "train"},
                }
            ],
            "sample": {"delta_timestamps": seconds},
            "cameras": sizes,
            "batch": {"size": 8, "drop_last": False},
            "mixing": {"epoch": "pass"},
        }
    )


def ours(root: Path, wanted: set[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], Any]]:
    """(episode, t) → sample, of one epoch, those that are wanted."""
    with AutoLoader(spec_of(root), ram_floor="200MB", output="numpy", controller=False) as loader:
        datasets = loader.plan.mixture.datasets[0]
        before = np.concatenate([[0], np.cumsum([one.stop - one.start for one in datasets.slices])])
        for batch in loader:
            for row, (_, _, shard, record, t) in enumerate(batch["provenance"].tolist()):
                place = (int(before[shard]) + record, t)
                if place in wanted:
                    yield (
                        place,
                        {
                            "action": batch["action"][row].copy(),
                            "pad": ~batch["action_mask"][row, :, 0],
                            "state": batch["state"][row, 0].copy(),
                            "task": batch["language"][row],
                            "frames": {c: f[row].copy() for c, f in batch["images"].items()},
                            "outside": {c: ~m[row] for c, m in batch["frame_mask"].items()},
                        },
                    )


def compare(root: Path) -> dict[str, Any]:
    """Our samples of a dataset against those in the peer's file.

    Raises:
        AssertionError: one differs.
    """
    told: Mapping[str, Any] = np.load(root.with_suffix(".npz"))
    places = {tuple(place): row for row, place in enumerate(told["place"].tolist())}
    worst, seen = 0.0, 0
    for place, sample in ours(root, set(places)):
        row, seen = places[place], seen + 1
        np.testing.assert_array_equal(sample["action"], told["action"][row])
        np.testing.assert_array_equal(sample["pad"], told["action_is_pad"][row])
        np.testing.assert_array_equal(sample["state"], told["state"][row])
        assert sample["task"] == str(told["task"][row])
        for name in [name for name in told if f"{name}_is_pad" in told and name != "action"]:
            short = name.rpartition(".")[2]
            np.testing.assert_array_equal(sample["outside"][short], told[f"{name}_is_pad"][row])
            off = np.abs(sample["frames"][short].astype(int) - told[name][row]).mean(axis=(1, 2, 3))
            worst = max(worst, float(off.max()))
            assert off.max() <= MOST_GREY, (root.name, place, name, off)
    assert seen == len(places)
    lost = int(told["lost"][0])
    return {"samples": seen, "lerobot could not": lost, "worst mean grey levels": round(worst, 4)}


def rates(place: Path, root: Path, rounds: int, seconds: float, size: int) -> None:
    """Both loaders in turn over the same files, frames resized to ``size``."""
    spec = spec_of(root, offsets=(0, 1), size=size)
    cameras = list(json.loads((root / "meta/info.json").read_text())["features"])
    cameras = [name for name in cameras if name.startswith("observation.images")]
    found: dict[str, list[tuple[float, float, float]]] = {"ours": [], "lerobot": []}
    for round_ in range(rounds + 1):
        began = time.perf_counter()
        with AutoLoader(spec, ram_floor="1GB", output="torch", knobs={"cache_bytes": 0}) as loader:
            done, first_s, start = 0, 0.0, 0.0
            while not start or time.perf_counter() - start < seconds:
                for _ in loader:
                    now = time.perf_counter()
                    if not first_s:
                        first_s, start = now - began, now
                    else:
                        done += 8
                    if now - start > seconds:
                        break
            rate = done / (time.perf_counter() - start)
            mine = (rate, first_s, float(loader.statistics().loader_bytes))
        words = ("rate", root, 2, seconds, size, *cameras)
        theirs = json.loads(peer(place, WRITES_V30, *words).splitlines()[-1])
        if round_:  # the first one warms up
            found["ours"].append(mine)
            found["lerobot"].append(
                (theirs["samples_per_s"], theirs["first_batch_s"], theirs["peak_bytes"])
            )
    for name, rows in found.items():
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        sys.stdout.write(
            f"{name}: {medians[0]:.1f} samples/s, first batch {medians[1]:.2f} s, "
            f"{medians[2] / 2**20:.0f} MiB; all rates {[round(row[0], 1) for row in rows]}\n"
        )


def main() -> int:
    """Compare, then measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("lerobot-witness"))
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT)
    parser.add_argument("--g1", type=Path, help="a v2.1 dataset with videos")
    parser.add_argument("--pictures", action="store_true", help="write no videos")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    environment(given.environment)
    shutil.rmtree(given.folder, ignore_errors=True)
    new, old = given.folder / "v30", given.folder / "v21"
    if not given.pictures:
        peer(given.environment, WRITES_V30, "write", new)
    peer(given.environment, WRITES_V30, "pictures", new)
    peer(given.environment, READS_V21, "pictures", old)
    if given.g1:
        g1_subset(given.g1, old / "g1")
    peer(given.environment, READS_V21, "read", old)
    if given.g1:
        shutil.copytree(old / "g1", new / "g1")
        peer(given.environment, WRITES_V30, "convert", new, "g1")
        shutil.rmtree(new / "g1_old")
    peer(given.environment, WRITES_V30, "read", new)
    for info in sorted(given.folder.glob("*/*/meta/info.json")):
        root = info.parents[1]
        sys.stdout.write(f"{root.parent.name}/{root.name}: {compare(root)}\n")
        sys.stdout.flush()
    if given.rounds:
        rates(given.environment, new / ("g1" if given.g1 else "libsvtav1_2"), given.rounds, 15, 224)
    return 0


if __name__ == "__main__":
    sys.exit(main())
