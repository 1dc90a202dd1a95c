"""The trainer's side: ``AutoLoader`` wires spec, profile, knobs, pipeline and batches together.

Not here: the parts; each is in its own package.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from autoloader.batch import AugmentableBatch, Batch, assemble, wrapper
from autoloader.catalog import tensorflow_process
from autoloader.checkpoint.state import (
    fingerprint,
    is_rebased,
    order_from,
    read_state,
    rebased,
    sealed,
)
from autoloader.control.pipeline import (
    DECISIONS_VARIABLE,
    Control,
    ControlledPipeline,
    ControlRequest,
)
from autoloader.controller.probes.headroom import HeadroomProbe
from autoloader.controller.probes.oom import named_by_kernel, oom_kills
from autoloader.controller.probes.process_memory import loader_bytes, tree_pss_bytes
from autoloader.controller.states import State
from autoloader.decode.quarantine import BadRecord
from autoloader.errors import PipelineError, UsageError
from autoloader.host.interrupts import Interrupts
from autoloader.host.owner import Owner
from autoloader.knobs import STREAM_KNOBS, Knobs
from autoloader.order.parts import mixture_part, order_of_part
from autoloader.pipeline.progress import DeliveryProgress
from autoloader.planning.arguments import check_arguments, check_retune
from autoloader.planning.preemption import LoaderInChild, OpenLoaders
from autoloader.planning.start import (
    check_ranks,
    complete,
    controller_limits,
    plan_loader,
    price_of,
    smaller_knobs,
    why_no_batch,
)
from autoloader.process.child import Child, describe_run, pipeline_number
from autoloader.process.client import ChildPipeline
from autoloader.process.control_page import ControlPage
from autoloader.process.discovery import is_up
from autoloader.process.ranks import ALONE, find_neighbours, find_ranks
from autoloader.read.open_mixture import CompiledMixture
from autoloader.ring.memory import MAX_SLOTS, Lender, RingMemory
from autoloader.ring.message import languages
from autoloader.samples.location import SampleLocation, locate
from autoloader.samples.resolve import check_places
from autoloader.spec import PipelineSpec
from autoloader.statistics import statistics_document
from autoloader.telemetry.batch_times import BatchTimes
from autoloader.telemetry.lines import log_path, run_name
from autoloader.telemetry.meter import ConsumerMeter
from autoloader.telemetry.statistics import (
    ControllerStatistics,
    DatasetStatistics,
    RingStatistics,
    Statistics,
)

if TYPE_CHECKING:
    from autoloader.device.transfer import Transfer
    from autoloader.pipeline.launch import RunningPipeline

logger = logging.getLogger(__name__)

_POLL_S = 0.5
_LATENCY_EVERY = 32
_open: weakref.WeakSet[AutoLoader] = weakref.WeakSet()


def _out_of_memory(page: ControlPage, pid: int) -> bool:
    """Whether the kernel killed the child for memory, by its cgroup's counter or by its log."""
    directory, before = page.cgroup
    now = oom_kills(directory)
    return (now is not None and now > before) or named_by_kernel(pid)


class AutoLoader:
    """Streams a mixture's batches.

    Args:
        spec: a ``PipelineSpec``, or the path of one.
        profile: a host profile's name or path; ``None`` takes the one that fits this host.
        ram_floor: memory that must stay free ("5GB"); ``None`` takes the profile's.
        split: which of the spec's splits.
        knobs: values over the profile's.
        isolation: "process" runs the loader in a child; "thread" in this process, for debugging.
        controller: whether knobs may move by themselves and the RAM floor is watched while
            running; without it the floor is held at the start alone.
        rank, world_size: of this process among the trainers; ``None`` reads the environment
            (``process.ranks`` says what of it). Each rank gets its own part of every step.
        output: "torch" tensors or "numpy" arrays.
        reproducible: the mixture waits for each dataset instead of owing it its turn, so that the
            order does not depend on timing.

    Raises:
        SpecError, SourceError, ProfileError, KnobError, BudgetInfeasibleError: before anything
            is read or decoded; the child, which is started first so that its imports overlap
            with the planning, has ended again.

    Iterating is one epoch; see the design of epochs in the documentation. Use it in a ``with``
    block, or call ``close``; a loader that nobody refers to any more closes itself.

    A loader belongs to the process that made it. In a fork of that process (a worker of a torch
    ``DataLoader``, say) everything but its names and ``plan`` raises ``UsageError``, and ``close``
    does nothing. Batches that were handed out before stay there what they were.

    Attributes:
        plan: what was decided before it started.
        owner: the process that made it.
    """

    _starts_at_once: ClassVar[bool] = True

    def __init__(
        self,
        spec: PipelineSpec | str | Path,
        *,
        profile: str | Path | None = None,
        ram_floor: str | int | None = None,
        split: str = "train",
        knobs: Mapping[str, Any] | None = None,
        isolation: Literal["process", "thread"] = "process",
        controller: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        output: Literal["torch", "numpy"] = "torch",
        reproducible: bool = False,
    ) -> None:
        check_arguments({name: value for name, value in locals().items() if name != "self"})
        self.owner = Owner("the loader")
        self._parts = contextlib.ExitStack()
        """What ``close`` ends, the last one first."""
        self._ranks = find_ranks(rank, world_size, os.environ)
        neighbours = self._neighbours = find_neighbours(self._ranks, os.environ)
        self._headroom = HeadroomProbe()
        self._controller = controller
        self._child: Child | None = None
        joining = isolation == "process" and is_up(neighbours)
        try:
            if not isinstance(spec, PipelineSpec):
                spec = PipelineSpec.from_yaml(spec)
            check_places(spec, split)
            # Neighbours plan first: who finds a child running takes it that there is room for all.
            if isolation == "process" and neighbours.local_world_size == 1:
                self._child = Child.shared(describe_run(), _out_of_memory)
            if reproducible:
                mixing = spec.mixing.model_copy(update={"on_stall": "wait"})
                spec = spec.model_copy(update={"mixing": mixing})
            self.plan = plan_loader(
                spec,
                profile=profile,
                ram_floor=ram_floor,
                split=split,
                knobs=knobs,
                headroom=self._headroom,
                ranks_here=neighbours.local_world_size,
                joining=joining,
                open_loaders=OpenLoaders.of_this_process() if isolation == "process" else None,
            )
            check_ranks(self.plan, self._ranks.world_size)
            self._spec = spec
            self._open(isolation, output, split)
        except BaseException:
            self._closed = True
            self._parts.close()
            if self._child is not None:
                self._child.spare()
            raise
        self._started = False
        self._starts = 0
        if self._starts_at_once:
            self._start()
        _open.add(self)

    def _open(self, isolation: str, output: Literal["torch", "numpy"], split: str) -> None:
        """Make what was planned; nothing reads yet."""
        tensorflow_process.process.close()
        for note in self.plan.notes:
            logger.info("%s", note)
        if (empty := why_no_batch(self.plan, self._ranks.world_size)) is not None:
            logger.warning("%s", empty)
        self._wrap = wrapper(output)
        self._meter = ConsumerMeter()
        self._closed = False
        self._baseline_bytes = loader_bytes() if isolation == "thread" else 0
        # By index every rank knows the whole, and which positions are its own.
        planned = self.plan.knobs.reader == "indexed"
        streams = ALONE if planned else self._ranks
        self._mixture = mixture_part(self.plan.mixture, streams)
        self._order = order_of_part(self.plan.order, streams)
        self._fingerprint = fingerprint(self.plan)
        self._progress = DeliveryProgress(
            self.plan.mixture, self._order, self._ranks, planned=planned
        )
        self._memory = RingMemory(self.plan.mixture.layout)
        self._parts.callback(self._memory.close)
        self._lender = Lender(self._memory)
        self._parts.callback(self._lender.close)
        self._transfer: Transfer | None = None
        if isolation == "process" and self._child is None:
            self._child = Child.shared(describe_run(), _out_of_memory, neighbours=self._neighbours)
        if self._child is not None:
            self._page = self._child.page
        else:
            self._page = ControlPage()
            self._parts.callback(self._page.close)
        self._control: Control | None = None
        self._controlled: ControlledPipeline | None = None
        self._number = pipeline_number()
        self._batch_times = BatchTimes.wanted(self._number)
        if self._batch_times is not None:
            self._parts.callback(self._batch_times.close)
            self._batch_times.start(split, self.plan.mixture.names, self.plan.order.shares)
        self._compiled = CompiledMixture()
        self._pipeline = self._open_pipeline(self.plan.knobs)
        if self._child is not None and isinstance(self._pipeline, ChildPipeline):
            in_child = self._pipeline  # its only one
            self._preemptible = LoaderInChild(
                self._child,
                self._memory,
                self._lender,
                pipeline=in_child,
                minimum=self._control_request().limits.least,
                price=partial(price_of, self.plan.mixture),
                preemptible=self._controller,
            )

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._begin()

    def _begin(self) -> None:
        self._starts += 1
        self._pipeline.start()

    def _open_pipeline(self, knobs: Knobs) -> RunningPipeline:
        mixture, order = self._mixture, self._order
        pipeline: RunningPipeline
        if self._child is not None:
            pipeline = ChildPipeline(
                mixture,
                order,
                knobs,
                self._memory,
                self._child,
                control=self._control_request().plain(),
                ranks=self._ranks,
                position=self._progress.start,
                lender=self._lender,
                smaller=partial(smaller_knobs, block_length=self._spec.mixing.block_length),
            )
        else:
            from autoloader.pipeline.launch import open_pipeline

            self._control = Control(self._headroom)
            self._controlled = self._control.open(
                mixture,
                order.shares,
                knobs,
                self._control_request(),
                self._memory,
                self._page,
                lambda admitted: open_pipeline(
                    mixture,
                    order,
                    admitted,
                    self._memory,
                    start=self._progress.start(),
                    held=sorted(self._lender.lent),
                    ranks=self._ranks,
                    compiled=self._compiled,
                ),
                told=lambda *_: True,
                restart=None,
                number=self._number,
                own_process=False,
            )
            pipeline = self._controlled.pipeline
        return pipeline

    def _control_request(self) -> ControlRequest:
        """What the controller is asked, wherever it runs."""
        wanted, run = os.environ.get(DECISIONS_VARIABLE, ""), run_name()
        return ControlRequest(
            limits=controller_limits(self.plan, ranks_here=self._neighbours.local_world_size),
            moves=self._controller,
            decisions=str(log_path(wanted, "decisions", run).absolute()) if wanted else "",
            run=run,
            visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
            trainer=os.getpid(),
            batch_size=self._spec.batch.size,
        )

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """Names that ``batch["dataset_index"]`` counts."""
        return self.plan.mixture.names

    @property
    def rank(self) -> int:
        """Which of ``world_size`` trainers this one is, from 0."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """How many trainers share the sequence."""
        return self._ranks.world_size

    @property
    def normalization(self) -> dict[str, Any] | None:
        """What the batches are normalised by, to be saved with the model; ``None`` if they are not.

        By dataset: ``action`` and ``proprio`` (the state) with ``mean``, ``std``, ``max``, ``min``,
        ``q01``, ``q99`` and ``mask`` (the columns that are normalised), ``num_transitions`` and
        ``num_trajectories``: the layout of Octo's and OpenVLA's ``dataset_statistics.json``.
        """
        statistics = self.plan.mixture.statistics
        if statistics is None:
            return None
        return statistics_document(
            self._spec, {n: statistics[n] for n in self.dataset_names if n in statistics}
        )

    @property
    def knobs(self) -> Knobs:
        """The values in force, or at last in force."""
        self.owner.check()
        return self._pipeline.knobs

    def __len__(self) -> int:
        """Batches of the current epoch, those handed out included; the same for every rank.

        Raises:
            TypeError: the epoch is endless.
        """
        self.owner.check()
        left = self._progress.steps_left
        if left is None:
            raise TypeError("mixing.epoch is forever: this loader has no length")
        return self._progress.epoch_steps + left

    def __iter__(self) -> Iterator[Batch]:
        """The batches of one epoch, from where the last iteration stopped."""
        while self._has_more():
            yield self._undisturbed()
        self._progress.next_epoch()

    def _has_more(self) -> bool:
        self.owner.check()
        return self._progress.steps_left != 0

    def _undisturbed(self) -> Batch:
        with Interrupts() as interrupts:
            return self._next(interrupts)

    def _check_open(self) -> None:
        """Refuse whoever may not use it: a fork, and everybody once it is closed."""
        self.owner.check()
        if self._closed:
            raise UsageError(
                "the loader is closed", remedy="make a new AutoLoader, or leave its with block open"
            )

    def _next(self, interrupts: Interrupts) -> Batch:
        self._check_open()
        if isinstance(self._pipeline, ChildPipeline) and self._pipeline.activate():
            self._meter.pause()
        self._start()
        asked = time.perf_counter()
        self._page.waiting(time.monotonic_ns())
        self._give_back()
        while (filled := self._pipeline.next(_POLL_S)) is None:
            interrupts.heed()
            self._give_back()
            if self._closed:
                raise PipelineError(
                    "the loader was closed while a batch was awaited",
                    remedy="close it after the loop",
                )
        pinned = self._transfer is not None and self._transfer.active
        views, copied = self._lender.lend(filled.slot, self.knobs.ring_slots, pinned=pinned)
        batch = assemble(
            views,
            languages(views, filled),
            rows=filled.rows,
            metadata=self._spec.metadata,
            wrap=self._wrap,
        )
        if self._spec.augment:
            batch = AugmentableBatch(batch, self._spec, self.plan.mixture.split)
        self._progress.deliver(filled, views["ledger"])
        if copied:
            self._give_back()
        got = time.perf_counter()
        if self._batch_times is not None:
            self._batch_times.note(asked, got, views["ledger"][: filled.rows, 0])
        del views
        self._meter.note(asked, got, filled.rows)
        self._page.delivered(int((got - asked) * 1e9))
        if self._meter.batches % _LATENCY_EVERY == 0 and (waits := self._meter.latency_s()):
            self._page.latency(int(waits["p50"] * 1e9), int(waits["p99"] * 1e9))
        return batch

    def transfer(self, device: Any) -> Transfer:
        """The way to a CUDA device that does not stop for the copy: ``batch = move(batch)``.

        Slots of the ring are pinned for it, so every batch must go through it while it is
        ``active``. There is one for a loader; ``close`` ends it.

        Args:
            device: a ``torch.device``, its name, or a ``transfer.Device``.
        """
        self._check_open()
        from autoloader.device.transfer import Transfer, open_device

        if self._transfer is None:
            port = device if hasattr(device, "register") else open_device(device)
            self._transfer = Transfer(port, self._memory)
            self._memory.unpin = self._transfer.unpin
        return self._transfer

    def _give_back(self) -> None:
        if self._transfer is not None:
            self._transfer.collect(self.knobs.ring_slots)
        for slot in self._lender.collect():
            if self._started:
                self._pipeline.release(slot)
            else:  # nobody fills the ring
                self._memory.punch(slot)

    def retune(self, values: Mapping[str, Any] = MappingProxyType({}), /, **named: Any) -> Knobs:
        """Change knobs while running; returns all that are now in force.

        Args:
            values: as ``--set`` names them: ``{"ring_slots": 6, "bridge.cycle_length": 4}``.
            named: the same as keyword arguments: ``ring_slots=6, bridge__cycle_length=4``.

        Raises:
            KnobError: an unknown knob or an illegal combination; nothing is changed.
        """
        self._check_open()
        check_retune(values)
        wanted = dict(values)
        for key, value in named.items():
            dataset, _, knob = key.rpartition("__")
            wanted[f"{dataset}.{knob}" if dataset and knob in STREAM_KNOBS else key] = value
        knobs = Knobs.build(complete(wanted, self.knobs), base=self.knobs)
        if "reader" in knobs.changed(self.knobs):
            raise UsageError(
                "reader is fixed for a run", remedy="make a new AutoLoader to change it"
            )
        knobs.check(self.plan.limits)
        if self._controlled is not None:
            self._controlled.retune(knobs)
        else:
            self._pipeline.retune(knobs)
        return knobs

    def locate(self, provenance: Any) -> SampleLocation:
        """The file, record and t of one row of ``batch["provenance"]``."""
        return locate(self.plan.mixture, provenance)

    def quarantined(self) -> tuple[BadRecord, ...]:
        """Bad records so far, with dataset, file, record and reason."""
        self._check_open()
        return self._pipeline.quarantined()

    def statistics(self) -> Statistics:
        """An immutable snapshot; see ``telemetry.Statistics``.

        Of a closed loader: what it counted itself, and what its child told last.
        """
        self.owner.check()
        activity = self._pipeline.activity()
        shares = self.plan.order.shares
        datasets = {
            name: DatasetStatistics(
                weight=shares[index],
                share=self._progress.share(index),
                non_finite=self._progress.non_finite[index],
                **(own.as_statistics() if own else {}),
            )
            for index, name in enumerate(self.dataset_names)
            for own in [activity.datasets.get(name)]
        }
        ring_bytes = self._memory.allocated_bytes()
        return Statistics(
            samples=self._meter.samples,
            batches=self._meter.batches,
            samples_per_s=self._meter.samples_per_s,
            wait_ratio=self._meter.wait_ratio,
            batch_latency_s=self._meter.latency_s(),
            headroom_bytes=self._headroom.read().headroom_bytes,
            loader_bytes=self._held_bytes(),
            decodes_per_sample=activity.decodes_per_sample,
            ring=RingStatistics(
                slots=activity.ring_slots,
                filled=activity.ring_filled,
                occupancy_ratio=activity.ring_filled / activity.ring_slots,
                copies=self._lender.copies,
                allocated_bytes=ring_bytes,
            ),
            datasets=datasets,
            knobs=self.knobs.flat(),
            state=self._state(),
            controller=self._counted(),
            starts=self._starts,
            restarts=self._child.restarts if self._child is not None else 0,
            worker_pids=(
                *((self._child.pid,) if self._child and self._child.pid else ()),
                *activity.processes,
            )
            if not self._closed
            else (),
        )

    def _held_bytes(self) -> int:
        """What the child and its decode processes hold; by thread, what came since the start."""
        if self._closed:
            return 0
        if self._child is None:
            return max(0, loader_bytes() - self._baseline_bytes)
        return tree_pss_bytes(self._child.pid, shared_memory=False) if self._child.pid else 0

    def _state(self) -> str | None:
        if not self._controller:
            return None
        if isinstance(self._pipeline, ChildPipeline):
            return self._pipeline.state or State.WARMUP.value
        return self._controlled.state_name if self._controlled is not None else None

    def _counted(self) -> ControllerStatistics | None:
        if not self._controller:
            return None
        if isinstance(self._pipeline, ChildPipeline):
            return ControllerStatistics(**self._pipeline.control)
        counted = self._controlled.counted() if self._controlled is not None else {}
        return ControllerStatistics(**counted)

    def _close_pipeline(self) -> None:
        if self._control is not None and self._controlled is not None:
            self._control.leave(self._controlled)
            self._control = self._controlled = None
        self._pipeline.close()

    def state_dict(self) -> dict[str, Any]:
        """Where this loader is, to the sample; JSON-serialisable and small.

        ``load_state_dict`` of a loader with the same datasets resumes exactly behind the last
        batch that was handed out.
        """
        self.owner.check()
        return sealed(
            {
                **self._fingerprint,
                **self._progress.state(),
                **rebased(self._order, self.dataset_names),
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where ``state`` was saved, by any rank of any number of ranks.

        ``world_size`` and ``batch`` may differ from those it was saved with; so may weights, and
        datasets may have been added, where an epoch is no pass and nothing is chained.

        Raises:
            UsageError: it is no state, damaged, or saved for another mixture or order; says what
                is wrong by field. The loader stays where it was and goes on.
        """
        self._check_open()
        saved = read_state(state)
        with Interrupts():
            self._go_to(saved)

    def _go_to(self, saved: Mapping[str, Any]) -> None:
        order = order_from(saved, self.plan, replace(self._order, base=0, given=()))
        self._progress.restore(saved, is_rebased(saved, self.plan))
        self._order = order
        knobs = self.knobs
        self._give_back()
        if isinstance(self._pipeline, ChildPipeline):
            self._pipeline.order = self._order
        else:
            self._close_pipeline()
            self._pipeline = self._open_pipeline(knobs)
        if self._started:
            self._begin()

    def _park(self) -> None:
        """Stop reading for now (another loader is in use); the ring keeps what it has."""
        self._set_parked(True)
        self._meter.pause()

    def _unpark(self) -> None:
        """Go on after ``_park``; nothing is rebuilt."""
        self._set_parked(False)

    def _prepare(self) -> None:
        """Fill the ring, while another loader is in use, and then wait for the first ``next``."""
        self._check_open()
        if isinstance(self._pipeline, ChildPipeline):
            self._pipeline.prepare()
        else:
            self._set_parked(False)
        self._start()

    def _suspend(self) -> None:
        """Let go of ring, buffers and streams until the next batch is asked for, or ``_prepare``.

        The place is kept. Unlike ``_park`` it costs a start. Batches handed out stay valid; their
        memory goes back with the next call.
        """
        self._check_open()
        self._give_back()
        if not self._started:
            return
        self._started = False
        if isinstance(self._pipeline, ChildPipeline):
            self._pipeline.suspend()
            return
        knobs, lent = self.knobs, self._lender.lent
        self._close_pipeline()
        for slot in set(range(MAX_SLOTS)) - lent:
            self._memory.punch(slot)
        self._pipeline = self._open_pipeline(knobs)

    def _set_parked(self, parked: bool) -> None:
        self._check_open()
        if self._controlled is not None:
            self._controlled.park(parked)
        else:
            self._pipeline.park(parked)

    def close(self) -> None:
        """Stop everything; batches already handed out stay valid. May be called twice.

        In a fork of the process that made it nothing happens.
        """
        if self._closed or not self.owner.here:
            return
        self._closed = True
        if self._transfer is not None:
            self._transfer.close()
        self._close_pipeline()
        self._parts.close()

    def __enter__(self) -> AutoLoader:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        del protocol
        raise TypeError(
            "an AutoLoader cannot be copied, pickled or sent to another process\n"
            "  → send its spec, and make an AutoLoader in the process that iterates it"
        )

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            with contextlib.suppress(OSError, ImportError):
                self.close()


class IdleLoader(AutoLoader):
    """An ``AutoLoader`` that reads nothing before its first batch is asked for, or ``_prepare``."""

    _starts_at_once = False


@atexit.register
def _close_all() -> None:
    """Scripts that forget to close: threads inside TensorFlow would not survive the exit."""
    for loader in list(_open):
        loader.close()
