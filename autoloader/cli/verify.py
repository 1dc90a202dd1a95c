"""``autoloader verify``: samples of a loader against plain readers, on the user's own data.

Not here: comparing (``cli.comparison``).
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from autoloader.cli import options
from autoloader.cli.output import emit, emit_json, emit_table, note_some, progress_bar
from autoloader.host.extras import require

DIFFERS = 4
"""Exit code where a value differs."""


def verify(
    spec: options.SpecFile,
    samples: Annotated[
        int, typer.Option("-n", "--samples", min=1, help="Samples, shared over all datasets.")
    ] = 200,
    split: options.Split = "train",
    ram_floor: options.RamFloor = None,
    _no_transforms: options.NoTransforms = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Compare samples with plain readers of the same files; exit code 4 if they differ."""
    from autoloader.cli.comparison import Comparer, Comparison, evenly, taken
    from autoloader.formats.sources import is_lerobot
    from autoloader.spec import PipelineSpec

    declared = evenly(PipelineSpec.from_yaml(spec))
    if not all(is_lerobot(one.path or "") for one in declared.datasets):
        require("tensorflow_datasets", "the comparison with plain TFDS")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # TensorFlow would take the whole of a GPU's memory
    from autoloader.loader import AutoLoader

    if any(one.transform and one.transform.framework != "numpy" for one in declared.datasets):
        from autoloader.pipeline.graph import user_functions

        user_functions.enter()  # TensorFlow comes here anyway, with TFDS
    options.read_remote_here(declared)
    found = Comparison()
    with AutoLoader(
        declared, split=split, ram_floor=ram_floor, output="numpy", rank=0, world_size=1
    ) as loader:
        compare = Comparer(declared, loader, found)
        rows = list(taken(loader, samples))
        with progress_bar("comparing with the files") as advance:
            for done in compare.rows(rows):
                advance(done, len(rows))
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
