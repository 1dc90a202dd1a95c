"""How fast a LeRobot dataset of a million episodes opens once it is indexed; run by hand.

    python tests/lerobot/open_speed.py FOLDER [EPISODES]

Writes the dataset (v3.0, a row and a small picture an episode, 100 Parquet files) below FOLDER
unless it is there, builds its index, and prints the seconds of five openings (metadata, and the
index of every file), in processor time, and the most memory that the process had.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from autoloader import PipelineSpec
from autoloader.index.opening import find_indexes, open_indexes
from autoloader.samples.resolve import resolve

FILES = 100
PICTURE = cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()


def write(root: Path, episodes: int) -> None:
    """The dataset, as ``LeRobotFiles`` lays it out."""
    each = episodes // FILES
    names = ("timestamp", "frame_index", "episode_index", "index", "task_index")
    place = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    number = {"dtype": "int64", "shape": [1]}
    info = {
        "codebase_version": "v3.0", "fps": 10, "chunks_size": 1000, "total_episodes": episodes,
        "splits": {"train": f"0:{episodes}"}, "data_path": place, "video_path": None,
        "features": {
            "camera": {"dtype": "image", "shape": [8, 8, 3], "names": None},
            "action": {"dtype": "float32", "shape": [2]},
            **dict.fromkeys(names, number), "timestamp": {"dtype": "float32", "shape": [1]},
        },
    }  # fmt: skip
    for folder in ("meta/episodes/chunk-000", "data/chunk-000"):
        (root / folder).mkdir(parents=True)
    index = np.arange(episodes)
    (root / "meta/info.json").write_text(json.dumps(info))
    tasks = {"task_index": [0], "__index_level_0__": ["lift the cube"]}
    pq.write_table(pa.table(tasks), root / "meta/tasks.parquet")
    listed = {
        "episode_index": index, "length": np.ones(episodes, np.int64),
        "data/chunk_index": 0 * index, "data/file_index": index // each,
        "dataset_from_index": index, "dataset_to_index": index + 1,
    }  # fmt: skip
    pq.write_table(pa.table(listed), root / "meta/episodes/chunk-000/file-000.parquet")
    for file in range(FILES):
        own = index[file * each : (file + 1) * each]
        rows = dict.fromkeys(names, 0 * own) | {"episode_index": own, "index": own}
        rows["timestamp"] = np.zeros(each, np.float32)
        rows["action"] = list(np.stack([own, own], 1).astype(np.float32))
        rows["camera"] = [{"bytes": PICTURE, "path": "0.png"}] * each
        pq.write_table(pa.table(rows), root / f"data/chunk-000/file-{file:03d}.parquet")


def main() -> None:
    """Write, index, and time."""
    root = Path(sys.argv[1]) / "million"
    if not root.exists():
        write(root, int(sys.argv[2]) if len(sys.argv) > 2 else 10**6)
    dataset = {
        "name": "million", "path": str(root), "images": {"top": "camera"}, "action": "action",
        "language": "task",
    }  # fmt: skip
    spec = PipelineSpec.from_mapping({"datasets": [dataset], "cameras": {"top": {"size": [8, 8]}}})
    open_indexes(resolve(spec).datasets)
    for _ in range(5):
        began = time.process_time()
        mixture = resolve(spec)
        opened = time.process_time()
        (index,) = find_indexes(mixture.datasets)
        assert index is not None, "it was built"
        ended = time.process_time()
        sys.stdout.write(
            f"{index.episodes} episodes: metadata {opened - began:.2f} s, index "
            f"{ended - opened:.2f} s, together {ended - began:.2f} s; "
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB\n"
        )


if __name__ == "__main__":
    main()
