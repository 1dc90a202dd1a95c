"""Which features of a record a spec names, how they are stored, and whether a record has them so.

Both readers and the index check every record against the schema, so that they agree on which
records are damaged.

Not here: what the spec's fields mean (``samples.transforms.fields``), the bytes of an index file
(``index.shard``).

Shards indexed for different sets of features live side by side: the fingerprint of the set is in
the index file's name and header.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from functools import cached_property

from autoloader.formats import Feature
from autoloader.formats.records import FeatureValue, MalformedRecordError
from autoloader.formats.tables import Role, StoredFeature, Wanted
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.transforms.fields import is_text, stored_as, text_role
from autoloader.samples.transforms.rlds import agreed_steps
from autoloader.samples.transforms.transform import VALID_KEY, Transform


@dataclass(frozen=True)
class RecordSchema(Wanted):
    """The features that are read of a record: by role, then by key.

    Attributes:
        transform: transform that rewrites an episode first, or ``None``. With one, a further column
            (``VALID_KEY``) says which steps may be t.
    """

    transform: Transform | None = None

    @classmethod
    def of(cls, dataset: ResolvedDataset) -> RecordSchema:
        """Features of a dataset that the spec names."""
        found: set[StoredFeature] = set()
        rewritten = dataset.transform is not None
        for choices in dataset.cameras.values():
            found |= {_frames(feature, rewritten=rewritten) for feature in choices}
        found |= {stored_as(feature, "column") for feature in dataset.numeric_features().values()}
        words = (*dataset.language, *(dataset.keep.features if dataset.keep else ()))
        found |= {stored_as(feature, text_role(feature)) for feature in words}
        held = (*dataset.held.values(), *dataset.present.values())
        found |= {stored_as(feature, held_role(feature)) for feature in held}
        if dataset.transform is not None:
            found.add(StoredFeature("column", VALID_KEY, VALID_KEY, "int64", 1, True))
        features = tuple(sorted(found, key=lambda one: (one.role, one.key)))
        return cls(features, dataset.transform, dataset.timestamps)

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
            rows.append({"transform": self.transform.identity, "given": self.transform.input_types})
        if self.timestamps != "check":
            rows.append({"timestamps": self.timestamps})
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

    @cached_property
    def stretches(self) -> dict[str, int]:
        """Key → numbers of a frame, of frames that are stretches of a list of numbers."""
        return {
            one.key: one.width
            for one in self.features
            if one.role == "frames" and one.list_kind != "bytes"
        }

    def check(self, found: Mapping[str, FeatureValue]) -> None:
        """Hold the lists of a record against those that the features are stored as.

        Raises:
            MalformedRecordError: a feature is missing, or of another kind.
        """
        for one in self.features:
            value = found.get(one.key)
            if value is not None and value.kind not in ("missing", one.list_kind):
                raise MalformedRecordError(
                    f"{one.path} is stored as {value.kind}, not as {one.list_kind}"
                )
            # An empty list and none at all are the same to those who write Examples, but for
            # numbers there is no telling, and a feature that the record does not name is not there.
            texts = one.role == "text" or not one.width
            empty = one.list_kind == "bytes" and (value is not None or texts)
            if (value is None or value.kind == "missing") and not empty:
                raise MalformedRecordError(f"{one.path} is missing")

    def steps(self, held: Mapping[str, Sized]) -> int:
        """Steps of a record, on which all its features agree.

        Args:
            held: places of the frames, numbers or texts of each feature, by key.

        Raises:
            MalformedRecordError: a feature has another length.
        """
        counts = [(one, _count(len(held[one.key]), one)) for one in self.features]
        return agreed_steps((one.path, count) for one, count in counts if one.per_step)


def held_role(feature: Feature) -> Role:
    """Role of a further feature of samples: how it is stored."""
    if is_text(feature):
        return "text"
    return "column" if "float" in feature.dtype else "integers"


def _frames(feature: Feature, *, rewritten: bool) -> StoredFeature:
    """Stored form of a camera's frames; a record that was rewritten has byte strings alone."""
    kind = None if rewritten else feature.listed
    width = 1 if kind is None else feature.step_numbers
    return StoredFeature("frames", feature.key, feature.path, kind or "bytes", width, True)


def _count(count: int, feature: StoredFeature) -> int:
    """Number of steps that so many values are of; 1 of an episode's texts, however many."""
    if feature.role == "frames":
        return count
    if not feature.width:
        return 1
    if count % feature.width:
        raise MalformedRecordError(
            f"{feature.path} has {count} values, which is not a multiple of the {feature.width} of "
            "one step"
        )
    count //= feature.width
    if not feature.per_step and (count > 1 or (count == 0 and feature.role != "text")):
        raise MalformedRecordError(f"{feature.path} has {count} values, and an episode has one")
    return count
