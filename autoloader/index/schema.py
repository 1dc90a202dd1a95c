"""Which features an index holds, and how: what of a dataset its spec names.

Not here: what the spec's fields mean (``sampling.fields``), the bytes of a file (``index.format``).

Shards indexed for different sets of features live side by side: the fingerprint of the set is in
the index file's name and header.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from autoloader.catalog import Feature
from autoloader.sampling.fields import is_text
from autoloader.sampling.resolve import ResolvedDataset
from autoloader.sampling.transform import VALID_KEY, Transform

Role = Literal["frames", "column", "text", "points", "number"]


@dataclass(frozen=True, slots=True)
class IndexedFeature:
    """One feature of an index.

    Attributes:
        role: "frames" (byte ranges of encoded pictures), "column" (numbers as float32), "text"
            (stored as bytes), "points" (stored as Unicode code points, indexed as UTF-8) or
            "number" (an integer of the episode, indexed as decimal text).
        key: its key in the ``tf.train.Example``.
        path: as users name it.
        list_kind: the list that the record must hold: "bytes", "float" or "int64".
        width: numbers of one step; 1 for frames and text.
        per_step: whether every step has one, or only the episode.
    """

    role: Role
    key: str
    path: str
    list_kind: Literal["bytes", "float", "int64"]
    width: int
    per_step: bool


@dataclass(frozen=True)
class IndexSchema:
    """The features of an index in the order of their sections: by role, then by key.

    Attributes:
        features: what is indexed.
        transform: what rewrites an episode first, or ``None``; with one, which steps may be t is
            a column too (``VALID_KEY``).
    """

    features: tuple[IndexedFeature, ...]
    transform: Transform | None = None

    @classmethod
    def of(cls, dataset: ResolvedDataset) -> IndexSchema:
        """What the spec names of a dataset."""
        found: set[IndexedFeature] = set()
        for choices in dataset.cameras.values():
            found |= {_indexed(feature, "frames") for feature in choices}
        found |= {_indexed(feature, "column") for feature in dataset.numeric_features().values()}
        for feature in dataset.language:
            found.add(_indexed(feature, text_role(feature)))
        if dataset.transform is not None:
            # What rules look at lies in no file; of other datasets, rules read the files.
            asked = dataset.keep.features if dataset.keep is not None else ()
            found |= {_indexed(feature, text_role(feature)) for feature in asked}
            found.add(IndexedFeature("column", VALID_KEY, VALID_KEY, "int64", 1, True))
        features = tuple(sorted(found, key=lambda one: (one.role, one.key)))
        return cls(features, dataset.transform)

    @cached_property
    def document(self) -> bytes:
        """The schema as JSON: what the fingerprint is of, and what an index file carries."""
        rows: list[dict[str, object]] = [
            {
                "role": one.role,
                "key": one.key,
                "list": one.list_kind,
                "width": one.width,
                "per_step": one.per_step,
            }
            for one in self.features
        ]
        if self.transform is not None:
            rows.append({"transform": self.transform.identity})
        return json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode(
            errors="surrogatepass"
        )

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 of ``document``."""
        return hashlib.sha256(self.document).digest()

    @cached_property
    def keys(self) -> frozenset[str]:
        """Every key that has to be parsed."""
        return frozenset(one.key for one in self.features)


def text_role(feature: Feature) -> Role:
    """How the texts of a feature are indexed."""
    if is_text(feature):
        return "text"
    return "points" if feature.shape else "number"


def _indexed(feature: Feature, role: Role) -> IndexedFeature:
    if role in ("frames", "text"):
        return IndexedFeature(role, feature.key, feature.path, "bytes", 1, feature.per_step)
    width = math.prod(size or 1 for size in feature.shape)
    kind: Literal["float", "int64"] = "float" if "float" in feature.dtype else "int64"
    return IndexedFeature(role, feature.key, feature.path, kind, width, feature.per_step)
