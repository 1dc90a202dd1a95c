"""Reads single episodes with plain TFDS: the reference that ``autoloader verify`` compares with.

No code of this library is between the files and the values: TFDS finds the record, parses and
decodes it. TFDS is imported when the first episode is read.

Not here: what a sample should hold (``cli.witness``).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from autoloader.errors import SourceError
from autoloader.formats.metadata import ShardSlice, VersionDirectory

Step = Mapping[str, Any]
"""One step as TFDS gives it, nested, with ``episode_metadata`` beside the step's own features."""


class TfdsReader:
    """Reads episodes of one version directory with TFDS.

    Args:
        directory: which; its name is for messages.
    """

    fps: float | None = None
    """Frames a second; RLDS datasets do not say them."""

    def __init__(self, directory: VersionDirectory) -> None:
        self._directory = directory
        self._builder: Any = None

    def episode(self, piece: ShardSlice, record: int) -> list[Step]:
        """The steps of a record of a shard file.

        Raises:
            SourceError: TFDS cannot be imported, or cannot read it.
        """
        shards = self._directory.splits[piece.split]
        number = sum(shard.records for shard in shards[: piece.index]) + record
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self._read(f"{piece.split}[{number}:{number + 1}]")
        except Exception as error:  # TFDS and TensorFlow raise whatever they meet
            raise SourceError(
                f"plain TFDS cannot read episode {number} of {piece.split} in "
                f"{self._directory.path}: {type(error).__name__}: {error}",
                remedy="check that tensorflow_datasets is installed and reads this directory",
                dataset=self._directory.dataset,
            ) from error

    def _read(self, split: str) -> list[Step]:
        import tensorflow_datasets as tfds

        if self._builder is None:
            self._builder = tfds.builder_from_directory(self._directory.path)
        config = tfds.ReadConfig(try_autocache=False, interleave_cycle_length=1)
        (episode,) = self._builder.as_dataset(split=split, read_config=config)
        above = {key: _plain(value) for key, value in episode.items() if key != "steps"}
        return [{**above, **step} for step in tfds.as_numpy(episode["steps"])]


def value_at(tree: Any, path: str) -> Any:
    """A feature of a step; TFDS nests at a slash, or keeps it in the name."""
    path = path.removeprefix("steps/")
    while path:
        if path in tree:
            return tree[path]
        head, _, path = path.partition("/")
        tree = tree[head]
    return tree


def text_at(step: Step, path: str) -> str:
    """The language of a step, from text or from code points."""
    value = value_at(step, path)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value
    return "".join(chr(point) for point in np.asarray(value).tolist() if point)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return value.numpy() if hasattr(value, "numpy") else value
