"""Opens the pipeline that was planned: in the loader's child, or in this process for debugging.

Not here: the plan (``planning.start``), the two kinds (``process.client``, ``control.in_thread``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from autoloader.control.pipeline import DECISIONS_VARIABLE, ControlRequest
from autoloader.controller.admission import price_start
from autoloader.order.dealing import Ranks
from autoloader.order.mixture import MixtureOrder
from autoloader.planning.preemption import LoaderInChild
from autoloader.planning.start import LoaderPlan, controller_limits, smaller_knobs
from autoloader.probes.headroom import HeadroomSource
from autoloader.process.child import Child
from autoloader.process.client import ChildPipeline
from autoloader.process.control_page import ControlPage
from autoloader.ring.memory import Lender, RingMemory
from autoloader.ring.message import PipelineStart
from autoloader.samples.resolve import ResolvedMixture
from autoloader.telemetry.lines import log_path, run_name

if TYPE_CHECKING:
    from autoloader.control.in_thread import ThreadPipeline


def open_planned(
    plan: LoaderPlan,
    mixture: ResolvedMixture,
    order: MixtureOrder,
    child: Child | None,
    *,
    memory: RingMemory,
    lender: Lender,
    page: ControlPage,
    ranks: Ranks,
    ranks_here: int,
    position: Callable[[], PipelineStart],
    headroom: HeadroomSource,
    moves: bool,
    number: int,
) -> tuple[ChildPipeline | ThreadPipeline, LoaderInChild | None]:
    """The pipeline of a loader, not yet started, and what loaders that open later see of it.

    The second is to be kept as long as the loader; only a loader in the child has one.

    Args:
        plan: what was decided.
        mixture: the rank's part of what was planned.
        order: the rank's part of the order.
        child: where it runs; ``None`` is this process.
        memory: its ring.
        lender: knows which slots of the ring are under live arrays.
        page: where the controller reads what the training loop does.
        ranks: which of how many trainers the loader is of.
        ranks_here: trainers that share the child.
        position: says where to begin, whenever it begins.
        headroom: what the machine can still give.
        moves: whether the controller may move knobs.
        number: of the loader in logs.
    """
    wanted, run = os.environ.get(DECISIONS_VARIABLE, ""), run_name()
    request = ControlRequest(
        limits=controller_limits(plan, ranks_here=ranks_here),
        moves=moves,
        decisions=str(log_path(wanted, "decisions", run).absolute()) if wanted else "",
        run=run,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        trainer=os.getpid(),
        batch_size=mixture.spec.batch.size,
    )
    if child is None:
        from autoloader.control.in_thread import ThreadPipeline

        in_thread = ThreadPipeline(
            mixture,
            order,
            plan.knobs,
            memory,
            page=page,
            headroom=headroom,
            control=request,
            ranks=ranks,
            position=position,
            lender=lender,
            number=number,
        )
        return in_thread, None
    pipeline = ChildPipeline(
        mixture,
        order,
        plan.knobs,
        memory,
        child,
        control=request.plain(),
        ranks=ranks,
        position=position,
        lender=lender,
        smaller=partial(smaller_knobs, block_length=mixture.spec.mixing.block_length),
    )
    seen = LoaderInChild(
        child,
        memory,
        lender,
        pipeline=pipeline,
        minimum=request.limits.least,
        price=partial(price_start, sizes=plan.mixture.sizes),
        preemptible=moves,
    )
    return pipeline, seen
