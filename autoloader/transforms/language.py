"""Binds the language of a dataset, and the rules of ``keep`` that look at texts.

Not here: reading texts (``samples``, ``index``).
"""

from __future__ import annotations

from collections.abc import Mapping

from autoloader.catalog import Feature
from autoloader.spec import DatasetSpec
from autoloader.transforms.fields import check_language, check_same_kind, find_feature
from autoloader.transforms.keep import Keep


def bind_language(
    declared: DatasetSpec, features: Mapping[str, Feature], *, where: str
) -> tuple[tuple[Feature, ...], Keep | None]:
    """(the features that a dataset's language is drawn from, the rules that look at texts).

    Args:
        declared: the dataset.
        features: of its episodes, by path.
        where: its path in the spec.

    Raises:
        SpecError: a feature is missing, holds no text, or another kind of text than its fellows.
    """
    language: tuple[Feature, ...] = ()
    if declared.language is not None:
        field = f"{where}.language"
        language = tuple(
            find_feature(features, path, field=field, dataset=declared.name)
            for path in declared.language.paths
        )
        for feature in language:
            check_language(feature, field=field)
        check_same_kind(language, field=field)
    keep = None
    if declared.keep is not None and declared.keep.looks_at_texts:
        keep = Keep(declared.keep, features, language, where=where, dataset=declared.name)
    return language, keep
