"""``autoloader plan``: what a loader would start with, without starting it.

Not here: deciding it (``process.planning.start``), the document (``cli.plan_report``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from autoloader.cli import options
from autoloader.cli.output import emit, emit_json, emit_table, note
from autoloader.host.units import format_bytes

PROBE_S = 1.0
"""Seconds of decoding that the bound is predicted from."""


def plan(
    spec: options.SpecFile,
    profile: options.ProfileName = None,
    strict: options.StrictProfile = False,
    sets: options.KnobValues = None,
    ram_floor: options.RamFloor = None,
    disk_floor: options.DiskFloor = None,
    split: options.Split = "train",
    ranks: Annotated[
        int, typer.Option(min=1, help="Trainers that share the epoch, over all nodes.")
    ] = 1,
    nodes: Annotated[
        int, typer.Option(min=1, help="Machines like this one that they are dealt over.")
    ] = 1,
    _no_transforms: options.NoTransforms = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Show datasets, graph, knobs, memory and the predicted bound, from metadata and a probe."""
    knobs, floor = options.parse_sets(sets), options.floor_bytes(ram_floor)
    if strict:
        options.refuse_clamps(profile)
    from autoloader.cli.plan_report import plan_document, ranks_of_a_node
    from autoloader.decode.probe import probe_decode
    from autoloader.host.clock import SystemClock
    from autoloader.host.probes.headroom import HeadroomProbe
    from autoloader.process.planning.start import plan_loader
    from autoloader.sampling.dealing import Ranks
    from autoloader.spec import PipelineSpec

    headroom, ranks_here = HeadroomProbe(), ranks_of_a_node(ranks, nodes)
    found = plan_loader(
        PipelineSpec.from_yaml(spec),
        profile=profile,
        ram_floor=floor,
        disk_floor=disk_floor,
        split=split,
        knobs=knobs,
        headroom=headroom,
        probe_only=True,
        ranks=Ranks(0, ranks),
        ranks_here=ranks_here,
    )
    document = plan_document(
        found,
        spec_path=spec,
        sets=knobs,
        costs=probe_decode(found.mixture, SystemClock(), budget_s=PROBE_S),
        headroom=headroom.read(),
        nodes=nodes,
    )
    if as_json:
        emit_json(document)
    else:
        _show(document)


def _show(document: Mapping[str, Any]) -> None:
    _show_datasets(document)
    _heading("graph")
    emit_table(("dataset", "stream"), document["graph"]["datasets"].items())
    emit(document["graph"]["mixture"])
    _show_reuse(document)
    _heading("batch")
    emit_table(
        ("array", "shape", "dtype"),
        (
            (name, "×".join(map(str, array["shape"])), array["dtype"])
            for name, array in document["batch"].items()
        ),
    )
    _heading("knobs")
    emit_table(
        ("knob", "value", "range", "class", "from"),
        (
            (
                name,
                knob["value"],
                knob["range"],
                knob["class"],
                knob["from"] + ("" if knob["used"] else " (unused by this reader)"),
            )
            for name, knob in document["knobs"].items()
        ),
    )
    here = document["ranks"]["per_node"]
    _heading("memory, predicted" + (f", of a node's {here} ranks" if here > 1 else ""))
    emit_table(("stage", "bytes"), _memory_rows(document["bytes"]))
    if (call := document["batch_call"]) is not None:
        took = f"not known: {call['unknown_why']}"
        if call["seconds"] is not None:
            took = f"{call['seconds'] * 1e3:.2f} ms for a batch of zeros"
        emit(f"batch.call {call['call']}: {took}")
    several = document["ranks"]["world_size"] > 1
    _heading("bound" + (" of a rank" if several else ""))
    emit(_bound_line(document["bound"], len(document["datasets"])))
    if several:
        _show_ranks(document["ranks"])
    if document["cache"] is not None:
        _heading("decoded frames held in memory (cache_bytes)")
        emit(f"all frames of a pass take {format_bytes(document['cache']['all_frames'])}")
        emit_table(
            ("memory", "bytes", "hits"),
            (
                (one["memory"], format_bytes(one["cache_bytes"]), f"{one['hit_ratio']:.0%}")
                for one in document["cache"]["forecasts"]
            ),
        )
    if document["remote"] is not None:
        from autoloader.cli.plan_report import show_remote

        _heading("data far away")
        show_remote(document["remote"])
    if document["locality"] is not None:
        from autoloader.cli.plan_report import show_locality

        _heading("storage, and what mixing.locality gets from it")
        show_locality(document["locality"])
    for line in document["notes"]:
        note(line)
    if document["bytes"]["left_above_floor"] < 0:
        note(
            "warning: these knobs would cross the RAM floor by "
            f"{format_bytes(-document['bytes']['left_above_floor'])}; "
            "lower ring_slots, cycle_length or stream_prefetch"
        )


def _show_ranks(document: Mapping[str, Any]) -> None:
    from autoloader.cli.plan_report import rows_of

    world_size, nodes, here = (document[key] for key in ("world_size", "nodes", "per_node"))
    on = "one node" if nodes == 1 else f"{nodes} nodes like this one, {here} on each"
    _heading(f"{world_size} ranks on {on}")
    emit_table(("what", "of a rank", "of a node"), rows_of(document))


def _show_datasets(document: Mapping[str, Any]) -> None:
    from autoloader.formats.files import scheme_of

    datasets, epoch = document["datasets"], document["epoch"]
    profile = document["profile"]
    emit(f"spec     {document['spec']}, split {document['split']}")
    emit(f"profile  {profile['name']} ({profile['origin']}; numbers {profile['source']})")
    paths = [entry["path"] for entry in datasets.values()]
    root = _common_folder(paths)
    emit(f"data     {root or 'on several file systems'}")
    first = next(iter(datasets.values()))
    emit(f"reader   {first['reader']}: {first['reader_why']}")
    if epoch["samples"] is None:
        emit("epoch    endless")
    else:
        about = "about " if epoch["estimated"] else ""
        world_size = document["ranks"]["world_size"]
        each = f" for each of {world_size} ranks" if world_size > 1 else ""
        emit(f"epoch    {about}{epoch['samples']} samples, {epoch['batches']} batches{each}")
    _heading("datasets")
    emit_table(
        (
            *("dataset", "path", "split", "shards", "episodes", "frames", "samples", "weight"),
            *("share", "stride", "action", "state", "decode"),
        ),
        (_dataset_row(name, entry, root) for name, entry in datasets.items()),
    )
    if epoch["estimated"]:
        emit(
            "≈ estimated from a few episodes; exact once a loader has counted them"
            + (", but for remote data" if any(map(scheme_of, paths)) else "")
        )
    _heading("fields")
    emit_table(
        ("dataset", "cameras", "language"),
        (
            (name, _cameras(entry["cameras"]), " | ".join(entry["language"]) or "-")
            for name, entry in datasets.items()
        ),
    )
    lost = [(name, reason) for name, entry in datasets.items() for reason in entry["lost"]]
    if lost:
        _heading("frames without a sample of their own")
        emit_table(("dataset", "why"), lost)


def _common_folder(paths: list[str]) -> str:
    """What all paths begin with; "" where they lie on several file systems or buckets."""
    from autoloader.formats.files import scheme_of

    schemes = {scheme_of(path) for path in paths}
    if schemes == {""}:
        return os.path.commonpath(paths)
    common = os.path.commonpath([path.partition("://")[2] for path in paths])
    return f"{schemes.pop()}://{common}" if common and len(schemes) == 1 else ""


def _show_reuse(document: Mapping[str, Any]) -> None:
    reuse = document["reuse"]
    if reuse["decodes_per_sample"] is None:
        return
    size = document["batch"]["action"]["shape"][0]
    emit(
        f"about {reuse['decodes_per_sample']:.2f} decodes a sample; "
        f"{reuse['distinct_episodes_per_batch']:.1f} different episodes in a batch of {size}"
    )
    if reuse["chain"]:
        _heading("chained")
        emit_table(
            ("dataset", "chained", "decodes a sample"),
            (
                (
                    name,
                    "yes" if entry["chained"] else f"no: {entry['unchained_why']}",
                    f"{entry['decodes_per_sample']:.2f}",
                )
                for name, entry in document["datasets"].items()
            ),
        )


def _dataset_row(name: str, entry: Mapping[str, Any], root: str) -> tuple[Any, ...]:
    about = "≈" if entry["estimated"] else ""
    decode_s = entry["decode_s"]
    return (
        name,
        os.path.relpath(entry["path"], root) if root else entry["path"],
        entry["split"],
        entry["shards"],
        entry["episodes"],
        f"{'≈' if entry['frames_estimated'] else ''}{entry['frames']}",
        f"{about}{entry['samples']}",
        f"{entry['weight']:g}",
        _shares(entry),
        entry["stride"],
        entry["action_width"] or "-",
        entry["state_width"] or "-",
        "-" if decode_s is None else f"{decode_s * 1e3:.2f} ms",
    )


def _shares(entry: Mapping[str, Any]) -> str:
    """The share at the beginning, and that at the end of a schedule."""
    begins, ends = f"{entry['share']:.4f}", f"{entry['share_end']:.4f}"
    return begins if begins == ends else f"{begins} → {ends}"


def _cameras(cameras: Mapping[str, list[str]]) -> str:
    return ", ".join(f"{camera}={' | '.join(paths)}" for camera, paths in cameras.items()) or "-"


def _memory_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "libraries", format_bytes(found["framework"])
    yield "open streams", format_bytes(found["streams"])
    yield "encoded episodes", format_bytes(found["queued"])
    yield "ring", format_bytes(found["ring"])
    yield "decoded frames held", format_bytes(found["cache"])
    if found["blocks"]:
        yield "blocks (mixing.locality)", format_bytes(found["blocks"])
    if found["requests"]:
        yield "requests to stores", format_bytes(found["requests"])
    yield "in all", format_bytes(found["total"])
    yield f"headroom now ({found['headroom_source']})", format_bytes(found["headroom"])
    yield "RAM floor", format_bytes(found["ram_floor"])
    left = found["left_above_floor"]
    yield "left above the floor", f"{'-' if left < 0 else ''}{format_bytes(abs(left))}"


def _bound_line(bound: Mapping[str, Any], datasets: int) -> str:
    if bound["samples_per_s"] is None:
        return "no frame was decoded, so there is no bound to predict"
    if bound["stage"] == "batch.call":
        return f"batch.call: at most {bound['samples_per_s']:.0f} samples/s, one batch at a time"
    return (
        f"decode stage: at most {bound['samples_per_s']:.0f} samples/s "
        f"({_threads(bound['threads'])}, {bound['mean_decode_s'] * 1e3:.2f} ms a sample in one of "
        f"them, probed on {bound['datasets_probed']} of {datasets} datasets). "
        "Reading and the trainer may make it less; `autoloader measure` says what it is."
    )


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _heading(text: str) -> None:
    emit("")
    emit(f"-- {text}")
