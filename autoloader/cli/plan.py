"""``autoloader plan``: what a loader would start with, without starting it.

The answer is five lines: does it fit, how fast can it be, what limits it, what is the data, what to
try next. ``-v`` adds the tables; ``--json`` has all of it.

The bound is of the decode stage alone: decode threads that can run at once, over the seconds that
one thread needs for a sample. That is the mean over the datasets, weighted by their shares, of a
few frames decoded now: a run may be a little faster. Readers, memory bandwidth or the trainer may
make it slower, and frames from the cache faster.

``--ranks N --nodes M`` adds a rank's part of an epoch and a node's load. Ranks are dealt evenly
over nodes, as launchers do. Every node is taken to be like this one: its memory, cores and limits.
The ranks of a node have one child with a pipeline for each of them. The memory of all of them must
fit under the floor; ``process.planning`` refuses what does not fit.

The storage is probed for half a second if the spec asks for locality, or if the data lies on a
network or FUSE file system.

Not here: deciding any of it (``process.planning``).
"""

from __future__ import annotations

import re
import shutil
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

from autoloader.cache.forecast import forecast, frame_sets
from autoloader.cli.output import answered, emit, emit_document, note
from autoloader.cli.recorded_run import last_run
from autoloader.controller.admission import price_start
from autoloader.controller.profiles import ResolvedProfile, Untuned, shipped_profiles_dir
from autoloader.decode.probe import DecodeCost, VideoCost, probe_decode
from autoloader.errors import UsageError, many
from autoloader.formats.files import reading
from autoloader.host.clock import Clock
from autoloader.host.headroom import Headroom, HeadroomProbe
from autoloader.host.storage import by_file_system, is_far, probe_reads, propose_locality
from autoloader.host.units import GIB, format_bytes
from autoloader.index.counting import quick_tables
from autoloader.index.encoded import priced_sizes
from autoloader.pipeline.batch_call import try_call
from autoloader.process.planning import LoaderPlan, plan_loader
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.transforms.keep import valid_per_episode
from autoloader.sampling.chains import why_unchained
from autoloader.sampling.dealing import Ranks, Steps
from autoloader.sampling.episodes import DatasetTable
from autoloader.sampling.mixture import mixture_order
from autoloader.sampling.plan import Reuse, SamplePlan, foretell_reuse
from autoloader.spec import PipelineSpec
from autoloader.spec.knobs import KNOBS, STAGES, Knobs, flat_knobs, used_knobs
from autoloader.spec.reading import read_yaml_file

DECODE_PROBE_S = 1.0
"""Seconds of decoding that the bound is predicted from."""
STORAGE_PROBE_S = 0.25
"""Seconds of reading at random, and seconds of reading in order after it."""
_END = 2**62
_INTERNAL = ("ledger", "language_end", "language_text", "text_length")
_TABLES = {
    "datasets": (
        "path", "split", "shards", "episodes", "frames", "samples", "weight", "share",
        "share_end", "stride", "action_width", "state_width", "decode_s",
    ),
    "fields": ("cameras", "language"),
    "knobs": ("value", "from", "range", "class", "used"),
    "chained": ("chained", "unchained_why", "decodes_per_sample"),
}  # fmt: skip
_COUNTS = ("episodes", "frames", "samples", "estimated", "frames_estimated")
_SHARDS_SHOWN = 8
_MEMORY = {"as set": "{:.0%} as cache_bytes is set", "above the floor": "up to {:.0%} in training"}
_UNIT = re.compile(r"(?<=\d) (?=(?:[KMG]i)?B\b|m?s\b|samples/s)")
_NO_TERMINAL = 1000
"""Columns where stdout is no terminal: lines are left whole."""
_MOST_LINES, _LINES_EACH = 14, 2
"""Lines without ``-v``: of answers and notes together, and of one answer."""


def show_plan(
    declared: PipelineSpec,
    place: Path,
    given: Mapping[str, Any],
    ranks: int,
    nodes: int,
    *,
    verbose: bool,
) -> None:
    """Say whether a mixture fits, how fast it can be and what limits it; starts nothing.

    Args:
        declared: spec of the mixture.
        place: path of the spec file, for the answer.
        given: arguments of the loader, by name.
        ranks: number of trainers that share the epoch, over all nodes.
        nodes: number of machines like this one.
        verbose: whether the tables behind the answer are shown, too.
    """
    headroom = HeadroomProbe()
    found = plan_loader(
        declared,
        **given,
        headroom=headroom,
        probe_only=True,
        ranks=Ranks(0, ranks),
        ranks_here=_ranks_of_a_node(ranks, nodes),
    )
    costs = probe_decode(found.mixture, Clock(), budget_s=DECODE_PROBE_S)
    document = {"spec": str(place)} | _Report(found, costs, nodes).document(
        given["knobs"], headroom.read()
    )
    if answered(document):
        return
    width = shutil.get_terminal_size((_NO_TERMINAL, 24)).columns
    why, _, remedy = (found.why_no_batch or "").partition("; ")
    lines = [*_answers(document, default_floor=given["ram_floor"] is None)]
    if why:
        lines[0], lines[-1] = ("Fits", f"no: {why}"), ("Next", remedy)
    if verbose:
        datasets = document["datasets"].items()
        lines += [("Lost", f"{name}: {why}") for name, one in datasets for why in one["lost"]]
    answers = [
        "\n".join(_wrapped(f"{label:<6} {told}", width, None if verbose else _LINES_EACH))
        for label, told in lines
    ]
    emit("\n".join(answers))
    if verbose:
        datasets, remote = document["datasets"], document["remote"]
        shown = document | {"fields": datasets, "chained": datasets, "notes": None}
        if remote:
            shown["remote"] = {**remote, "order": remote["order"][:_SHARDS_SHOWN]}
        emit_document({key: part for key, part in shown.items() if part is not None}, _TABLES)
    room = _MOST_LINES - sum(one.count("\n") + 1 for one in answers)
    hidden = () if verbose else Untuned
    every = [one for one in found.notes if not isinstance(one, hidden)]
    notes = ["\n".join(_wrapped(one, width)) for one in every]
    for number, told in enumerate(notes):
        room -= told.count("\n") + 1
        if room < (number + 1 < len(notes)) and not verbose:
            note(f"notes: {len(notes) - number} more; -v shows them")
            break
        note(told)


def _wrapped(text: str, width: int, lines: int | None = None) -> list[str]:
    """Lines of whole words; what does not fit into so many is cut.

    Args:
        text: a label of six letters and a sentence, or a note.
        width: number of characters of a line; a longer word has a line of its own.
        lines: most lines; ``None``: any number.
    """
    return textwrap.wrap(
        text, width, subsequent_indent=" " * 7, break_long_words=False, break_on_hyphens=False,
        max_lines=lines, placeholder=" ...",
    )  # fmt: skip


def _ranks_of_a_node(ranks: int, nodes: int) -> int:
    """Give the number of ranks of each node.

    Raises:
        UsageError: the ranks cannot be dealt evenly.
    """
    here, rest = divmod(ranks, nodes)
    if rest:
        raise UsageError(
            f"--ranks {ranks} --nodes {nodes}: some nodes would have {many(here, 'rank')}, "
            f"others {here + 1}",
            remedy="--ranks counts all ranks; make it a multiple of --nodes, such as "
            f"{max(1, here) * nodes}",
        )
    return here


class _Report:
    """Derives the document of ``autoloader plan``, a method for each of its parts.

    Args:
        plan: plan of the loader.
        costs: seconds and bytes of decoding a sample, by dataset; may lack some.
        nodes: number of machines that the plan's ranks are dealt over evenly.
    """

    def __init__(self, plan: LoaderPlan, costs: Mapping[str, DecodeCost], nodes: int) -> None:
        self._plan, self._costs, self._nodes = plan, costs, nodes
        self._mixture, self._shares = plan.mixture, plan.order.shares
        self._tables = quick_tables(plan.mixture.datasets)
        self._reuse = _reuse_of(plan, self._tables)

    def document(self, sets: Mapping[str, Any], headroom: Headroom) -> dict[str, Any]:
        """Give all parts except the spec's path.

        Args:
            sets: knob values from the command line.
            headroom: a fresh reading of the memory that the machine can still give.
        """
        plan, mixture = self._plan, self._mixture
        profile, memory, call = plan.profile.profile, self._memory(headroom), self._batch_call()
        bound, samples = self._bound(call), plan.order.epoch_samples
        datasets = {
            dataset.name: self._dataset(dataset, table)
            for dataset, table in zip(mixture.datasets, self._tables, strict=True)
        }
        decodes = (one["share"] * one["decodes_per_sample"] for one in datasets.values())
        decodes_per_sample = None if self._reuse is None else sum(decodes)
        return {
            "split": mixture.split,
            "profile": {
                "name": profile.name,
                "origin": plan.profile.origin,
                "source": profile.provenance.source,
                "mixture": profile.mixture and profile.mixture.describe(),
            },
            "datasets": datasets,
            "batch": {
                name: {"shape": list(array.shape), "dtype": array.dtype}
                for name, array in mixture.layout.arrays.items()
                if name not in _INTERNAL
            }
            | {"language": {"shape": [mixture.layout.batch_size], "dtype": "str"}},
            "epoch": {
                "samples": samples,
                "batches": None if samples is None else self._epoch_batches(samples),
                "estimated": any(count.estimated for count in plan.counts.values()),
            },
            "graph": self._graph(),
            "reuse": {"chain": plan.order.chain, "decodes_per_sample": decodes_per_sample},
            "knobs": _knob_origins(plan, sets),
            "bytes": memory,
            "bound": bound,
            "batch_call": call,
            "last_run": self._last_run(),
            "ranks": self._ranks(bound["samples_per_s"], memory["total"]),
            "cache": self._cache(),
            "remote": self._remote(),
            "locality": self._locality(memory["left_above_floor"] + memory["blocks"]),
            "notes": [*plan.notes, *filter(None, [plan.why_no_batch])],
        }

    def _epoch_batches(self, samples: int) -> int:
        batch = self._mixture.spec.batch
        return Steps(batch.size, self._plan.world_size, batch.drop_last).left(samples)

    def _dataset(self, dataset: ResolvedDataset, table: DatasetTable) -> dict[str, Any]:
        plan, reuse = self._plan, self._reuse
        count, cost = plan.counts[dataset.name], self._costs.get(dataset.name)
        chained = reuse is not None and reuse.chained[dataset.index]
        why = None
        if reuse is not None and plan.order.chain and not chained:
            why = why_unchained(dataset.sample, keeps=dataset.keep is not None)
        return {
            "tfds": f"{dataset.directory.name}:{dataset.directory.version}",
            "path": dataset.directory.path,
            "split": self._mixture.spec.dataset(dataset.name).split[self._mixture.split],
            "reader": plan.knobs.reader,
            "reader_why": plan.reader_reason,
            "shards": len(dataset.slices),
            **{key: getattr(count, key) for key in _COUNTS},
            "weight": dataset.weight,
            "share": self._shares[dataset.index],
            "share_end": plan.order.shares_at(_END)[dataset.index],
            "stride": dataset.stride,
            "cameras": {name: [one.path for one in of] for name, of in dataset.cameras.items()},
            "action_width": dataset.action.width if dataset.action else 0,
            "state_width": dataset.state.width if dataset.state else 0,
            "language": [feature.path for feature in dataset.language],
            "lost": list(self._lost(dataset, table)),
            "decode_s": cost and cost.decode_s,
            "decoded_frames": cost and cost.frames,
            "encoded_frame_bytes": cost and cost.encoded_bytes,
            "video": cost and cost.video and asdict(cost.video),
            "chained": chained,
            "unchained_why": why,
            "decodes_per_sample": reuse and reuse.decodes[dataset.index] * len(dataset.cameras),
        }

    def _lost(self, dataset: ResolvedDataset, table: DatasetTable) -> Iterator[str]:
        """Reasons for which episodes or frames give no sample of their own."""
        count, sample = self._plan.counts[dataset.name], dataset.sample
        about = "about " if count.frames_estimated else ""
        frames = table.steps.astype("int64")
        strided = -(-frames // dataset.stride)
        outside = int(strided.sum() - valid_per_episode(sample, strided).sum())
        yield from (f"damaged: {reason}" for reason in count.damaged)
        if count.short_episodes:
            short = f"{about}{count.short_episodes} of {count.episodes} episodes"
            yield f"{short} are too short for a window"
        own = self._mixture.spec.dataset(dataset.name)
        if own.transform is None and (each := own.steps.drop_first + own.steps.drop_last):
            out = each * int((frames > 0).sum())
            of = f" of {out + frames.sum()}" if own.steps.every == 1 else ""
            yield f"steps.drop_first and drop_last leave out {about}{out}{of} frames"
        if dataset.transform is None:  # its function may leave other frames
            if dataset.stride > 1:
                taken = f"{about}{strided.sum()} of {frames.sum()}"
                yield f"stride {dataset.stride} takes {taken} frames"
            if outside:
                yield f"edges: drop leaves out {about}{outside} of {strided.sum()} frames"
        for rule in count.lost:
            if not (rule.samples or rule.episodes):
                continue
            whole = f"{rule.episodes} of {count.episodes} episodes whole"
            yield f"{rule.rule} leaves out {rule.samples} samples, and {whole}"
        if count.frames_estimated and dataset.keep is not None:
            yield "what the rules of keep leave out is known when the index is built"
        if sample.per_episode != "all":
            yield f"per_episode: {sample.per_episode} drawn in each episode and pass"

    def _graph(self) -> dict[str, Any]:
        """The pipeline as text: a line for each dataset up to its queue, a line for the mixture."""
        mixture, knobs = self._mixture, self._plan.knobs
        spec, layout, indexed = mixture.spec, mixture.layout, knobs.reader == "indexed"
        block, streams = f"block {spec.mixing.block_length}", {}
        for dataset in mixture.datasets:
            own, shards = knobs.for_dataset(dataset.name), len(dataset.slices)
            features = len(dataset.numeric_features()) + len(dataset.language)
            features += sum(map(len, dataset.cameras.values()))
            stages = [
                f"interleave {min(own.cycle_length, shards)}",
                f"parse {many(features, 'feature')}",
                f"prefetch {many(own.stream_prefetch, 'episode')}",
                f"queue {many(own.queue_samples, 'sample')}",
            ]
            if indexed:
                stages = [f"index of {many(features, 'feature')}", "global shuffle"]
            streams[dataset.name] = " → ".join([many(shards, "shard"), *stages])
        reading = f"mix ({spec.mixing.strategy}, {block})"
        if indexed:
            reading = f"plan ({block}) → read {many(knobs.read_ahead, 'run')} ahead"
        sizes = (f"{name} {how.size[0]}×{how.size[1]}" for name, how in spec.cameras.items())
        shown = ", ".join(sizes)
        making = (f"{one} ({many(n, 'thread')}; {shown})" for one, n in knobs.pixel_threads.items())
        ring = f"ring ({knobs.ring_slots} slots of {format_bytes(layout.slot_bytes)})"
        stages = [reading, *making, ring, f"batches of {layout.batch_size}"]
        return {"datasets": streams, "mixture": " → ".join(stages)}

    def _memory(self, headroom: Headroom) -> dict[str, Any]:
        sizes = priced_sizes(self._mixture, self._shares, self._plan.counts)
        price = price_start(self._plan.knobs, sizes, ranks=self._plan.world_size // self._nodes)
        floor = self._plan.ram_floor_bytes
        return {
            **price.parts,
            "total": price.total_bytes,
            "ring_slot": sizes.batch_bytes,
            "mean_episode": sizes.record_bytes,
            "headroom": headroom.headroom_bytes,
            "headroom_source": headroom.source,
            "ram_floor": floor,
            "left_above_floor": headroom.headroom_bytes - floor - price.total_bytes,
        }

    def _bound(self, call: Mapping[str, Any] | None) -> dict[str, Any]:
        """The rate that making pixels allows, or that of the function over a batch if lower."""
        plan, reuse, widths = self._plan, self._reuse, self._plan.knobs.pixel_threads
        mean_s, covered = dict.fromkeys(widths, 0.0), 0.0
        for one in self._mixture.datasets:
            cost, share = self._costs.get(one.name), self._shares[one.index]
            covered += share if cost or not one.cameras else 0.0
            for stage, seconds in cost.work.items() if cost else ():
                # A sample was probed alone; a chained one decodes fewer frames.
                saved = reuse.decodes[one.index] / reuse.alone[one.index] if reuse else 1.0
                mean_s[stage] += share * saved * seconds
        every_s = sum(mean_s.values())
        limits = [(mean_s[stage], threads, stage) for stage, threads in widths.items()]
        limits.append((every_s, plan.limits.cpus, max(mean_s, key=lambda stage: mean_s[stage])))
        cost_s, threads, stage = max(limits, key=lambda limit: limit[0] / limit[1])
        rate = threads * (covered or 1.0) / cost_s if cost_s else None
        if call is not None and call["seconds"]:
            most = self._mixture.spec.batch.size / call["seconds"]
            if rate is None or most < rate:
                stage, rate = "batch.call", most
        return {
            "stage": stage,
            "samples_per_s": rate,
            "mean_decode_s": every_s / (covered or 1.0) or None,
            "threads": threads,
            "datasets_probed": len(self._costs),
            "share_probed": covered,
        }

    def _last_run(self) -> dict[str, Any] | None:
        """Rate of the latest run of this spec on this host; ``None`` without one."""
        run = last_run(self._mixture.spec)
        if run is None or run.samples_per_s is None:
            return None
        rates = {"samples_per_s": run.samples_per_s, "needed_samples_per_s": run.needed_per_s}
        return {"run": run.name, **rates}

    def _batch_call(self) -> dict[str, Any] | None:
        """Seconds of the function over a batch; ``None`` without one."""
        call = self._mixture.spec.batch.call
        if call is None:
            return None
        seconds, why = try_call(self._mixture)
        return {"call": call, "seconds": seconds, "unknown_why": why}

    def _cache(self) -> dict[str, Any] | None:
        """Hits of the frame cache, with ``cache_bytes`` as set and with all free memory."""
        plan = self._plan
        if self._reuse is None:
            return None
        frame_s = {n: one.decode_s / one.frames for n, one in self._costs.items() if one.decode_s}
        sets = frame_sets(
            self._mixture, plan.order, self._tables, self._reuse, frame_s, nodes=self._nodes
        )
        if not sets:
            return None
        sizes = {"as set": plan.knobs.cache_bytes, "above the floor": plan.limits.cache_bytes or 0}
        rows = []
        for memory, size in sizes.items():
            if size:
                one = forecast(sets, size)
                told = {"hit_ratio": one.hit_ratio, "held_bytes": round(one.held_bytes)}
                rows.append({"memory": memory, "cache_bytes": size, **told})
        return {"all_frames": round(sum(one.frames_bytes for one in sets)), "forecasts": rows}

    def _ranks(self, bound_per_s: float | None, memory_bytes: int) -> dict[str, Any]:
        """Batches and samples of each rank and each node in one epoch.

        Args:
            bound_per_s: samples a second that a rank can decode; ``None`` where unknown.
            memory_bytes: bytes that the pipelines of a node are predicted to hold.
        """
        plan, samples = self._plan, self._plan.order.epoch_samples
        world, here = plan.world_size, plan.world_size // self._nodes
        part: dict[str, Any] = {"batches": None, "samples": None}
        carried = None
        if samples is not None:
            batch, steps = self._mixture.spec.batch, self._epoch_batches(samples)
            whole = batch.drop_last or batch.size == 1
            dealt = steps * batch.size * world if whole else samples if steps else 0
            part = {"batches": steps, "samples": -(-dealt // world)}
            carried = samples - dealt
        return {
            "world_size": world,
            "nodes": self._nodes,
            "per_node": here,
            "carried_samples": carried,
            "rank": {
                **part,
                "cores": plan.limits.cpus,
                "samples_per_s": bound_per_s,
                "ring_bytes": plan.knobs.ring_slots * self._mixture.sizes.batch_bytes,
            },
            "node": {
                "samples": part["samples"] and part["samples"] * here,
                "samples_per_s": bound_per_s and bound_per_s * here,
                "memory_bytes": memory_bytes,
            },
        }

    def _locality(self, left_bytes: int) -> dict[str, Any] | None:
        """Reading rates and the order that suits them; ``None`` for data on fast local storage.

        Args:
            left_bytes: memory above the floor, without blocks.
        """
        datasets, asked = self._mixture.datasets, self._mixture.spec.mixing.locality
        files = sorted({piece.path for d in datasets if not d.remote for piece in d.slices})
        systems = by_file_system(files)
        kinds = [kind for kind in systems if is_far(kind)] or (list(systems) if asked else [])
        if self._plan.knobs.reader != "indexed" or not kinds:
            return None
        kind = max(kinds, key=lambda one: len(systems[one]))
        rates = probe_reads(systems[kind], Clock().now_s, each_s=STORAGE_PROBE_S)
        if rates is None or not all(table.samples for table in self._tables):
            return None
        sample_bytes = reads = 0.0
        for share, d, table in zip(self._shares, datasets, self._tables, strict=True):
            sample_bytes += share * d.record_bytes * d.records / max(1, table.samples)
            reads += share * len(d.cameras) * d.sample.decodes
        found = None
        rows = {"any sample next": rates.singly_per_s(reads)}
        if asked is not None:
            rows["as asked for"] = rates.by_blocks_per_s(asked.block, sample_bytes)
        else:
            sizes = [d.record_bytes * d.records for d in datasets]
            found = propose_locality(
                rates, reads=reads, sample_bytes=sample_bytes, dataset_bytes=sizes,
                left_bytes=left_bytes,
            )  # fmt: skip
        if found is not None:
            per_s = rates.by_blocks_per_s(found.block_bytes, sample_bytes)
            rows[f"mixing: {found.text}"] = per_s
        return {
            "file_system": kind,
            "random_read_s": rates.random_s,
            "in_order_bytes_per_s": rates.in_order,
            "proposal": found and asdict(found),
            "orders": [{"order": one, "storage_samples_per_s": rate} for one, rate in rows.items()],
        }

    def _remote(self) -> dict[str, Any] | None:
        """Shards to be fetched; ``None`` where all data is local, or no client gives ranges of it.

        Raises:
            SourceError: a shard cannot be asked for.
        """
        away = [one for one in self._mixture.datasets if one.remote and one.indexable]
        if not away:
            return None
        from autoloader.storage.shards import kept_free, shard_cache
        from autoloader.storage.store import known_rate  # local data goes without

        cache, needed = shard_cache(), self._needed()
        shards: list[dict[str, Any]] = []
        names = {piece.path: one.name for one in away for piece in one.slices}
        for path in sorted(names, key=lambda path: needed.get(path, _END)):
            with reading(path, dataset=names[path]):
                shard = cache.current(path)
                missing = shard.missing_bytes
            sizes = {"bytes": shard.identity.size, "missing_bytes": missing}
            shards.append({"path": path, **sizes, "needed_at": needed.get(path)})
        with kept_free(self._plan.disk_floor_bytes):
            free_bytes = cache.room.free_bytes()
        rate = known_rate(next(iter(names)))
        lacking = sum(one["missing_bytes"] for one in shards)
        return {
            "shards": len(shards),
            "bytes": sum(one["bytes"] for one in shards),
            "missing_bytes": lacking,
            "free_bytes": free_bytes,
            "bytes_per_s": rate,
            "seconds": lacking / rate if rate else None,
            "order": shards,
        }

    def _needed(self) -> dict[str, int]:
        """Path → the position that needs it first; empty where the order is not known yet."""
        plan = self._plan
        estimated = any(count.estimated for count in plan.counts.values())
        if estimated or plan.knobs.reader != "indexed":
            return {}
        from autoloader.pipeline.read.shards import ShardOrder  # needed for remote data only

        samples = SamplePlan(plan.order, self._tables, chain=plan.order.chain)
        slices = [table.slice_of for table in self._tables]
        return ShardOrder(samples, self._mixture.datasets, slices).ahead(0)


def _reuse_of(plan: LoaderPlan, tables: Sequence[DatasetTable]) -> Reuse | None:
    """The decodes of a plan's samples; ``None`` with the stream reader, which has no plan.

    Estimated from the lengths of a few episodes where no index has counted them yet.
    """
    if plan.knobs.reader != "indexed" or not all(table.samples for table in tables):
        return None
    order = plan.order
    if order.pass_samples is not None:
        samples = {n: t.samples for n, t in zip(plan.mixture.names, tables, strict=True)}
        order = mixture_order(plan.mixture, samples)
    return foretell_reuse(order, tables)


def _knob_origins(plan: LoaderPlan, sets: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Every knob's value, range, class, and where the value came from."""
    written = _written_knobs(plan.profile)
    default, values, rows = Knobs().flat(), plan.knobs.flat(), {}
    used = used_knobs(values)
    for key, value in values.items():
        dataset, _, knob = key.rpartition(".")
        origin = f"profile {plan.profile.profile.name}" if key in written else "default"
        if key in sets:
            origin = "--set"
        elif value != (start := written.get(key, default.get(key))):
            cycle = f"{dataset}.cycle_length".removeprefix(".")
            by = "--set " if cycle in sets else ""
            origin += f", clamped from {start}"
            if knob == "num_parallel_calls":
                origin = f"follows {by}{cycle}={values.get(cycle)}"
        rows[key] = {
            "value": value,
            "from": origin,
            "range": knob_range(knob),
            "class": KNOBS[knob].kind,
            "used": key in used,
        }
    return rows


def knob_range(knob: str) -> str:
    """A knob's range as text: "1–64", or its words."""
    low, high = KNOBS[knob].low, KNOBS[knob].high
    if low is None:
        return " | ".join(typing.get_args(Knobs.model_fields[knob].annotation))
    most = "datasets" if high is None else f"{high // GIB} GiB" if high >= GIB else high
    return f"{low}–{most}"


def _written_knobs(found: ResolvedProfile) -> dict[str, Any]:
    """Knobs that the profile's file names; the other knobs have their default."""
    shipped = shipped_profiles_dir() / f"{found.profile.name}.yaml"
    document = read_yaml_file(shipped if found.origin == "shipped" else Path(found.origin))
    return flat_knobs(document.get("knobs") or {})


def _answers(document: Mapping[str, Any], *, default_floor: bool) -> Iterator[tuple[str, str]]:
    """Yield the first lines of the answer: a label of six letters at most, and a sentence."""
    memory, bound, ranks, epoch = (document[key] for key in ("bytes", "bound", "ranks", "epoch"))
    several = ranks["world_size"] > 1
    left, floor = memory["left_above_floor"], format_bytes(memory["ram_floor"])
    floor += " (default; --ram-floor)" if default_floor else ""
    who = f"the {ranks['per_node']} loaders of a node take" if several else "the loader takes"
    needs = f"{who} {format_bytes(memory['total'])}"
    if left < 0:
        yield "Fits", f"no: {needs}, {format_bytes(-left)} more than the RAM floor {floor} leaves"
    else:
        yield "Fits", f"yes: {needs}; {format_bytes(left)} left above the floor of {floor}"
    rate = bound["samples_per_s"]
    speed = "not known: no frame was decoded"
    if rate is not None:
        speed = f"about {rate:.0f} samples/s" + (" for each rank" if several else "")
    if (last := document["last_run"]) is not None:
        needed = last["needed_samples_per_s"]
        told = f"needed {needed:.0f}" if needed else f"got {last['samples_per_s']:.0f}"
        speed += f"; the last run {told}"
    hits = [
        _MEMORY[one["memory"]].format(one["hit_ratio"])
        for one in (document["cache"] or {}).get("forecasts", ())
    ]
    yield "Speed", speed + (f"; frames from the cache: {', '.join(hits)}" if hits else "")
    yield "Limit", _limit(document)
    yield from _videos(document)
    size = batches = "endless epochs"
    if epoch["samples"] is not None:
        size = f"{'about ' if epoch['estimated'] else ''}{epoch['samples']} samples"
        count = epoch["batches"] or "no"
        count = f"{count} batch" if count == 1 else f"{count} batches"
        batches = f"{count} and {ranks['rank']['samples']} samples an epoch"
        size += "" if several else f", {count} an epoch"
    datasets = list(document["datasets"].values())
    if lost := sum(bool(one["lost"]) for one in datasets):
        size += f", {many(lost, 'dataset')} {'loses' if lost == 1 else 'lose'} frames (see -v)"
    how = "by index" if datasets[0]["reader"] == "indexed" else "as a stream"
    read = f"read {how} ({datasets[0]['reader_why']})"
    yield "Data", f"{many(len(datasets), 'dataset')}, {size}, {read}"
    for key in ("action", "state"):
        widths = sorted({one[f"{key}_width"] for one in datasets} - {0})
        if len(widths) > 1:
            told = f"{', '.join(map(str, widths))} columns, with zeros to {widths[-1]}"
            yield key.capitalize(), f"{told} where {key}_mask is False"
    if several:
        on = "one node" if ranks["nodes"] == 1 else f"{ranks['nodes']} nodes like this one"
        yield "Ranks", f"{ranks['world_size']} on {on}, {ranks['per_node']} on each: {batches}"
    if files := "; ".join(_files(document)):
        yield "Files", files
    count = epoch["estimated"] and document["remote"] is None
    spec = quote(document["spec"])
    then = f"measure {spec}  # real rate"
    if (last := document["last_run"]) is not None:
        then = f"report {last['run']}  # what limited the last run"
    if count:
        then = f"index {spec}  # exact counts, a faster start"
    yield "Next", f"autoloader {then}"


def _limit(document: Mapping[str, Any]) -> str:
    """Words about what limits the rate."""
    bound, call = document["bound"], document["batch_call"]
    if call is not None and call["seconds"] is None:
        return f"not known what batch.call {call['call']} takes: {call['unknown_why']}"
    if bound["stage"] == "batch.call":
        took = f"{call['seconds'] * 1e3:.2f} ms for a batch of zeros"
        return f"batch.call {call['call']}, one batch at a time: {took}"
    if bound["mean_decode_s"] is None:
        return "no frame is decoded"
    every = len(document["datasets"])
    told = (
        f"{STAGES[bound['stage']].work}: {many(bound['threads'], 'thread')}, "
        f"{bound['threads'] / bound['samples_per_s'] * 1e3:.2f} ms of a processor for a sample"
    )
    if bound["datasets_probed"] < every:
        told += f" ({bound['datasets_probed']} of {every} datasets probed)"
    return told


def _videos(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield lines about the dataset whose videos take most decodes for a frame of a sample."""
    found = [(name, one) for name, one in document["datasets"].items() if one["video"]]
    if not found:
        return
    name, one = max(found, key=lambda pair: float(pair[1]["video"]["decodes"]))
    video, threads = VideoCost(**one["video"]), document["bound"]["threads"]
    told = f"{name}: {video.told}"
    if one["decode_s"]:
        rate = threads * one["decoded_frames"] / one["decode_s"]
        told += f"; {many(threads, 'thread')} give {rate:.0f} frames/s"
        last = document["last_run"] or {}
        if (needed := last.get("needed_samples_per_s")) and len(document["datasets"]) == 1:
            told += f", the last run needed {needed * one['decoded_frames']:.0f}"
    yield "Video", told
    if video.advice:
        yield "Encode", video.advice


def _files(document: Mapping[str, Any]) -> Iterator[str]:
    """Sentences about remote data and slow file systems."""
    if (far := document["remote"]) is not None and far["missing_bytes"]:
        took = "" if far["seconds"] is None else f" in about {far['seconds']:.0f} s"
        whole = format_bytes(far["bytes"])
        yield f"{format_bytes(far['missing_bytes'])} of {whole} to be fetched{took}"
        if far["free_bytes"] < far["missing_bytes"]:
            yield f"the disk has room for {format_bytes(max(0, far['free_bytes']))} of them"
    if (near := document["locality"]) is not None:
        rates = (f"{one['storage_samples_per_s']:.0f} ({one['order']})" for one in near["orders"])
        yield f"samples/s from {near['file_system']}: {', '.join(rates)}"
