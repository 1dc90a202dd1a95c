"""``autoloader index``: build the sidecar index of a mixture ahead of its first use.

Not here: building it (``index.opening``).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer

from autoloader.cli.options import DiskFloor, JsonFlag, NoTransforms, SpecFile, Split
from autoloader.cli.output import emit, emit_json, emit_table, note, note_some, progress_bar
from autoloader.errors import UsageError
from autoloader.formats.files import is_remote, normal
from autoloader.host.clock import SystemClock
from autoloader.host.units import format_bytes
from autoloader.index import open_indexes
from autoloader.index.counting import count_mixture
from autoloader.process.planning import admit_disk_floor, disk_floor_kept
from autoloader.samples.resolve import resolve
from autoloader.spec import PipelineSpec


def index(
    spec: SpecFile,
    split: Split = "train",
    beside: Annotated[
        bool,
        typer.Option("--beside", help="Write beside the data, not into the cache directory alone."),
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="URL",
            help="Put them beside a copy of the dataset: its version directory in a bucket.",
        ),
    ] = None,
    disk_floor: DiskFloor = None,
    threads: Annotated[int, typer.Option(min=1, help="Shard files indexed at a time.")] = 2,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Index the files once more, and compare with what is there."),
    ] = False,
    over_hosts: Annotated[
        bool, typer.Option("--ray", help="Have the hosts of the cluster at RAY_ADDRESS build it.")
    ] = False,
    _no_transforms: NoTransforms = False,
    as_json: JsonFlag = False,
) -> None:
    """Index where every frame lies, so that samples are read at random; builds what is missing."""
    declared = PipelineSpec.from_yaml(spec)
    mixture = resolve(declared, split)
    floor_bytes = admit_disk_floor(disk_floor, mixture)
    _check_out(out, mixture.names)
    clock, built = SystemClock(), 0
    begun = clock.now_s()
    with (
        disk_floor_kept(floor_bytes, mixture),
        progress_bar("indexing shard files") as advance,
    ):

        def tell(done: int, total: int) -> None:
            nonlocal built
            built = total
            advance(done, total)

        if over_hosts:
            from autoloader.integrations.ray.catalogue import index_over_hosts
            from autoloader.process.arguments import cluster_address

            address = cluster_address("--ray")
            built, nodes = index_over_hosts(address, declared, split, beside=beside, progress=tell)
            note(f"{built} shard files indexed by {nodes} nodes of the cluster at {address}")
        found = open_indexes(
            mixture.datasets, beside=beside, keep=True, progress=tell, threads=threads
        )
    differing = _derive_again(found, threads) if verify else []
    if differing:
        found = open_indexes(mixture.datasets, beside=beside, keep=True)
    put = _put(found, out, beside=beside)
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
            "notes": list(one.notes),
        }
        for one in found
    }
    document = {"split": split, "built_shards": built, "seconds": took_s, "datasets": rows}
    if put is not None:
        document["put_beside"] = put
    if verify:
        document["differing"] = differing
    if as_json:
        emit_json(document)
        count_mixture(mixture)
        return
    emit_table(
        ("dataset", "shards", "episodes", "frames", "damaged", "index"),
        (
            (name, row["shards"], row["episodes"], row["frames"], len(row["damaged"]) or "",
             format_bytes(row["index_bytes"]))
            for name, row in rows.items()
        ),
    )  # fmt: skip
    emit(f"{built} shard files indexed in {took_s:.1f} s" if built else "all of it was there")
    if put is not None:
        emit(f"{put} index files put beside the data" if put else "all lay beside the data already")
    note_some(f"{name}: {told}" for name, row in rows.items() for told in row["notes"])
    note_some(f"its index was of other content, and is replaced: {path}" for path in differing)
    note_some(
        f"damaged: {record['path']}, record {record['record']}: {record['reason']}"
        for row in rows.values()
        for record in row["damaged"]
    )
    count_mixture(mixture)  # what no loader would start with is no success here


def _derive_again(found: Sequence[Any], threads: int) -> list[str]:
    """Shard files whose index is not what they give; of data far away what is there is checked."""
    for one in found:
        if one.dataset.remote:
            one.verify()
    local = [one for one in found if not one.dataset.remote]
    with ThreadPoolExecutor(threads, "autoloader-index") as pool:
        return [path for paths in pool.map(lambda one: one.derive_again(), local) for path in paths]


def _check_out(out: str | None, datasets: tuple[str, ...]) -> None:
    """Refuse a place that cannot hold one dataset's index files."""
    if out is not None and not is_remote(out):
        raise UsageError(
            f"--out {out}: it is no address",
            remedy="name the dataset's version directory in a bucket, as gs://…/1.0.0; beside "
            "local data index files are written with --beside",
        )
    if out is not None and len(datasets) > 1:
        raise UsageError(
            f"--out names one dataset's directory, and the spec has {len(datasets)}",
            remedy="give each its spec; of data that is remote in the spec, use --beside",
        )


def _put(found: Sequence[Any], out: str | None, *, beside: bool) -> int | None:
    """Index files that were put beside remote data; ``None`` where none was asked for."""
    away = [one for one in found if out is not None or (beside and one.dataset.remote)]
    if not away:
        return None
    from autoloader.index.opening import put_beside  # local data goes without

    return sum(put_beside(one, normal(out) if out else "") for one in away)
