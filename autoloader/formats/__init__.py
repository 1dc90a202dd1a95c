"""Datasets on disk: TFDS, LeRobot, HDF5 and image–text data, read without any framework.

TFDS metadata is JSON, TFRecord framing is a few bytes a record, and LeRobot is Parquet, MP4 and
JSON. So nothing here imports TensorFlow. Damage is named with file, record and reason.

Start here:
    ``sources.open_source``: opens a dataset whatever its format; ``sources.BUILT_IN`` has them.
    ``hub.located``: the folder or address of a dataset of the Hugging Face Hub.
    ``dataset.DatasetFormat``: a dataset on disk: name, features, splits, files, records, tables.
    ``episodes.EpisodeFormat``: the class to write a format of videos and numbers from.
    ``tables``: what a format gives an index: columns, and where each frame lies.
    ``records``: walks ``tf.train.Example`` records without copying their pictures.
    ``registry``: what is publicly known of datasets by name (Open X-Embodiment).

Never here: what a user wants of a dataset (``spec``), index files (``index``).
"""

from __future__ import annotations

from autoloader.formats.dataset import DatasetFormat, ShardSlice
from autoloader.formats.features import Feature
from autoloader.formats.sources import open_source
from autoloader.formats.tfds import locate_version

__all__ = ["DatasetFormat", "Feature", "ShardSlice", "locate_version", "open_source"]
