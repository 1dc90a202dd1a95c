"""Schemas: where HDF5 files have their episodes, numbers, pictures and language.

Known ones are in ``schemas.yaml``, and ``schema.hdf5.yaml`` in a dataset's folder declares another:

    files: "*.hdf5"               # from the folder; "**/trajectory.hdf5" looks below it
    like: robomimic               # fields that are left out are taken from there
    episodes: data                # group of the episodes; "": a file is an episode
    images: {primary: obs/front}  # what init proposes
    action: [actions]
    state: [obs/pos, obs/gripper]
    language: ["/@task", "@meta:lang", "file:{stem}.json:instruction", "name:(.*)_demo"]
    channel_order: bgr            # of all pictures; encoded_order: of JPEG and PNG alone
    rotate: 180

A language is the first of its sources that an episode has: an attribute of the episode or, from
"/" on, of the file; a dataset; a JSON file beside the HDF5 file; a part of the file's name. What
stands behind a colon is a key of the JSON that lies there.

Not here: reading files (``scan``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from autoloader.errors import SourceError, SpecError, nearest
from autoloader.formats.features import Feature
from autoloader.formats.registry import KnownDataset
from autoloader.spec.block import Block
from autoloader.spec.reading import complaint, packaged, read_document

SCHEMA_FILE = "schema.hdf5.yaml"
LANGUAGE = "language_instruction"
"""Path of the feature that holds an episode's language."""
MOST_TEXT_BYTES = 2**20
"""Of a language, or of the JSON that it lies in."""


def _listed(raw: Any) -> Any:
    """A choice of lists, where one path or one list is given, too."""
    raw = [raw] if isinstance(raw, str) else raw
    return [raw] if isinstance(raw, list) and all(isinstance(one, str) for one in raw) else raw


def _several(raw: Any) -> Any:
    return {key: [one] if isinstance(one, str) else one for key, one in raw.items()}


_Choices = Annotated[tuple[tuple[str, ...], ...], BeforeValidator(_listed)]


class Schema(Block):
    """Places of an episode's parts; paths count from the episode.

    Attributes:
        has: paths of a file by which the schema is recognised.
        files: pattern of the dataset's files, from its folder.
        like: known schema that has the fields which are left out.
        episodes: group whose members are episodes; "": the file is one.
        images: camera → features, the first of which that is there is proposed.
        action, state: lists of features, the first of which that is all there is proposed.
        language: sources of the language; the first that is there is taken.
        channel_order: order of the channels of all pictures.
        encoded_order: order of the channels of encoded pictures; "": as ``channel_order``.
        rotate: degrees by which pictures are turned.
        fps: frames a second, or the path of a dataset of the file that says them.
        note: remark for people.
    """

    has: tuple[str, ...] = ()
    files: str = "*.h*5"
    like: str = ""
    episodes: str = ""
    images: Annotated[Mapping[str, tuple[str, ...]], BeforeValidator(_several)] = Field(
        default_factory=dict
    )
    action: _Choices = ()
    state: _Choices = ()
    language: tuple[str, ...] = ()
    channel_order: Literal["rgb", "bgr"] = "rgb"
    encoded_order: Literal["", "rgb", "bgr"] = ""
    rotate: Literal[0, 180] = 0
    fps: float | str | None = None
    note: str = ""

    def files_beside(self, path: str) -> list[Path]:
        """Files beside an HDF5 file that may have its language."""
        return [beside(one, path)[0] for one in self.language if one.startswith("file:")]

    def known(self, features: Mapping[str, Feature]) -> KnownDataset:
        """Fields that a spec takes of these features, where nobody says."""
        pictures = [path for path, one in features.items() if one.kind == "image"]
        images = {
            camera: there[0]
            for camera, paths in self.images.items()
            if (there := [one for one in paths if one in pictures])
        }
        images = images or dict(zip(["primary"], pictures, strict=False))
        action, state = (
            next((one for one in choices if all(path in features for path in one)), None)
            for choices in (self.action, self.state)
        )
        return KnownDataset(images, action, state, (LANGUAGE,), None, self.note)


@cache
def schemas() -> Mapping[str, Schema]:
    """Known schemas by name, in the order in which they are tried."""
    return packaged(__package__, "schemas.yaml", dict[str, Schema])


def declared_in(folder: str, *, dataset: str) -> Schema | None:
    """The schema that a folder declares, or ``None``.

    Raises:
        SourceError: the declaration is wrong.
    """
    place = Path(folder, SCHEMA_FILE)
    if not place.is_file():
        return None
    own: dict[str, Any] = {}
    try:
        own = read_document(place)
        like = own.get("like")
        base = Schema() if like is None else schemas()[like]
        return Schema.model_validate(base.model_dump(exclude_unset=True, exclude={"has"}) | own)
    except (KeyError, TypeError) as error:
        what, remedy = f"{place}: like: {like!r} is unknown", nearest(str(like), schemas())
        raise SourceError(f"dataset {dataset}: {what}", remedy=remedy) from error
    except (SpecError, ValidationError) as error:
        if isinstance(error, SpecError):
            what, remedy = error.what, error.remedy
        else:
            what, remedy, _ = complaint(error, own)
            what = f"{place}: {what}"
        raise SourceError(f"dataset {dataset}: {what}", remedy=remedy) from error


def told(text: str, key: str) -> str | None:
    """The language in a text, or at a key of the JSON in it; ``None`` where there is none.

    A key may end with a number in brackets, which chooses from a list. A list that is not chosen
    from is put together, as LIBERO's pieces are. Quote marks around a language are taken off.
    """
    name, _, number = key.rstrip("]").partition("[")
    if not key:
        return text.strip().strip('"')
    try:
        value = json.loads(text)
        value = value[name] if name else value
        value = value[int(number)] if number else value
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    if isinstance(value, list):
        value = "".join(map(str, value))
    return value.strip().strip('"') if isinstance(value, str) else None


def beside(source: str, path: str) -> tuple[Path, str]:
    """(the file beside an HDF5 file, the key in it) of a source such as "file:{stem}.json:lang"."""
    _, name, *key = source.split(":")
    place = Path(path)
    return place.parent / name.format(stem=place.stem, folder=place.parent.name), ":".join(key)


def said_outside(source: str, path: str) -> str | None:
    """The language of a source that lies outside the file; ``None``: there is none."""
    if source.startswith("name:"):
        match = re.search(source.removeprefix("name:"), Path(path).stem)
        return match[1 if match.re.groups else 0].replace("_", " ").strip() if match else None
    place, key = beside(source, path)
    try:
        with place.open(encoding="utf-8") as file:
            return told(file.read(MOST_TEXT_BYTES), key)
    except (OSError, UnicodeDecodeError):
        return None
