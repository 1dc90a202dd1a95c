"""Runs the real lerobot, in an environment of its own; see ``witness.py``, which starts it.

    python peer_script.py read FOLDER            every dataset below it, to NAME.npz beside each
    python peer_script.py write FOLDER           one dataset a codec and keyframe distance
    python peer_script.py pictures FOLDER        one dataset with pictures inside Parquet files
    python peer_script.py convert PARENT NAME
    python peer_script.py rate ROOT WORKERS SECONDS SIZE CAMERA...

Not here: anything of this library.
"""

from __future__ import annotations

import functools
import inspect
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from lerobot.datasets import lerobot_dataset

OFFSETS = (-1, 0, 2)
FPS = 10
LENGTHS = (23, 8, 31, 12)
LOOKED_AT = 60


def opened(root: str, cameras: list[str], offsets: tuple[int, ...] = OFFSETS) -> Any:
    info = json.loads((Path(root) / "meta/info.json").read_text())
    deltas = {camera: [k / info["fps"] for k in offsets] for camera in cameras}
    deltas["action"] = [k / info["fps"] for k in range(3)]
    return lerobot_dataset.LeRobotDataset(
        "local/witness", root=root, delta_timestamps=deltas, video_backend="pyav"
    )


def read(folder: str) -> None:
    """Of every dataset: samples at both ends of every episode, and between."""
    for info in sorted(Path(folder).glob("*/meta/info.json")):
        features = json.loads(info.read_text())["features"]
        cameras = [name for name, one in features.items() if one["dtype"] in ("video", "image")]
        read_one(info.parents[1], cameras)


def read_one(root: Path, cameras: list[str]) -> None:
    dataset = opened(str(root), cameras)
    episodes = np.asarray(dataset.hf_dataset["episode_index"]).reshape(-1)
    edges = np.flatnonzero(np.diff(episodes))
    some = np.linspace(0, len(dataset) - 1, LOOKED_AT).astype(int)
    chosen = sorted({*some.tolist(), *edges.tolist(), *(edges + 1).tolist(), len(dataset) - 1, 0})
    found: dict[str, list[Any]] = {}
    lost = 0
    for index in chosen:
        try:
            item = dataset[index]
        except Exception as error:
            if "tolerance" not in str(error):
                raise
            lost += 1  # it seeks to a keyframe that shows later frames first, and misses this one
            continue
        row = {
            "place": [int(item["episode_index"]), int(item["frame_index"])],
            "action": item["action"].numpy(),
            "action_is_pad": item["action_is_pad"].numpy(),
            "state": item["observation.state"].numpy(),
            "task": item["task"],
        }
        for camera in cameras:
            pixels = item[camera].numpy().transpose(0, 2, 3, 1)
            row[camera] = np.rint(pixels * 255).astype(np.uint8)
            row[f"{camera}_is_pad"] = item[f"{camera}_is_pad"].numpy()
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    found["lost"] = [lost]
    np.savez(
        root.with_suffix(".npz"), **{name: np.asarray(values) for name, values in found.items()}
    )


def write(folder: str) -> None:
    """Datasets of two cameras, several episodes in a file, with smooth pictures and noise."""
    encode = lerobot_dataset.encode_video_frames
    for codec in ("h264", "hevc", "libsvtav1"):
        for gop in (1, 2, 20):
            lerobot_dataset.encode_video_frames = functools.partial(encode, g=gop)
            write_one(Path(folder) / f"{codec}_{gop}", codec)


def pictures(folder: str) -> None:
    """A dataset of the same pictures, as PNG inside its Parquet files; any release writes it."""
    write_one(Path(folder) / "pictures", "")


def write_one(root: Path, codec: str) -> None:
    cameras = ("observation.images.top", "observation.images.side")
    kind = "video" if codec else "image"
    image = {"dtype": kind, "names": ["height", "width", "channels"]}
    dataset = lerobot_dataset.LeRobotDataset.create(
        "local/witness",
        fps=FPS,
        root=root,
        features={
            "action": {"dtype": "float32", "shape": (3,), "names": None},
            "observation.state": {"dtype": "float32", "shape": (2,), "names": None},
            cameras[0]: {**image, "shape": (96, 128, 3)},
            cameras[1]: {**image, "shape": (64, 96, 3)},
        },
        use_videos=bool(codec),
        **({"vcodec": codec} if codec else {}),
    )
    # Older releases take the task beside the frame.
    beside = "task" in inspect.signature(dataset.add_frame).parameters
    rng = np.random.default_rng(0)
    for episode, length in enumerate(LENGTHS):
        for step in range(length):
            frame: dict[str, Any] = {
                "action": rng.normal(size=3).astype(np.float32),
                "observation.state": rng.normal(size=2).astype(np.float32),
                "task": ("stack the bowls", "öffne die Lade")[episode % 2],
            }
            for number, (height, width) in enumerate(((96, 128), (64, 96))):
                y, x = np.mgrid[:height, :width]
                wave = np.sin(x / 9 + step / 3 + number) + np.cos(y / 7 - episode)
                picture = 128 + 50 * np.stack([wave, -wave, wave / 2], axis=-1)
                picture += rng.normal(scale=8, size=picture.shape)
                frame[cameras[number]] = np.clip(picture, 0, 255).astype(np.uint8)
            task = {"task": frame.pop("task")}
            if beside:
                dataset.add_frame(frame, **task)
            else:
                dataset.add_frame({**frame, **task})
        dataset.save_episode()
    if hasattr(dataset, "finalize"):
        dataset.finalize()


def convert(parent: str, name: str) -> None:
    """v2.1 to v3.0, by lerobot's own converter."""
    from lerobot.datasets.v30 import convert_dataset_v21_to_v30 as converter

    converter.convert_dataset(name, root=parent, push_to_hub=False)


def rate(root: str, workers: str, seconds: str, size: str, *cameras: str) -> None:
    """Samples/s of a torch DataLoader over ``LeRobotDataset``, shuffled; frames resized."""
    import torch
    from torch.nn import functional

    began = time.perf_counter()
    dataset = opened(root, list(cameras), offsets=(0, 1))
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=8, shuffle=True, num_workers=int(workers), drop_last=True
    )
    side, done, first_s, start = int(size), 0, 0.0, 0.0
    while True:
        for batch in loader:
            for camera in cameras:
                functional.interpolate(batch[camera].flatten(0, 1), size=(side, side))
            now = time.perf_counter()
            if not first_s:
                first_s, start = now - began, now
            else:
                done += 8
            if now - start > float(seconds):
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                peak += int(workers) * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
                told = {"samples_per_s": done / (now - start), "first_batch_s": first_s}
                sys.stdout.write(json.dumps({**told, "peak_bytes": peak * 1024}) + "\n")
                sys.stdout.flush()
                return


if __name__ == "__main__":
    {"read": read, "write": write, "pictures": pictures, "convert": convert, "rate": rate}[
        sys.argv[1]
    ](*sys.argv[2:])
