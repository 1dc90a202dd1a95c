"""What is on disk: version directories, splits, features, episode lengths; no framework involved.

TFDS metadata is plain JSON and TFRecord framing is a few bytes a record, so nothing here imports
TensorFlow. Not here: what a user asks for (``autoloader.spec``) and how it is streamed
(``autoloader.pipeline.graph``).
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
