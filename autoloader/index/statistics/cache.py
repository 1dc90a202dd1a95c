"""Keeps computed statistics in the user's cache directory, one small JSON file a dataset.

The key is all that they depend on: the identity and the features of each shard file's index (so
of LeRobot data also videos and metadata), which records of the files, the field expressions and the
features' widths, stride, what counts, the sample window where that has a say, and whatever else the
spec says of the dataset that is no picture or weight. Of a group, it is the keys of its datasets. A
file that cannot be used is computed anew; a cache that cannot be written is none.

Not here: computing them (``compute``).
"""

from __future__ import annotations

import json

from autoloader.formats.cache import JsonCache
from autoloader.formats.files import version_of
from autoloader.index.opening import format_of
from autoloader.index.statistics.compute import StatisticsOf, is_of_samples
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import RecordSchema
from autoloader.samples.statistics import NormalizationStatistics
from autoloader.spec import DatasetSpec

_cache = JsonCache("statistics", version=5)
_IRRELEVANT = frozenset(
    ("name", "path", "tfds", "data_dir", "split", "weight", "images", "features",
     "sample", "num_samples", "normalize")
)  # fmt: skip
"""Fields of a dataset's spec that change no action or state, or that the key holds elsewhere."""


def statistics_key(dataset: ResolvedDataset, declared: DatasetSpec, of: StatisticsOf) -> str:
    """All that a dataset's statistics depend on, as text.

    Args:
        dataset: with the records that they are of.
        declared: what the spec says of it.
        of: which rows count.

    Raises:
        OSError: a shard file is gone.
    """
    files = {}
    format_, schema = format_of(dataset), RecordSchema.of(dataset)
    for path in sorted({piece.path for piece in dataset.slices}):
        files[path] = (
            version_of(path, one_by_one=False) if dataset.remote else format_.identity(path, schema)
        )
    said = declared.model_dump(mode="json")
    windowed = of == "samples" or is_of_samples(dataset, "action")
    window = dataset.sample if windowed else None
    identity = {
        "files": files,
        "features": schema.fingerprint.hex(),
        "slices": [(piece.path, piece.start, piece.stop) for piece in dataset.slices],
        "widths": [bound.widths if bound else None for bound in (dataset.action, dataset.state)],
        "of": of,
        "sample": window.model_dump(mode="json", exclude={"per_episode"}) if window else None,
        "keep": dataset.keep.identity if dataset.keep else None,
        "transform": dataset.transform.identity if dataset.transform else None,
        "said": {key: value for key, value in said.items() if key not in _IRRELEVANT},
    }
    return json.dumps(identity, sort_keys=True)


def load(key: str) -> NormalizationStatistics | None:
    """The statistics saved under ``key``."""
    try:
        return NormalizationStatistics.from_plain(_cache.load(key))
    except ValueError:  # there are none
        return None


def save(key: str, statistics: NormalizationStatistics) -> None:
    """Save statistics under ``key``."""
    _cache.save(key, statistics.plain())
