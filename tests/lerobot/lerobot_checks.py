"""Reads LeRobot datasets that ``lerobot_files`` wrote, and says whether every value is right."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lerobot_files import LeRobotFiles
from streams import opened

from autoloader import AutoLoader, PipelineSpec

TOP, SIDE = "observation.images.top", "observation.images.side"


def spec_of(root: Path, **more: Any) -> PipelineSpec:
    dataset = {
        "name": "arm",
        "path": str(root),
        "images": {"top": TOP},
        "action": "action",
        "state": "observation.state",
        "language": "task",
        "split": {"train": "train"},
    }
    plain: dict[str, Any] = {
        "schema_version": 1,
        "datasets": [{**dataset, **more.pop("dataset", {})}],
        "sample": {"frame_offsets": [-1, 0, 2], "action_horizon": 3},
        "cameras": {"top": {"size": [64, 96]}},
        "batch": {"size": 5, "drop_last": False},
        "mixing": {"epoch": "pass"},
    }
    return PipelineSpec.model_validate({**plain, **more})


def samples_of(
    spec: PipelineSpec, *, epochs: int = 1, **knobs: Any
) -> dict[tuple[int, int], Mapping[str, Any]]:
    """(episode, t) → its sample, of the last of some epochs; each comes once an epoch."""
    found: dict[tuple[int, int], Mapping[str, Any]]
    with opened(spec, controller=False, knobs=knobs) as loader:
        for epoch in range(epochs):
            found = {}
            _read_epoch(loader, found)
            if epoch and "cache_bytes" in knobs:
                assert loader.statistics().cache.hits > 0
    return found


def _read_epoch(loader: AutoLoader, found: dict[tuple[int, int], Mapping[str, Any]]) -> None:
    for batch in loader:
        for k, text in enumerate(batch["language"]):
            place = (
                round(-float(batch["state"][k, 0, 1])),
                round(float(batch["state"][k, 0, 0]) / 2),
            )
            assert place not in found
            found[place] = {
                "action": batch["action"][k].copy(),
                "mask": batch["action_mask"][k].copy(),
                "inside": {c: m[k].copy() for c, m in batch["frame_mask"].items()},
                "frames": {c: f[k].copy() for c, f in batch["images"].items()},
                "text": text,
            }


def check(
    files: LeRobotFiles,
    root: Path,
    found: Mapping[tuple[int, int], Any],
    cameras: Mapping[str, str],
    *,
    without: Collection[int] = (),
) -> None:
    """Every sample of every episode, but those ``without``, is there and right."""
    whole = [episode for episode in range(len(files.lengths)) if episode not in without]
    assert set(found) == {(e, t) for e in whole for t in range(files.lengths[e])}
    for episode in whole:
        last = files.lengths[episode] - 1
        wanted = {name: files.frames(root, camera, episode) for name, camera in cameras.items()}
        for t in range(last + 1):
            sample = found[episode, t]
            steps = np.minimum(np.arange(t, t + 3), last)
            expected = np.stack([np.full(3, episode), steps, steps / 7], axis=1)
            np.testing.assert_array_equal(sample["action"], expected.astype(np.float32))
            np.testing.assert_array_equal(sample["mask"][:, 0], np.arange(t, t + 3) <= last)
            assert sample["text"] == files.tasks[episode % 2]
            at = [t - 1, t, t + 2]
            for name, frames in wanted.items():
                inside = [min(max(0, k), last) for k in at]
                np.testing.assert_array_equal(sample["frames"][name], [frames[k] for k in inside])
                assert sample["inside"][name].tolist() == [0 <= k <= last for k in at]


def info_of(root: Path, **changes: object) -> Path:
    file = root / "meta/info.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return root
