"""A spec drafted from datasets, for ``autoloader init`` and for an ``AutoLoader`` of a dataset.

Fields come from the registry or a recipe where these fit the files, else from the features. A style
is the convention of a project, as text that people go on editing (``styles.yaml``). Its figures are
the ones of Octo 1.5, OpenVLA and openpi.

Not here: finding directories (``formats.sources``), datasets of the Hub (``formats.hub``), what is
known of datasets by name (``formats.registry``).
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from shlex import quote
from typing import Any, Literal

import numpy as np

from autoloader.decode.frames import is_black
from autoloader.errors import AutoloaderError, SourceError, UsageError, nearest
from autoloader.formats import DatasetFormat, Feature, open_source, registry
from autoloader.formats.features import TASK, TASKS
from autoloader.formats.files import is_remote, normal
from autoloader.formats.hub import located
from autoloader.formats.lerobot.modality import Release
from autoloader.formats.places import NAMES_SPLIT, address_meant, dataset_around, folder_name
from autoloader.formats.records import parse_example
from autoloader.formats.sources import dataset_versions, is_file, is_records, kinds, same_files
from autoloader.host.frozen import frozen
from autoloader.index.counting import PROBE_RECORDS, count_mixture, of_first_records
from autoloader.process import gr00t
from autoloader.samples.resolve import resolve
from autoloader.samples.transforms.binding import is_depth_picture, is_depth_tensor
from autoloader.samples.transforms.fields import (
    check_camera,
    check_language,
    check_same_kind,
    feature_width,
    find_feature,
    is_several,
    numeric_field,
)
from autoloader.samples.transforms.keep import few
from autoloader.spec import PipelineSpec, parse_expression
from autoloader.spec.model import MOST_PICTURES
from autoloader.spec.reading import flow, packaged, parse_yaml
from autoloader.spec.recipes import mixtures, names, other_names, recipe
from autoloader.telemetry import progress

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
_FLAGS = ("has_{}", "{}_present", "{}_valid")
_LEAST_SIDE = 16
"""A tensor of fewer rows or columns is a matrix, not a picture."""
_COMMENT_WIDTH = 100
_STYLE_OF = {"gr00t": "gr00t-n1.6", "lerobot": "lerobot-act"}
"""Style of a project, where no release or policy is named."""
_CHUNK = 100
"""Actions of a sample in a style that takes all, where the metadata says no lengths."""
_Faults = dict[str, AutoloaderError]
_Place = str | os.PathLike[str]


@frozen
class Style:
    """Parts of a spec beside its datasets, in one project's convention.

    Attributes:
        about: comments at the top, one sentence or a few each.
        weights: the line ``weights``; of a mixture, and without one.
        sample: YAML lines behind it; LONGEST in them is the steps of the longest episode.
        cameras: camera → its line's value and comment; others are as ``primary``.
        augment: camera → YAML lines of its operations.
        augmented: comment on the block ``augment``.
        rest: YAML lines at the end.
        project: whose recipes (``autoloader.recipes``) datasets are written by, if any's.
        only_cameras: whether the batch has the style's cameras and no others; a camera that no
            dataset fills is black.
        state: whether the project reads the state; else it stands as a comment.
        raw: whether actions and states are taken as they lie.
        every_camera: whether all colour cameras are taken, by LeRobot's names.
        modality: release of GR00T by whose rules ``modality.json`` gives the fields; "": none.
        pairs: whether each dataset has an offset of about a second.
        held_out: splits that may be validated on, the first that is there.
        rest_of_train: part of train to validate on where no other split is there. "some": at least
            one episode; "5%": the last ones, rounded as TFDS does; "none": no validation.
    """

    about: tuple[str, ...]
    weights: tuple[str, str]
    sample: str
    cameras: Mapping[str, str]
    augment: Mapping[str, str] = field(default_factory=dict)
    augmented: str = "on the device; never in validation"
    rest: str = "batch: {size: 48}                 # samples per batch and rank\n"
    project: str | None = None
    only_cameras: bool = False
    state: bool = True
    raw: bool = False
    every_camera: bool = False
    modality: Literal["", Release] = ""
    pairs: bool = False
    held_out: tuple[str, ...] = ("val", "valid", "validation", "test")
    rest_of_train: Literal["some", "5%", "none"] = "some"


@cache
def styles() -> Mapping[str, Style]:
    """All styles, as ``styles.yaml`` beside this file has them."""
    return packaged(__package__, "styles.yaml", dict[str, Style])


@progress.told("looking for datasets")
def draft(
    data_dir: _Place | Sequence[_Place],
    say: Callable[[str], object],
    style: str | None = None,
    mix: str | None = None,
    *,
    whole: bool = False,
) -> dict[str, Any]:
    """Draft a spec of the datasets below folders.

    Args:
        data_dir: folders or addresses where datasets lie, at any depth; or ids of the Hub.
        say: is told what a person should know of the draft, a line each.
        style: convention of the spec; ``None``: plain, or the mixture's own.
        mix: name of a published mixture, or of one of its datasets; ``None``: all datasets.
        whole: whether a dataset that cannot be used is an error, not left out.

    Returns:
        "spec": text of the spec file; "style", "mix" and "datasets": what it was made from;
        "left_out": name → why, of datasets that cannot be used.

    Raises:
        SourceError: a folder is not there, or no dataset below them can be used.
    """
    places = [data_dir] if isinstance(data_dir, (str, os.PathLike)) else data_dir
    try:
        return _draft(places, say, style, mix, whole=whole)
    except SourceError as error:
        for place in places:
            if around := dataset_around(os.fspath(place)):
                what = f"{place} lies inside a dataset, and holds none"
                raise SourceError(what, remedy=f"give the dataset's folder: {around}") from error
        raise


def _draft(
    places: Sequence[_Place], say: Callable[[str], object], style: str | None, mix: str | None,
    *, whole: bool,
) -> dict[str, Any]:  # fmt: skip
    name, weights = _style_and_mix(_STYLE_OF.get(style or "", style), mix)
    roots = [_root(place, say) for place in places]
    root = ", ".join(roots)
    of_texts = len(roots) == 1 and name == "plain" and mix is None
    if of_texts and is_records(root):
        return _of_records(root, say)
    how, faults, left = styles()[name], _Faults(), dict[str, str]()
    found = list(_entries(roots, how, say, faults, left))
    if not found and len(faults) == 1:
        raise next(iter(faults.values()))
    if of_texts and not found and not faults:
        from autoloader.formats.image_text import record_files

        try:
            if record_files(root):
                return _of_records(root, say)
        except AutoloaderError as fault:  # maybe a folder of other JSON
            faults[root] = fault
    every, whys = len(found) + len(left), "; ".join(left.values())
    shortage = f"{len(found)} of {every} datasets written; left out: {', '.join(left)}"
    if whole and found and left:
        raise SourceError(
            f"{root}: {len(left)} of {every} datasets cannot be used: {whys}",
            remedy=f"repair {'it' if len(left) == 1 else 'them'}, or train on the spec that "
            f"`autoloader init {quote(root)} -o mix.yaml` writes of the others",
        )
    for path, error in faults.items():
        say(f"{path}: left out: {error.what} → {error.remedy}")
    present, absent = list[str](), list[str]()
    if weights is not None:
        for one in found:
            if one.known_as not in weights.weights:
                say(f"{one.name}: not part of {mix}, left out")
        found = [one for one in found if one.known_as in weights.weights]
        present = [one.known_as for one in found]
        absent = [one for one in weights.weights if one not in present]
        say(f"{len(found)} of the {len(weights.weights)} datasets of {mix}")
        if absent:
            say(f"of {mix}, these are not in {root}: {', '.join(absent)}")
    if not found:
        raise SourceError(
            f"{root} holds no readable dataset{f' of the mixture {mix}' if mix else ''} (formats: "
            f"{', '.join(kinds())})",
            remedy="give a dataset's directory, such as my_dataset/1.0.0, or one above datasets"
            + ("; the lines above say what was left out and why" if faults or mix else ""),
        )
    for one in found:
        if one.proposed:
            why = "; ".join(sorted(set(one.proposed.values())))
            guessed = f"{', '.join(one.proposed)} were guessed"
            say(f"{one.name}: {why}: {guessed}; check them with autoloader peek")
        for what, why in one.missing.items():
            say(f"{one.name}: no {what}: {why}")
        for told in (*one.faults, *one.directory.notes):
            say(f"{one.name}: {told}")
    always = how.only_cameras and not any("camera" in one.missing for one in found)
    if not always and not any(one.cameras for one in found):
        raise SourceError(
            f"{root}: init found no images that it can use as a camera, and a spec needs one; the "
            "lines above say why",
            remedy="if a feature has images that init does not recognise, write the spec by hand "
            "and name it in its dataset's images; else write the dataset again with a uint8 image "
            "for each step",
        )
    about = [f"Written by autoloader init --style {name}.", *how.about]
    if weights is not None:
        rest = f"; not here: {', '.join(absent)}" if absent else ""
        about.append(f"{mix}: {weights.about}.")
        about.append(f"{len(found)} of its {len(weights.weights)} datasets{rest}.")
    if left:
        about.append(f"{shortage} ({whys}).")
    text = spec_text(found, how, about, weights)
    PipelineSpec.from_mapping(parse_yaml(text))  # what is written, holds
    known = weights and {
        "name": mix, "datasets": len(weights.weights), "present": present, "absent": absent,
    }  # fmt: skip
    datasets = {one.name: {"path": one.directory.path, "proposed": one.proposed} for one in found}
    if left:
        say(shortage)
    return {"spec": text, "style": name, "mix": known, "datasets": datasets, "left_out": left}


def _root(place: _Place, say: Callable[[str], object]) -> str:
    """The folder, file or address that a person named.

    Raises:
        SourceError: there is none.
    """
    root = located(place, say)
    if not is_remote(root) and not (os.path.isdir(root) or is_file(root) or is_records(root)):
        there, address = os.path.lexists(root), address_meant(os.fspath(place))
        raise SourceError(
            f"{place} is not a directory" if there else f"{place} does not exist",
            remedy=(f"did you mean the address {address}? Else " if address else "")
            + "give the directory that holds the datasets, or a dataset of the Hub: ORG/NAME",
        )
    return root


def _of_records(root: str, say: Callable[[str], object]) -> dict[str, Any]:
    """As ``draft``, of image-text data at a path."""
    from autoloader.formats.image_text import ImageTextDirectory

    directory = ImageTextDirectory.open(root, dataset=folder_name(root))
    try:
        most, missing = directory.look()
    except ValueError as error:
        raise SourceError(
            f"{root}: its records cannot be read: {error}",
            remedy="give each record a key conversations, messages, texts, caption or text",
        ) from error
    name = _name_of(directory.name)
    if missing:
        say(f"{name}: no picture {missing[:200]!r} below {directory.media}; set media")
    split = _split(directory, replace(styles()["plain"], rest_of_train="none"))
    entry = {
        "name": name, "path": root, "kind": "image_text",
        "split": split if split["val"] else split["train"],
        "media": directory.media,
        "vision": {"slots": min(MOST_PICTURES, max(1, most)), "size": [336, 336], "fit": "pad"},
        "language": "prompt",
    }  # fmt: skip
    lines = "".join(f"    {key}: {flow(value)}\n" for key, value in entry.items())
    text = (
        "# Written by autoloader init. Each record is an episode of one step, without an action.\n"
        "# Put the entry beside robots' datasets; their cameras stay as they are.\n"
        f"schema_version: 1\ndatasets:\n  - {lines.lstrip()}cameras: {{}}\nbatch: {{size: 48}}\n"
    )
    PipelineSpec.from_mapping(parse_yaml(text))  # what is written, holds
    datasets = {name: {"path": root, "proposed": {}}}
    return {"spec": text, "style": "plain", "mix": None, "datasets": datasets, "left_out": {}}


def _style_and_mix(style: str | None, mix: str | None) -> tuple[str, registry.KnownMix | None]:
    """Give the style (the mixture's own if none is named) and the mixture.

    Raises:
        UsageError: no project has the mixture, or several have, or the style has not.
    """
    if style is not None and style not in styles():
        of_project = [one for one in styles() if one.startswith(f"{style.partition('-')[0]}-")]
        remedy = f"choose one of: {', '.join(of_project)}"
        if not of_project:
            remedy = nearest(style, dict.fromkeys(one.partition("-")[0] for one in styles()))
        raise UsageError(f"--style {style!r}: no such style", remedy=remedy)
    if mix is None:
        return style or "plain", None
    bare = registry.known_mixes()
    found = {one: _mixes_of(how.project) if how.project else bare for one, how in styles().items()}
    if style is None and mix in bare:
        style = "stage2" if bare[mix].pairs else "plain"
    having = [one for one, mixes in found.items() if mix in mixes and style in (None, one)]
    if len(having) == 1:
        return having[0], found[having[0]][mix]
    among = {name for one, mixes in found.items() if style in (None, one) for name in mixes}
    raise UsageError(
        f"--mix {mix}: {'several projects have' if having else 'no project has'} such a mixture"
        if style is None
        else f"--mix {mix}: --style {style} has no such mixture",
        remedy="add " + " or ".join(f"--style {one}" for one in having)
        if having
        else nearest(mix, sorted(among)),
    )


def _mixes_of(project: str) -> dict[str, registry.KnownMix]:
    """A project's mixtures, and each of its datasets alone."""
    alone = {other: {name: 1.0} for name in names(project)
             for other in (name, *other_names(name))}  # fmt: skip
    return {
        name: registry.KnownMix(f"a mixture of {project}", weights)
        for name, weights in {**alone, **mixtures(project)}.items()
    }


def _entries(
    roots: Sequence[str], style: Style, say: Callable[[str], object], faults: _Faults,
    left: dict[str, str],
) -> Iterator[Entry]:  # fmt: skip
    """Yield the newest readable version of every dataset below ``roots``.

    Why others cannot be used is added to ``faults`` by path, and to ``left`` by name if no version
    of a dataset can.
    """
    found: dict[str, Entry] = {}
    for versions in (one for root in roots for one in dataset_versions(root, say)):
        newest, entries = normal(versions[0]), (_entry(one, style, faults) for one in versions)
        if (entry := next(filter(None, entries), None)) is not None:
            found.setdefault(entry.directory.path, entry)
        elif not getattr(faults[newest], "foreign", False):
            left[folder_name(newest)] = faults[newest].what
    every, names = list(found.values()), set[str]()
    copies = {later: first for first, later in same_files([one.directory for one in every])}
    for place, entry in enumerate(every):
        if place in copies:
            other = every[copies[place]].directory.path
            say(f"{entry.directory.path}: left out: it holds the same data as {other}")
            continue
        stem, number = entry.name, 2
        while entry.name in names:
            entry.name, number = f"{stem}_{number}", number + 1
        names.add(entry.name)
        yield entry


def _entry(place: Path, style: Style, faults: _Faults) -> Entry | None:
    """Give the entry of a version; ``None``, and a fault, if it cannot be taken."""
    path = normal(place)
    try:
        entry = entry_of(open_source(path, dataset=folder_name(path)), style)
        if (fault := fault_of(entry)) is not None:
            raise fault
        if not {"images", "action", "state"} & set(entry.values):
            what = f"{path}: no feature is known as an image, an action or a state"
            raise SourceError(what, remedy="write its fields by hand: see autoloader inspect")
    except AutoloaderError as error:
        faults[path] = error
        return None
    return entry


def depth_features(features: Mapping[str, Feature]) -> dict[str, str]:
    """Path → dtype of a camera for each feature that is depth by its type, shape and name."""
    found = {}
    for path, feature in features.items():
        tensor = is_depth_tensor(feature) and min(s or 0 for s in feature.shape[:2]) >= _LEAST_SIDE
        if is_depth_picture(feature) or (tensor and "depth" in path.lower()):
            found[path] = "uint16" if feature.dtype == "uint16" else "float32"
    return found


def propose(
    features: Mapping[str, Feature], known: registry.KnownDataset | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Propose the fields of a dataset as a spec writes them, with the reason of each guess.

    Args:
        features: path → feature of the dataset.
        known: the registry's entry of the dataset; ``None`` where there is none.
    """
    values: dict[str, Any] = {}
    guesses: dict[str, str] = {}
    for name, (check, guess) in _FIELDS.items():
        listed: Any = getattr(known, name) if known else ()
        if known and not listed:
            continue
        if name == "language":
            listed = [path for path in listed if path in features]
        if listed and _fits(check, features, listed):
            values[name] = dict(listed) if name == "images" else list(listed)
        elif guessed := guess(features):
            values[name], why = guessed, "the known recipe does not fit these files"
            guesses[name] = why if known else "not a known dataset"
    return values, guesses


def guess_cameras(features: Mapping[str, Feature]) -> dict[str, str]:
    """A primary and a wrist camera, by name; the first of each kind."""
    usable = [path for path in features if _fits(_camera, features, path)]
    on_wrist = [path for path in usable if _WRIST.search(_last(path))]
    others = [path for path in usable if path not in on_wrist]
    found = {}
    if others:
        found["primary"] = min(others, key=lambda path: (len(_last(path)), path))
    if on_wrist:
        found["wrist"] = on_wrist[0]
    return found


def why_no_camera(features: Mapping[str, Feature]) -> str:
    """Say why no feature of a dataset can be a colour camera."""
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


def guess_numbers(features: Mapping[str, Feature], *, name: str) -> list[Any]:
    """The terms of ``action`` or ``state``, by name."""
    steps = [path for path, feature in features.items() if feature.per_step]
    usable = [path for path in steps if _fits(_width_within, features[path])]
    known = (
        ("action", "actions") if name == "action" else ("observation/state", "observation.state")
    )
    if whole := [path for path in known if path in usable]:
        return whole[:1]
    if name == "action":
        parts = [path for path in usable if path.startswith("action/")]
        return [path for path in parts if not _NO_ACTION.search(path.rpartition("/")[2])]
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
    usable = [path for path in features if _fits(_language, features, [path])]
    # GR00T's tasks are often a flag of validity, and the instruction is an annotation.
    by_task = [path for path, feature in features.items() if feature.encoding == TASKS]
    annotated = [path for path in by_task if path != TASK and _WORDS.search(path)]
    if annotated:
        return sorted(annotated, key=lambda path: ("description" not in path, path))[:1]
    for first in _FIRST_WORDS:
        if first in usable:
            return [one for one in (first, f"{first}_2", f"{first}_3") if one in usable]
    named = [path for path in usable if _WORDS.search(path)]
    return sorted(named, key=lambda path: path.startswith("episode_metadata/"))[:1]


def _camera(features: Mapping[str, Feature], path: str) -> None:
    check_camera(find_feature(features, path, field="images"), field="images", features=features)


def _cameras(features: Mapping[str, Feature], images: Mapping[str, str]) -> None:
    for path in images.values():
        _camera(features, path)


def _numbers(features: Mapping[str, Feature], terms: Sequence[Any]) -> None:
    numeric_field(parse_expression(list(terms)), features, field="")


def _language(features: Mapping[str, Feature], paths: Sequence[str]) -> None:
    """Refuse paths that are no texts, or are of different kinds."""
    every = [find_feature(features, path, field="language") for path in paths]
    for feature in every:
        if not is_several(feature):
            check_language(feature, field="language")
    check_same_kind(every, field="language")


def _width_within(feature: Feature) -> None:
    if feature_width(feature, field="") > WIDEST:
        raise ValueError("an embedding")


def _fits(check: Callable[..., object], *values: Any) -> bool:
    """True if ``check`` raises no error about fields."""
    try:
        check(*values)
    except (AutoloaderError, ValueError):
        return False
    return True


_FIELDS: dict[str, tuple[Callable[..., object], Callable[[Mapping[str, Feature]], Any]]] = {
    "images": (_cameras, guess_cameras),
    "action": (_numbers, partial(guess_numbers, name="action")),
    "state": (_numbers, partial(guess_numbers, name="state")),
    "language": (_language, guess_language),
}
"""Field → what refuses a value of it, what guesses one by the names of features."""


@dataclass
class Entry:
    """One dataset as the spec has it.

    Attributes:
        name: name of the dataset, unique in the spec.
        known_as: name of the dataset in the registry, else in TFDS.
        directory: version directory of the dataset.
        values: the spec's fields of it, such as ``images`` and ``action``, in order.
        split: loader split → TFDS split expression.
        hz: control frequency in Hz; ``None``: not known.
        notes: remarks for people, a comment line each.
        faults: faults of the files that the spec goes round: comments that are said, too.
        proposed: fields that come from ``features.json`` → why.
        commented: fields that stand as comments → (value, why).
        missing: "camera" and "language", where none could be taken → why.
        weight: share in a spec whose mixture says none.
    """

    name: str
    known_as: str
    directory: DatasetFormat
    values: dict[str, Any]
    split: Mapping[str, str | None]
    hz: float | None = None
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    proposed: dict[str, str] = field(default_factory=dict)
    commented: dict[str, tuple[Any, str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    weight: float = 1.0

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras that it fills."""
        return tuple(self.values.get("images", ()))


def entry_of(directory: DatasetFormat, style: Style) -> Entry:
    """The entry of a version directory, by the style's recipe, or as proposed where there is none.

    A dataset is looked up by the name of its folder, then by the name that its files have.
    """
    if style.modality:
        values, notes, weight = gr00t.fields_of(directory, style.modality)
        made = _entry_with(values, directory, "", directory.name.partition("/")[0], style)
        made.notes, made.weight = notes, weight
        return made
    if style.project is None:
        return _proposed(directory, style)
    misfits: list[tuple[Entry, str]] = []
    for name in _names(directory):
        try:
            found = recipe(name, style.project)
        except UsageError:
            continue
        values, state = dict(found.dataset), None
        if not style.state:
            state = values.pop("state", None)
        made = _entry_with(values, directory, name, found.name, style)
        made.notes += found.notes
        if state is not None:
            made.commented["state"] = state, f"{style.project} does not read it in training"
        misfit = fault_of(made)
        if misfit is None:
            return made
        misfits.append((made, misfit.what))
    entry = _proposed(directory, style)
    why = f"{style.project} has no recipe for it"
    if misfits:
        made, told = misfits[0]
        why = f"the recipe of {style.project} does not fit these files"
        entry.known_as = made.known_as
        entry.notes.append(f"{why}: {told}")
    entry.proposed = dict.fromkeys((key for key in entry.values if key != "episodes"), why)
    return entry


def _names(directory: DatasetFormat) -> list[str]:
    """Names of a dataset without the config: by its folder, and by its files."""
    own, *config = directory.name.split("/")
    place = Path(directory.path)
    folder = folder_name(place if not config else place.parents[len(config)])
    return list(dict.fromkeys([folder, own]))


def _name_of(text: str) -> str:
    """A name that a spec may give a dataset."""
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")[:90] or "dataset"


def _entry_with(
    values: Mapping[str, Any], directory: DatasetFormat, found_by: str, known_as: str, style: Style
) -> Entry:
    """An entry of these fields, with the style's cameras and splits.

    Args:
        values: fields of the dataset, as a spec writes them; empty ones are left out.
        directory: version directory of the dataset.
        found_by: name that a recipe or the registry has for it; "" where none has.
        known_as: the registry's name for it, else TFDS's.
        style: convention that the spec is written in.
    """
    split = _split(directory, style)
    images = with_flags(values.get("images", {}), directory.features)
    if style.only_cameras:
        images = {camera: path for camera, path in images.items() if camera in style.cameras}
    train = str(split["train"]).partition("[")[0]
    faults = [*_without_false_flags(images, directory, train), *_held_out(directory, train)]
    fields = {key: images if key == "images" else value for key, value in values.items()}
    keys = [directory.features[one].key for one in _words(images) if one in directory.features]
    missing, numbers = directory.missing_videos(keys), directory.episode_numbers
    # A loader bears one in a hundred, of a split that may be smaller.
    if missing and max(1, len(numbers) // 200) < len(missing.without) < len(numbers):
        whole = sorted({*numbers} - {*missing.without})
        fields["episodes"], split = whole, _split(directory.with_episodes(whole), style)
        which = f"episodes {few(missing.without)} of {len(numbers)} have no video"
        faults.append(
            f"{which} ({missing.example}: no such file): episodes lists the others, "
            "from which split takes its share"
        )
    _, slash, config = directory.name.partition("/")
    name = f"{found_by}{slash}{config}" if found_by else directory.name
    return Entry(
        name=_name_of(name),
        known_as=known_as,
        directory=directory,
        values={key: value for key, value in fields.items() if value},
        split=split,
        faults=faults,
    )


def fault_of(entry: Entry) -> AutoloaderError | None:
    """Give the error that a loader would raise for an entry, or ``None``."""
    dataset: dict[str, Any] = {"name": entry.name, "path": entry.directory.path}
    dataset |= {"split": dict(entry.split), **entry.values}
    if not entry.cameras:  # a spec needs a camera
        dataset["images"] = guess_cameras(entry.directory.features)
    cameras = {camera: {"size": [8, 8]} for camera in dataset["images"]}
    try:
        if not cameras:
            entry.directory.resolve(str(entry.split["train"]))
            return None
        mixture = resolve(PipelineSpec.from_mapping({"datasets": [dataset], "cameras": cameras}))
        if not entry.directory.streamable:
            count_mixture(mixture, probe_only=True)
    except AutoloaderError as error:
        return error
    return None


def _proposed(directory: DatasetFormat, style: Style) -> Entry:
    """The entry of a dataset: known fields that fit its features, else proposed ones."""
    features, missing = dict(directory.features), {}
    for camera in directory.cameras:
        lost = directory.missing_videos([camera])
        if lost is not None and lost.missing == lost.named:
            del features[camera]
            missing[camera] = "info.json lists it, and none of its videos is there"
    own = "", directory.name.partition("/")[0], directory.known
    listed = ((name, registry.known_dataset(name)) for name in _names(directory))
    sources = [*((name, *found) for name, found in listed if found is not None), own]
    tried = [(one, *propose(features, one[2])) for one in sources if one[2] or len(sources) == 1]
    (name, known_as, known), values, guesses = next((one for one in tried if not one[2]), tried[0])
    if style.every_camera and "images" in values:
        usable = (path for path in features if _fits(_camera, features, path))
        names = {path.removeprefix("observation.images."): path for path in usable}
        values["images"] = {gr00t.camera_name(key): path for key, path in names.items()}
    language = values.pop("language", [])
    by_task = [path for path in language if features[path].encoding == TASKS]
    try:
        if by_task:
            directory.check_first((), (), (features[path] for path in by_task))
    except SourceError as error:
        language = [path for path in language if path not in by_task]
        missing["language"] = error.what.partition(": ")[2]
    if "images" not in values:
        missing["camera"] = why_no_camera(features)
    if language:
        values["language"] = language_of(language, features)
    else:
        missing.setdefault("language", "no feature holds texts")
        guesses.pop("language", None)
    notes = [known.note] if known and known.note else []
    for key in ("action", "state"):
        terms = values.get(key, [])
        if style.raw:
            plain = as_they_lie(terms, features)
            if key == "action" and plain != terms and not all(isinstance(t, str) for t in terms):
                notes.append(f"as part of a mixture this action is usually made {flow(terms)}")
            terms = plain
        values[key] = terms[0] if len(terms) == 1 else terms
    ordered = {key: values[key] for key in _FIELDS if key in values}
    made = _entry_with(ordered, directory, name, known_as, style)
    made.hz = known.hz if known else None
    made.notes, made.proposed, made.missing = notes, guesses, missing
    return made


def language_of(paths: Sequence[str], features: Mapping[str, Feature]) -> Any:
    """Write the language of these features for a spec; of several strings one is drawn."""
    chosen: dict[str, Any] = {"path": paths[0]} if len(paths) == 1 else {"any_of": list(paths)}
    if any(is_several(features[path]) for path in paths):
        return {**chosen, "several": "draw"}
    return paths[0] if len(paths) == 1 else chosen


def with_flags(images: Mapping[str, Any], features: Mapping[str, Feature]) -> dict[str, Any]:
    """Give cameras their flags of presence, where the files have such flags.

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


def _without_false_flags(
    images: dict[str, Any], directory: DatasetFormat, split: str
) -> Iterator[str]:
    """Take out flags that are 0 in all records read although pictures are not black, with a note.

    Only the first records of local TFDS data are read.
    """
    if not directory.streamable or directory.steps or is_remote(directory.path):
        return
    features = directory.features
    for camera, choice in images.items():
        if isinstance(choice, str) or not {"path", "present"} <= choice.keys():
            continue
        seen = list[tuple[bool, bool]]()
        with suppress(AutoloaderError, LookupError):  # the dataset's check names it
            keys = features[choice["present"]].key, features[choice["path"]].key
            pieces, look = directory.splits[split], partial(_flag_and_black, keys=keys)
            seen = of_first_records(pieces, PROBE_RECORDS, directory.name, look)
        if seen and not any(flag for flag, _ in seen) and not all(black for _, black in seen):
            plain = {key: value for key, value in choice.items() if key != "present"}
            images[camera] = plain["path"] if len(plain) == 1 else plain
            yield (
                f"camera {camera}: {choice['present']} is 0 in all {len(seen)} episodes read, yet "
                "the pictures are not black: the flag is not used"
            )


def _flag_and_black(file: Any, start: int, size: int, *, keys: Sequence[str]) -> tuple[bool, bool]:
    """(whether a flag is set at any step, whether the middle picture is black) of a record."""
    found = parse_example(file, start=start, stop=start + size, only=keys)
    flag, frames = (found[key] for key in keys)
    first, stop = frames.ranges[len(frames) // 2]
    return bool(np.any(flag.values)), is_black(file[first:stop])


def as_they_lie(terms: Sequence[Any], features: Mapping[str, Feature]) -> list[Any]:
    """Give terms without operations and zeros; slices that make up a feature become its path."""
    plain = [{"path": term} if isinstance(term, str) else term for term in terms]
    bare = [term["path"] for term in plain if "path" in term]
    if not bare:
        return bare
    parsed = parse_expression(bare).terms
    (path, *others) = dict.fromkeys(term.path for term in parsed)
    if path is None or others:
        return bare
    width = feature_width(find_feature(features, path, field=""), field="")
    columns = [column for term in parsed for column in range(width)[term.slice()]]
    return [path] if columns == list(range(width)) else bare


def unused(entry: Entry) -> Iterator[str]:
    """Yield a comment line for each kind of features that the entry does not use."""
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
        yield from _words([*map(str, value), *value.values()])
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _words(inner)


def _described(feature: Feature) -> str:
    """Path, shape and kind of a feature, for a comment."""
    shape = "×".join("?" if size is None else str(size) for size in feature.shape)
    said = [word for word in (shape, feature.encoding if feature.kind == "tensor" else "") if word]
    if feature.kind == "image" and feature.dtype != "uint8":
        said.append(feature.dtype)
    return f"{feature.path} ({', '.join(said)})" if said else feature.path


def _split(directory: DatasetFormat, style: Style) -> dict[str, str | None]:
    """A split to train on and one to validate on, neither empty."""
    counts = {
        name: sum(shard.records for shard in shards) for name, shards in directory.splits.items()
    }
    full = [name for name, count in counts.items() if count]
    train = "train" if "train" in full else next(iter(full), "train")
    others = [name for name in style.held_out if name in full and name != train]
    if others:
        return {"train": train, "val": others[0]}
    episodes, some = counts.get(train, 0), style.rest_of_train == "some"
    left = {"5%": episodes - round(95 * episodes / 100), "some": episodes > 1, "none": 0}
    if not left[style.rest_of_train]:
        return {"train": train, "val": None}
    edge = "-1" if some and episodes < 40 else "95%"
    return {"train": f"{train}[:{edge}]", "val": f"{train}[{edge}:]"}


def _held_out(directory: DatasetFormat, train: str) -> Iterator[str]:
    """A clause about folders and files of a split to train on that are named as held out."""
    files = (Path(one.path).parts for one in directory.splits.get(train, ()))
    below = len(Path(directory.path).parts)
    parts = (folder_name(directory.path), *(part for one in files for part in one[below:]))
    words = {part: {one.lastgroup for one in NAMES_SPLIT.finditer(part)} for part in parts}
    if held := [part for part, told in words.items() if told and "train" not in told]:
        yield (
            f"{few(held)} is named as data to validate on, and this spec trains on it: move it out "
            "of the folder, or set split: {train: null, val: train} of its dataset"
        )


def spec_text(
    entries: Sequence[Entry], style: Style, about: Sequence[str], mix: registry.KnownMix | None
) -> str:
    """The spec file.

    Args:
        entries: datasets of the spec.
        style: convention that it is written in.
        about: comments at its top, a paragraph each.
        mix: published weights of the datasets; ``None``: all weigh 1.
    """
    lines = [line for one in about for line in _comment(one, "")]
    lines += _comment("What is not used stands as a comment; features: passes it on.", "")
    lines += ["schema_version: 1", "datasets:"]
    weights = style.weights[0 if mix else 1]
    for one in entries:
        weight = mix.weights[one.known_as] if mix else one.weight
        lines += _dataset(one, None if weights.startswith("natural ") else weight, style)
    lines.append(f"weights: {weights}")
    cameras = list(dict.fromkeys(camera for one in entries for camera in one.cameras))
    empty = [name for name in style.cameras if style.only_cameras and name not in cameras]
    cameras += empty
    ordered = list(dict.fromkeys([*(c for c in style.cameras if c in cameras), *cameras]))
    told = [count for one in entries for of in one.directory.steps.values() for count in of]
    sample = style.sample.replace("LONGEST", str(max(told, default=_CHUNK)))
    lines += [*sample.splitlines(), "cameras:"]
    for name in ordered:
        how = style.cameras.get(name) or style.cameras.get("primary")
        how = how or flow({"size": next(iter(_stored(entries, name)), [256, 256])})
        if name in empty:  # the project has the camera, so it is black
            how = how.replace("}", ", placeholder: true}", 1)
        lines.append(f"  {name}: {how}{_files_have(entries, name, how, style)}")
    augmented = [name for name in ordered if name in style.augment and name not in empty]
    if augmented:
        lines.append(f"augment:                          # {style.augmented}")
        for name in augmented:
            lines += [f"  {name}:", *textwrap.indent(style.augment[name], "    ").splitlines()]
    return "\n".join([*lines, *style.rest.splitlines()]) + "\n"


def _stored(entries: Sequence[Entry], camera: str) -> list[list[int]]:
    """[height, width] of a camera's frames in the files, of each dataset that says it."""
    found = list[list[int]]()
    for one in entries:
        named = [word for word in _words(one.values.get("images", {}).get(camera, ""))
                 if word in one.directory.features]  # fmt: skip
        shape = one.directory.features[named[0]].shape if named else ()
        if len(size := [side for side in shape[:2] if side]) == 2:
            found.append(size)
    return found


def _files_have(entries: Sequence[Entry], camera: str, how: str, style: Style) -> str:
    """A comment on a camera's line, where its frames have another size in the files."""
    wanted = parse_yaml(how)
    sizes = [size for size in _stored(entries, camera) if size != wanted["size"]]
    if not sizes or "#" in how:
        return ""
    height, width = wanted["size"]
    told = few(list(dict.fromkeys("{}×{}".format(*size) for size in sizes)))
    bent = style.project is None and any(h * width != w * height for h, w in sizes)
    return f"  # frames of {told}" + (", stretched; fit: pad or crop keeps their shape" * bent)


def _dataset(one: Entry, weight: float | None, style: Style) -> Iterator[str]:
    """Lines of YAML of one dataset, with comments."""
    yield f"  - name: {one.name}"
    yield f"    path: {flow(one.directory.path)}"
    if weight is not None:
        yield f"    weight: {weight}"
    yield f"    split: {flow(dict(one.split))}"
    for told in (*one.faults, *one.notes):
        yield from _comment(told, "    ")
    for key, value in one.values.items():
        why = one.proposed.get(key)
        yield f"    {key}: {flow(value)}" + (f"  # guessed: {why}" if why else "")
    for key, (value, why) in one.commented.items():
        yield from _comment(f"{key}: {flow(value)}   # {why}", "    ")
    if style.pairs:
        offset = registry.pair_offset(one.hz)
        mark = "" if one.hz else "  # the control frequency is not known"
        own = {"frame_offsets": [0, offset], "action_horizon": offset}
        yield f"    sample: {flow(own)}{mark}"
    for line in unused(one):
        yield from _comment(line, "    ")


def _comment(text: str, indent: str) -> list[str]:
    """``text`` as indented comment lines of YAML."""
    return textwrap.wrap(
        text, _COMMENT_WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
