"""lerobot-train with this loader: the same command line, policies, checkpoints and logs.

::

    python -m autoloader.lerobot_train --dataset.repo_id=lerobot/pusht --policy.type=act …

Theory of operation. lerobot's script makes its dataset, for the metadata and the statistics that
policies and inference need, and takes batches from ``cycle(dataloader)``. That function's name is
rebound in the script: an iterator of this loader takes its place, and the ``DataLoader`` is never
iterated. What comes is no ``DataLoader``, so accelerate leaves it alone; ranks read their own
parts. ``save_checkpoint`` is rebound to put the loader's state into ``training_state``, from where
a resumed run takes it.

Not here: the batch's keys (``integrations.layouts.lerobot``).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoloader.errors import UsageError
from autoloader.host.files import write_whole
from autoloader.integrations.layouts import ACTION, STATE, lerobot
from autoloader.loader import AutoLoader

SCRIPT = "lerobot.scripts.lerobot_train"
KNOWN = ((0, 4), (0, 5), (0, 6))
"""Releases whose script was read or run: 0.4.4 and 0.6.1 were run."""
STATE_FILE = "training_state/autoloader_state.json"
NUMBERS = ("index", "episode_index", "frame_index", "timestamp", "task_index")
SCALARS = ("next.reward", "next.done", "next.success", "next.truncated")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeRobotRun:
    """A run of lerobot-train in this package's terms: the spec to read, and how batches are named.

    Attributes:
        spec: plain values of a pipeline spec.
        layout: keyword arguments of ``layouts.lerobot``.
        transforms: lerobot's own image transforms; ``None``: there are none.
    """

    spec: Mapping[str, Any]
    layout: Mapping[str, Any]
    transforms: Any = None

    @classmethod
    def of(cls, cfg: Any, dataset: Any, *, floats: bool) -> LeRobotRun:
        """Translate lerobot's configuration and dataset into a spec and the names of a batch.

        Where the policy drops the last frames of episodes, writes ``autoloader_ranges.json`` into
        ``cfg.output_dir``.

        Args:
            cfg: lerobot's ``TrainPipelineConfig``.
            dataset: the ``LeRobotDataset`` that lerobot made for ``cfg``.
            floats: whether pictures are float32 in [0, 1], as lerobot had them before 0.5; else
                they are uint8.

        Raises:
            UsageError: the run asks for something that this loader does not give.
        """
        meta, deltas = dataset.meta, dict(dataset.delta_timestamps or {})
        _refuse(cfg, meta, deltas)
        policy = getattr(cfg, "trainable_config", None) or cfg.policy
        cameras = {_name(key): key for key in meta.camera_keys}
        observed = {key for key in deltas if key.startswith("observation.")}
        offsets = list(deltas[next(iter(observed))]) if observed else [0.0]
        more = [
            key
            for key in meta.features
            if key.startswith("observation.") and key != STATE and key not in meta.camera_keys
        ]
        features = {
            _name(key): key
            for key in (*more, *NUMBERS, *SCALARS)
            if key in meta.features and meta.features[key]["dtype"] != "string"
        }
        entry: dict[str, Any] = {
            "name": "train",
            "path": str(dataset.root),
            "images": cameras,
            "action": ACTION,
            "features": features,
        }
        if STATE in meta.features:
            entry["state"] = STATE
        if meta.tasks is not None and len(meta.tasks):
            entry["language"] = "task"
        if dataset.episodes is not None:
            entry["episodes"] = [int(number) for number in dataset.episodes]
        if dropped := int(getattr(policy, "drop_n_last_frames", 0) or 0):
            entry["keep"] = {"ranges": _ranges(meta, dropped, Path(cfg.output_dir))}
        spec = {
            "seed": cfg.seed or 0,
            "datasets": [entry],
            "cameras": {name: {"size": _size(meta.features[key])} for name, key in cameras.items()},
            "sample": {
                "delta_timestamps": {
                    "frames": offsets,
                    "state": offsets,
                    "action": list(deltas.get(ACTION, [0.0])),
                }
            },
            "batch": {"size": cfg.batch_size},
            "mixing": {"epoch": "forever"},
        }
        layout = {
            "cameras": cameras,
            "features": features,
            "windows": set(deltas),
            "parquet_images": set(meta.image_keys),
            "now": min(range(len(offsets)), key=lambda place: abs(offsets[place])),
            "floats": floats,
        }
        return cls(spec, layout, dataset.image_transforms)

    def batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A batch of the loader with lerobot's keys, after lerobot's image transforms."""
        found = lerobot(batch, **self.layout)
        if self.transforms is not None:
            for key in self.layout["cameras"].values():
                for place, frames in enumerate(found[key]):
                    found[key][place] = self.transforms(frames)
        return found


def _refuse(cfg: Any, meta: Any, deltas: Mapping[str, Any]) -> None:
    """Name what this loader does not give, instead of training on something else."""
    reasons = {
        "dataset.streaming=true": getattr(cfg.dataset, "streaming", False),
        "depth cameras": getattr(meta, "depth_keys", None),
        "language columns": getattr(meta, "has_language_columns", False),
        "rewards of several steps (tdmpc)": "next.reward" in deltas,
        "a dataset without cameras": not meta.camera_keys,
        "windows that differ between observations": len(
            {tuple(times) for key, times in deltas.items() if key.startswith("observation.")}
        )
        > 1,
    }
    for reason, there in reasons.items():
        if there:
            raise UsageError(
                f"this run has {reason}, which autoloader.lerobot_train does not support",
                remedy="train it with lerobot-train, whose flags are the same",
            )


def _name(key: str) -> str:
    return re.sub(r"\W", "_", key.removeprefix("observation.images.").removeprefix("observation."))


def _size(feature: Mapping[str, Any]) -> list[int]:
    """[height, width] of a camera, whatever the order of its axes."""
    sizes = dict(zip(feature.get("names") or (), feature["shape"], strict=False))
    if "height" in sizes and "width" in sizes:
        return [int(sizes["height"]), int(sizes["width"])]
    shape = [int(side) for side in feature["shape"]]
    return shape[1:] if shape[0] in (1, 3) else shape[:2]


def _ranges(meta: Any, dropped: int, folder: Path) -> dict[str, str]:
    """Write ranges without the last ``dropped`` steps of each episode; ``keep.ranges`` of them."""
    lengths = zip(
        meta.episodes["episode_index"],
        meta.episodes["dataset_from_index"],
        meta.episodes["dataset_to_index"],
        strict=True,
    )
    kept = {
        str(int(number)): [[0, int(stop) - int(start) - dropped]]
        for number, start, stop in lengths
        if int(stop) - int(start) > dropped
    }
    path = folder / "autoloader_ranges.json"
    write_whole(path, json.dumps(kept))  # other ranks may be reading it
    return {"file": str(path.absolute()), "key": "{episode_metadata/episode_index}"}


def _join(script: Any, *, floats: bool) -> list[AutoLoader]:
    """Rebind names of lerobot's script; the list is filled with the loader that it begins to read.

    Args:
        script: module of the script.
        floats: see ``layouts.lerobot``.
    """
    made: list[tuple[Any, Any]] = []
    loaders: list[AutoLoader] = []
    maker = "make_dataset"
    if hasattr(script, "make_train_eval_datasets"):
        maker = "make_train_eval_datasets"
    make, save = getattr(script, maker), script.save_checkpoint

    def making(cfg: Any) -> Any:
        found = make(cfg)
        made.append((cfg, found[0] if isinstance(found, tuple) else found))
        return found

    def saving(checkpoint_dir: Path, *args: Any, **kwargs: Any) -> Any:
        done = save(checkpoint_dir, *args, **kwargs)
        for loader in loaders[-1:]:
            write_whole(Path(checkpoint_dir) / STATE_FILE, json.dumps(loader.state_dict()))
        return done

    def batches(dataloader: Any) -> Iterator[dict[str, Any]]:
        """Batches without end; lerobot's own ``dataloader`` stays unused."""
        cfg, dataset = made[-1]
        run = LeRobotRun.of(cfg, dataset, floats=floats)
        loader = AutoLoader(run.spec)
        loaders.append(loader)
        if cfg.resume:
            path = Path(cfg.checkpoint_path) / STATE_FILE
            if path.exists():
                loader.load_state_dict(json.loads(path.read_text()))
            else:
                logger.warning("%s is missing: the order of samples begins anew", path)
        return map(run.batch, loader)

    setattr(script, maker, making)
    script.save_checkpoint, script.cycle = saving, batches
    return loaders


def main() -> None:
    """Run lerobot's training script on batches of this loader.

    Raises:
        UsageError: lerobot is missing, of an unknown version, or the run asks for something that
            this loader does not give.
    """
    try:
        script = importlib.import_module(SCRIPT)
        version = importlib.metadata.version("lerobot")
    except ImportError as error:
        raise UsageError(
            f"lerobot's training cannot be imported: {error}",
            remedy="pip install 'lerobot[training]', in version 0.4.4 or 0.6.1",
        ) from error
    release = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if release not in KNOWN or not all(hasattr(script, n) for n in ("cycle", "save_checkpoint")):
        raise UsageError(
            f"lerobot {version} is not supported by autoloader.lerobot_train",
            remedy="install lerobot 0.4.4 or 0.6.1",
        )
    loaders = _join(script, floats=release < (0, 5))
    try:
        script.main()
    finally:
        for loader in loaders:
            loader.close()
