"""``autoloader inspect``: what a dataset holds, before a spec is written for it.

Not here: reading it (``cli.dataset_facts``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoloader.cli.options import JsonFlag, read_with_tensorflow_here
from autoloader.cli.output import emit, emit_json, emit_table

if TYPE_CHECKING:
    from autoloader.cli.dataset_facts import ColumnRange, DatasetFacts
    from autoloader.formats import Feature, VersionDirectory

_LONGEST_TEXT = 60
_MOST_NUMBERS = 8


def inspect(
    directory: Annotated[
        Path, typer.Argument(help="A TFDS version directory, or a folder that holds one dataset.")
    ],
    split: Annotated[
        str | None, typer.Option(help="Which split to read; default: train, or the first.")
    ] = None,
    episodes: Annotated[
        int, typer.Option(min=1, help="Episodes that are read for the ranges.")
    ] = 16,
    as_json: JsonFlag = False,
) -> None:
    """Show a dataset's splits, features, first episode and ranges."""
    from autoloader.cli.dataset_facts import read_facts
    from autoloader.errors import UsageError, nearest
    from autoloader.formats.files import is_remote, refuse_stand_ins

    if is_remote(directory):
        read_with_tensorflow_here()
    found = _only_version(directory)
    counts = {name: sum(part.records for part in parts) for name, parts in found.splits.items()}
    full = [name for name, count in counts.items() if count]
    if split is not None and split not in counts:
        raise UsageError(
            f"--split {split}: the dataset has no such split", remedy=nearest(split, counts)
        )
    chosen = split or ("train" if "train" in full else next(iter(full), ""))
    if counts.get(chosen):
        shards = found.splits[chosen]
        refuse_stand_ins([shards[0].path, shards[-1].path], dataset=found.name)
    facts = read_facts(found, chosen, episodes) if counts.get(chosen) else None
    if as_json:
        emit_json(
            {
                "name": found.name,
                "version": found.version,
                "path": found.path,
                "splits": {name: {"episodes": count, "shards": len(found.splits[name])}
                           for name, count in counts.items()},
                "features": {path: _declared(one) for path, one in found.features.items()},
                "read": asdict(facts) if facts else None,
            }
        )  # fmt: skip
        return
    emit(f"{found.name} {found.version}  {found.path}\n")
    emit_table(
        ("split", "episodes", "shards"),
        ([name, count, len(found.splits[name])] for name, count in counts.items()),
    )
    emit("")
    first = facts.first if facts else {}
    emit_table(
        ("feature", "kind", "type", "shape", "first step of the first episode"),
        (
            [path, one.kind if one.per_step else f"{one.kind}, once", one.dtype, _shape(one),
             _told(path, first, facts)]
            for path, one in found.features.items()
        ),
    )  # fmt: skip
    if facts is not None:
        _show_ranges(facts)


def _only_version(place: Path) -> VersionDirectory:
    """The version directory at or below ``place``, the newest of one dataset.

    Raises:
        UsageError: there are several datasets.
        SourceError: there is none, or it cannot be read.
    """
    from autoloader.cli.version_directories import newest_versions
    from autoloader.errors import UsageError
    from autoloader.formats import open_source
    from autoloader.formats.files import normal

    places = newest_versions(normal(place))
    if len(places) > 1:
        raise UsageError(
            f"{normal(place)} holds {len(places)} datasets",
            remedy="name one of: " + ", ".join(map(str, places)),
        )
    path = places[0] if places else Path(normal(place))
    return open_source(path if places else place, dataset=path.parent.name or path.name)


def _declared(feature: Feature) -> dict[str, Any]:
    return {
        "kind": feature.kind,
        "dtype": feature.dtype,
        "shape": list(feature.shape),
        "encoding": feature.encoding,
        "per_step": feature.per_step,
    }


def _shape(feature: Feature) -> str:
    return "×".join("?" if size is None else str(size) for size in feature.shape) or "scalar"


def _told(path: str, first: dict[str, Any], facts: DatasetFacts | None) -> str:
    from autoloader.cli.dataset_facts import Picture

    if path not in first:
        return "(not in the record)" if facts and facts.episodes else ""
    value = first[path]
    if isinstance(value, Picture):
        size = f"{value.stored_as} {value.height}×{value.width} {value.mode}, {value.bytes} bytes"
        dark = ", BLACK in every episode read" if facts and path in facts.black else ""
        return size + dark
    if value and isinstance(value[0], str):
        text = "; ".join(repr(one) for one in value)
        return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
    shown = ", ".join(
        "not finite" if number is None else f"{number:.4g}" for number in value[:_MOST_NUMBERS]
    )
    return shown + (f", … ({len(value)})" if len(value) > _MOST_NUMBERS else "")


def _show_ranges(facts: DatasetFacts) -> None:
    damaged = f", {facts.damaged} damaged records passed over" if facts.damaged else ""
    emit(
        f"\nfirst episode of {facts.split}: {facts.first_steps} steps. Ranges over "
        f"{facts.episodes} episodes, {facts.steps} steps{damaged}:\n"
    )
    emit_table(
        ("feature", "column", "least", "mean", "greatest", ""),
        (row for path, columns in facts.ranges.items() for row in _range_rows(path, columns)),
    )
    for path, count in facts.texts.items():
        emit(f"{path}: {count} different text{'s' if count != 1 else ''}")


def _range_rows(path: str, columns: list[ColumnRange]) -> Iterator[list[str]]:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.5g}"

    for one in columns:
        said = []
        if one.values is not None:
            only = ", ".join(f"{value:g}" for value in one.values)
            said.append(f"always {only}" if len(one.values) == 1 else f"only {only}")
        if one.not_finite:
            said.append(f"{one.not_finite} not finite")
        column = "all" if one.column is None else str(one.column)
        yield [path, column, number(one.low), number(one.mean), number(one.high), "; ".join(said)]
