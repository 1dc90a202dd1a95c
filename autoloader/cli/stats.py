"""``autoloader stats``: the statistics that ``normalize`` works by, as a file to share.

Not here: computing them (``autoloader.index.statistics``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from autoloader.cli.options import JsonFlag, NoTransforms, SpecFile, Split, read_remote_here
from autoloader.cli.output import emit, emit_json, emit_table, file_errors, note, progress_bar
from autoloader.errors import UsageError, nearest
from autoloader.host.units import format_bytes
from autoloader.index.statistics import statistics_of
from autoloader.index.statistics_files import FILE_OF, FORMATS, statistics_document, written
from autoloader.samples.resolve import normalised, resolve
from autoloader.spec import PipelineSpec


def stats(
    spec: SpecFile,
    out: Annotated[
        Path | None, typer.Option(help="Where to write them, for normalize.statistics.")
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            "--format", help="The file's layout: autoloader, octo, openvla, openpi or lerobot."
        ),
    ] = "autoloader",
    split: Split = "train",
    over_hosts: Annotated[
        bool, typer.Option("--ray", help="Have the hosts of the cluster at RAY_ADDRESS compute.")
    ] = False,
    _no_transforms: NoTransforms = False,
    as_json: JsonFlag = False,
) -> None:
    """Compute each dataset's statistics of action and state, from its records of train."""
    if layout not in FORMATS:
        raise UsageError(f"--format {layout}: no such layout", remedy=nearest(layout, FORMATS))
    declared = PipelineSpec.from_yaml(spec)
    remote = read_remote_here(declared)
    mixture = resolve(declared, split)
    named = declared.normalize and declared.normalize.statistics
    if declared.normalize is not None and named and not Path(named).exists():
        # The file that the spec names is the one to be written.
        normalize = declared.normalize.model_copy(update={"statistics": None})
        declared = declared.model_copy(update={"normalize": normalize})
    if remote:
        away = [one for one in mixture.datasets if one.remote]
        size, names = sum(one.record_bytes * one.records for one in away), [d.name for d in away]
        note(f"remote: all of {', '.join(names)} is read, about {format_bytes(size)}")
    with progress_bar("computing statistics") as advance:
        if over_hosts:
            from autoloader.integrations.ray.catalogue import statistics_over_hosts
            from autoloader.process.arguments import cluster_address

            address = cluster_address("--ray")
            nodes = statistics_over_hosts(address, declared, split, progress=advance)
            note(f"computed by {nodes} nodes of the cluster at {address}")
        found = statistics_of(declared, split, read_remote=True, progress=advance)
    assert found is not None
    if declared.normalize is not None:
        normalised(mixture, found)
    document = statistics_document(declared, found, mixture.names)
    files = written(_by_group(declared, document, layout), layout)
    if out is not None:
        for place, content in _places(out, files, layout):
            with file_errors("--out", place):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            note(f"written to {place}")
    if as_json:
        emit_json(files.get("", files))
    elif out is not None:
        emit(str(out))
    else:
        emit_table(
            ("dataset", "field", "column", "mean", "std", "min", "q01", "q99", "max", "mask"),
            _rows(document),
        )


def _by_group(declared: Any, document: Mapping[str, Any], layout: str) -> dict[str, Any]:
    """In a format of one robot a file: by group, where datasets share statistics."""
    if layout != "openpi" or declared.normalize is None:
        return dict(document)
    return {declared.normalize.group_of(name) or name: entry for name, entry in document.items()}


def _places(out: Path, files: Mapping[str, Any], layout: str) -> Iterator[tuple[Path, Any]]:
    """Path and content of each file: ``out`` itself, or a folder below it for each."""
    if layout not in FILE_OF:
        yield out, files[""]
    elif len(files) == 1 and out.suffix == ".json":
        yield out, *files.values()
    elif out.suffix == ".json":
        raise UsageError(
            f"--out {out}: {layout} has a file for each of {', '.join(files)}",
            remedy=f"give a folder: --out statistics writes statistics/{next(iter(files))}/"
            f"{FILE_OF[layout]}",
        )
    else:
        for name, content in files.items():
            yield out / name / FILE_OF[layout], content


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for name, entry in document.items():
        for field in ("action", "proprio"):
            found = entry.get(field)
            for column in range(len(found["mean"]) if found else 0):
                numbers = (
                    f"{found[key][column]:.5g}" if key in found else ""
                    for key in ("mean", "std", "min", "q01", "q99", "max")
                )
                yield (name, field, column, *numbers, "yes" if found["mask"][column] else "")
