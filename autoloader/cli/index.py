"""``autoloader index``: build the sidecar index of a mixture ahead of its first use.

Not here: building it (``index.opening``).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from autoloader.cli.options import JsonFlag, NoTransforms, SpecFile, Split
from autoloader.cli.output import emit, emit_json, emit_table, note, note_some, progress_bar
from autoloader.units import format_bytes


def index(
    spec: SpecFile,
    split: Split = "train",
    beside: Annotated[
        bool,
        typer.Option("--beside", help="Write beside the data, not into the cache directory."),
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="Shard files indexed at a time.")] = 2,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check all of an index that is there already.")
    ] = False,
    _no_transforms: NoTransforms = False,
    as_json: JsonFlag = False,
) -> None:
    """Index where every frame lies, so that samples are read at random; builds what is missing."""
    from autoloader.clock import SystemClock
    from autoloader.index import open_indexes
    from autoloader.samples.resolve import resolve
    from autoloader.spec import PipelineSpec

    mixture = resolve(PipelineSpec.from_yaml(spec), split)
    clock, built = SystemClock(), 0
    begun = clock.now_s()
    with progress_bar("indexing shard files") as advance:

        def tell(done: int, total: int) -> None:
            nonlocal built
            built = total
            advance(done, total)

        found = open_indexes(
            mixture.datasets,
            beside=beside,
            keep=True,
            foretold=lambda work: note(f"indexing {work}"),
            progress=tell,
            threads=threads,
        )
    if verify:
        for one in found:
            one.verify()
    took_s = clock.now_s() - begun
    rows: dict[str, dict[str, Any]] = {
        one.dataset.name: {
            "shards": len(one.dataset.slices),
            "episodes": one.episodes,
            "frames": int(one.steps.sum(dtype="int64")),
            "index_bytes": one.nbytes,
            "damaged": [
                {
                    "path": one.dataset.slices[record.slice].path,
                    "record": record.record,
                    "reason": record.reason,
                }
                for record in one.damaged
            ],
        }
        for one in found
    }
    document = {"split": split, "built_shards": built, "seconds": took_s, "datasets": rows}
    if as_json:
        emit_json(document)
        return
    emit_table(
        ("dataset", "shards", "episodes", "frames", "damaged", "index"),
        (
            (name, *(row[key] for key in ("shards", "episodes", "frames")),
             len(row["damaged"]) or "", format_bytes(row["index_bytes"]))
            for name, row in rows.items()
        ),
    )  # fmt: skip
    emit(f"{built} shard files indexed in {took_s:.1f} s" if built else "all of it was there")
    note_some(
        f"damaged: {record['path']}, record {record['record']}: {record['reason']}"
        for row in rows.values()
        for record in row["damaged"]
    )
