"""The trainer's side: ``AutoLoader`` wires spec, profile, knobs, pipeline and batches together.

Not here: the parts; each is in its own package.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from autoloader.batch import Batch
from autoloader.catalog import tensorflow_process
from autoloader.checkpoint.state import (
    fingerprint,
    is_rebased,
    order_from,
    order_state,
    read_state,
    sealed,
)
from autoloader.decode.quarantine import BadRecord
from autoloader.delivery import Delivery
from autoloader.errors import PipelineError, UsageError
from autoloader.extras import needs
from autoloader.host.interrupts import Interrupts
from autoloader.host.owner import Owner
from autoloader.knobs import Knobs
from autoloader.order.mixture import MixtureOrder
from autoloader.order.parts import mixture_part, order_of_part
from autoloader.planning.arguments import check_arguments, check_retune
from autoloader.planning.described import PlannedLoader
from autoloader.planning.helpers import with_helpers
from autoloader.planning.opening import control_request, log_notes, open_planned
from autoloader.planning.preemption import OpenLoaders
from autoloader.planning.start import plan_loader, retuned
from autoloader.planning.weights import reweighted
from autoloader.probes.headroom import HeadroomProbe
from autoloader.process.child import Child, pipeline_number
from autoloader.process.discovery import is_up
from autoloader.process.ranks import ALONE, find_neighbours, find_ranks
from autoloader.process.setup import PipelineSetup
from autoloader.spec import PipelineSpec, SpecSource
from autoloader.telemetry.progress import told_while
from autoloader.telemetry.statistics import Statistics

if TYPE_CHECKING:
    from autoloader.device.transfer import Transfer

_POLL_S = 0.5
_open: weakref.WeakSet[AutoLoader] = weakref.WeakSet()


class AutoLoader(PlannedLoader):
    """Streams a mixture's batches.

    Args:
        spec: a ``PipelineSpec``, the path of one, or a dict that says the same.
        profile: a host profile's name or path; ``None`` takes the one that fits this host.
        ram_floor: memory that must stay free ("5GB"); ``None`` takes the profile's; 0: none.
        disk_floor: what must stay free on the disk of the cache of shards; default: 10 GiB.
        split: which of the spec's splits.
        knobs: values over the profile's.
        isolation: "process" runs the loader in a child; "thread" in this process, for debugging.
        controller: whether knobs may move by themselves and the RAM floor is watched while
            running; without it the floor is held at the start alone.
        rank, world_size: of this process among the trainers; ``None`` reads the environment
            (``process.ranks`` says what of it). Each rank gets its own part of every step.
        device_mesh: instead of both, a ``DeviceMesh`` of the data-parallel dimensions, such as
            ``mesh["dp"]``. Processes at one place of it (tensor parallel) get the same batches.
        output: "torch" tensors or "numpy" arrays.
        reproducible: the mixture waits for each dataset instead of owing it its turn, so that the
            order does not depend on timing.
        replay_one_batch: hand out the first batch again and again, to see what the trainer does
            alone; what reads fills the ring once and rests. Epochs keep their lengths; a state
            stays that of the first batch.
        helpers: "ray" has other hosts of a Ray cluster fill batches too ("ray@HOST:PORT").

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
        spec: SpecSource,
        *,
        profile: str | Path | None = None,
        ram_floor: str | int | None = None,
        disk_floor: str | int | None = None,
        split: str = "train",
        knobs: Mapping[str, Any] | None = None,
        isolation: Literal["process", "thread"] = "process",
        controller: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        device_mesh: Any = None,
        output: Literal["torch", "numpy"] = "torch",
        reproducible: bool = False,
        replay_one_batch: bool = False,
        helpers: str | None = None,
    ) -> None:
        check_arguments({name: value for name, value in locals().items() if name != "self"})
        self.owner = Owner("the loader")
        self._parts = contextlib.ExitStack()
        """What ``close`` ends, the last one first."""
        self._ranks = find_ranks(rank, world_size, os.environ, device_mesh)
        self._neighbours = neighbours = find_neighbours(self._ranks, os.environ)
        self._headroom = HeadroomProbe()
        self._controller = controller
        self._child: Child | None = None
        try:
            spec = PipelineSpec.of(spec)
            if reproducible:
                mixing = spec.mixing.model_copy(update={"on_stall": "wait"})
                spec = spec.model_copy(update={"mixing": mixing})
            plan = plan_loader(
                spec,
                profile=profile,
                ram_floor=ram_floor,
                disk_floor=disk_floor,
                split=split,
                knobs=knobs,
                headroom=self._headroom,
                ranks=self._ranks,
                ranks_here=neighbours.local_world_size,
                joining=isolation == "process" and is_up(neighbours),
                open_loaders=OpenLoaders.of_this_process() if isolation == "process" else None,
                once_found=self._start_child if isolation == "process" else None,
            )
            self.plan = with_helpers(plan, helpers)
            self._spec = spec
            self._open(isolation, output, replay_one_batch)
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

    def _start_child(self) -> None:
        """Start the child beside the planning; ranks that share a child plan first."""
        if self._neighbours.local_world_size == 1:
            self._child = Child.shared(self._neighbours)

    @told_while("starting the loader")
    def _open(self, isolation: str, output: Literal["torch", "numpy"], replays: bool) -> None:
        """Make what was planned; nothing reads yet."""
        tensorflow_process.process.close()
        log_notes(self.plan)
        self._closed = False
        neighbours = self._neighbours
        control = control_request(self.plan, neighbours, moves=self._controller, replays=replays)
        if isolation == "process" and self._child is None:
            self._child = Child.shared(neighbours)
        page, number = self._child.page if self._child else None, pipeline_number()
        planned, mixture = self.plan.knobs.reader == "indexed", self.plan.mixture
        delivery = self._delivery = Delivery(
            mixture,
            self.plan.order,
            self._ranks,
            output,
            page,
            number,
            planned=planned,
            replays=replays,
        )
        self._progress = delivery.progress
        self._parts.callback(delivery.close)
        # By index every rank knows the whole, and which positions are its own.
        part = ALONE if planned else self._ranks
        self._order = self._declared = order_of_part(self.plan.order, part)
        setup = PipelineSetup(
            mixture=mixture_part(mixture, part),
            order=self._order,
            knobs=self.plan.knobs,
            memory=delivery.memory,
            page=delivery.page,
            control=control,
            ranks=self._ranks,
            ranks_here=neighbours.local_world_size,
            position=self._progress.start,
            lent=lambda: delivery.lender.lent,
        )
        self._pipeline = open_planned(setup, self._child, headroom=self._headroom, number=number)

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._starts += 1
            self._pipeline.start()

    @property
    def knobs(self) -> Knobs:
        """The values in force, or at last in force."""
        self.owner.check()
        return self._pipeline.knobs

    def __iter__(self) -> Iterator[Batch]:
        """The batches of one epoch, from where the last iteration stopped.

        A loop that is left early (``break``) leaves the epoch where it is: the next ``for`` goes
        on with the batch behind, and ends with the same epoch. ``load_state_dict`` goes elsewhere.
        """
        while self._steps_left() != 0:
            yield self._next()
        self._progress.next_epoch()

    def _check_open(self) -> None:
        """Refuse whoever may not use it: a fork, and everybody once it is closed."""
        self.owner.check()
        if self._closed:
            raise UsageError(
                "the loader is closed", remedy="make a new AutoLoader, or leave its with block open"
            )
        self._delivery.settle()

    def _next(self) -> Batch:
        with Interrupts() as interrupts:
            self._check_open()
            if self._pipeline.activate():
                self._delivery.meter.pause()
            self._start()
            if (again := self._delivery.again()) is not None:
                self._take_back()
                return again
            self._delivery.ask()
            batch = self._delivery.prepared(self._pipeline) or self._awaited(interrupts)
            self._delivery.prepare_next(self._pipeline)
            return batch

    def _awaited(self, interrupts: Interrupts) -> Batch:
        self._take_back()
        while (filled := self._pipeline.next(_POLL_S)) is None:
            interrupts.heed()
            self._take_back()
            self._delivery.still_waits(self._pipeline.number)
            if self._closed:
                raise PipelineError(
                    "the loader was closed while a batch was awaited",
                    remedy="close it after the loop",
                )
        batch = self._delivery.hand_over(filled, self.knobs.ring_slots)
        if self._delivery.copied:
            self._take_back()
        return batch

    def transfer(self, device: Any) -> Transfer:
        """The way to a CUDA device that does not stop for the copy: ``batch = move(batch)``.

        Slots of the ring are pinned for it, so every batch must go through it while it is
        ``active``. There is one for a loader; ``close`` ends it.

        Args:
            device: a ``torch.device``, its name, or a ``transfer.Device``.
        """
        self._check_open()
        return self._delivery.transfer(device)

    def as_torch_dataloader(self, collate_fn: Callable[[Batch], Any] | None = None) -> Any:
        """A torch ``DataLoader`` of these batches, or of what ``collate_fn`` makes of each."""
        with needs("a torch DataLoader"):
            from autoloader.device.dataloader import LoaderAsDataLoader
        return LoaderAsDataLoader(self, collate_fn)

    def _take_back(self) -> None:
        # Where it is suspended nobody fills the ring.
        release = self._pipeline.release if self._started else self._delivery.memory.punch
        self._delivery.take_back(self.knobs.ring_slots, release)

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
        knobs = retuned(self.knobs, values, named, self.plan.limits)
        self._pipeline.retune(knobs)
        return knobs

    def set_weights(self, weights: Mapping[str, float], *, at_batch: int | None = None) -> None:
        """Give datasets other weights while running, from the next batch or a later one on.

        They hold over epochs and resumes, until they are set again. A block of the schedule that is
        under way is finished before. Passes go on. What was read ahead is dropped.

        Args:
            weights: dataset → weight, meant as the spec's ``weights`` says; 0 gives no samples. One
                that is not named has the weight that the spec gives it.
            at_batch: the first batch, as ``batches`` counts; ``None``: the next. Several ranks name
                it, all the same, before any has got it.

        Raises:
            UsageError: it cannot be (an epoch is one pass, say); nothing is changed.
        """
        self._check_open()
        order = reweighted(self.plan, self._order, self._progress, self._ranks, weights, at_batch)
        with Interrupts():
            self._follow(order)

    def quarantined(self) -> tuple[BadRecord, ...]:
        """Bad records so far, with dataset, file, record and reason."""
        self._check_open()
        return self._pipeline.quarantined()

    def statistics(self) -> Statistics:
        """An immutable snapshot; see ``telemetry.Statistics``.

        Of a closed loader: what it counted itself, and what its child told last.
        """
        self.owner.check()
        return self._delivery.statistics(
            self._pipeline,
            headroom_bytes=self._headroom.read().headroom_bytes,
            shares=self._order.shares_at(self._progress.position),
            controlled=self._controller,
            starts=self._starts,
            closed=self._closed,
        )

    def state_dict(self) -> dict[str, Any]:
        """Where this loader is, to the sample; JSON-serialisable and small.

        ``load_state_dict`` of a loader with the same datasets resumes exactly behind the last
        batch that was handed out.
        """
        self.owner.check()
        order = self._progress.as_saved(self._order)
        place = {**self._progress.state(), **order_state(order, self.plan)}
        return sealed({**fingerprint(self.plan), **place})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where ``state`` was saved, by any rank of any number of ranks.

        ``world_size`` and ``batch`` may differ from those it was saved with; what ``set_weights``
        set holds on. Where an epoch is no pass and nothing is chained, the spec may have other
        weights, or datasets added or left out: it holds from the state on, and each dataset goes
        on where it was. One that is left out is forgotten; one of weight 0 keeps its place.

        Raises:
            UsageError: it is no state, damaged, or saved for another mixture or order; says what
                is wrong by field. The loader stays where it was and goes on.
        """
        self._check_open()
        saved = read_state(state)
        with Interrupts():
            order = order_from(saved, self.plan, self._declared)
            self._progress.restore(saved, is_rebased(saved, self.plan))
            self._follow(order)

    def _follow(self, order: MixtureOrder) -> None:
        """Begin anew in ``order`` where ``progress`` says."""
        self._order = order
        self._take_back()
        self._pipeline.go_to(order)
        if self._started:
            self._started = False
            self._start()

    def _park(self) -> None:
        """Stop reading for now (another loader is in use); the ring keeps what it has."""
        self._check_open()
        self._pipeline.park(True)
        self._delivery.meter.pause()

    def _unpark(self) -> None:
        """Go on after ``_park``; nothing is rebuilt."""
        self._check_open()
        self._pipeline.park(False)

    def _prepare(self) -> None:
        """Fill the ring, while another loader is in use, and then wait for the first ``next``."""
        self._check_open()
        self._pipeline.prepare()
        self._start()

    def _suspend(self) -> None:
        """Let go of ring, buffers and streams until the next batch is asked for, or ``_prepare``.

        The place is kept. Unlike ``_park`` it costs a start. Batches handed out stay valid; their
        memory goes back with the next call.
        """
        self._check_open()
        with Interrupts():
            if self._started:
                self._started = False
                self._pipeline.suspend()
            self._delivery.drop_prepared()
            self._take_back()

    def close(self) -> None:
        """Stop everything; batches already handed out stay valid. May be called twice.

        In a fork of the process that made it nothing happens.
        """
        if self._closed or not self.owner.here:
            return
        self._closed = True
        self._delivery.stop()
        self._pipeline.close()
        self._parts.close()

    def __enter__(self) -> AutoLoader:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            with contextlib.suppress(OSError, ImportError):
                self.close()


@atexit.register
def _close_all() -> None:
    """Scripts that forget to close: threads inside TensorFlow would not survive the exit."""
    for loader in list(_open):
        loader.close()
