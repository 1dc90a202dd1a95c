"""What ``autoloader plan`` answers, as one plain document.

The bound is of the decode stage alone: decode threads that can run at once, over the seconds of
one thread that a sample of the mixture costs (costs of the datasets, weighted by their shares). No
run is faster; readers, memory bandwidth or the trainer may make it slower.

What ``autoloader plan --ranks N --nodes M`` adds: a rank's part of an epoch, a node's load.

Theory of operation. Ranks are dealt evenly over nodes, as launchers do. Every node is taken to be
like this one: its memory, cores and limits. The ranks of a node have one child with a pipeline for
each of them. The memory of all of them must fit under the floor; ``process.planning.start`` refuses
what does not, before anybody reserves a cluster for it.

Bytes that are read are those of the files, whether or not the page cache has them. By index a
sample costs its own encoded frames; as a stream it costs its part of an episode.

What ``autoloader plan`` says of locality: how storage answers, and what to set.

Where the data lies on a file system of the network or a FUSE one, or the spec asks for locality,
the storage is probed for half a second.

What ``autoloader plan`` says of data far away: what will be fetched, in which order, how long.

Not here: deciding any of it (``process.planning.start``), showing it (``cli.plan``).
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autoloader.cache.forecast import FrameSet, forecast
from autoloader.cli.output import emit, emit_table
from autoloader.controller.admission import price_start
from autoloader.controller.profile import ResolvedProfile, shipped_profiles_dir
from autoloader.decode.probe import DecodeCost
from autoloader.errors import UsageError
from autoloader.host.clock import SystemClock
from autoloader.host.probes.headroom import Headroom
from autoloader.host.probes.storage import (
    by_file_system,
    is_far,
    probe_reads,
    propose_locality,
)
from autoloader.host.units import GIB, format_bytes
from autoloader.index.counting import quick_tables
from autoloader.pipeline.batch_call import try_call
from autoloader.process.planning.start import LoaderPlan
from autoloader.samples.counts import DatasetCount, valid_per_episode
from autoloader.samples.resolve import ResolvedDataset
from autoloader.sampling.chains import why_unchained
from autoloader.sampling.dealing import epoch_steps
from autoloader.sampling.episodes import DatasetTable
from autoloader.sampling.plan import Reuse, SamplePlan
from autoloader.spec.knobs import KNOB_CLASS, UNUSED_KNOBS, DatasetKnobs, Knobs
from autoloader.spec.reading import read_yaml_file
from autoloader.tune.bound.model import reuse_of, sets_of

_END = 2**62
_INTERNAL = ("ledger", "language_end", "language_text", "text_length")


def plan_document(
    plan: LoaderPlan,
    *,
    spec_path: Path,
    sets: Mapping[str, Any],
    costs: Mapping[str, DecodeCost],
    headroom: Headroom,
    nodes: int = 1,
) -> dict[str, Any]:
    """The document.

    Args:
        plan: what the loader would start with.
        spec_path: where the spec came from.
        sets: knob values from the command line.
        costs: what decoding a sample costs, by dataset; may lack some.
        headroom: a fresh reading.
        nodes: over which the plan's ranks are dealt evenly.
    """
    mixture, order = plan.mixture, plan.order
    batch = mixture.spec.batch
    profile = plan.profile.profile
    tables = quick_tables(mixture.datasets)
    reuse = reuse_of(plan, tables)
    memory = _bytes(plan, headroom, plan.world_size // nodes)
    call = _batch_call(plan)
    bound = _with_call(_bound(plan, costs, reuse), plan, call)
    return {
        "spec": str(spec_path),
        "split": mixture.split,
        "profile": {
            "name": profile.name,
            "origin": plan.profile.origin,
            "source": profile.provenance.source,
            "mixture": profile.mixture and profile.mixture.describe(),
        },
        "datasets": {
            dataset.name: _dataset(plan, dataset, table, costs.get(dataset.name))
            | _dataset_reuse(plan, dataset, reuse)
            for dataset, table in zip(mixture.datasets, tables, strict=True)
        },
        "batch": {
            name: {"shape": list(array.shape), "dtype": array.dtype}
            for name, array in mixture.layout.arrays.items()
            if name not in _INTERNAL
        },
        "epoch": {
            "samples": order.epoch_samples,
            "batches": None
            if order.epoch_samples is None
            else epoch_steps(
                order.epoch_samples,
                batch=batch.size,
                world_size=plan.world_size,
                drop_last=batch.drop_last,
            ),
            "estimated": any(count.estimated for count in plan.counts.values()),
        },
        "graph": graph(plan),
        "reuse": _reuse_document(plan, reuse),
        "knobs": knob_origins(plan, sets),
        "bytes": memory,
        "bound": bound,
        "batch_call": call,
        "ranks": ranks_document(
            plan,
            tables,
            costs,
            reuse,
            nodes=nodes,
            bound_per_s=bound["samples_per_s"],
            memory_bytes=memory["total"],
        ),
        "cache": _cache(plan, sets_of(plan, tables, reuse, costs, nodes=nodes)),
        "remote": remote_document(plan, tables),
        "locality": locality_document(plan, tables, memory["left_above_floor"] + memory["blocks"]),
        "notes": [*plan.notes, *filter(None, [plan.why_no_batch])],
    }


def _dataset(
    plan: LoaderPlan, dataset: ResolvedDataset, table: DatasetTable, cost: DecodeCost | None
) -> dict[str, Any]:
    count = plan.counts[dataset.name]
    return {
        "tfds": f"{dataset.directory.name}:{dataset.directory.version}",
        "path": dataset.directory.path,
        "split": plan.mixture.spec.dataset(dataset.name).split[plan.mixture.split],
        "reader": plan.knobs.reader,
        "reader_why": plan.reader_reason,
        "shards": len(dataset.slices),
        "episodes": count.episodes,
        "frames": count.frames,
        "samples": count.samples,
        "estimated": count.estimated,
        "frames_estimated": count.frames_estimated,
        "weight": dataset.weight,
        "share": plan.order.shares[dataset.index],
        "share_end": plan.order.shares_at(_END)[dataset.index],
        "stride": dataset.stride,
        "cameras": {
            camera: [feature.path for feature in features]
            for camera, features in dataset.cameras.items()
        },
        "action_width": dataset.action.width if dataset.action else 0,
        "state_width": dataset.state.width if dataset.state else 0,
        "language": [feature.path for feature in dataset.language],
        "lost": _lost(dataset, table, count),
        "decode_s": None if cost is None else cost.decode_s,
        "decoded_frames": None if cost is None else cost.frames,
        "encoded_frame_bytes": None if cost is None else cost.encoded_bytes,
    }


def _lost(dataset: ResolvedDataset, table: DatasetTable, count: DatasetCount) -> list[str]:
    """Why episodes or frames give no sample of their own, for people."""
    about = "about " if count.frames_estimated else ""
    sample, stride = dataset.sample, dataset.stride
    frames = table.steps.astype("int64")
    strided = -(-frames // stride)
    outside = int(strided.sum() - valid_per_episode(sample, strided).sum())
    if dataset.transform is not None:
        stride, outside = 1, 0  # of frames that there may not be any more
    reasons = [f"damaged: {reason}" for reason in count.damaged]
    if count.short_episodes:
        reasons.append(
            f"{about}{count.short_episodes} of {count.episodes} episodes are too short for a window"
        )
    if stride > 1:
        reasons.append(f"stride {stride} takes {about}{strided.sum()} of {frames.sum()} frames")
    if outside:
        reasons.append(f"edges: drop leaves out {about}{outside} of {strided.sum()} frames")
    reasons += [
        f"{rule.rule} leaves out {rule.samples} samples, and {rule.episodes} of {count.episodes} "
        "episodes whole"
        for rule in count.lost
    ]
    if count.frames_estimated and dataset.keep is not None:
        reasons.append("what the rules of keep leave out is known when the index is built")
    if sample.per_episode != "all":
        reasons.append(f"per_episode: {sample.per_episode} drawn in each episode and pass")
    return reasons


def graph(plan: LoaderPlan) -> dict[str, Any]:
    """The pipeline as text: a line for each dataset up to its queue, and what all of them share."""
    spec, layout, knobs = plan.mixture.spec, plan.mixture.layout, plan.knobs
    streams = {}
    indexed = knobs.reader == "indexed"
    for dataset in plan.mixture.datasets:
        own = knobs.for_dataset(dataset.name)
        shards = len(dataset.slices)
        features = len(dataset.numeric_features()) + len(dataset.language)
        features += sum(len(choices) for choices in dataset.cameras.values())
        shuffle = f", shuffle {own.shuffle_samples}" if own.shuffle_samples else ""
        if indexed:
            streams[dataset.name] = (
                f"{_many(shards, 'shard')} → index of {_many(features, 'feature')} → global shuffle"
            )
            continue
        streams[dataset.name] = (
            f"{_many(shards, 'shard')} → interleave {min(own.cycle_length, shards)} "
            f"({_many(own.num_parallel_calls, 'call')}) → parse {_many(features, 'feature')} "
            f"({_many(own.parse_parallel_calls, 'call')}) → prefetch "
            f"{_many(own.stream_prefetch, 'episode')} → queue "
            f"{_many(own.queue_samples, 'sample')}{shuffle}"
        )
    cameras = ", ".join(
        f"{name} {camera.size[0]}×{camera.size[1]} {camera.resize} {camera.fit}"
        + (f" {camera.depth}" if camera.depth else "")
        for name, camera in spec.cameras.items()
    )
    mixing = spec.mixing
    stall = "wait" if mixing.waits else "owe"
    return {
        "datasets": streams,
        "mixture": (
            (
                f"plan (block {mixing.block_length}) → read {_many(knobs.read_ahead, 'run')} ahead "
                f"({_many(knobs.io_threads, 'thread')}) → decode "
                if indexed
                else f"{_many(len(streams), 'queue')} → mix ({mixing.strategy}, block "
                f"{mixing.block_length}, {stall}) → decode "
            )
            + f"({_many(knobs.decode_threads, 'thread')}; {cameras}) → ring "
            f"({knobs.ring_slots} slots of {format_bytes(layout.slot_bytes)}) → "
            f"batches of {layout.batch_size}"
        ),
    }


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def knob_origins(plan: LoaderPlan, sets: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Every knob's value, range, class, and where the value came from."""
    written = _written_knobs(plan.profile)
    name, default = plan.profile.profile.name, Knobs().flat()
    rows = {}
    unused = UNUSED_KNOBS[plan.knobs.reader]
    for key, value in plan.knobs.flat().items():
        dataset, _, knob = key.rpartition(".")
        cycle = f"{dataset}.cycle_length" if dataset else "cycle_length"
        start = written.get(key, default.get(key))
        origin = f"profile {name}" if key in written else "default"
        if key in sets:
            origin = "--set"
        elif value != start and knob == "num_parallel_calls":
            by = "--set " if cycle in sets else ""
            origin = f"follows {by}{cycle}={plan.knobs.flat().get(cycle)}"
        elif value != start:
            origin += f", clamped from {start}"
        rows[key] = {
            "value": value,
            "from": origin,
            "range": knob_range(knob, of_dataset=bool(dataset)),
            "class": KNOB_CLASS[knob],
            "used": knob not in unused,
        }
    return rows


def knob_range(knob: str, *, of_dataset: bool = False) -> str:
    """A knob's range as text: "1–64", or its words."""
    field = (DatasetKnobs if of_dataset else Knobs).model_fields[knob]
    words = [word for word in typing.get_args(field.annotation) if isinstance(word, str)]
    if words:
        return " | ".join(words)
    bounds = {
        key: getattr(bound, key)
        for bound in field.metadata
        for key in ("ge", "le")
        if getattr(bound, key, None) is not None
    }
    most = bounds.get("le", "datasets")
    if isinstance(most, int) and most >= GIB:
        most = f"{most // GIB} GiB"
    return f"{bounds.get('ge', 0)}–{most}"


def _written_knobs(found: ResolvedProfile) -> dict[str, Any]:
    """What the profile's file says itself, by knob; what it leaves out has its default."""
    shipped = shipped_profiles_dir() / f"{found.profile.name}.yaml"
    path = shipped if found.origin == "shipped" else Path(found.origin)
    document = read_yaml_file(path)
    entry = document["entries"][found.entry - 1] if found.entry else document
    knobs = entry.get("knobs") or {}
    own = knobs.pop("datasets", None) or {}
    return knobs | {
        f"{name}.{knob}": v for name, values in own.items() for knob, v in values.items()
    }


def _bytes(plan: LoaderPlan, headroom: Headroom, ranks_here: int) -> dict[str, Any]:
    sizes = plan.mixture.sizes
    price = price_start(plan.knobs, sizes, ranks=ranks_here)
    return {
        "framework": price.framework_bytes,
        "streams": price.streams_bytes,
        "queued": price.queued_bytes,
        "ring": price.ring_bytes,
        "cache": price.cache_bytes,
        "blocks": price.block_bytes,
        "requests": price.request_bytes,
        "total": price.total_bytes,
        "ring_slot": sizes.batch_bytes,
        "mean_episode": sizes.record_bytes,
        "headroom": headroom.headroom_bytes,
        "headroom_source": headroom.source,
        "ram_floor": plan.ram_floor_bytes,
        "left_above_floor": headroom.headroom_bytes - plan.ram_floor_bytes - price.total_bytes,
    }


def _bound(
    plan: LoaderPlan, costs: Mapping[str, DecodeCost], reuse: Reuse | None
) -> dict[str, Any]:
    shares = {d.name: plan.order.shares[d.index] for d in plan.mixture.datasets}
    seconds = {d.name: 0.0 for d in plan.mixture.datasets if not d.cameras}
    seconds |= {name: cost.decode_s for name, cost in costs.items()}
    if reuse is not None:
        # A sample was probed alone; a chained one decodes fewer frames.
        for d in plan.mixture.datasets:
            if d.name in costs:
                seconds[d.name] *= reuse.decodes[d.index] / reuse.alone[d.index]
    covered = sum(shares[name] for name in seconds)
    mean_s = sum(shares[name] * cost for name, cost in seconds.items()) / (covered or 1.0)
    threads = _threads(plan)
    return {
        "stage": "decode",
        "samples_per_s": threads / mean_s if mean_s > 0 else None,
        "mean_decode_s": mean_s if mean_s > 0 else None,
        "threads": threads,
        "datasets_probed": len(costs),
        "share_probed": covered,
    }


def _cache(plan: LoaderPlan, sets: Sequence[FrameSet]) -> dict[str, Any] | None:
    """Hits of the frame cache, as the knob is set and in all the memory above the floor."""
    if not sets:
        return None
    sizes = {"as set": plan.knobs.cache_bytes, "above the floor": plan.limits.cache_bytes or 0}
    found = {memory: forecast(sets, size) for memory, size in sizes.items() if size}
    return {
        "all_frames": round(sum(one.frames_bytes for one in sets)),
        "forecasts": [
            {
                "memory": memory,
                "cache_bytes": sizes[memory],
                "hit_ratio": one.hit_ratio,
                "held_bytes": round(one.held_bytes),
            }
            for memory, one in found.items()
        ],
    }


def _batch_call(plan: LoaderPlan) -> dict[str, Any] | None:
    """What the function over a batch takes; ``None`` without one."""
    call = plan.mixture.spec.batch.call
    if call is None:
        return None
    seconds, why = try_call(plan.mixture)
    return {"call": call, "seconds": seconds, "unknown_why": why}


def _with_call(
    bound: dict[str, Any], plan: LoaderPlan, call: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The bound, where the function over a batch, which runs alone, allows no less."""
    if call is None or not call["seconds"]:
        return bound
    rate = plan.mixture.spec.batch.size / call["seconds"]
    if bound["samples_per_s"] is not None and bound["samples_per_s"] <= rate:
        return bound
    return {**bound, "stage": "batch.call", "samples_per_s": rate}


def _threads(plan: LoaderPlan) -> int:
    """Decode threads that can run at once."""
    return min(plan.knobs.decode_threads, plan.limits.cpus)


def _reuse_document(plan: LoaderPlan, found: Reuse | None) -> dict[str, Any]:
    """What the document says of the mixture; ``None`` for what the reader leaves open."""
    document: dict[str, Any] = {
        "chain": plan.order.chain,
        "decodes_per_sample": None,
        "distinct_episodes_per_batch": None,
    }
    if found is not None:
        document["distinct_episodes_per_batch"] = found.distinct_episodes
        document["decodes_per_sample"] = sum(
            plan.order.shares[d.index] * found.decodes[d.index] * len(d.cameras)
            for d in plan.mixture.datasets
        )
    return document


def _dataset_reuse(
    plan: LoaderPlan, dataset: ResolvedDataset, found: Reuse | None
) -> dict[str, Any]:
    """What the document says of one dataset."""
    if found is None:
        return {"chained": False, "unchained_why": None, "decodes_per_sample": None}
    chained = found.chained[dataset.index]
    why = None
    if plan.order.chain and not chained:
        why = why_unchained(dataset.sample, keeps=dataset.keep is not None)
    decodes = found.decodes[dataset.index] * len(dataset.cameras)
    return {"chained": chained, "unchained_why": why, "decodes_per_sample": decodes}


def ranks_of_a_node(ranks: int, nodes: int) -> int:
    """How many of ``ranks`` each of ``nodes`` has.

    Raises:
        UsageError: they cannot be dealt evenly.
    """
    if ranks % nodes:
        raise UsageError(
            f"--ranks {ranks} --nodes {nodes}: nodes would have {ranks // nodes} or "
            f"{ranks // nodes + 1} ranks",
            remedy=f"--ranks counts all ranks; make it a multiple of --nodes, such as "
            f"{max(1, ranks // nodes) * nodes}",
        )
    return ranks // nodes


def ranks_document(
    plan: LoaderPlan,
    tables: Sequence[DatasetTable],
    costs: Mapping[str, DecodeCost],
    reuse: Reuse | None,
    *,
    nodes: int,
    bound_per_s: float | None,
    memory_bytes: int,
) -> dict[str, Any]:
    """What each rank and each node gets in one epoch.

    Args:
        plan: of one rank of ``plan.world_size``.
        tables: the datasets' episodes, counted or estimated.
        costs: of decoding, by dataset; may lack some.
        reuse: what is decoded; ``None`` with the stream reader.
        nodes: how many there are.
        bound_per_s: samples a second that a rank can decode; ``None`` where unknown.
        memory_bytes: that the pipelines of a node are predicted to hold.
    """
    here, samples = plan.world_size // nodes, plan.order.epoch_samples
    each = _sample_bytes(plan, tables, costs, reuse)
    part: dict[str, Any] = {"batches": None, "samples": None, "read_bytes": None}
    carried = None
    if samples is not None:
        batch, world = plan.mixture.spec.batch, plan.world_size
        steps = epoch_steps(samples, batch=batch.size, world_size=world, drop_last=batch.drop_last)
        whole = batch.drop_last or batch.size == 1
        dealt = steps * batch.size * world if whole else samples if steps else 0
        mine = -(-dealt // world)
        part = {"batches": steps, "samples": mine, "read_bytes": round(mine * each)}
        carried = samples - dealt
    return {
        "world_size": plan.world_size,
        "nodes": nodes,
        "per_node": here,
        "carried_samples": carried,
        "sample_read_bytes": round(each),
        "rank": {
            **part,
            "cores": plan.limits.cpus,
            "samples_per_s": bound_per_s,
            "ring_bytes": plan.knobs.ring_slots * plan.mixture.sizes.batch_bytes,
        },
        "node": {
            "samples": None if part["samples"] is None else part["samples"] * here,
            "read_bytes": None if part["read_bytes"] is None else part["read_bytes"] * here,
            "samples_per_s": None if bound_per_s is None else bound_per_s * here,
            "memory_bytes": memory_bytes,
        },
    }


def rows_of(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(what, of a rank, of a node), for people."""
    rank, node = document["rank"], document["node"]
    each = document["per_node"]
    if rank["batches"] is not None:
        yield "batches an epoch", str(rank["batches"]), str(rank["batches"] * each)
        yield "samples an epoch", str(rank["samples"]), str(node["samples"])
        read = rank["read_bytes"], node["read_bytes"]
        yield "read an epoch, about", format_bytes(read[0]), format_bytes(read[1])
    if rank["samples_per_s"] is not None:
        rates = rank["samples_per_s"], node["samples_per_s"]
        yield "decoded samples/s at most", f"{rates[0]:.0f}", f"{rates[1]:.0f}"
    yield "cores", str(rank["cores"]), str(rank["cores"] * each)
    yield "ring", format_bytes(rank["ring_bytes"]), format_bytes(rank["ring_bytes"] * each)
    yield "loader memory", "-", format_bytes(node["memory_bytes"])


def _sample_bytes(
    plan: LoaderPlan,
    tables: Sequence[DatasetTable],
    costs: Mapping[str, DecodeCost],
    reuse: Reuse | None,
) -> float:
    """Mean bytes that are read for a sample of the mixture."""
    mean = 0.0
    for dataset, table in zip(plan.mixture.datasets, tables, strict=True):
        record = plan.mixture.sizes.record_bytes[dataset.name]
        cost = costs.get(dataset.name)
        if reuse is None:
            found = record * len(table.steps) / max(1, table.samples)
        elif not dataset.cameras:
            found = 0.0  # numbers are in the index
        elif cost is not None:
            found = reuse.decodes[dataset.index] * len(dataset.cameras) * cost.encoded_bytes
        else:
            frames = max(1.0, float(table.steps.mean()))
            found = reuse.decodes[dataset.index] * record / frames
        mean += plan.order.shares[dataset.index] * found
    return mean


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
    rates = probe_reads(systems[kind], SystemClock().now_s, each_s=PROBE_S)
    if rates is None:
        return None
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
        "in_order_bytes_per_s": rates.in_order,
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
    from autoloader.formats.files import unreadable
    from autoloader.storage.rates import known_rate
    from autoloader.storage.shards import kept_free, shard_cache

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
    from autoloader.pipeline.read.shard_feed import ShardOrder

    samples = SamplePlan(plan.order, tables, chain=plan.order.chain)
    slices = [table.slice_of for table in tables]
    return ShardOrder(samples, plan.mixture.datasets, slices).ahead(0)
