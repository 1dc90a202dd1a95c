"""Datasets on disk: TFDS version directories and LeRobot datasets, read without any framework.

TFDS metadata is JSON, TFRecord framing is a few bytes a record, and LeRobot is Parquet, MP4 and
JSON. So nothing here imports TensorFlow. Damage is named with file, record and reason.

Start here:
    ``sources.open_source``: opens a dataset whatever its format.
    ``metadata.VersionDirectory``: the face of a dataset on disk: name, features, splits, episodes,
    files. ``lerobot.LeRobotDirectory`` has the same face.
    ``example``: walks ``tf.train.Example`` records without copying their pictures.
    ``registry``: what is publicly known of datasets by name (Open X-Embodiment).

Never here: what a user wants of a dataset (``spec``), where each frame lies (``index``).
"""

from __future__ import annotations

from autoloader.formats.directories import locate_version
from autoloader.formats.features import Feature, parse_features
from autoloader.formats.metadata import (
    ShardSlice,
    VersionDirectory,
)
from autoloader.formats.sources import check_source, open_source

__all__ = [
    "Feature",
    "ShardSlice",
    "VersionDirectory",
    "check_source",
    "locate_version",
    "open_source",
    "parse_features",
]
