"""One dataset's entry in a spec that ``init`` writes: its fields, and what a person should know.

Not here: which fields (``cli.propose``), the file around the entries (``cli.spec_text``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoloader.catalog import Feature, VersionDirectory
from autoloader.catalog.registry import KnownDataset
from autoloader.cli.depth_colours import depth_features
from autoloader.cli.propose import propose
from autoloader.cli.styles import Style
from autoloader.cli.yaml_line import flow
from autoloader.errors import AutoloaderError, UsageError
from autoloader.recipes import recipe
from autoloader.samples.resolve import resolve
from autoloader.spec import PipelineSpec, parse_expression
from autoloader.transforms.fields import feature_width, find_feature

_FLAGS = ("has_{}", "{}_present", "{}_valid")


@dataclass
class Entry:
    """One dataset as the spec has it.

    Attributes:
        name: unique in the spec.
        known_as: the registry's name for it, else TFDS's.
        directory: its version directory.
        values: the spec's fields of it, such as ``images`` and ``action``, in order.
        split: loader split → TFDS split expression.
        hz: control frequency, or ``None``.
        notes: what a person should know, a comment line each.
        proposed: fields that come from ``features.json`` → why.
        commented: fields that stand as comments → (value, why).
    """

    name: str
    known_as: str
    directory: VersionDirectory
    values: dict[str, Any]
    split: Mapping[str, str | None]
    hz: float | None
    notes: list[str] = field(default_factory=list)
    proposed: dict[str, str] = field(default_factory=dict)
    commented: dict[str, tuple[Any, str]] = field(default_factory=dict)

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras that it fills."""
        return tuple(self.values.get("images", ()))


def entry_of(
    directory: VersionDirectory, known: tuple[str, KnownDataset] | None, style: Style
) -> Entry:
    """The entry of a version directory, by the style's recipe, or as proposed where there is none.

    Args:
        directory: what lies there.
        known: what the registry says of it, under the registry's name.
        style: the convention.
    """
    if style.project is None:
        return _proposed(directory, known, style)
    try:
        found = recipe(directory.name.partition("/")[0], style.project)
    except UsageError:
        entry = _proposed(directory, known, style)
        entry.proposed = dict.fromkeys(entry.values, f"{style.project} has no recipe for it")
        return entry
    values = dict(found.dataset)
    if style.only_cameras and "images" in values:
        values["images"] = {
            camera: path for camera, path in values["images"].items() if camera in style.cameras
        }
        if not values["images"]:
            del values["images"]
    made = Entry(
        name=_name(directory),
        known_as=found.name,
        directory=directory,
        values=values,
        split=_split(directory, ("val",)),
        hz=None,
        notes=list(found.notes),
    )
    if not style.state and "state" in values:
        why = f"{style.project} does not read it in training"
        made.commented["state"] = (values.pop("state"), why)
    if "images" in values:
        values["images"] = with_flags(values["images"], directory.features)
    misfit = _misfit(made)
    if misfit is None:
        return made
    entry = _proposed(directory, known, style)
    entry.known_as = found.name
    why = f"the recipe of {style.project} does not fit these files"
    entry.proposed = dict.fromkeys(entry.values, why)
    entry.notes.append(f"{why}: {misfit}")
    return entry


def _misfit(entry: Entry) -> str | None:
    """Why an entry cannot be read from its files, or ``None``."""
    dataset: dict[str, Any] = {
        "name": entry.name,
        "path": entry.directory.path,
        "split": dict(entry.split),
    }
    dataset |= entry.values
    if not entry.cameras:  # a spec has one, and be it here alone
        every = entry.directory.features.items()
        dataset["images"] = {"any": next((path for path, one in every if one.kind == "image"), "")}
    cameras = {camera: {"size": [8, 8]} for camera in dataset["images"]}
    try:
        resolve(PipelineSpec.from_mapping({"datasets": [dataset], "cameras": cameras}))
    except AutoloaderError as error:
        return error.what
    return None


def _proposed(
    directory: VersionDirectory, known: tuple[str, KnownDataset] | None, style: Style
) -> Entry:
    found = propose(directory.features, known[1] if known else None)
    action, state = found.action, found.state
    notes = [known[1].note] if known and known[1].note else []
    if style.raw:
        action, state = (as_they_lie(terms, directory.features) for terms in (action, state))
        if action != found.action and any(not isinstance(term, str) for term in found.action):
            notes.append(f"as part of a mixture this action is usually made {flow(found.action)}")
    values = {
        "images": found.images,
        "action": _one_or_list(action),
        "state": _one_or_list(state),
        "language": found.language[0] if len(found.language) == 1 else {"any_of": found.language},
    }
    if style.only_cameras:
        values["images"] = {
            camera: path for camera, path in found.images.items() if camera in style.cameras
        }
    values["images"] = with_flags(values["images"], directory.features)
    return Entry(
        name=_name(directory),
        known_as=known[0] if known else directory.name.partition("/")[0],
        directory=directory,
        values={key: value for key, value in values.items() if getattr(found, key) and value},
        split=_split(directory),
        hz=known[1].hz if known else None,
        notes=notes,
        proposed=found.proposed,
    )


def _name(directory: VersionDirectory) -> str:
    return re.sub(r"\W+", "_", directory.name).strip("_")[:90] or "dataset"


def with_flags(images: Mapping[str, Any], features: Mapping[str, Feature]) -> dict[str, Any]:
    """Cameras, each with the flag that says whether it is there, where the files have one.

    A flag of ``observation/image_3`` is a bool or an integer, of the steps or of the episode, and
    is called ``has_image_3``, ``image_3_present`` or ``image_3_valid``.
    """
    flags = {
        path.rpartition("/")[2]: path
        for path, feature in features.items()
        if feature.kind == "tensor" and not feature.shape and "float" not in feature.dtype
    }
    found = {}
    for camera, choice in images.items():
        plain = {"path": choice} if isinstance(choice, str) else dict(choice)
        leaf = str(plain.get("path", "")).rpartition("/")[2]
        names = [form.format(leaf) for form in _FLAGS]
        flag = next((flags[name] for name in names if leaf and name in flags), None)
        known = flag is None or "present" in plain
        found[camera] = choice if known else {**plain, "present": flag}
    return found


def as_they_lie(terms: Sequence[Any], features: Mapping[str, Feature]) -> list[Any]:
    """Terms without operations and zeros; slices that are all of one feature become its path."""
    bare = [
        term if isinstance(term, str) else term["path"]
        for term in terms
        if isinstance(term, str) or "path" in term
    ]
    if not bare:
        return bare
    parsed = parse_expression(bare).terms
    (path, *others) = dict.fromkeys(term.path for term in parsed)
    if path is None or others:
        return bare
    width = feature_width(find_feature(features, path, field="", dataset=""), field="")
    columns = [column for term in parsed for column in range(width)[term.slice()]]
    return [path] if columns == list(range(width)) else bare


def unused(entry: Entry) -> Iterator[str]:
    """A comment line for each kind of features that the entry leaves where they lie."""
    taken = {word.partition("[")[0] for word in _words([entry.values, entry.commented])}
    kinds = {"image": "images", "tensor": "numbers", "text": "texts", "other": "other features"}
    left: dict[str, list[str]] = {}
    for path, feature in entry.directory.features.items():
        if path not in taken:
            left.setdefault(kinds[feature.kind], []).append(_described(feature))
    for kind in kinds.values():
        if kind in left:
            yield f"not used, {kind}: {', '.join(left[kind])}"
    for path, dtype in depth_features(entry.directory.features).items():
        if path not in taken:
            camera = re.sub(r"\W+", "_", path.rpartition("/")[2])
            yield (
                f"depth, as a camera: images: {{{camera}: {path}}}, and below cameras: "
                f"{camera}: {{size: [256, 256], depth: {dtype}}}"
            )


def _words(value: Any) -> Iterator[str]:
    """Every text in a nested value, names of mappings among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _words(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _words(inner)


def _described(feature: Feature) -> str:
    shape = "×".join("?" if size is None else str(size) for size in feature.shape)
    said = [word for word in (shape, feature.encoding if feature.kind == "tensor" else "") if word]
    if feature.kind == "image" and feature.dtype != "uint8":
        said.append(feature.dtype)
    return f"{feature.path} ({', '.join(said)})" if said else feature.path


def _split(
    directory: VersionDirectory, held_out: Sequence[str] = ("val", "validation", "test")
) -> dict[str, str | None]:
    """A split to train on and one to validate on, neither empty."""
    counts = {
        name: sum(shard.records for shard in shards) for name, shards in directory.splits.items()
    }
    full = [name for name, count in counts.items() if count]
    train = "train" if "train" in full else next(iter(full), "train")
    for name in held_out:
        if name in full and name != train:
            return {"train": train, "val": name}
    if counts.get(train, 0) < 2:
        return {"train": train, "val": None}
    if counts[train] < 40:
        return {"train": f"{train}[:-1]", "val": f"{train}[-1:]"}
    return {"train": f"{train}[:95%]", "val": f"{train}[95%:]"}


def _one_or_list(terms: list[Any]) -> Any:
    return terms[0] if len(terms) == 1 else terms
