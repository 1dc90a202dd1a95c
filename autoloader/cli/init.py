"""``autoloader init``: a spec from what lies on disk.

Not here: finding directories (``cli.version_directories``), a dataset's fields
(``cli.written_spec``), the file (``cli.written_spec``), what is known of datasets by name
(``formats.registry``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoloader.cli.options import JsonFlag
from autoloader.cli.output import emit, emit_json, note
from autoloader.cli.styles import Style, StyleName, styles

if TYPE_CHECKING:
    from autoloader.cli.written_spec import ChosenMix, Entry
    from autoloader.errors import AutoloaderError
    from autoloader.formats.registry import KnownMix


def init(
    data_dir: Annotated[Path, typer.Argument(help="Where datasets lie, at any depth.")],
    style: Annotated[
        StyleName | None,
        typer.Option(help="The convention to write in; default: plain, or the mixture's own."),
    ] = None,
    mix: Annotated[
        str | None,
        typer.Option(
            help="A published mixture, such as oxe_magic_soup with --style octo, or one dataset."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a spec of the TFDS datasets below DATA_DIR to stdout."""
    from autoloader.cli.written_spec import ChosenMix, spec_text
    from autoloader.errors import SourceError
    from autoloader.formats.files import is_remote, normal
    from autoloader.spec import PipelineSpec

    name, weights = _style_and_mix(style, mix)
    if not is_remote(data_dir) and not os.path.isdir(data_dir):  # noqa: PTH112  (never raises)
        raise SourceError(
            f"{data_dir} is no directory", remedy="name the directory that holds the datasets"
        )
    faults: list[AutoloaderError] = []
    found = list(_entries(normal(data_dir), styles()[name], faults))
    chosen = None
    if mix is not None and weights is not None:
        found = _part_of(mix, weights, found)
        chosen = ChosenMix(mix, weights, tuple(one.known_as for one in found))
        _say_what_is_there(chosen, normal(data_dir))
    if not found and len(faults) == 1:
        raise faults[0]
    if not found:
        raise SourceError(
            f"{normal(data_dir)} holds no TFDS and no LeRobot dataset "
            + (f"of {mix} " if mix else "")
            + "that can be read",
            remedy="name a directory with version directories such as my_dataset/1.0.0, or with "
            "LeRobot datasets, below it; what was found and left out stands above",
        )
    for one in found:
        if one.proposed:
            why = "; ".join(sorted(set(one.proposed.values())))
            note(f"{one.name}: look at {', '.join(one.proposed)}: proposed ({why})")
        for what, why in one.missing.items():
            note(f"{one.name}: no {what}: {why}")
        for told in one.directory.notes:
            note(f"{one.name}: {told}")
    always = styles()[name].only_cameras and not any("camera" in one.missing for one in found)
    if not always and not any(one.cameras for one in found):
        raise SourceError(
            f"{normal(data_dir)}: no dataset has a camera that could be taken, and a spec has one",
            remedy="write the spec by hand, with the camera in images; or write the dataset again "
            "with one uint8 picture a step and camera",
        )
    text = spec_text(found, styles()[name], style_name=name.value, chosen=chosen)
    from ruamel.yaml import YAML

    PipelineSpec.from_mapping(YAML(typ="safe", pure=True).load(text))  # what is written, holds
    if as_json:
        emit_json(
            {
                "spec": text,
                "style": name.value,
                "mix": chosen and {"name": mix, "datasets": len(chosen.mix.weights),
                                   "present": chosen.present, "absent": chosen.absent},
                "datasets": {one.name: {"path": one.directory.path, "proposed": one.proposed}
                             for one in found},
            }
        )  # fmt: skip
    else:
        emit(text.rstrip("\n"))


def _style_and_mix(style: StyleName | None, mix: str | None) -> tuple[StyleName, KnownMix | None]:
    """The style, the mixture's own where none is named, and the mixture.

    Raises:
        UsageError: no project has the mixture, or several have, or the style has not.
    """
    from autoloader.errors import UsageError, nearest
    from autoloader.formats.registry import KnownMix, known_mixes
    from autoloader.spec.recipes import mixtures, names, other_names

    if mix is None:
        return style or StyleName.plain, None
    bare = known_mixes()
    found: dict[StyleName, dict[str, KnownMix]] = {}
    for one, how in styles().items():
        project = how.project
        found[one] = bare
        if project is not None:
            alone = {other: {name: 1.0} for name in names(project)
                     for other in (name, *other_names(name))}  # fmt: skip
            found[one] = {
                name: KnownMix(f"a mixture of {project}", weights, pairs=False)
                for name, weights in {**alone, **mixtures(project)}.items()
            }
    if style is None and mix in bare:
        style = StyleName.stage2 if bare[mix].pairs else StyleName.plain
    if style is None:
        having = [one for one, mixes in found.items() if mix in mixes]
        every = sorted({name for mixes in found.values() for name in mixes})
        if len(having) != 1:
            told = "several styles have one of this name" if having else "there is no such mixture"
            raise UsageError(
                f"--mix {mix}: {told}",
                remedy="add " + " or ".join(f"--style {one.value}" for one in having)
                if having
                else nearest(mix, every),
            )
        (style,) = having
    if mix not in found[style]:
        raise UsageError(
            f"--mix {mix}: --style {style.value} has no such mixture",
            remedy=nearest(mix, found[style]),
        )
    return style, found[style][mix]


def _part_of(name: str, mix: KnownMix, found: list[Entry]) -> list[Entry]:
    """The datasets that a mixture has; says which it has not."""
    for one in found:
        if one.known_as not in mix.weights:
            note(f"{one.name}: not part of {name}, left out")
    return [one for one in found if one.known_as in mix.weights]


def _say_what_is_there(chosen: ChosenMix, root: str) -> None:
    note(f"{len(chosen.present)} of the {len(chosen.mix.weights)} datasets of {chosen.name}")
    if chosen.absent:
        note(f"of {chosen.name}, these are not in {root}: {', '.join(chosen.absent)}")


def _entries(root: str, style: Style, faults: list[AutoloaderError]) -> Iterator[Entry]:
    """Of every dataset below ``root`` the newest version that can be read; says what is left.

    Why others cannot be read is added to ``faults``.
    """
    from autoloader.cli.version_directories import dataset_versions
    from autoloader.formats.sources import same_files

    taken: list[Entry] = []
    names: set[str] = set()
    for versions in dataset_versions(root):
        found = (_entry(place, style, faults) for place in versions)
        entry = next((one for one in found if one is not None), None)
        if entry is None:
            continue
        pairs = same_files([*(one.directory for one in taken), entry.directory])
        if pairs:
            other = taken[pairs[0][0]].directory.path
            note(f"{entry.directory.path}: left out: it holds the same data as {other}")
            continue
        stem, number = entry.name, 2
        while entry.name in names:
            entry.name, number = f"{stem}_{number}", number + 1
        names.add(entry.name)
        taken.append(entry)
        yield entry


def _entry(place: Path, style: Style, faults: list[AutoloaderError]) -> Entry | None:
    """The entry of a version, or ``None`` where it cannot be taken; says why, and in ``faults``."""
    from autoloader.cli.written_spec import entry_of, fault_of
    from autoloader.errors import AutoloaderError
    from autoloader.formats import open_source
    from autoloader.formats.directories import folder_name
    from autoloader.formats.files import normal

    path = normal(place)
    try:
        entry = entry_of(open_source(path, dataset=folder_name(path)), style)
        if (fault := fault_of(entry)) is not None:
            raise fault
    except AutoloaderError as error:
        note(f"{path}: left out: {error.what} → {error.remedy}")
        faults.append(error)
        return None
    if not {"images", "action", "state"} & set(entry.values):
        note(f"{path}: left out: no image, action or state that could be taken")
        return None
    return entry
