"""Runs the real lerobot-train, and writes down what each step trained on; see ``training.py``.

    python training_script.py write FOLDER
    python training_script.py ours|given|theirs RECORD [KILLED_AT] -- FLAGS OF lerobot-train

``ours`` takes batches from this library, ``given`` from lerobot's dataset by the indices of a
record in ``GIVEN``, ``theirs`` from lerobot's own loader.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lerobot.scripts.lerobot_train as script
import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from torch.utils.data import default_collate

RANK = os.environ.get("RANK", "0")


LENGTHS = (33, 27, 41, 23)
"""Steps of the episodes; also without each one's last seven there are more than 20 batches."""
FPS = 10


def write(root: str) -> None:
    """A dataset of four episodes, whose frames and numbers all differ."""
    row = {"dtype": "float32", "shape": (6,), "names": None}
    axes = ["height", "width", "channels"]
    features = {
        "observation.images.top": {"dtype": "video", "shape": (64, 64, 3), "names": axes},
        "observation.state": row,
        "action": row,
    }
    dataset = LeRobotDataset.create("local/data", FPS, features, root=root, use_videos=True)
    draw = np.random.default_rng(0)
    for episode, length in enumerate(LENGTHS):
        table = draw.integers(0, 255, (64, 64, 3), dtype=np.uint8)
        for step in range(length):
            frame = np.roll(table, 2 * step, axis=1)
            frame[:8, :8] = (50 * episode, 6 * step, 200)
            numbers = draw.normal(size=(2, 6)).astype(np.float32)
            told = dict(zip(features, (frame, *numbers), strict=True))
            dataset.add_frame({**told, "task": f"task {episode % 2}"})
        dataset.save_episode()
    dataset.finalize()


def recorded(path: Path, killed_at: int) -> None:
    """Write the indices and the loss of each step; die behind one of them."""
    update, taken = script.update_policy, 0

    def updating(tracker: Any, policy: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal taken
        if not taken:
            torch.manual_seed(0)
        taken += 1
        done = update(tracker, policy, batch, *args, **kwargs)
        step = {"index": batch["index"].flatten().tolist(), "loss": tracker.loss.val}
        with path.with_suffix(f".{RANK}").open("a") as file:
            file.write(json.dumps(step) + "\n")
        if taken == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    script.update_policy = updating


def given(indices: list[list[int]]) -> None:
    """Have the script train on these samples, read by lerobot itself."""
    name = "make_train_eval_datasets"
    name = name if hasattr(script, name) else "make_dataset"
    make, made = getattr(script, name), []

    def making(cfg: Any) -> Any:
        found = make(cfg)
        made.append(found[0] if isinstance(found, tuple) else found)
        return found

    def batches(_: Any) -> Iterator[Any]:
        for row in indices:
            yield default_collate([made[-1][index] for index in row])

    setattr(script, name, making)
    script.cycle = batches


def main() -> None:
    if sys.argv[1] == "write":
        write(sys.argv[2])
        return
    words, flags = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
    sys.argv = ["lerobot-train", *flags]
    recorded(Path(words[1]), int(words[2]) if len(words) > 2 else 0)
    if words[0] == "ours":
        from autoloader import lerobot_train

        lerobot_train.main()
        return
    if words[0] == "given":
        record = Path(os.environ["GIVEN"]).read_text().splitlines()
        given([json.loads(line)["index"] for line in record])
    script.main()


if __name__ == "__main__":
    main()
