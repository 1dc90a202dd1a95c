"""What ``autoloader plan --ranks N --nodes M`` adds: a rank's part of an epoch, a node's load.

Theory of operation. Ranks are dealt evenly over nodes, as launchers do. Every node is taken to be
like this one: its memory, cores and limits. The ranks of a node have one child with a pipeline for
each of them. The memory of all of them must fit under the floor; ``planning.start`` refuses what
does not, before anybody reserves a cluster for it.

Bytes that are read are those of the files, whether or not the page cache has them. By index a
sample costs its own encoded frames; as a stream it costs its part of an episode.

Not here: which positions a rank takes (``order.dealing``), the price of memory
(``controller.admission``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autoloader.catalog.descriptors import MOST_FILES, MOST_MAPS, RAISED_LIMIT
from autoloader.decode.probe import DecodeCost
from autoloader.errors import UsageError
from autoloader.order.dealing import epoch_steps
from autoloader.order.episodes import DatasetTable
from autoloader.order.reuse import Reuse
from autoloader.planning.start import LoaderPlan
from autoloader.units import format_bytes


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
            "loader_processes": 1 + _decode_processes(plan, here),
            "open_files": _open_files(plan, here),
        },
    }


def notes_of(document: Mapping[str, Any]) -> Iterator[str]:
    """What of it a person should mind, for people."""
    node = document["node"]
    if node["open_files"] > RAISED_LIMIT:
        yield (
            f"warning: the loader of a node would have {node['open_files']} files open; lower "
            "cycle_length, or have fewer ranks on a node"
        )
    if document["per_node"] > 1 and document["rank"]["cores"] < 2:
        yield (
            f"warning: {document['per_node']} ranks of a node like this one have "
            f"{document['rank']['cores']} core each for training and decoding"
        )


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
    yield "loader processes", "-", str(node["loader_processes"])
    yield "data and index files open", "-", str(node["open_files"])


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


def _decode_processes(plan: LoaderPlan, ranks: int) -> int:
    """Processes of a node beside its child; 0 where the child decodes in threads."""
    alone = plan.knobs.reader == "stream" or plan.knobs.decode_processes == 1
    return 0 if alone else ranks * plan.knobs.decode_processes


def _open_files(plan: LoaderPlan, ranks: int) -> int:
    """Data and index files that the loader's processes of a node have open at once, at most."""
    if plan.knobs.reader == "stream":
        return ranks * sum(
            min(plan.knobs.for_dataset(one.name).cycle_length, len(one.slices))
            for one in plan.mixture.datasets
        )
    shards = len({piece.path for one in plan.mixture.datasets for piece in one.slices})
    readers = max(1, _decode_processes(plan, ranks))
    return readers * (min(shards, MOST_FILES) + min(shards, MOST_MAPS))
