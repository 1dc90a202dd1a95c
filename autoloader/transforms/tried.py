"""Keeps what a transform gave when it was tried, so that others need not start a framework.

One small JSON file a dataset in the user's cache directory, named by a hash of the transform and of
the file that it was tried on. A file that cannot be used is tried anew.

Not here: trying it (``transform``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from autoloader.catalog import Feature
from autoloader.catalog.cache import cache_root, keep_whole

LAYOUT_VERSION = 1


class Tried(NamedTuple):
    """What a transform gave for one episode.

    Attributes:
        features: of the result, by path.
        cost_s: seconds that the function took.
        kept_ratio: share of the episode's steps that it left.
    """

    features: Mapping[str, Feature]
    cost_s: float
    kept_ratio: float


def load(key: tuple[object, ...]) -> Tried | None:
    """What is kept under ``key``."""
    try:
        found = json.loads(_place(key).read_text(encoding="utf-8"))
        features = {
            one["path"]: Feature(**{**one, "shape": tuple(one["shape"])})
            for one in found["features"]
        }
        return Tried(features, float(found["cost_s"]), float(found["kept_ratio"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def save(key: tuple[object, ...], tried: Tried) -> None:
    """Keep ``tried`` under ``key``, whole at any time."""
    document = {**tried._asdict(), "features": [asdict(one) for one in tried.features.values()]}
    text = json.dumps(document)
    keep_whole(_place(key), lambda file: file.write(text.encode()), what="what a transform gave")


def _place(key: tuple[object, ...]) -> Path:
    name = hashlib.sha256(repr((LAYOUT_VERSION, key)).encode(errors="surrogateescape")).hexdigest()
    return cache_root() / "transforms" / f"{name[:40]}.json"
