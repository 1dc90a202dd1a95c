"""Files derived from a mixture: its index (``autoloader index``), its statistics (``stats``).

Not here: building an index (``index.opening``), computing statistics (``index.statistics``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from autoloader.cli.output import (
    answered,
    emit,
    emit_table,
    note,
    note_some,
    progress_bar,
    write_output,
)
from autoloader.errors import UsageError
from autoloader.formats.files import is_remote, normal
from autoloader.host.clock import Clock
from autoloader.host.units import format_bytes
from autoloader.index import open_indexes
from autoloader.index.counting import count_mixture
from autoloader.index.gr00t_files import TOGETHER, statistics_files
from autoloader.index.statistics import statistics_of
from autoloader.index.statistics_files import FILE_OF, FORMATS, statistics_document, written
from autoloader.process.planning import admit_disk_floor
from autoloader.samples.resolve import normalised, resolve
from autoloader.spec import PipelineSpec
from autoloader.spec.reading import flow

THREADS = 2
"""Shard files indexed at a time."""
GR00T = "gr00t"
"""Name of GR00T's layout of statistics, which is several files."""
_COUNTS = ("shards", "episodes", "frames")


def show_index(
    spec: Path,
    split: str,
    *,
    beside: bool,
    output: str | None,
    disk_floor: str | None,
    verify: bool,
) -> None:
    """Build the index files that are missing, and show what the index holds.

    Args:
        spec: path of the spec file.
        split: split of the spec that is indexed.
        beside: whether files are written beside the data, too.
        output: address of a version directory for the files; ``None``: no copy there.
        disk_floor: bytes that stay free on the disk of the cache of shards, as written.
        verify: whether every file is indexed again and compared.
    """
    mixture = resolve(PipelineSpec.from_yaml(spec), split)
    floor_bytes = admit_disk_floor(disk_floor, mixture)
    _check_output(output, mixture.names)
    clock, built = Clock(), 0
    begun = clock.now_s()
    with mixture.disk_kept_free(floor_bytes), progress_bar("indexing shard files") as advance:

        def tell(done: int, total: int) -> None:
            nonlocal built
            built = total
            advance(done, total)

        found = open_indexes(
            mixture.datasets, beside=beside, keep=True, progress=tell, threads=THREADS
        )
    differing = _derive_again(found) if verify else []
    if differing:
        found = open_indexes(mixture.datasets, beside=beside, keep=True)
    put = _put(found, output, beside=beside)
    took_s = clock.now_s() - begun
    rows: dict[str, dict[str, Any]] = {}
    for one in found:
        slices = one.dataset.slices
        rows[one.dataset.name] = {
            "shards": len(slices),
            "episodes": one.episodes,
            "frames": int(one.steps.sum(dtype="int64")),
            "index_bytes": sum(shard.front.file_bytes for shard in one.shards.values()),
            "damaged": [
                {"path": slices[bad.slice].path, "record": bad.record, "reason": bad.reason}
                for bad in one.damaged
            ],
            "notes": list(one.notes),
        }
    document = {"split": split, "built_shards": built, "seconds": took_s, "datasets": rows}
    if put is not None:
        document["put_beside"] = put
    if verify:
        document["differing"] = differing
    if answered(document):
        count_mixture(mixture)
        return
    cells = (
        (name, *(row[key] for key in _COUNTS), len(row["damaged"]) or "",
         format_bytes(row["index_bytes"]))
        for name, row in rows.items()
    )  # fmt: skip
    emit_table(("dataset", *_COUNTS, "damaged", "index"), cells)
    emit(f"{built} shard files indexed in {took_s:.1f} s" if built else "nothing was left to index")
    if put is not None:
        emit(f"{put} index files put beside the data" if put else "all lay beside the data already")
    note_some(f"{name}: {told}" for name, row in rows.items() for told in row["notes"])
    note_some(f"its index was of other content, and is replaced: {path}" for path in differing)
    bad = [record for row in rows.values() for record in row["damaged"]]
    note_some("damaged: {path}, record {record}: {reason}".format(**record) for record in bad)
    count_mixture(mixture)  # what no loader would start with is no success here


def _derive_again(found: Sequence[Any]) -> list[str]:
    """Shard files whose index is not what they give; of data far away what is there is checked."""
    for one in found:
        if one.dataset.remote:
            for shard in one.shards.values():
                shard.verify()
    local = [shard for one in found if not one.dataset.remote for shard in one.shards.values()]
    with ThreadPoolExecutor(THREADS, "autoloader-index") as pool:
        same = list(pool.map(lambda shard: shard.derive_again(), local))
    return [shard.path for shard, is_same in zip(local, same, strict=True) if not is_same]


def _check_output(output: str | None, datasets: tuple[str, ...]) -> None:
    """Refuse a place that cannot hold one dataset's index files."""
    if output is not None and not is_remote(output):
        raise UsageError(
            f"--output {output}: this is not the address of a bucket",
            remedy="give the dataset's version directory in a bucket, such as gs://BUCKET/NAME/1.0.0"
            "; to write index files next to local data, use --beside",
        )
    if output is not None and len(datasets) > 1:
        raise UsageError(
            f"--output is the directory of one dataset, and the spec has {len(datasets)} datasets",
            remedy="write a spec for each dataset, and run the command once for each; or, if the "
            "spec's own paths are in a bucket, use --beside",
        )


def _put(found: Sequence[Any], output: str | None, *, beside: bool) -> int | None:
    """Index files that were put beside remote data; ``None`` where none was asked for."""
    away = [one for one in found if output is not None or (beside and one.dataset.remote)]
    if not away:
        return None
    from autoloader.index.opening import put_beside  # local data goes without

    return sum(put_beside(one, normal(output) if output else "") for one in away)


def show_statistics(spec: Path, split: str, *, output: Path | None, layout: str) -> None:
    """Compute statistics, and write them to a file or show them as a table.

    Args:
        spec: path of the spec file.
        split: split of the spec whose datasets are meant.
        output: file or folder to write; ``None``: a table.
        layout: layout of the file, such as "octo".
    """
    declared = PipelineSpec.from_yaml(spec)
    if layout == GR00T:
        _write_gr00t(declared, split, output)
        return
    if layout not in FORMATS:
        every = f"{', '.join(FORMATS)} or {GR00T}"
        raise UsageError(f"--format {layout}: no such layout", remedy=f"choose {every}")
    mixture = resolve(declared, split)
    named = declared.normalize and declared.normalize.statistics
    if declared.normalize is not None and named and not os.path.exists(named):
        # The file that the spec names is the one to be written.
        declared = declared.having(normalize={"statistics": None})
    if away := [one for one in mixture.datasets if one.remote]:
        size, names = sum(one.record_bytes * one.records for one in away), [d.name for d in away]
        note(f"remote: all of {', '.join(names)} is read, about {format_bytes(size)}")
    with progress_bar("computing statistics") as advance:
        found = statistics_of(declared, split, read_remote=True, progress=advance)
    assert found is not None
    if declared.normalize is not None:
        normalised(mixture, found)
    document = statistics_document(declared, found, mixture.names)
    by_name = dict(document)
    if layout == "openpi" and declared.normalize is not None:  # a file for each robot
        group_of = declared.normalize.group_of
        by_name = {group_of(name) or name: entry for name, entry in document.items()}
    files = written(by_name, layout)
    if output is not None:
        for place, content in _places(output, files, layout):
            _write(place, content)
        if layout == FORMATS[0] and named is None:
            use = flow({"statistics": str(output), "action": {"method": "q01_q99"}})
            note(f"to use it, write in the spec: normalize: {use}")
    if answered(files.get("", files)):
        return
    if output is not None:
        emit(str(output))
    else:
        numbers = ("mean", "std", "min", "q01", "q99", "max")
        mask = () if declared.normalize is None else ("normalised",)
        rows = _rows(document, numbers, masked=bool(mask))
        emit_table(("dataset", "field", "column", *numbers, *mask), rows)


def _write_gr00t(spec: PipelineSpec, split: str, output: Path | None) -> None:
    """Write GR00T's statistics files below a folder."""
    if output is None or output.suffix == ".json":
        raise UsageError(
            f"--output is not a folder, and --format {GR00T} writes several files",
            remedy=f"name a folder: --output statistics writes statistics/{TOGETHER} and others",
        )
    files = statistics_files(spec, split)
    for name, content in files.items():
        _write(output / name, content)
    if not answered(files):
        emit(str(output))


def _write(place: Path, content: Any) -> None:
    """Write a file of statistics, in folders that may have to be made, and say where it is."""
    write_output(place, json.dumps(content, indent=2) + "\n")
    note(f"written to {place}")


def _places(output: Path, files: Mapping[str, Any], layout: str) -> Iterator[tuple[Path, Any]]:
    """Path and content of each file: ``output`` itself, or a folder below it for each."""
    if layout not in FILE_OF:
        yield output, files[""]
    elif len(files) == 1 and output.suffix == ".json":
        yield output, *files.values()
    elif output.suffix == ".json":
        raise UsageError(
            f"--output {output} is a file, and {layout} needs one for each of {', '.join(files)}",
            remedy=f"name a folder: --output statistics writes statistics/{next(iter(files))}/"
            f"{FILE_OF[layout]}",
        )
    else:
        for name, content in files.items():
            yield output / name / FILE_OF[layout], content


def _rows(
    document: Mapping[str, Any], numbers: Sequence[str], *, masked: bool
) -> Iterator[tuple[Any, ...]]:
    """Rows of the table of statistics: one for each column of each field of each dataset.

    Args:
        document: statistics by dataset.
        numbers: names of the numbers that a row has.
        masked: whether a row says if its column is normalised.
    """
    for name, entry in document.items():
        for key, field in (("action", "action"), ("proprio", "state")):
            found = entry.get(key)
            for column in range(len(found["mean"]) if found else 0):
                cells = [f"{found[one][column]:.5g}" if one in found else "" for one in numbers]
                cells += ["yes" if found["mask"][column] else ""] * masked
                yield (name, field, column, *cells)
