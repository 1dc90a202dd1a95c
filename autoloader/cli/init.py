"""``autoloader init``: a spec from what lies on disk.

Not here: which fields a dataset gets (``cli.propose``), what is known of datasets by name
(``catalog.registry``).
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from autoloader.catalog.files import is_remote, normal
from autoloader.cli.options import JsonFlag
from autoloader.cli.output import emit, emit_json, note
from autoloader.cli.version_directories import newest_versions


def init(
    data_dir: Annotated[Path, typer.Argument(help="Where datasets lie, at any depth.")],
    mix: Annotated[
        str | None, typer.Option(help="A published weighting: octo, openvla or stage2-29.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a spec of the TFDS datasets below DATA_DIR to stdout."""
    from autoloader.catalog.registry import known_mixes
    from autoloader.errors import SourceError, UsageError, nearest
    from autoloader.spec import PipelineSpec

    mixes = known_mixes()
    if mix is not None and mix not in mixes:
        raise UsageError(f"--mix {mix}", remedy=nearest(mix, mixes))
    if not is_remote(data_dir) and not os.path.isdir(data_dir):  # noqa: PTH112  (never raises)
        raise SourceError(
            f"{data_dir} is no directory", remedy="name the directory that holds the datasets"
        )
    found = list(_datasets(normal(data_dir)))
    chosen = mixes[mix] if mix else None
    if chosen is not None:
        for one in [one for one in found if one.known_as not in chosen.weights]:
            note(f"{one.name}: not part of {mix}, left out")
        found = [one for one in found if one.known_as in chosen.weights]
        there = {one.known_as for one in found}
        absent = [name for name in chosen.weights if name not in there]
        if absent:
            note(f"of {mix}, these are not in {normal(data_dir)}: {', '.join(absent)}")
    if not found:
        raise SourceError(
            f"{normal(data_dir)} holds no TFDS dataset" + (f" of {mix}" if mix else ""),
            remedy="name a directory with version directories such as my_dataset/1.0.0 below it",
        )
    for one in found:
        if one.fields.proposed:
            why = "; ".join(sorted(set(one.fields.proposed.values())))
            note(f"{one.name}: look at {', '.join(one.fields.proposed)}: proposed ({why})")
    text = spec_text(found, mix, chosen)
    from ruamel.yaml import YAML

    PipelineSpec.from_mapping(YAML(typ="safe", pure=True).load(text))  # what is written, holds
    if as_json:
        emit_json(
            {
                "spec": text,
                "datasets": {one.name: {"path": one.path, "proposed": one.fields.proposed}
                             for one in found},
            }
        )  # fmt: skip
    else:
        emit(text.rstrip("\n"))


@dataclass(frozen=True)
class Found:
    """One dataset on disk.

    Attributes:
        name: unique in the spec.
        known_as: the registry's name for it, else TFDS's.
        path: its version directory.
        fields: a ``cli.propose.Proposal``.
        split: loader split → TFDS split expression.
        hz: control frequency, or ``None``.
        note: what a person should know, or "".
    """

    name: str
    known_as: str
    path: str
    fields: Any
    split: Mapping[str, str | None]
    hz: float | None
    note: str


def _datasets(root: str) -> Iterator[Found]:
    """The newest version of every dataset below ``root``; says which cannot be taken, and why."""
    from autoloader.catalog import open_version
    from autoloader.catalog.registry import known_dataset
    from autoloader.cli.propose import propose
    from autoloader.errors import AutoloaderError

    names: set[str] = set()
    for place in newest_versions(root):
        path = normal(place)
        try:
            directory = open_version(path, dataset=place.parent.name)
            plain = directory.name.partition("/")[0]
            known = known_dataset(plain)
            fields = propose(directory.features, known[1] if known else None)
            split = _split(directory)
        except AutoloaderError as error:
            note(f"{path}: left out: {error.what}")
            continue
        if not fields.images and not fields.action and not fields.state:
            note(f"{path}: left out: no image, action or state that could be taken")
            continue
        stem = re.sub(r"\W+", "_", directory.name).strip("_") or "dataset"
        name, number = stem[:90], 2
        while name in names:
            name, number = f"{stem[:90]}_{number}", number + 1
        names.add(name)
        yield Found(
            name, known[0] if known else plain, path, fields, split,
            known[1].hz if known else None, known[1].note if known else "",
        )  # fmt: skip


def _split(directory: Any) -> dict[str, str | None]:
    """A split to train on and one to validate on, neither empty."""
    counts = {
        name: sum(shard.records for shard in shards) for name, shards in directory.splits.items()
    }
    full = [name for name, count in counts.items() if count]
    train = "train" if "train" in full else next(iter(full), "train")
    for name in ("val", "validation", "test"):
        if name in full and name != train:
            return {"train": train, "val": name}
    if counts.get(train, 0) < 2:
        return {"train": train, "val": None}
    if counts[train] < 40:
        return {"train": f"{train}[:-1]", "val": f"{train}[-1:]"}
    return {"train": f"{train}[:95%]", "val": f"{train}[95%:]"}


def spec_text(found: list[Found], mix: str | None, chosen: Any) -> str:
    """The spec file; ``chosen`` is the weighting ``mix``, or ``None``."""
    from autoloader.catalog.registry import pair_offset

    pairs = chosen is None or chosen.pairs
    lines = ["# Written by autoloader init."]
    if chosen is not None:
        lines.append(f"# {mix}: {chosen.about}")
    lines += ["schema_version: 1", "datasets:"]
    for one in found:
        weight = chosen.weights[one.known_as] if chosen else 1.0
        lines += [f"  - name: {one.name}", f"    path: {_flow(one.path)}", f"    weight: {weight}"]
        lines.append(f"    split: {_flow(one.split)}")
        if one.note:
            lines.append(f"    # {one.note}")
        values = {
            "images": one.fields.images,
            "action": _one_or_list(one.fields.action),
            "state": _one_or_list(one.fields.state),
            "language": one.fields.language[0]
            if len(one.fields.language) == 1
            else {"any_of": one.fields.language},
        }
        for key, value in values.items():
            if getattr(one.fields, key):
                why = one.fields.proposed.get(key)
                mark = f"  # proposed: {why}" if why else ""
                lines.append(f"    {key}: {_flow(value)}{mark}")
        if pairs:
            offset = pair_offset(one.hz)
            summed = f", action_horizon: {offset}" if chosen else ""
            mark = "" if one.hz else "  # the control frequency is not known"
            lines.append(f"    sample: {{frame_offsets: [0, {offset}]{summed}}}{mark}")
    lines.append(f"weights: {'natural_scaled' if chosen else 'natural'}")
    if chosen is not None and pairs:
        lines.append("sample: {frame_offsets: [0, 5], action_reduce: sum}")
    cameras = {camera for one in found for camera in one.fields.images}
    lines.append("cameras:")
    sizes = {"primary": [256, 256], "wrist": [128, 128]}
    lines += [f"  {camera}: {{size: {sizes[camera]}}}" for camera in sizes if camera in cameras]
    lines.append("batch: {size: 48}")
    return "\n".join(lines) + "\n"


def _one_or_list(terms: list[Any]) -> Any:
    return terms[0] if len(terms) == 1 else terms


def _flow(value: Any) -> str:
    """A value on one line of YAML."""
    from ruamel.yaml import YAML

    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.width = True, sys.maxsize
    yaml.sort_base_mapping_type_on_output = False
    text = io.StringIO()
    yaml.dump(value, text)
    return text.getvalue().removesuffix("...\n").strip()
