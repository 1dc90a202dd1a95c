"""Keeps what a transform gave when it was tried, so that others need not start a framework.

One small JSON file a dataset in the user's cache directory, named by a hash of the transform and of
the file that it was tried on. A file that cannot be used is tried anew.

Not here: trying it (``transform``).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import platformdirs

from autoloader.catalog import Feature

LAYOUT_VERSION = 1

logger = logging.getLogger(__name__)


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
    place = _place(key)
    document = {**tried._asdict(), "features": [asdict(one) for one in tried.features.values()]}
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=place.parent, prefix=".tried-")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                json.dump(document, file)
            Path(temporary).replace(place)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        logger.debug("what a transform gave is not kept: %s", error)


def _place(key: tuple[object, ...]) -> Path:
    own = os.environ.get("AUTOLOADER_CACHE_DIR")
    root = Path(own).expanduser() if own else platformdirs.user_cache_path("autoloader")
    name = hashlib.sha256(repr((LAYOUT_VERSION, key)).encode(errors="surrogateescape")).hexdigest()
    return root / "transforms" / f"{name[:40]}.json"
