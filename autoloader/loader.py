"""The trainer's side: ``AutoLoader``, and the loaders of validation sets.

``AutoLoader`` wires spec, profile, knobs, pipeline and batches together.

A loader's sequence is a function of seed, spec and files. Its first n samples are the same whenever
it begins at position 0, whatever the knobs. So a validation set is an epoch of n samples, and every
iteration of a ``ValidationLoader`` begins at position 0. With ``validation.per_dataset`` each
dataset of the split has its own loader. Widths stay those of the whole mixture, so that one model
takes all batches.

Invariants:
    1. Every iteration of a ``ValidationLoader`` gives the same samples in the same batches.
    2. No sample comes twice in a validation of one dataset.

Not here: the parts; each is in its own package. Parking the training loader during a validation
(``integrations.lightning``).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypeVar

import numpy as np

from autoloader.decode.message import BadRecord
from autoloader.errors import AutoloaderError, PipelineError, UsageError
from autoloader.formats import tensorflow_process
from autoloader.host.extras import needs
from autoloader.host.headroom import HeadroomProbe
from autoloader.host.threads import Background, Owner
from autoloader.index.counting import count_mixture
from autoloader.index.statistics_files import statistics_document
from autoloader.pipeline.progress import DeliveryProgress, EvenEpoch
from autoloader.process import arguments, checkpoint, ranks
from autoloader.process.child import Child, ChildPipeline, ThreadChild
from autoloader.process.delivery import Delivery, InHand, Iteration
from autoloader.process.discovery import is_up
from autoloader.process.planning import choose_reader, html_of, plan_loader, retuned
from autoloader.process.setup import PipelineSetup
from autoloader.samples.layout import Batch
from autoloader.samples.resolve import SampleLocation, locate, resolve
from autoloader.sampling.dealing import mixture_part, order_of_part
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec import CurriculumSpec, PipelineSpec, SpecSource
from autoloader.spec.knobs import Knobs
from autoloader.telemetry.progress import told
from autoloader.telemetry.statistics import Statistics

if TYPE_CHECKING:
    from autoloader.process.transfer import Transfer

logger = logging.getLogger(__name__)

_R = TypeVar("_R")
_POLL_S = 0.5
_CLOSE_S = 8.0
_open: weakref.WeakKeyDictionary[AutoLoader, tuple[Any, ...]] = weakref.WeakKeyDictionary()
"""Loader → what its samples follow from; a loader that waits for its first use has ()."""


class AutoLoader:
    """Streams a mixture's batches.

    Args:
        spec: a ``PipelineSpec``, the path of one, or a dict that says the same. Or a dataset: its
            folder, or its id on the Hugging Face Hub ("lerobot/pusht"), with the spec that
            ``autoloader init`` writes of it.
        batch_size: samples of a batch of one rank, over the spec's ``batch.size``.
        profile: a host profile's name or path; ``None`` takes the one that fits this host.
        ram_floor: memory that must stay free ("5GB"); ``None`` takes the profile's; 0: none.
        disk_floor: space that must stay free on the disk of the cache of shards ("50GB");
            ``None``: as ``AUTOLOADER_DISK_FLOOR`` says, else 10 GiB; 0: none.
        split: name of the split that the datasets read.
        knobs: knob → value, over the profile's.
        isolation: "process" runs the loader in a child; "thread" in this process, for debugging.
        controller: whether knobs may move by themselves and the RAM floor is watched while
            running; without it the floor is held at the start alone.
        rank, world_size: rank of this process among the trainers, and their number; ``None`` reads
            the environment (``process.ranks``). Each rank gets its own part of every step.
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

    Iterating is one epoch; see docs/explanation/order.md. Use a loader in a ``with`` block, or call
    ``close``; a loader that nobody refers to any more closes itself.

    ``iter`` gives a ``process.delivery.Iteration``. A batch counts as delivered when its ``next``
    returns the batch. Whatever is raised meanwhile, by Ctrl-C or by a signal's handler, the
    following ``next`` goes on behind the last batch that was returned. Each call that changes
    something is done as a whole or not at all. A ``for`` loop loses nothing. In ``x = next(it)``
    Python itself may raise between the return and the store: that batch is lost.

    A loader belongs to the process that made it. In a fork of that process (a worker of a torch
    ``DataLoader``, say) everything but its names and ``plan`` raises ``UsageError``, and ``close``
    does nothing. Batches that were handed out before stay there what they were.

    Attributes:
        plan: everything decided before the start.
        owner: the process that made the loader.
    """

    _starts_at_once: ClassVar[bool] = True

    def __init__(
        self,
        spec: SpecSource,
        *,
        batch_size: int | None = None,
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
        **unknown: NoReturn,
    ) -> None:
        own = {name: value for name, value in locals().items() if name not in ("self", "unknown")}
        arguments.check_arguments(own | unknown)
        ranks.refuse_torch_worker(rank, world_size)
        self.owner = Owner("the loader")
        self._parts = contextlib.ExitStack()
        """What ``close`` ends, the last one first."""
        self._ranks = ranks.find_ranks(rank, world_size, os.environ, device_mesh)
        self._neighbours = neighbours = ranks.find_neighbours(self._ranks, os.environ)
        self._headroom = HeadroomProbe()
        self._controller = controller
        self._child: Child | None = None
        self._background = Background("autoloader-hand")
        try:
            spec = arguments.spec_of(spec)
            if batch_size is not None:
                spec = spec.with_batch_size(batch_size)
            if reproducible:
                spec = spec.having(mixing={"on_stall": "wait"})
            self._spec = spec
            samples = (spec, split, self._ranks)
            if hasattr(sys, "ps1"):
                _suspend_earlier(samples)
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
                open_loaders=Child.open_clients() if isolation == "process" else (),
                once_found=self._start_child if isolation == "process" else None,
            )
            self.plan = arguments.with_helpers(plan, helpers)
            self._open(isolation, output, replay_one_batch)
        except BaseException as error:  # whatever ended the start: nothing that it began stays
            if isinstance(error, AutoloaderError) and error.exit_code != AutoloaderError.exit_code:
                error.__cause__ = None  # it says all that people need
                if (frames := error.__traceback__) is not None:
                    frames.tb_next = None  # and which of our functions saw it says nothing
            self._closed = self._ended = True
            self._parts.close()
            if self._child is not None:
                self._child.spare()
            self._background.close(lambda: None, _CLOSE_S)
            raise
        if self._starts_at_once:
            self._call(self._pipeline.start)
        _open[self] = samples if self._starts_at_once else ()

    def __repr__(self) -> str:
        mixture, knobs = self.plan.mixture, self.plan.knobs
        pipeline = self._pipeline
        state = "running" if pipeline.begun else "suspended" if pipeline.starts else "not started"
        state = "closed" if self._closed else state
        told = (
            f"AutoLoader: {state}, batch {self.batches}, {len(mixture.names)} datasets, "
            f"batches of {mixture.spec.batch.size}, reader {knobs.reader}"
        )
        return told if self._closed else f"{told}\n{self.statistics()!r}"

    _repr_html_ = html_of

    def _start_child(self) -> None:
        """Start the child beside the planning; ranks that share a child plan first."""
        if self._neighbours.local_world_size == 1:
            self._child = Child.shared(self._neighbours)

    @told("starting the loader")
    def _open(self, isolation: str, output: Literal["torch", "numpy"], replays: bool) -> None:
        """Make what was planned; nothing reads yet."""
        tensorflow_process.process.close()
        arguments.log_notes(self.plan)
        self._closed = self._ended = False
        neighbours = self._neighbours
        control = arguments.control_request(
            self.plan, neighbours, moves=self._controller, replays=replays
        )
        if isolation == "thread":
            self._child = ThreadChild(self._headroom)
        child = self._child = self._child or Child.shared(neighbours)
        planned, mixture = self.plan.knobs.reader == "indexed", self.plan.mixture
        delivery = self._delivery = Delivery(self.plan, self._ranks, output, replays=replays)
        self._parts.callback(delivery.close)
        # By index every rank knows the whole, and which positions are its own.
        part = ranks.ALONE if planned else self._ranks
        self._order = self._declared = order_of_part(self.plan.order, part)
        setup = PipelineSetup(
            mixture=mixture_part(mixture, part),
            order=self._order,
            knobs=self.plan.knobs,
            memory=delivery.memory,
            control=control,
            ranks=self._ranks,
            ranks_here=child.neighbours.local_world_size,
            position=delivery.position,
            lent=lambda: delivery.lender.lent,
        )
        self._pipeline = ChildPipeline(setup, child)

    @property
    def knobs(self) -> Knobs:
        """Values of all knobs in force; of a closed loader those that were in force last."""
        self.owner.check()
        return self._pipeline.knobs

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """Names of the datasets, in the order that ``batch["dataset_index"]`` counts."""
        return self.plan.mixture.names

    @property
    def rank(self) -> int:
        """Number of this trainer among ``world_size`` ones, from 0."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """Number of trainers that share the sequence."""
        return self._ranks.world_size

    def __len__(self) -> int:
        """Batches of the current epoch, those handed out included; the same for every rank.

        Raises:
            TypeError: the epoch is endless.
        """
        self.owner.check()
        progress = self._progress
        if progress.steps_left is None:
            raise TypeError("mixing.epoch is forever: this loader has no length")
        return progress.epoch_steps + progress.steps_left

    @property
    def spans_nodes(self) -> bool:
        """True if there are ranks on other nodes than this one."""
        return self.world_size > self._neighbours.local_world_size

    def metrics(
        self, statistics: Statistics | None = None, *, all_ranks: bool = False
    ) -> dict[str, float]:
        """Figures for any logger, by name: ``wait_ratio``, ``dataset_share/bridge``.

        Of several ranks also the worst and the mean (``wait_ratio/worst``).
        docs/reference/metrics.md says what each means; what is not measured is not there.

        Args:
            statistics: snapshot that the figures are of; ``None``: one is taken now.
            all_ranks: worst and mean are over all ranks of all nodes, not of this node alone.
                ``torch.distributed`` gathers four numbers, so every rank must call it, at the same
                step.

        Raises:
            UsageError: ``all_ranks`` where ``torch.distributed`` is not initialised.
        """
        from autoloader.telemetry.metrics import compared, flat, over_ranks

        moment = self.statistics() if statistics is None else statistics
        own = flat(moment)
        if self.world_size == 1:
            return own
        if all_ranks:
            return own | over_ranks(ranks.gathered(compared(moment)))
        from autoloader.telemetry.run_record import living_runs

        others = [
            compared(one)
            for one in living_runs()
            if one.node == self._neighbours.job
            and one.rank != self.rank
            and one.split == self.plan.mixture.split
        ]
        return own | over_ranks([own, *others])

    @property
    def batches(self) -> int:
        """Batches that this rank has got since the run began, resumes included."""
        return self._progress.batches

    @property
    def normalization(self) -> dict[str, Any] | None:
        """Statistics of the normalisation, to be saved with the model; ``None`` if there is none.

        By dataset: ``action`` and ``proprio`` (the state) with ``mean``, ``std``, ``max``, ``min``,
        ``q01``, ``q99`` and ``mask`` (the columns that are normalised), ``num_transitions`` and
        ``num_trajectories``: the layout of Octo's and OpenVLA's ``dataset_statistics.json``, as
        NumPy arrays (float64, and bool for the mask), as both hold it. Columns ``by_row`` add
        ``action_rows``: a list of such numbers, as lists, for each row of the horizon.
        """
        found = self.plan.mixture.statistics
        if found is None:
            return None
        document = statistics_document(self._spec, found, self.dataset_names)
        return {
            name: {
                field: {key: np.asarray(column) for key, column in one.items()}
                if isinstance(one, dict)
                else one
                for field, one in entry.items()
            }
            for name, entry in document.items()
        }

    def locate(self, provenance: Any) -> SampleLocation:
        """The file, record and t of one row of ``batch["provenance"]``."""
        return locate(self.plan.mixture, provenance)

    def __iter__(self) -> Iterator[Batch]:
        """The batches of one epoch, from where the last iteration stopped.

        A loop that is left early (``break``) leaves the epoch where it is: the next ``for`` goes
        on with the batch behind, and ends with the same epoch. ``load_state_dict`` goes elsewhere.
        """
        return Iteration(self.awaited)

    @property
    def even_epoch(self) -> EvenEpoch | None:
        """Length of a trainer's epochs, all alike, and batches left; ``None``: endless."""
        self.owner.check()
        return self._progress.even

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "an AutoLoader cannot be copied, pickled or sent to another process\n"
            "  → send its spec, and make an AutoLoader in the process that iterates it"
        )

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuse to be a torch ``DataLoader``'s dataset, which is asked for items by number."""
        raise UsageError(
            f"an AutoLoader is not a torch Dataset and has no item {index!r:.80}; do not wrap it "
            "in a DataLoader",
            remedy="iterate the loader itself, or use loader.as_torch_dataloader()",
        )

    def _check_open(self) -> None:
        """Refuse a fork of the process that made the loader, and every caller once it is closed."""
        self.owner.check()
        if self._closed:
            raise UsageError(
                "the loader is closed",
                remedy="iterate it inside the with block, or make a new AutoLoader",
            )

    def _call(self, work: Callable[[], _R]) -> _R:
        """Have ``work`` done by the loader's thread, as a whole, after all tasks before it.

        Nothing that is raised here interrupts the thread. No other loader that shares the child has
        this one begin anew meanwhile.
        """
        return self._background.call(partial(_under, self._pipeline.child.lock, work))

    def _change(self, work: Callable[..., _R], *given: Any) -> _R:
        """Have ``work`` done as by ``_call``; a closed loader raises ``UsageError``."""
        self._check_open()

        def checked() -> _R:
            self._check_open()
            return work(*given)

        return self._call(checked)

    @property
    def _progress(self) -> DeliveryProgress:
        if self.owner.here and not (self._background.idle and not self._delivery.uncounted):
            self._call(self._delivery.count)
        return self._delivery.progress

    def shown(self) -> InHand | None:
        """Oldest batch that a trainer was shown, or ``None``; deleting its ``batch`` takes it."""
        return self._delivery.shown()

    def awaited(self, after: int) -> InHand:
        """Wait for the first batch behind number ``after``, or the end of the epoch.

        The batch stays in hand until ``delivery.Iteration``, which calls this, takes it. Where a
        training step takes a millisecond or more, the next batch is made during the step.
        """
        self._check_open()
        delivery, background = self._delivery, self._background
        asked_s = time.monotonic()
        step_s = asked_s - delivery.got_s
        if not background.idle:
            background.call(_nothing)
        delivery.asked_s = asked_s
        while (one := delivery.in_hand(after)) is None or not delivery.fits(one):
            self._call(partial(self._look, after))
            if self._closed:
                raise PipelineError(
                    "the loader was closed while training waited for a batch",
                    remedy="close it after the loop",
                )
        one.asked_s = asked_s
        one.got_s = delivery.got_s = time.monotonic()
        if delivery.makes_ahead(step_s):
            background.post(partial(delivery.make_ahead, self._pipeline, one.number))
        return one

    def _look(self, after: int) -> None:
        """Put the next batch in hand, if it comes within ``_POLL_S``."""
        delivery = self._delivery
        if self._closed:
            return
        delivery.count()
        if self._pipeline.child.activate(self._pipeline.number):
            delivery.meter.pause()
        self._pipeline.start()
        self._take_back()
        if (one := delivery.in_hand(after)) is not None:
            if not delivery.fits(one):
                delivery.unpin(one)
            return
        delivery.await_next(self._pipeline, _POLL_S)

    def transfer(self, device: Any) -> Transfer:
        """The way to a CUDA device that does not stop for the copy: ``batch = move(batch)``.

        To "cpu" batches stay as they are, so that a script is the same without a GPU.

        Slots of the ring are pinned for it, so every batch must go through it while it is
        ``active``. There is one for a loader; ``close`` ends it.

        Args:
            device: a ``torch.device``, its name, or a ``transfer.Device``.
        """
        self._check_open()
        self._background.call(_nothing)
        return self._delivery.transfer(device)

    def as_torch_dataloader(self, collate_fn: Callable[[Batch], Any] | None = None) -> Any:
        """A torch ``DataLoader`` of these batches, or of what ``collate_fn`` makes of each."""
        with needs("a torch DataLoader"):
            from autoloader.process.torch_dataloader import LoaderAsDataLoader
        return LoaderAsDataLoader(self, collate_fn)

    def _take_back(self) -> None:
        # Where it is suspended nobody fills the ring.
        pipeline = self._pipeline
        release = pipeline.release if pipeline.begun else self._delivery.memory.punch
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
        arguments.check_retune(values)
        return self._change(self._retune, values, named)

    def _retune(self, values: Mapping[str, Any], named: Mapping[str, Any]) -> Knobs:
        knobs = retuned(self._pipeline.knobs, values, named, self.plan.limits)
        self._pipeline.retune(knobs)
        return knobs

    def set_weights(self, weights: Mapping[str, float], *, at_batch: int | None = None) -> None:
        """Give datasets other weights while running, from the next batch or a later one on.

        The weights hold over epochs and resumes, until they are set again. A block of the schedule
        that is under way is finished before. Passes go on. Samples read ahead are dropped.

        Args:
            weights: dataset → weight, meant as the spec's ``weights`` says; 0 gives no samples. One
                that is not named has the weight that the spec gives it.
            at_batch: the first batch, as ``batches`` counts; ``None``: the next. Several ranks name
                it, all the same, before any has got it.

        Raises:
            UsageError: weights cannot be set (an epoch is one pass, say); nothing is changed.
        """
        self._change(self._set_weights, weights, at_batch)

    def _set_weights(self, weights: Mapping[str, float], at_batch: int | None) -> None:
        delivery = self._delivery
        delivery.count()
        progress = delivery.progress.copy()
        if at_batch is None and delivery.ahead and self._ranks.world_size == 1:
            at_batch = progress.batches + delivery.ahead
        order = checkpoint.reweighted(
            self.plan, self._order, progress, self._ranks, weights, at_batch
        )
        delivery.drop()
        delivery.progress = progress
        self._follow(order)

    def quarantined(self) -> tuple[BadRecord, ...]:
        """Records that were left out as they cannot be read, each with file, record and reason.

        The running pipeline of this rank tells them: by index, all records that the mixture's
        indexes name; by stream, the records met so far. After a resume or a restart of the child a
        new pipeline meets its records again.

        Raises:
            UsageError: the loader is closed, or another process made it.
        """
        self._check_open()
        return self._background.call(self._pipeline.quarantined)

    def statistics(self) -> Statistics:
        """An immutable snapshot; see ``telemetry.Statistics``.

        Of a closed loader: what it counted itself, and what its child told last.
        """
        self.owner.check()
        return self._background.call(self._statistics)

    def _statistics(self) -> Statistics:
        delivery = self._delivery
        _under(self._pipeline.child.lock, delivery.count)
        headroom_bytes = self._headroom.read().headroom_bytes
        shares = self._order.shares_at(delivery.progress.position)
        return delivery.statistics(self._pipeline, headroom_bytes, shares)

    def state_dict(self) -> dict[str, Any]:
        """Where this loader is, to the sample; JSON-serialisable and small.

        ``load_state_dict`` of a loader with the same datasets resumes exactly behind the last
        batch that was handed out.
        """
        self.owner.check()
        return self._call(self._state)

    def _state(self) -> dict[str, Any]:
        self._delivery.count()
        progress = self._delivery.progress
        order = progress.as_saved(self._order)
        place = {**progress.state(), **checkpoint.order_state(order, self.plan)}
        return checkpoint.sealed(
            {**checkpoint.fingerprint(self.plan), "values": self._values, **place}
        )

    @cached_property
    def _values(self) -> dict[str, str]:
        return checkpoint.values_of(self.plan)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where ``state`` was saved, by any rank of any number of ranks.

        ``world_size`` and ``batch`` may differ from those it was saved with; what ``set_weights``
        set holds on. Where an epoch is no pass and nothing is chained, the spec may have other
        weights, or datasets added or left out: it holds from the state on, and each dataset goes
        on where it was. One that is left out is forgotten; one of weight 0 keeps its place.

        Raises:
            UsageError: ``state`` is no state, damaged, or saved for another mixture or order; says
                what is wrong by field. The loader stays where it was and goes on.
        """
        self._check_open()
        self._change(self._go_to, checkpoint.read_state(state))

    def _go_to(self, saved: Mapping[str, Any]) -> None:
        order = checkpoint.order_from(saved, self.plan, self._declared)
        checkpoint.tell_of_values(saved, self._values)
        delivery = self._delivery
        delivery.count()
        progress = delivery.progress.copy()
        progress.restore(saved, checkpoint.is_rebased(saved, self.plan))
        delivery.drop(shown=True)
        delivery.progress = progress
        self._follow(order)

    def _follow(self, order: MixtureOrder) -> None:
        """Begin anew in ``order`` where ``progress`` says."""
        self._order = order
        self._take_back()
        self._pipeline.go_to(order)

    def park(self, parked: bool = True) -> None:
        """Stop reading for now (another loader is in use), or go on; the ring keeps what it has.

        It also goes on where a batch is asked for.
        """
        self._change(self._stand, parked)

    def _stand(self, parked: bool) -> None:
        self._delivery.count()
        self._pipeline.park(parked)
        if parked:
            self._delivery.meter.pause()

    def prepare(self) -> None:
        """Fill the ring, while another loader is in use, and then wait for the first ``next``."""
        self._change(self._fill)

    def _fill(self) -> None:
        self._pipeline.prepare()
        self._pipeline.start()

    def suspend(self) -> None:
        """Let go of ring, buffers and streams until the next batch is asked for, or ``prepare``.

        The place is kept. Unlike ``park`` it costs a start. Batches handed out stay valid; their
        memory goes back with the next call.
        """
        self._change(self._let_go)

    def _let_go(self) -> None:
        self._pipeline.suspend()
        self._delivery.drop()
        self._take_back()

    def close(self) -> None:
        """Stop everything; batches already handed out stay valid. May be called twice.

        It returns within ten seconds: what has not ended by then is named in a warning, and ends
        as soon as it can. In a fork of the process that made it nothing happens.
        """
        if not self.owner.here or (self._ended and self._background.ended):
            return
        self._closed = True
        if not self._background.close(self._end, _CLOSE_S):
            logger.warning(
                "the loader has not ended within %.0f s; until it ends it keeps its thread "
                "autoloader-hand, %s and %d MiB of shared memory",
                _CLOSE_S,
                f"process {self._pipeline.child.pid}" if self._pipeline.child.pid else "no process",
                self._delivery.memory.allocated_bytes() >> 20,
            )

    def _end(self) -> None:
        """End all parts, once; whatever one of them raises, the others end too."""
        if self._ended:
            return
        self._ended = True
        with contextlib.ExitStack() as parts:
            parts.callback(self._parts.close)
            parts.callback(self._pipeline.close)
            parts.callback(_under, self._pipeline.child.lock, self._delivery.stop)
        self._child = None
        self._headroom = HeadroomProbe()  # the one before holds files open

    def __enter__(self) -> AutoLoader:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_ended", True):
            with contextlib.suppress(OSError, ImportError):
                self.close()


def _suspend_earlier(samples: tuple[Any, ...]) -> None:
    """Suspend open loaders of the same samples: a notebook's ``Out`` keeps each cell's loader.

    Only at a prompt or in a notebook. A program may mean two loaders, from two threads.
    A loader that is used after all goes on behind its last batch, at the cost of a start.
    """
    for one, own in list(_open.items()):
        if own == samples and one.owner.here:
            with contextlib.suppress(AutoloaderError):
                one.suspend()


def _nothing() -> None:
    """Do nothing: a task that ends when all tasks before it have ended."""


def _under(lock: threading.RLock, work: Callable[[], _R]) -> _R:
    with lock:
        return work()


@atexit.register
def _close_all() -> None:
    """Scripts that forget to close: threads inside TensorFlow would not survive the exit."""
    for loader in list(_open):
        loader.close()


def validation_specs(spec: PipelineSpec, split: str = "val") -> dict[str, PipelineSpec]:
    """The spec of each validation loader, by name; an epoch of it is what a validation sees.

    Weights that move (``weights: {from: …, to: …}``) are those of the end. A dataset of weight 0
    has a loader of its own with ``per_dataset``.

    Open them with ``AutoLoader(spec, split=split, reproducible=True)``. The name is the dataset's
    with ``per_dataset``, else the split's. An epoch has ``validation.samples`` samples (each loader
    as many), or all where there are fewer; its last batch may be smaller.

    Args:
        spec: the pipeline spec of the mixture.
        split: name of the split; datasets that say ``null`` to it have no part.

    Returns:
        Empty where no dataset has a part.

    Raises:
        SpecError: some datasets have such a split, and others do not say that they have none.
        SourceError: a dataset cannot be read, or gives no sample.
    """
    names = [one.name for one in spec.datasets if one.split.get(split) is not None]
    if not names:
        return {}
    whole = resolve(spec, split)
    counts = count_mixture(
        whole, by_index=spec.reader != "stream", fetch=choose_reader(whole, "auto")[0] == "indexed"
    )
    if not spec.validation.per_dataset:
        spec = _settled(spec)
        return {split: _epoch(spec, sum(count.samples for count in counts.values()))}
    layout = whole.layout
    widths = {"action": layout.action_width, "state": layout.state_width}
    wide = spec.having(pad_to={one: width for one, width in widths.items() if width})
    return {name: _epoch(_only(wide, split, name), counts[name].samples) for name in names}


def _only(spec: PipelineSpec, split: str, name: str) -> PipelineSpec:
    """The spec with ``split: {SPLIT: null}`` for every other dataset, and weight 1 for this one."""
    datasets = [
        one.having(weight=1.0) if one.name == name else one.having(split={**one.split, split: None})
        for one in spec.datasets
    ]
    return spec.having(datasets=tuple(datasets), weights="explicit")


def _settled(spec: PipelineSpec) -> PipelineSpec:
    """The spec with the last weights of a schedule, so that all validations are of one mixture."""
    moves = spec.weights
    if not isinstance(moves, CurriculumSpec):
        return spec
    datasets = (one.having(weight=moves.to.get(one.name, one.weight)) for one in spec.datasets)
    return spec.having(datasets=tuple(datasets), weights=moves.kind)


def _epoch(spec: PipelineSpec, available: int) -> PipelineSpec:
    """The spec with an epoch of the validation's samples, of ``available`` ones at most.

    Without ``mixing.chain`` and ``mixing.locality``, so that few samples come from as many
    episodes as possible.
    """
    samples = min(spec.validation.samples, available)
    far = {"epoch": samples, "chain": False, "locality": None}
    return spec.having(batch={"drop_last": False}, mixing=far)


class IdleLoader(AutoLoader):
    """An ``AutoLoader`` that reads nothing before its first batch is asked for, or ``prepare``."""

    _starts_at_once = False


class ValidationLoader(AutoLoader):
    """An ``AutoLoader`` whose every iteration begins with the first sample.

    Args:
        spec: a spec that ``validation_specs`` returned.
        split: name of the split, as for ``validation_specs``.
        options: keyword arguments, as for ``AutoLoader``.
    """

    def __init__(self, spec: PipelineSpec, split: str = "val", **options: Any) -> None:
        super().__init__(spec, split=split, **{"reproducible": True, **options})
        self._beginning = self.state_dict()

    @property
    def loader(self) -> AutoLoader:
        """This loader."""
        return self

    def __iter__(self) -> Iterator[Batch]:
        """The batches of a validation, from the first, however the last iteration ended."""
        if self.batches != self._beginning["batches"]:
            self.load_state_dict(self._beginning)
        return super().__iter__()


def validation_loaders(
    spec: SpecSource, split: str = "val", **options: Any
) -> dict[str, ValidationLoader]:
    """The validation loaders of a spec, by name (``validation_specs``); the caller closes them.

    Args:
        spec: as for ``AutoLoader``.
        split: name of the split of each dataset.
        options: as for ``AutoLoader``, for each of them.

    Raises:
        SpecError, SourceError, ProfileError, KnobError, BudgetInfeasibleError: as ``AutoLoader``
            does; those opened before are closed again.
    """
    spec = arguments.spec_of(spec)
    found: dict[str, ValidationLoader] = {}
    with contextlib.ExitStack() as opened:
        for name, own in validation_specs(spec, split).items():
            found[name] = ValidationLoader(own, split, **options)
            opened.callback(found[name].close)
        opened.pop_all()
    return found
