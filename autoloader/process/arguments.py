"""Requests to a loader beside its spec: arguments, helpers, environment variables.

Arguments are checked before anything starts. With the plan they give the request to the controller.

Not here: what arguments mean together (``process.planning``, ``process.ranks``), knobs
(``spec.knobs``), asking helpers (``pipeline.builders``).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

from autoloader.cache.disk import DiskRoom
from autoloader.controller import limits
from autoloader.errors import KnobError, UsageError, nearest, shown
from autoloader.formats.hub import names_data
from autoloader.host.extras import require
from autoloader.host.units import parse_floor
from autoloader.index.encoded import priced_sizes
from autoloader.process.planning import LoaderPlan, minimum_knobs
from autoloader.process.ranks import Neighbours
from autoloader.spec import PipelineSpec, SpecSource
from autoloader.spec.knobs import OTHER_WORDS, Knobs
from autoloader.spec.reading import parse_yaml
from autoloader.storage.places import cache_root
from autoloader.telemetry.lines import log_path, run_name, script_name

logger = logging.getLogger(__name__)


_PATH = (str, os.PathLike)
_ALLOWED: Mapping[str, tuple[tuple[type, ...], str]] = {
    "spec": (
        (PipelineSpec, Mapping, *_PATH),
        "the path of a spec file, a PipelineSpec, a dict with the same keys, or a dataset: its "
        "folder, or its id on the Hub such as 'lerobot/pusht'",
    ),
    "profile": ((*_PATH, NoneType), "a host profile's name or path, or None"),
    "ram_floor": ((str, int, float, NoneType), 'a size such as "5GB", bytes as int, or None'),
    "disk_floor": ((str, int, float, NoneType), 'a size such as "50GB", bytes as int, or None'),
    "split": ((str,), 'a name of one of the spec\'s splits, such as "train"'),
    "knobs": ((Mapping, NoneType), 'a mapping of knobs such as {"decode_threads": 2}, or None'),
    "isolation": ((str,), "'process' or 'thread'"),
    "controller": ((bool,), "True or False"),
    "rank": ((int, NoneType), "a whole number from 0, or None"),
    "world_size": ((int, NoneType), "a whole number from 1, or None"),
    "device_mesh": ((object,), "a torch DeviceMesh of the data-parallel dimensions, or None"),
    "output": ((str,), "'torch' or 'numpy'"),
    "reproducible": ((bool,), "True or False"),
    "replay_one_batch": ((bool,), "True or False"),
    "helpers": ((str, NoneType), '"ray", "ray@HOST:PORT", or None'),
    "batch_size": ((int, NoneType), "a whole number from 1, or None"),
}
_WORDS = {"isolation": ("process", "thread"), "output": ("torch", "numpy")}


def check_arguments(given: Mapping[str, Any]) -> None:
    """Refuse an argument (by name) of the wrong type; a bool is no number.

    Raises:
        UsageError: names the argument, the value found and what is allowed.
        MissingExtraError: torch tensors are asked for where there is no torch.
    """
    for name, value in given.items():
        if name not in _ALLOWED:
            remedy = OTHER_WORDS.get(name) or nearest(name, _ALLOWED)
            if name in Knobs.model_fields:
                remedy = f"this is a knob: pass knobs={{{name!r}: {shown(value)}}}"
            elif name in PipelineSpec.model_fields:
                remedy = f"this is a field of the spec: write {name}: there"
            elif name == "num_workers":
                fixed = f"knobs={{'decode_threads': {shown(value or 1)}}}"
                remedy = f"leave it out: the loader sets its own threads (to fix them: {fixed})"
            raise UsageError(f"AutoLoader has no argument {name!r}", remedy=remedy)
        kinds, allowed = _ALLOWED[name]
        wrong = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
        wrong = wrong or (name == "batch_size" and value is not None and value < 1)
        if wrong or value not in _WORDS.get(name, (value,)):
            remedy = f"{name} takes {allowed}"
            raise UsageError(f"{name}={shown(value)} is not allowed", remedy=remedy)
    if given.get("output") == "torch":
        require("torch", 'output="torch"', instead='or use output="numpy"')
    for name in ("ram_floor", "disk_floor"):
        if given.get(name) is not None:
            parse_floor(given[name], name=name)


def check_retune(values: object) -> None:
    """Refuse values of ``retune`` that are no mapping of knobs by name.

    Raises:
        UsageError: says how it is called.
    """
    if not isinstance(values, Mapping):
        raise UsageError(
            f"retune({shown(values)}): it takes knobs by their names",
            remedy='write retune({"decode_threads": 2}), or retune(decode_threads=2)',
        )


def spec_of(source: SpecSource) -> PipelineSpec:
    """A spec however it is given; of a dataset's folder, address or id what ``init`` writes.

    Raises:
        SpecError: as ``PipelineSpec.of``.
        SourceError: there is no such dataset, or none that can be read.
    """
    if not isinstance(source, _PATH) or not names_data(source):
        return PipelineSpec.of(source)
    from autoloader.process.draft import draft  # most specs are files

    return PipelineSpec.from_mapping(parse_yaml(draft(source, logger.warning, whole=True)["spec"]))


ADDRESS_VARIABLE = "RAY_ADDRESS"


def with_helpers(plan: LoaderPlan, helpers: str | None) -> LoaderPlan:
    """The plan of a loader that has helpers, or has none.

    Args:
        plan: plan of the loader's start.
        helpers: "ray", "ray@HOST:PORT" or ``None``.

    Raises:
        UsageError: helpers cannot read what the plan reads, or there is no cluster to ask.
        KnobError: a number of helpers is given, and no helpers.
        MissingExtraError: Ray is not installed.
    """
    if helpers is None:
        if plan.knobs.helper_slots and not plan.profile.profile.knobs.helper_slots:
            raise KnobError(
                f"helper_slots={plan.knobs.helper_slots} is set, but no helpers are given",
                remedy='add helpers="ray", or leave helper_slots out',
            )
        knobs = Knobs.build({"helper_slots": 0}, base=plan.knobs)
        return replace(plan, knobs=knobs, limits=replace(plan.limits, helpers=0))
    kind, _, address = helpers.partition("@")
    if kind != "ray" or (not address and "@" in helpers):
        raise UsageError(
            f"helpers={shown(helpers)} is not allowed",
            remedy='write helpers="ray" (the cluster that RAY_ADDRESS names), or '
            'helpers="ray@10.0.0.1:6379"',
        )
    require("ray", f'helpers="{kind}"')
    if plan.knobs.reader != "indexed":
        raise UsageError(
            f'helpers="{kind}" needs reader: indexed, but this mixture takes reader: '
            f"{plan.knobs.reader} ({plan.reader_reason})",
            remedy="use reader: indexed (the data must lie on a file system that all hosts see), "
            "or leave helpers out",
        )
    address = address or _found_address()
    if address == "local" or address.startswith("ray://"):  # we start none
        raise UsageError(
            f"helpers: {shown(address)} is not the address of a Ray head that this host has joined",
            remedy="join with `ray start --address=HEAD:6379 --num-cpus=0`, and write "
            'helpers="ray@HEAD:6379"',
        )
    return replace(plan, helpers=address)


def _found_address() -> str:
    """The cluster of a trainer that has joined one, or the one that the environment names.

    Raises:
        UsageError: Ray or the cluster is missing.
    """
    ray = sys.modules.get("ray")  # a trainer's own: this process imports none
    if ray is not None and ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    address = os.environ.get(ADDRESS_VARIABLE, "")
    if not address:
        raise UsageError(
            f'helpers="ray" needs a Ray cluster, and the environment variable {ADDRESS_VARIABLE} '
            "is not set",
            remedy="start one (`ray start --head --num-cpus=0` here, `ray start --address=HOST:"
            f'6379` on the helpers), then set {ADDRESS_VARIABLE}=HOST:6379 or helpers="ray@HOST:'
            '6379"',
        )
    return address


def log_notes(plan: LoaderPlan) -> None:
    """Say what a person should know of a plan before it starts."""
    for note in plan.notes:
        logger.log(logging.WARNING if note in plan.blanks else logging.INFO, "%s", note)
    if plan.why_no_batch is not None:
        logger.warning("%s", plan.why_no_batch)


def control_request(
    plan: LoaderPlan, neighbours: Neighbours, *, moves: bool, replays: bool
) -> limits.ControlRequest:
    """Request to the controller of a loader.

    Args:
        plan: plan of the loader's start.
        neighbours: the trainers that share the machine.
        moves: whether the controller may move knobs.
        replays: whether the first batch is handed out again and again.
    """
    mixing, lent = plan.mixture.spec.mixing, plan.profile.profile.cache
    run = run_name()
    record, in_ring = _record_of(run)
    port = _metrics_port()
    file = log_path(os.environ.get(limits.METRICS_FILE_VARIABLE, ""), f"autoloader-{run}.prom")
    if port or file:
        require(
            "prometheus_client",
            limits.METRICS_PORT_VARIABLE if port else limits.METRICS_FILE_VARIABLE,
        )
    wanted = os.environ.get(limits.DECISIONS_VARIABLE, "")
    if not wanted and record and not in_ring:
        wanted = f"{record}/decisions.jsonl"
    run_bytes = 0  # a stream reads no runs
    if plan.knobs.reader == "indexed":
        run_bytes = priced_sizes(plan.mixture, plan.order.shares, plan.counts).run_bytes
    return limits.ControlRequest(
        limits=limits.ControllerLimits(
            ram_floor_bytes=plan.ram_floor_bytes,
            knobs=plan.limits,
            minimum=minimum_knobs(mixing.block_length),
            order_fixed=mixing.waits,
            budget_ratio=1 / neighbours.local_world_size,
            most_cache_bytes=plan.most_cache_bytes,
        ),
        moves=moves,
        decisions=log_path(wanted, f"decisions-{run}.jsonl"),
        run=run,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        trainer=os.getpid(),
        node=neighbours.job,
        script=script_name(),
        helpers=plan.helpers,
        frames_on_disk=None if lent is None else DiskRoom(lent.disk, lent.bytes),
        record=record,
        record_in_ring=in_ring,
        facts=_facts(plan, replays),
        metrics_port=port,
        metrics_file=file,
        run_bytes=run_bytes,
        disk_floor_bytes=plan.disk_floor_bytes,
    )


def _record_of(run: str) -> tuple[str, bool]:
    """The folder of a run's record ("": none is wanted), and whether it is one of the ring's."""
    wanted = os.environ.get(limits.RUN_DIR_VARIABLE, "")
    if wanted == "off":
        return "", False
    if wanted:
        return str(Path(wanted).absolute() / run), False
    return str(cache_root() / "runs" / run), True


def _metrics_port() -> int:
    """Port for metrics, from the environment; 0: none."""
    wanted = os.environ.get(limits.METRICS_PORT_VARIABLE, "")
    if not wanted:
        return 0
    if not (wanted.isdecimal() and 0 < int(wanted) < 2**16):
        raise UsageError(
            f"{limits.METRICS_PORT_VARIABLE}={shown(wanted)} is not allowed",
            remedy="set it to a port from 1 to 65535, such as 9401, or leave it unset",
        )
    return int(wanted)


def _facts(plan: LoaderPlan, replays: bool) -> dict[str, Any]:
    """Facts of the plan for the record; the rest is known where it is written."""
    return {
        "profile": plan.profile.origin,
        "reader_reason": plan.reader_reason,
        "epoch_samples": plan.order.epoch_samples,
        "datasets": {name: count.samples for name, count in plan.counts.items()},
        "notes": list(plan.notes),
        "replay_one_batch": replays,
    }
