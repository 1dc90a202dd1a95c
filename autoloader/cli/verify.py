"""``autoloader verify``: samples of a loader against plain readers, on the user's own data.

Not here: comparing (``cli.comparison`` with TFDS, ``cli.compare_specs`` with another spec).
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoloader.cli import options
from autoloader.cli.output import emit, emit_json, emit_table, note_some, progress_bar
from autoloader.extras import require

if TYPE_CHECKING:
    from autoloader.cli.compare_specs import SpecComparison

DIFFERS = 4
"""Exit code where a value differs."""


def verify(
    spec: options.SpecFile,
    samples: Annotated[
        int, typer.Option("-n", "--samples", min=1, help="Samples, shared over all datasets.")
    ] = 200,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Compare with this spec, not with TFDS.", callback=options.with_transforms
        ),
    ] = None,
    split: options.Split = "train",
    ram_floor: options.RamFloor = None,
    _no_transforms: options.NoTransforms = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Compare samples with plain readers, or with another spec's; exit code 4 if they differ."""
    if against is not None:
        _verify_against(spec, against, samples, split, ram_floor, as_json=as_json)
        return
    from autoloader.catalog.sources import is_lerobot
    from autoloader.cli.comparison import Comparer, Comparison, evenly, taken
    from autoloader.spec import PipelineSpec

    declared = evenly(PipelineSpec.from_yaml(spec))
    if not all(is_lerobot(one.path or "") for one in declared.datasets):
        require("tensorflow_datasets", "the comparison with plain TFDS")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # TensorFlow would take the whole of a GPU's memory
    from autoloader.loader import AutoLoader

    if any(one.transform and one.transform.framework != "numpy" for one in declared.datasets):
        from autoloader.graph import user_functions

        user_functions.enter()  # TensorFlow comes here anyway, with TFDS
    options.read_remote_here(declared)
    found = Comparison()
    with AutoLoader(
        declared, split=split, ram_floor=ram_floor, output="numpy", rank=0, world_size=1
    ) as loader:
        compare = Comparer(declared, loader, found)
        rows = sorted(taken(loader, samples), key=lambda row: row["provenance"].tolist())
        with progress_bar("comparing with the files") as advance:
            for done, row in enumerate(rows):
                compare.row(row)
                advance(done + 1, len(rows))
    document = {
        "samples": dict(found.samples),
        "numbers": found.numbers,
        "frames": found.frames,
        "texts": found.texts,
        "largest_frame_difference": round(found.largest, 3),
        "differences": found.differences,
    }
    if as_json:
        emit_json(document)
    else:
        emit_table(("dataset", "samples"), found.samples.items())
        emit(
            f"{found.numbers} numbers equal, {found.frames} frames (mean difference at most "
            f"{found.largest:.2f} grey levels), {found.texts} texts"
            if not found.differences
            else f"{len(found.differences)} differences"
        )
    note_some(f"differs: {difference}" for difference in found.differences)
    if found.differences:
        raise typer.Exit(DIFFERS)


def _verify_against(
    spec: Path, against: Path, samples: int, split: str, ram_floor: str | None, *, as_json: bool
) -> None:
    from autoloader.cli.compare_specs import compare_specs
    from autoloader.spec import PipelineSpec

    here, there = PipelineSpec.from_yaml(spec), PipelineSpec.from_yaml(against)
    for one in (here, there):
        options.read_remote_here(one)
    with progress_bar("reading both specs") as advance:
        found = compare_specs(
            here, there, split=split, samples=samples, ram_floor=ram_floor, advance=advance
        )
    if as_json:
        emit_json({"same": found.same, **asdict(found)})
    else:
        _show_comparison(found, against)
    if not found.same:
        raise typer.Exit(DIFFERS)


def _show_comparison(found: SpecComparison, against: Path) -> None:
    emit_table(
        ("dataset", "steps in both", "only here", "only there", "differs in"),
        ([name, one.samples, len(one.only_here), len(one.only_there),
          ", ".join(one.differing) or "nothing"] for name, one in found.datasets.items()),
    )  # fmt: skip
    for where, names in (("here", found.only_here), (f"in {against}", found.only_there)):
        for name in names:
            emit(f"{name}: only {where}")
    for name, one in found.datasets.items():
        for part, how in one.differing.items():
            columns = f", columns {', '.join(map(str, how.columns))}" if how.columns else ""
            most = "" if how.largest is None else f", by {how.largest:.6g} at most"
            emit(f"{name}: {part}: {how.samples} of {one.samples}{columns}{most}; {how.first}")
        for words, steps in (("here", one.only_here), ("there", one.only_there)):
            if steps:
                some = ", ".join(f"{t} of episode {e}" for e, t in steps[:5])
                emit(f"{name}: only {words}: step {some}{', …' if len(steps) > 5 else ''}")
