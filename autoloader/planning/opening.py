"""Opens the pipeline that was planned: in the loader's child, or in this process for debugging.

Not here: the plan (``planning.start``), the two kinds (``process.client``, ``control.in_thread``).
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from autoloader.cache.disk import DiskRoom
from autoloader.controller.limits import ControllerLimits
from autoloader.controller.request import DECISIONS_VARIABLE, ControlRequest
from autoloader.planning.start import LoaderPlan, minimum_knobs
from autoloader.probes.headroom import HeadroomSource
from autoloader.process.child import Child
from autoloader.process.client import ChildPipeline
from autoloader.process.ranks import Neighbours
from autoloader.process.setup import PipelineSetup
from autoloader.telemetry.lines import log_path, run_name, script_name

if TYPE_CHECKING:
    from autoloader.control.in_thread import ThreadPipeline

logger = logging.getLogger(__name__)


def open_planned(
    setup: PipelineSetup, child: Child | None, *, headroom: HeadroomSource, number: int
) -> ChildPipeline | ThreadPipeline:
    """The pipeline of a loader, not yet started.

    Args:
        setup: what it is opened with.
        child: where it runs; ``None`` is this process.
        headroom: what the machine can still give.
        number: of the loader in logs.
    """
    if child is not None:
        return ChildPipeline(setup, child)
    from autoloader.control.in_thread import ThreadPipeline

    return ThreadPipeline(replace(setup, ranks_here=1), headroom, number)


def log_notes(plan: LoaderPlan) -> None:
    """Say what a person should know of a plan before it starts."""
    for note in plan.notes:
        logger.info("%s", note)
    if plan.why_no_batch is not None:
        logger.warning("%s", plan.why_no_batch)


def control_request(plan: LoaderPlan, neighbours: Neighbours, *, moves: bool) -> ControlRequest:
    """What the controller of a loader is asked.

    Args:
        plan: what was decided.
        neighbours: the trainers that share the machine.
        moves: whether the controller may move knobs.
    """
    mixing, lent = plan.mixture.spec.mixing, plan.profile.profile.cache
    wanted, run = os.environ.get(DECISIONS_VARIABLE, ""), run_name()
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
    )
