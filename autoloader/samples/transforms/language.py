"""Binds the language of a dataset, and says how what is stored becomes a sample's text.

A text as it is *stored* is UTF-8: of texts and code points the text itself, of an integer its
decimal digits, of several strings all of them with NULs in between. So an index holds one text a
step, whatever a spec makes of it.

Not here: the words of the spec (``spec.fields``), reading the features (``samples``, ``index``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoloader.errors import SpecError, UnsupportedError
from autoloader.formats import DatasetFormat, Feature, files
from autoloader.samples.transforms.fields import (
    BETWEEN,
    check_language,
    check_same_kind,
    described,
    find_feature,
    is_code,
    is_several,
    is_text,
)
from autoloader.samples.transforms.keep import Keep
from autoloader.spec import DatasetSpec, LanguageChoice
from autoloader.spec.sample import matcher


@dataclass(frozen=True, slots=True)
class Words:
    """Rules by which a dataset's stored texts become those of its samples.

    Attributes:
        names: path of an integer feature → its decimal digits → the text that it stands for.
        several: which of several strings a sample has; "" where there is one.
    """

    names: Mapping[str, Mapping[bytes, bytes]] = field(default_factory=dict)
    several: Literal["", "first", "draw"] = ""

    def __bool__(self) -> bool:
        """True if they change anything."""
        return bool(self.names or self.several)

    def told(
        self, path: str, stored: Sequence[bytes], drawn: NDArray[np.uint64] | None
    ) -> list[bytes]:
        """The texts of samples, UTF-8.

        Args:
            path: path of the language feature.
            stored: the texts [n] as they are stored, or one for all samples.
            drawn: [n] a random number for each sample; needed where one of several is drawn.

        Returns:
            As many texts as there are stored ones; n where they are drawn.
        """
        if path in self.names:
            names = self.names[path]
            return [names.get(one, b"") for one in stored]
        if not self.several:
            return list(stored)
        said = [[one for one in text.split(BETWEEN) if one.strip()] for text in stored]
        if self.several == "first" or drawn is None:
            return [texts[0] if texts else b"" for texts in said]
        said = said * len(drawn) if len(said) == 1 else said
        return [
            texts[number % len(texts)] if texts else b""
            for texts, number in zip(said, drawn.tolist(), strict=True)
        ]

    def speaks(self, path: str) -> Callable[[str], bool]:
        """Test of a stored text of this feature: does it stand for one that is not blank?"""
        if path in self.names:
            spoken = {key.decode() for key, text in self.names[path].items() if text.strip()}
            return spoken.__contains__
        return matcher(r"[^\s\x00]" if self.several else r"\S")


class BoundLanguage(NamedTuple):
    """The language of a dataset; attributes as of ``samples.resolve.ResolvedDataset``."""

    features: tuple[Feature, ...]
    words: Words
    keep: Keep | None


def bind_language(
    declared: DatasetSpec,
    features: Mapping[str, Feature],
    directory: DatasetFormat,
    *,
    where: str,
) -> BoundLanguage:
    """The language that a dataset declares, and the rules that look at texts.

    Args:
        declared: the dataset as the spec declares it.
        features: of its episodes, by path.
        directory: of the dataset; the names of its class labels lie there.
        where: its path in the spec.

    Raises:
        SpecError: a feature is missing or holds no language, or another kind than its fellows;
            integers without names; several strings of which the spec does not say which.
    """
    chosen, words = _features_of(declared, features, directory, f"{where}.language")
    keep = None
    if declared.keep is not None and declared.keep.looks_at_texts:
        keep = Keep(
            declared.keep, features, chosen, words.speaks, where=where, dataset=declared.name
        )
    return BoundLanguage(chosen, words, keep)


def _features_of(
    declared: DatasetSpec, found: Mapping[str, Feature], directory: DatasetFormat, place: str
) -> tuple[tuple[Feature, ...], Words]:
    choice = declared.language
    if choice is None:
        return (), Words()
    features = tuple(
        find_feature(found, path, field=place, dataset=declared.name) for path in choice.paths
    )
    names = {}
    for feature in features:
        as_stored = declared.transform is None and directory.texts_only
        if as_stored and not is_text(feature) and not is_code(feature):
            raise UnsupportedError(
                f"{place}: {feature.path!r} is {described(feature)}; of a LeRobot dataset "
                "texts and single integers alone are read as language yet",
                remedy="name task, the text of each frame's task",
                path=place,
            )
        if is_code(feature):
            names[feature.path] = _names_of(choice, feature, directory, place)
            continue
        if choice.names:
            raise SpecError(
                f"{place}.names: {feature.path!r} is {described(feature)}, and no integer",
                remedy="leave names out, or name the feature that holds the number of the task",
                path=f"{place}.names",
            )
        if not is_several(feature):
            check_language(feature, field=place)
        if is_several(feature) != bool(choice.several):
            raise SpecError(
                f"{place}: {feature.path!r} is {described(feature)}, of which a sample has one"
                if is_several(feature)
                else f"{place}.several: {feature.path!r} is {described(feature)}, one text",
                remedy=f"write language: {{path: {feature.path}, several: draw}} (or first)"
                if is_several(feature)
                else "leave several out",
                path=place,
            )
    check_same_kind(features, field=place)
    return features, Words(names, choice.several)


def _names_of(
    choice: LanguageChoice, feature: Feature, directory: DatasetFormat, place: str
) -> dict[bytes, bytes]:
    if choice.names:
        return {str(number).encode(): text.encode() for number, text in choice.names}
    file = f"{feature.key.replace('/', '-')}.labels.txt"  # as TFDS names it
    try:
        lines = files.read_text(files.join(directory.path, file)).splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    if not lines:
        raise SpecError(
            f"{place}: {feature.path!r} is {described(feature)}, and {directory.path} has no "
            f"{file} that says what its numbers stand for",
            remedy=f"write language: {{path: {feature.path}, names: {{0: pick up the block}}}}",
            path=place,
        )
    return {str(number).encode(): line.encode() for number, line in enumerate(lines)}
