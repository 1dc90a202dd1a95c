"""What ``autoloader plan`` says of locality: how storage answers, and what to set.

Where the data lies on a file system of the network or a FUSE one, or the spec asks for locality,
the storage is probed for half a second.

Not here: the proposal (``planning.locality``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autoloader.cli.output import emit, emit_table
from autoloader.clock import SystemClock
from autoloader.order.episodes import DatasetTable
from autoloader.planning.locality import StorageRates, propose_locality
from autoloader.planning.start import LoaderPlan
from autoloader.probes.storage import by_file_system, is_far, probe_reads
from autoloader.units import format_bytes

PROBE_S = 0.25
"""At random, and then in order."""


def locality_document(
    plan: LoaderPlan, tables: Sequence[DatasetTable], left_bytes: int
) -> dict[str, Any] | None:
    """What storage answers and what suits it; ``None`` where nothing says that it seeks.

    Args:
        plan: what the loader would start with.
        tables: its datasets.
        left_bytes: of memory, above the floor, without blocks.
    """
    mixture, asked = plan.mixture, plan.mixture.spec.mixing.locality
    files = sorted({piece.path for d in mixture.datasets if not d.remote for piece in d.slices})
    systems = by_file_system(files)
    kinds = [kind for kind in systems if is_far(kind)] or (list(systems) if asked else [])
    if plan.knobs.reader != "indexed" or not kinds or not all(table.samples for table in tables):
        return None
    kind = max(kinds, key=lambda one: len(systems[one]))
    probed = probe_reads(systems[kind], SystemClock().now_s, each_s=PROBE_S)
    if probed is None:
        return None
    rates = StorageRates(probed.random_s, probed.in_order)
    shares = plan.order.shares
    each = [
        d.record_bytes * d.records / max(1, table.samples)
        for d, table in zip(mixture.datasets, tables, strict=True)
    ]
    sample_bytes = sum(share * size for share, size in zip(shares, each, strict=True))
    reads = sum(
        share * len(d.cameras) * len(set(d.sample.frame_offsets))
        for share, d in zip(shares, mixture.datasets, strict=True)
    )
    found = propose_locality(
        rates,
        reads=reads,
        sample_bytes=sample_bytes,
        dataset_bytes=[d.record_bytes * d.records for d in mixture.datasets],
        left_bytes=left_bytes,
    )
    rows = {"any sample next": rates.singly_per_s(reads)}
    if asked is not None:
        rows["as asked for"] = rates.by_blocks_per_s(asked.block, sample_bytes)
    elif found is not None:
        per_s = rates.by_blocks_per_s(found.block_bytes, sample_bytes)
        rows[f"mixing: {found.text}"] = per_s
    return {
        "file_system": kind,
        "random_read_s": rates.random_s,
        "in_order_bytes_per_s": rates.bytes_per_s,
        "proposal": None if found is None or asked is not None else asdict(found),
        "orders": [{"order": one, "storage_samples_per_s": rate} for one, rate in rows.items()],
    }


def show_locality(document: Mapping[str, Any]) -> None:
    """The section of ``plan``."""
    emit(
        f"{document['file_system']}: a frame at random takes "
        f"{1e3 * document['random_read_s']:.2f} ms, in order come "
        f"{document['in_order_bytes_per_s'] / 1e6:.0f} MB/s"
    )
    emit_table(
        ("order", "storage gives samples/s"),
        ((row["order"], f"{row['storage_samples_per_s']:.0f}") for row in document["orders"]),
    )
    if (found := document["proposal"]) is not None:
        emit(f"its blocks take {format_bytes(found['memory_bytes'])} of memory at most")
