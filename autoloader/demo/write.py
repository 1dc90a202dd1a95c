"""Writes datasets of the demo mixture with TFDS: the child process of ``demo.build``.

Not here: who starts it (``demo.build``), what is in an episode (``demo.episodes``).
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import cv2
import numpy as np

from autoloader.demo.datasets import (
    CODE_POINTS,
    DATASETS,
    RANGES_FILE,
    SIZE_BINS_KB,
    VERSION,
    DemoDataset,
)
from autoloader.demo.episodes import draw_demo_episode, kept_ranges, nested, value_at


def _features(dataset: DemoDataset) -> Any:
    import tensorflow_datasets as tfds

    kinds = tfds.features

    def numbers(width: int, dtype: str) -> Any:
        return kinds.Tensor(shape=(width,) if width else (), dtype=np.dtype(dtype).type)

    step: dict[str, Any] = {}
    for path, (height, width) in dataset.cameras:
        encoding = dataset.look.encoding if dataset.states_encoding else None
        step[path] = kinds.Image(shape=(height, width, 3), encoding_format=encoding)
    if dataset.depth:
        shape = (*dataset.size, 1)
        step[dataset.depth] = kinds.Image(shape=shape, dtype=np.uint16, encoding_format="png")
    if dataset.hz:
        step["observation/timestamp"] = numbers(0, "float64")
    for path, width in zip(dataset.action_paths, dataset.action.values(), strict=True):
        step[path] = numbers(width, dataset.action_dtype)
    for path, width in dataset.state.items():
        step[path] = numbers(width, "float32")
    metadata: dict[str, Any] = {"file_path": kinds.Text()}
    if dataset.idles:
        metadata["recording_folderpath"] = kinds.Text()
    for path in dataset.language:
        if path.startswith("episode_metadata/"):
            metadata[path.partition("/")[2]] = kinds.Text()
        elif dataset.language_kind == "codes":
            step[path] = kinds.Tensor(shape=(CODE_POINTS,), dtype=np.int32)
        else:
            step[path] = kinds.Text()
    step.update(dict.fromkeys(("is_first", "is_last", "is_terminal"), np.bool_))
    step.update(dict.fromkeys(("reward", "discount"), np.float32))
    return kinds.FeaturesDict(
        {"steps": kinds.Dataset(nested(step)), "episode_metadata": kinds.FeaturesDict(metadata)}
    )


def _write_dataset(
    directory: Path,
    dataset: DemoDataset,
    scale: float,
    seed: int,
    report: Callable[[dict[str, Any]], None],
) -> None:
    import tensorflow_datasets as tfds

    place = directory / dataset.name / VERSION
    place.mkdir(parents=True)
    info = tfds.core.DatasetInfo(
        builder=tfds.core.dataset_info.DatasetIdentity(
            name=dataset.name,
            version=tfds.core.Version(VERSION),
            data_dir=str(place),
            module_name=__name__,
            release_notes={VERSION: "drawn, not recorded"},
        ),
        description="Drawn robot episodes for trying out and measuring a data loader.",
        features=_features(dataset),
        disable_shuffling=True,
    )
    counts = {"train": dataset.train_episodes(scale), "val": dataset.val_episodes(scale)}
    train = counts["train"]
    shards = max(2, min(dataset.shards, train // 3))
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=-(-train // shards))
    sizes: list[int] = []
    kept: dict[str, Any] = {}
    frames = 0

    def episodes(split: str) -> Iterator[dict[str, Any]]:
        nonlocal frames
        for number in range(counts[split]):
            episode = draw_demo_episode(dataset, split, number, seed)
            steps = episode["steps"]
            frames += len(steps)
            sizes.extend(len(value_at(step, path)) for step in steps for path, _ in dataset.cameras)
            if dataset.idles:
                above = episode["episode_metadata"]
                key = f"{above['recording_folderpath']}--{above['file_path']}"
                kept[key] = kept_ranges(dataset, split, number, seed, len(steps))
            yield episode
            report({"episodes": 1})

    for split in [split for split, count in counts.items() if count]:
        writer.initialize_splits([split])
        writer.add_examples({split: episodes(split)})
    writer.close_all()
    if kept:
        (place.parent / RANGES_FILE).write_text(json.dumps(kept) + "\n", encoding="utf-8")
    if dataset.standard_names:
        _give_standard_names(info, place)
    bins = np.searchsorted(np.array(SIZE_BINS_KB) * 1000, sizes, side="right")
    low, middle, high = np.percentile(sizes, [10, 50, 90])
    row = {
        "name": dataset.name,
        "size": list(dataset.size),
        "encoding": dataset.look.encoding,
        "train_episodes": train,
        "val_episodes": counts["val"],
        "frames": frames,
        "images": len(sizes),
        "image_bytes": int(sum(sizes)),
        "image_bytes_p10_p50_p90": [int(low), int(middle), int(high)],
        "histogram": np.bincount(bins, minlength=len(SIZE_BINS_KB) + 1).tolist(),
    }
    report({"dataset": row})


def _give_standard_names(info: Any, place: Path) -> None:
    """Renames shards to ``-00000-of-00008``, as TFDS's builders call them."""
    import tensorflow_datasets as tfds

    splits = []
    for name, split in info.splits.items():
        template = tfds.core.ShardedFileTemplate(
            dataset_name=info.name, data_dir=place, split=name, filetype_suffix="tfrecord"
        )
        for number in range(split.num_shards):
            old = place / f"{info.name}-{name}.tfrecord-{number:05d}"
            old.rename(template.sharded_filepath(shard_index=number, num_shards=split.num_shards))
        splits.append(split.replace(filename_template=template))
    info.set_splits(tfds.core.splits.SplitDict(splits))
    info.write_to_directory(place)


def main() -> None:
    """Entry of the child processes; people use ``autoloader demo``."""
    parser = argparse.ArgumentParser(prog="autoloader.demo.write", description=main.__doc__)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--only", required=True)
    parser.add_argument("--scale", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    threading.Thread(target=_end_with_caller, name="demo-caller", daemon=True).start()
    cv2.setNumThreads(1)
    wanted = set(arguments.only.split(","))
    # Whatever a library prints must not be taken for a report.
    with os.fdopen(os.dup(1), "w", buffering=1) as reports:
        os.dup2(2, 1)
        for dataset in DATASETS:
            if dataset.name in wanted:
                _write_dataset(
                    arguments.into,
                    dataset,
                    arguments.scale,
                    arguments.seed,
                    lambda line: _send(reports, line),
                )


def _end_with_caller() -> None:
    os.read(0, 1)  # nothing is ever written: it returns when the caller is gone
    os._exit(1)


def _send(reports: IO[str], line: Mapping[str, Any]) -> None:
    reports.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
