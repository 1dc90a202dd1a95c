"""Plain TFDS reading of a version directory: the reference for every value."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def plain_episodes(path: str | Path, split: str) -> Iterator[list[dict[str, Any]]]:
    """Episodes of a split in the order of its files, each a list of steps as TFDS decodes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds

        builder = tfds.builder_from_directory(str(path))
        config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        dataset = builder.as_dataset(split=split, read_config=config, shuffle_files=False)
        for episode in dataset:
            steps = list(tfds.as_numpy(episode["steps"]))
            metadata = {k: v for k, v in episode.items() if k != "steps"}
            yield [{**step, **metadata} for step in steps]


def value_at(tree: Any, path: str) -> Any:
    """A feature of a step; TFDS may nest at a slash, or keep it in the name."""
    while path:
        if path in tree:
            return tree[path]
        head, _, path = path.partition("/")
        tree = tree[head]
    return tree


def text_at(step: dict[str, Any], path: str) -> str:
    """Language of a step, from text or from code points."""
    value = value_at(step, path)
    value = value.numpy() if hasattr(value, "numpy") else value
    if isinstance(value, bytes):
        return value.decode()
    return "".join(map(chr, np.asarray(value).tolist())).rstrip("\0")
