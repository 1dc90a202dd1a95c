"""Proposes a dataset's fields: from the registry where it fits the files, else from the features.

Not here: the registry (``catalog.registry``), finding directories and writing the spec
(``cli.init``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from autoloader.catalog import Feature
from autoloader.catalog.features import TASKS
from autoloader.catalog.lerobot.metadata import TASK
from autoloader.catalog.registry import KnownDataset
from autoloader.errors import AutoloaderError
from autoloader.spec import parse_expression
from autoloader.transforms.fields import (
    check_camera,
    check_language,
    check_same_kind,
    feature_width,
    find_feature,
    is_several,
    numeric_field,
)

WIDEST = 64
"""Columns above which a feature is an embedding, not a state."""

_WRIST = re.compile(r"wrist|hand|gripper|finger", re.IGNORECASE)
_STATE = re.compile(
    r"state|pose|position|proprio|joint|gripper|yaw|obs$|translation|force", re.IGNORECASE
)
_NO_STATE = re.compile(r"embedding|velocity|vel$|image|instruction|language", re.IGNORECASE)
_WORDS = re.compile(r"instruction|language|task|prompt", re.IGNORECASE)
_NO_ACTION = re.compile(r"terminate|discount|reward|mode$", re.IGNORECASE)
_FIRST_WORDS = ("language_instruction", "observation/natural_language_instruction", "task")


@dataclass
class Proposal:
    """Fields of one dataset, as a spec writes them, and what a person should look at.

    Attributes:
        images, action, state, language: absent ones are empty.
        proposed: fields that come from ``features.json`` → why.
    """

    images: dict[str, str] = field(default_factory=dict)
    action: list[Any] = field(default_factory=list)
    state: list[Any] = field(default_factory=list)
    language: list[str] = field(default_factory=list)
    proposed: dict[str, str] = field(default_factory=dict)


def propose(features: Mapping[str, Feature], known: KnownDataset | None) -> Proposal:
    """The fields of a dataset with ``features``; ``known`` is what the registry says of it."""
    found = Proposal()
    why = "not in the registry"

    def take(name: str, listed: Any, fits: Callable[[], object], guess: Callable[[], Any]) -> Any:
        if known is not None:
            if not listed:
                return listed or type(guess())()
            try:
                fits()
            except (AutoloaderError, ValueError):
                found.proposed[name] = "the registry's does not fit these files"
            else:
                return listed
        else:
            found.proposed[name] = why
        guessed = guess()
        if not guessed:
            found.proposed.pop(name)
        return guessed

    images = dict(known.images) if known else {}
    found.images = take(
        "images",
        images,
        partial(_cameras, features, images.values()),
        lambda: guess_cameras(features),
    )
    for name in ("action", "state"):
        terms = list(getattr(known, name) or ()) if known else []
        taken = take(
            name,
            terms,
            partial(_numbers, features, terms, name),
            partial(guess_numbers, features, name),
        )
        setattr(found, name, taken)
    words = [path for path in (known.language if known else ()) if path in features]
    found.language = take(
        "language",
        words or list(known.language if known else ()),
        lambda: _language(features, words),
        lambda: guess_language(features),
    )
    return found


def guess_cameras(features: Mapping[str, Feature]) -> dict[str, str]:
    """A primary and a wrist camera, by name; the first of each kind."""
    usable = [path for path in features if _fits(partial(_camera, features, path))]
    on_wrist = [path for path in usable if _WRIST.search(_last(path))]
    others = [path for path in usable if path not in on_wrist]
    found = {}
    if others:
        found["primary"] = min(others, key=lambda path: (len(_last(path)), path))
    if on_wrist:
        found["wrist"] = on_wrist[0]
    return found


def why_no_camera(features: Mapping[str, Feature]) -> str:
    """Why no feature of a dataset can be a colour camera, for people."""
    reasons = []
    for path, feature in features.items():
        if feature.kind == "image" or (feature.kind == "other" and feature.dtype == "uint8"):
            try:
                _camera(features, path)
            except AutoloaderError as error:
                reasons.append(error.what.removeprefix("images: "))
    return "; ".join(reasons) or "no feature is a picture of the steps"


def _last(path: str) -> str:
    """The last part of a path, whose parts TFDS joins by a slash and LeRobot by a dot."""
    return path.replace(".", "/").rpartition("/")[2]


def guess_numbers(features: Mapping[str, Feature], name: str) -> list[Any]:
    """The terms of ``action`` or ``state``, by name."""
    usable = [
        path
        for path, feature in features.items()
        if _fits(partial(_width_within, feature)) and feature.per_step
    ]
    if name == "action":
        whole = [path for path in ("action", "actions") if path in usable]
        return whole[:1] or [
            path
            for path in usable
            if path.startswith("action/") and not _NO_ACTION.search(path.rpartition("/")[2])
        ]
    for first in ("observation/state", "observation.state"):
        if first in usable:
            return [first]
    return [
        path
        for path in usable
        if path.startswith("observation/")
        and "float" in features[path].dtype
        and _STATE.search(path.rpartition("/")[2])
        and not _NO_STATE.search(path)
    ]


def guess_language(features: Mapping[str, Feature]) -> list[str]:
    """The instruction's features, by name; several only where they are numbered."""

    def usable(path: str) -> bool:
        return _fits(lambda: _language(features, [path]))

    # GR00T's tasks are often a flag of validity, and the instruction is an annotation.
    annotated = [
        path
        for path, feature in features.items()
        if feature.encoding == TASKS and path != TASK and _WORDS.search(path)
    ]
    if annotated:
        return sorted(annotated, key=lambda path: ("description" not in path, path))[:1]
    for first in _FIRST_WORDS:
        if first in features and usable(first):
            numbered = (f"{first}_{number}" for number in (2, 3))
            return [first, *(path for path in numbered if path in features and usable(path))]
    named = [path for path in features if _WORDS.search(path) and usable(path)]
    return sorted(named, key=lambda path: path.startswith("episode_metadata/"))[:1]


def _camera(features: Mapping[str, Feature], path: str) -> None:
    check_camera(find_feature(features, path, field="images", dataset=""), field="images")


def _cameras(features: Mapping[str, Feature], paths: Iterable[str]) -> None:
    for path in paths:
        _camera(features, path)


def _numbers(features: Mapping[str, Feature], terms: Sequence[Any], name: str) -> None:
    numeric_field(parse_expression(list(terms)), features, field=name, dataset="")


def _language(features: Mapping[str, Feature], paths: Sequence[str]) -> None:
    if not paths:
        raise ValueError("no feature of that name")
    every = [find_feature(features, path, field="language", dataset="") for path in paths]
    for feature in every:
        if not is_several(feature):
            check_language(feature, field="language")
    check_same_kind(every, field="language")


def _width_within(feature: Feature) -> None:
    if feature_width(feature, field="") > WIDEST:
        raise ValueError("an embedding")


def _fits(check: Callable[[], object]) -> bool:
    try:
        check()
    except (AutoloaderError, ValueError):
        return False
    return True
