"""Opens the pipeline that was planned: in the loader's child, or in this process for debugging.

Not here: the plan (``process.planning``), the two kinds (``process.child`` and
``process.in_thread``).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from autoloader.cache.disk import DiskRoom
from autoloader.controller.limits import ControllerLimits
from autoloader.controller.request import (
    DECISIONS_VARIABLE,
    METRICS_FILE_VARIABLE,
    METRICS_PORT_VARIABLE,
    RUN_DIR_VARIABLE,
    ControlRequest,
)
from autoloader.errors import UsageError, shown
from autoloader.host.extras import require
from autoloader.process.planning import LoaderPlan, kind_of, minimum_knobs
from autoloader.process.ranks import Neighbours
from autoloader.storage.places import cache_root
from autoloader.telemetry.lines import log_path, run_name, script_name

logger = logging.getLogger(__name__)


def log_notes(plan: LoaderPlan) -> None:
    """Say what a person should know of a plan before it starts."""
    for note in plan.notes:
        logger.log(logging.WARNING if note in plan.empty_texts else logging.INFO, "%s", note)
    if plan.why_no_batch is not None:
        logger.warning("%s", plan.why_no_batch)


def control_request(
    plan: LoaderPlan, neighbours: Neighbours, *, moves: bool, replays: bool
) -> ControlRequest:
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
    port, file = _metrics_port(), _metrics_file(run)
    if port or file:
        require("prometheus_client", METRICS_PORT_VARIABLE if port else METRICS_FILE_VARIABLE)
    wanted = os.environ.get(DECISIONS_VARIABLE, "")
    if not wanted and record and not in_ring:
        wanted = f"{record}/decisions.jsonl"
    return ControlRequest(
        limits=ControllerLimits(
            ram_floor_bytes=plan.ram_floor_bytes,
            knobs=plan.limits,
            minimum=minimum_knobs(mixing.block_length),
            order_fixed=mixing.waits,
            budget_ratio=1 / neighbours.local_world_size,
            most_cache_bytes=plan.most_cache_bytes,
        ),
        moves=moves,
        decisions=str(log_path(wanted, "decisions", run).absolute()) if wanted else "",
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
        disk_floor_bytes=plan.disk_floor_bytes,
    )


def _record_of(run: str) -> tuple[str, bool]:
    """The folder of a run's record ("": none is wanted), and whether it is one of the ring's."""
    wanted = os.environ.get(RUN_DIR_VARIABLE, "")
    if wanted == "off":
        return "", False
    if wanted:
        return str(Path(wanted).absolute() / run), False
    return str(cache_root() / "runs" / run), True


def _metrics_port() -> int:
    wanted = os.environ.get(METRICS_PORT_VARIABLE, "")
    if not wanted:
        return 0
    if not (wanted.isdecimal() and 0 < int(wanted) < 2**16):
        raise UsageError(
            f"{METRICS_PORT_VARIABLE}={shown(wanted)} is not allowed",
            remedy="set it to a port from 1 to 65535, such as 9401, or leave it unset",
        )
    return int(wanted)


def _metrics_file(run: str) -> str:
    wanted = os.environ.get(METRICS_FILE_VARIABLE, "")
    if not wanted:
        return ""
    if wanted.endswith("/") or Path(wanted).is_dir():
        return str((Path(wanted) / f"autoloader-{run}.prom").absolute())
    return str(Path(wanted).absolute())


def _facts(plan: LoaderPlan, replays: bool) -> dict[str, Any]:
    """Facts of the plan for the record; the rest is known where it is written."""
    return {
        "profile": plan.profile.origin,
        "cpus": plan.limits.cpus,
        "mixture": kind_of(plan.mixture).model_dump(exclude_none=True),
        "reader_reason": plan.reader_reason,
        "epoch_samples": plan.order.epoch_samples,
        "datasets": {name: count.samples for name, count in plan.counts.items()},
        "notes": list(plan.notes),
        "replay_one_batch": replays,
    }
