"""What ``autoloader plan`` says of data far away: what will be fetched, in which order, how long.

Not here: fetching it (``read.shard_feed``), the rest of the document (``cli.plan_report``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from autoloader.cli.output import emit, emit_table
from autoloader.order.episodes import DatasetTable
from autoloader.order.plan import SamplePlan
from autoloader.planning.start import LoaderPlan
from autoloader.units import format_bytes

_SHOWN = 8
"""Shards that the table names."""


def remote_document(plan: LoaderPlan, tables: Sequence[DatasetTable]) -> dict[str, Any] | None:
    """Shards to be fetched; ``None`` where all data is local, or no client gives ranges of it.

    Raises:
        SourceError: a shard cannot be asked for.
    """
    away = [one for one in plan.mixture.datasets if one.remote and one.indexable]
    if not away:
        return None
    from autoloader.catalog.files import unreadable
    from autoloader.remote.rates import known_rate
    from autoloader.remote.shards import kept_free, shard_cache

    cache, shards = shard_cache(), []
    whole = lacking = 0
    needed = _needed(plan, tables)
    names = {piece.path: one.name for one in away for piece in one.slices}
    for path in sorted(names, key=lambda path: needed.get(path, len(needed) + plan.world_size)):
        try:
            shard = cache.current(path)
            missing = shard.missing_bytes
        except OSError as error:
            raise unreadable(error, path, dataset=names[path]) from error
        whole, lacking = whole + shard.identity.size, lacking + missing
        shards.append(
            {
                "path": path,
                "bytes": shard.identity.size,
                "missing_bytes": missing,
                "needed_at": needed.get(path),
            }
        )
    with kept_free(plan.disk_floor_bytes):
        free_bytes = cache.room.free_bytes()
    rate = known_rate(urlsplit(next(iter(names)))._replace(path="").geturl())
    return {
        "shards": len(shards),
        "bytes": whole,
        "missing_bytes": lacking,
        "free_bytes": free_bytes,
        "bytes_per_s": rate,
        "seconds": lacking / rate if rate else None,
        "order": shards,
    }


def show_remote(found: Mapping[str, Any]) -> None:
    """The same for people."""
    missing, whole = found["missing_bytes"], found["bytes"]
    emit(f"{found['shards']} shards of {format_bytes(whole)}, of which {format_bytes(missing)} "
         "are to be fetched")  # fmt: skip
    if not missing:
        return
    if found["seconds"] is None:
        emit("how long that takes is not known: little was fetched from there so far")
    else:
        rate = format_bytes(int(found["bytes_per_s"]))
        emit(f"at the rate measured last ({rate}/s) that takes about {found['seconds']:.0f} s")
    if found["free_bytes"] < missing:
        free = format_bytes(max(0, found["free_bytes"]))
        emit(f"the disk has room for {free} above its floor: shards make room for others")
    emit_table(("fetched", "shard", "bytes", "first needed at sample"), _rows(found["order"]))


def _rows(order: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Any, ...]]:
    left = [one for one in order if one["missing_bytes"]]
    for number, one in enumerate(left[:_SHOWN], 1):
        at = one["needed_at"]
        name = one["path"].rpartition("/")[2]
        yield number, name, format_bytes(one["missing_bytes"]), "-" if at is None else at
    if len(left) > _SHOWN:
        yield "…", f"{len(left) - _SHOWN} more", "", ""


def _needed(plan: LoaderPlan, tables: Sequence[DatasetTable]) -> dict[str, int]:
    """Path → the position that needs it first; empty where the order is not known yet."""
    estimated = any(count.estimated for count in plan.counts.values())
    if estimated or plan.knobs.reader != "indexed":
        return {}
    from autoloader.read.shard_feed import ShardOrder

    samples = SamplePlan(plan.order, tables, chain=plan.order.chain)
    slices = [table.slice_of for table in tables]
    return ShardOrder(samples, plan.mixture.datasets, slices).ahead(0)
