"""Pipelines of one trainer in the loader's process: opened, controlled, their batches handed over.

``TrainerService`` heeds one trainer's messages, in the loader's child, and with
``isolation="thread"`` in the trainer's process. Each pipeline is a ``ControlledPipeline``, the only
one that changes knobs of it. The parts of a pipeline (TensorFlow among them) are imported only
where they are needed.

Before a pipeline opens or takes more memory, its price is compared with a fresh reading of
headroom. It is then promised to the pipeline in the budget that all pipelines of the process share.

A pipeline's gate is closed when its trainer has parked it or the reflex admits no reads. The two
are kept apart here, so that neither opens what the other has closed.

Not here: reading the pipeline and its host (``process.observer``), deciding
(``controller``), running (``pipeline``), the child's life (``process.worker``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from autoloader.cache.disk import FramesOnDisk
from autoloader.controller import admission
from autoloader.controller.decisions import DecisionLog
from autoloader.controller.limits import ControlRequest
from autoloader.controller.observation import Observation
from autoloader.controller.policy import Decision, Verdict, decide
from autoloader.controller.proposals import admits, lowered_cache, margin, missing_bytes
from autoloader.controller.reflex import Action, ControlLoop, ReflexState, react
from autoloader.controller.states import ControllerState, State
from autoloader.decode.message import PipelineStart
from autoloader.decode.ring import RingMemory
from autoloader.errors import as_fault
from autoloader.formats.files import is_remote
from autoloader.host.allocator import give_memory_back
from autoloader.host.headroom import HeadroomProbe, headroom_or_none
from autoloader.host.supervision import extend_import_path
from autoloader.host.threads import LoaderThread
from autoloader.index.opening import digest_of_sizes
from autoloader.pipeline import messages
from autoloader.pipeline.messages import Message, Wire
from autoloader.pipeline.read.open_mixture import CompiledMixture
from autoloader.process.observer import Observer, Probes
from autoloader.process.setup import PipelineSetup
from autoloader.samples.resolve import check_content, resolve_plain
from autoloader.sampling.dealing import NodePart, Ranks, mixture_part
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec.block import adapter
from autoloader.spec.knobs import Knobs
from autoloader.telemetry.statistics import ControllerStatistics

if TYPE_CHECKING:
    from autoloader.pipeline.pipeline import MixtureReader, Pipeline

logger = logging.getLogger(__name__)

_BUDGET = admission.SharedBudget()
os.register_at_fork(after_in_child=_BUDGET.forget_all)
"""Of this process, however many ``Control`` it has (``isolation="thread"``: one a loader)."""
_POLL_S = 0.25
STUCK_S = 5.0
"""A thread that still writes so long after it was told to end is not waited for."""
_PARKED_EVERY_S = 1.5
"""A parked pipeline is looked at every second time: nothing of it moves."""
_TRIM_COST_RATIO = 0.005
"""Handing memory back walks the whole heap: the first time at once, then no more of a core."""


def open_pipeline(setup: PipelineSetup, compiled: CompiledMixture) -> Pipeline:
    """The pipeline for a rank's part of a mixture; not yet started.

    ``compiled`` holds what earlier pipelines over the same mixture were made of, and is added to.

    Raises:
        SourceError: TensorFlow is needed and cannot be imported.
    """
    mixture, order, start = setup.mixture, setup.order, setup.position()
    deal = start.deal(mixture, order, setup.ranks)
    room = setup.control.frames_on_disk
    disk = None if room is None else FramesOnDisk(room, mixture.layout.colour_bytes)
    reader: MixtureReader
    if setup.knobs.reader == "indexed":
        from autoloader.pipeline.read.planned import IndexedReader

        asked = setup.control
        reader = IndexedReader(
            mixture,
            order,
            ranks_here=setup.ranks_here,
            compiled=compiled,
            on_disk=room if disk else None,
            node=NodePart.of(deal, setup.ranks_here),
            helpers_at=asked.helpers,
            ram_floor_bytes=asked.limits.ram_floor_bytes,
            disk_floor_bytes=asked.disk_floor_bytes,
        )
    else:
        from autoloader.pipeline.read.streams import StreamsReader, opener

        world_size = setup.ranks.world_size
        reader = StreamsReader(mixture, order, opener(mixture, compiled), start, world_size)
    from autoloader.pipeline.pipeline import Pipeline

    with contextlib.ExitStack() as kept:
        kept.enter_context(mixture.disk_kept_free(setup.control.disk_floor_bytes))
        pipeline = Pipeline(
            mixture,
            reader,
            setup.knobs,
            setup.memory,
            deal=deal,
            held=setup.lent(),
            disk=disk or None,
        )
        pipeline.at_close = kept.pop_all().close
    return pipeline


class ControlledPipeline:
    """One pipeline of a trainer, in its current generation, under control.

    Its knobs are those that the budget admits; see ``controller.reflex.Governed``.

    Args:
        service: service that it belongs to.
        start: message of the trainer that asks for it, with the knobs that are wanted.
        declared: mixture that the message declares.
        memory: the ring's memory, mapped for this pipeline.
    """

    def __init__(
        self,
        service: TrainerService,
        start: messages.Start,
        declared: DeclaredMixture,
        memory: RingMemory,
    ) -> None:
        place = PipelineStart.from_plain(declared.mixture, start.place)
        request: ControlRequest = adapter(ControlRequest).validate_python(start.control)
        setup = PipelineSetup(
            declared.mixture,
            MixtureOrder.from_plain(start.order),
            Knobs.build(start.knobs),
            memory,
            request,
            Ranks(*start.ranks),
            start.ranks_here,
            position=lambda: place,
            lent=lambda: start.held_slots,
            restarts=start.restarts,
        )
        control = service.control
        opening = control.admit(setup)
        setup = replace(setup, knobs=opening.knobs)
        self._claim = opening.claim
        self._wire, self._number, self._generation = service.wire, start.pipeline, start.generation
        self._memory = memory
        self._moves = request.moves
        self._limits = request.limits
        self._headroom = control.headroom
        self._end = service.end
        self._lock = threading.RLock()
        self._parked = self._closed = False
        self._admit = self._open_gate = True
        self._state = ControllerState(since_s=time.monotonic())
        self._parked_seen_s = float("-inf")
        self._said: Knobs | None = None
        self._reflex = ReflexState()
        self._least_for: tuple[Knobs | None, Knobs] = (None, setup.knobs)
        self._counted: Counter[str] = Counter()
        self._trim_next_s = float("-inf")
        self._loop = control.loop if self._moves else control.watched
        self._thread = LoaderThread(target=self._forward, name=f"autoloader-deliver-{self._number}")
        with contextlib.ExitStack() as undone:
            undone.callback(_BUDGET.leave, self._claim)
            self.pipeline = open_pipeline(setup, declared)
            undone.callback(self.pipeline.close)
            self._observer = Observer(
                setup,
                control.probes,
                self._number,
                self.pipeline.quarantined,
                own_process=service.end is not None,
            )
            undone.callback(self._observer.close)
            self._log = DecisionLog.wanted(request, self._number)
            if self._log is not None:
                undone.callback(self._log.close)
                self._log.event(
                    "admission",
                    time.monotonic(),
                    what="open" if opening.as_asked else "open, with the least knobs",
                    price_bytes=opening.price_bytes,
                    headroom_bytes=opening.headroom_bytes,
                    admitted=opening.as_asked,
                )
            if not opening.as_asked:
                self._tell()
            undone.callback(self._loop.remove, self)
            self._loop.add(self)
            undone.pop_all()

    def start(self) -> None:
        """Begin to read, and to hand batches to the trainer."""
        self.pipeline.start()
        self._thread.start()

    def _forward(self) -> None:
        """Send each batch of the pipeline to the trainer, unasked, until the pipeline is closed."""
        try:
            while not self._closed:
                batch = self.pipeline.next(_POLL_S)
                if batch is not None:
                    ready = messages.BatchReady(self._number, self._generation, batch.plain())
                    self._wire.tell(ready)
        except Exception as error:  # the boundary of this thread: training waits
            logger.debug("pipeline %d failed", self._number, exc_info=True)
            if not self._closed:
                self._wire.tell(messages.Failed.of(self._number, as_fault(error, "deliver")))

    def activity(self) -> messages.Activity:
        """Activity of the pipeline."""
        found = self._observer.told(self.pipeline.activity(), controller=self._actions)
        bad = [asdict(one) for one in self.pipeline.quarantined()]
        return messages.Activity(self._number, asdict(found), bad)

    @property
    def _actions(self) -> ControllerStatistics | None:
        """Actions of the controller so far; ``None`` without one."""
        return ControllerStatistics(**self._counted) if self._moves else None

    def close(self, held_slots: Collection[int] | None = None) -> None:
        """End it; give the ring's pages back, except those of ``held_slots`` (default: all)."""
        self._closed = True
        self._loop.remove(self)
        _BUDGET.leave(self._claim)
        if self._log is not None:
            self._log.close()
        self._observer.close()
        self.pipeline.close()
        if held_slots is not None:
            self._memory.punch_all_but(held_slots)
        self._memory.close()

    def ended(self, within_s: float) -> bool:
        """True if, in time, nobody writes into the ring any more; asked once it is closed."""
        return self.pipeline.close(within_s)

    # --- from the trainer -------------------------------------------------------------------------

    def park(self, parked: bool) -> None:
        """The trainer uses another loader (True), or this one."""
        with self._lock:
            self._parked = parked
            self._claim.in_use = not parked
            self._set_gate()

    def retune(self, knobs: Knobs) -> None:
        """A person's wish; it stands until the policy finds better."""
        with self._lock:
            prices, shards = self._observer.prices, self._limits.knobs.shards
            before = self.pipeline.knobs
            _BUDGET.take(self._claim, admission.price_change(before, knobs, shards, prices))
            self._move(knobs, "person", "retune")

    def _move(
        self, knobs: Knobs, by: str, why: str = "", short: tuple[float, int | None] | None = None
    ) -> None:
        """Move to other knobs, under the lock; all changes go this way.

        Args:
            knobs: values of all knobs from now on.
            by: "person", "policy" or "reflex".
            why: reason for people; not needed where memory is short.
            short: time and headroom where memory is short; ``None``: it is not.
        """
        before = self.pipeline.knobs
        self.pipeline.retune(knobs)
        if short is not None:
            self._counted["shrinks"] += 1
            why = self._observer.pressure.shrunk(*short, before, knobs)
        self._observer.moved(by, why, knobs, before)
        self._tell()

    # --- the reflex's thread ----------------------------------------------------------------------

    def reflex(self, at_s: float, headroom_bytes: int | None, growth_bytes: int) -> bool:
        """Answer a reading of headroom by ``controller.reflex.react``; see ``Governed``."""
        before = self._reflex
        if headroom_bytes is not None:
            headroom_bytes += self._give_frames_back(at_s, headroom_bytes, growth_bytes)
        # A consumer that keeps many batches and wants one more has none, whatever lies with it.
        wanting = self._observer.wanting and not self._parked
        reaction = react(
            before,
            at_s=at_s,
            headroom_bytes=headroom_bytes,
            growth_bytes=growth_bytes,
            ready_batches=0 if wanting else self.pipeline.ready_batches,
            surplus_bytes=(
                self._observer.surplus_bytes(self._least()) if before.may_restart(at_s) else None
            ),
            limits=self._limits,
        )
        self._reflex = reaction.state
        with self._lock:
            self._admit = reaction.admit
            self._set_gate()
        if self._log is not None and (
            before.closed != reaction.state.closed
            or reaction.action in (Action.DROP, Action.RESTART)
        ):
            self._log.event(
                "reflex", at_s, action=reaction.action.value, headroom_bytes=headroom_bytes
            )
        if reaction.action in (Action.DROP, Action.RESTART):
            self._drop(at_s, headroom_bytes)
        if reaction.action is Action.RESTART and self._end is not None:
            self._end("below the RAM floor and still too large: starting again small", False)
        return reaction.calm

    def _give_frames_back(self, at_s: float, headroom_bytes: int, growth_bytes: int) -> int:
        """Have the frame cache give what is missing above the floor; bytes that it gave."""
        floor, margin_bytes = self._limits.ram_floor_bytes, self._limits.margin_bytes
        missing = missing_bytes(headroom_bytes, floor, max(margin_bytes, growth_bytes))
        if not missing or not self.pipeline.knobs.cache_bytes:
            return 0
        with self._lock:
            held = self.pipeline.frames_held().allocated_bytes
            lowered = lowered_cache(self.pipeline.knobs, held, missing)
            self._move(lowered, "reflex", short=(at_s, headroom_bytes))
            given = max(0, held - self.pipeline.frames_held().allocated_bytes)
        if self._log is not None:
            told = {"headroom_bytes": headroom_bytes, "held_bytes": held, "given_bytes": given}
            self._log.event("reflex", at_s, action="frames", **told)
        return given

    def _drop(self, at_s: float, headroom_bytes: int | None) -> None:
        self._counted["drops"] += 1
        with self._lock:
            if (least := self._least()) != self.pipeline.knobs:
                self._move(least, "reflex", short=(at_s, headroom_bytes))
            self.pipeline.drop()
        if at_s >= self._trim_next_s:
            began = time.thread_time()
            give_memory_back()
            self._trim_next_s = at_s + (time.thread_time() - began) / _TRIM_COST_RATIO

    def _least(self) -> Knobs:
        """The least knobs for those in force; worked out once for each."""
        knobs = self.pipeline.knobs
        if self._least_for[0] is not knobs:
            self._least_for = knobs, self._limits.least(knobs)
        return self._least_for[1]

    def _set_gate(self) -> None:
        """Under the lock; the pipeline's threads are woken where something changes only."""
        opened = self._admit and not self._parked
        if opened != self._open_gate:
            self.pipeline.park(not opened)
            self._open_gate = opened

    # --- the policy's thread ----------------------------------------------------------------------

    def govern(self, at_s: float, growth_bytes: int) -> None:
        """Observe, decide and apply; without a controller only observe, for logs and metrics."""
        if self._parked and at_s - self._parked_seen_s < _PARKED_EVERY_S:
            return
        self._parked_seen_s = at_s if self._parked else float("-inf")
        seen = self.observe(at_s, growth_bytes)
        said: dict[str, Any] = {}
        if self._moves:
            said = {"why": self._decide(seen), "state": self._state.name.value}
        said["controller"] = self._actions
        self._observer.publish(seen, self._activity, opened=self.pipeline.opened, **said)

    def _decide(self, seen: Observation) -> str:
        """Have the policy decide, and do it; the rule that it followed."""
        before = self._state
        answer = decide(before, seen, self._limits)
        if self._log is not None:
            self._log.decision(before, seen, answer)
        self._state = answer.state
        self._counted["decisions"] += 1
        self._counted["taken_back"] += answer.verdict in (Verdict.NOTHING, Verdict.LOST)
        if answer.verdict is not None:
            self._observer.judged(answer.verdict.value)
        if answer.knobs is not None:
            self._apply(seen, answer)
        if back := self._observer.pressure.look(seen.at_s, seen.headroom_bytes, self._state.name):
            self._observer.moved("policy", back, seen.knobs, seen.knobs)
        return answer.rule

    def observe(self, at_s: float, growth_bytes: int) -> Observation:
        """Read everything that the policy needs now."""
        with self._lock:
            knobs = self.pipeline.knobs
            activity = self._activity = self.pipeline.activity()
            settled = self.pipeline.settled
        readings = self._observer.readings(at_s, knobs, activity, parked=self._parked)
        headroom = headroom_or_none(self._headroom)
        margin_bytes = max(self._limits.margin_bytes, growth_bytes)
        return Observation(
            at_s=at_s,
            knobs=knobs,
            parked=self._parked,
            settled=settled,
            gate_closed=not self._admit,
            headroom_bytes=headroom,
            room_bytes=_BUDGET.room_bytes(self._claim, headroom, margin_bytes),
            growth_bytes=growth_bytes,
            **readings,
        )

    def _apply(self, seen: Observation, answer: Decision) -> None:
        """Apply a decision, unless the world has changed since it was made."""
        assert answer.knobs is not None
        with self._lock:
            if self.pipeline.knobs != seen.knobs:
                return
            price = admission.price_change(
                seen.knobs, answer.knobs, self._limits.knobs.shards, seen.prices
            )
            if price > 0 and not self._promised(price, seen, answer):
                self._counted["refused"] += 1
                return
            self._counted["changes"] += 1
            logger.info("%s: %s", answer.rule, dict(answer.changes))
            shrinks = answer.state.name in (State.SHRINK, State.EMERGENCY)
            short = (seen.at_s, seen.headroom_bytes) if shrinks else None
            self._move(answer.knobs, "policy", answer.rule, short)

    def _promised(self, price: int, seen: Observation, answer: Decision) -> bool:
        """Hold a growth against a fresh reading: the one decided on is some milliseconds old."""
        headroom = headroom_or_none(self._headroom)
        may = admits(price, replace(seen, room_bytes=None, headroom_bytes=headroom), self._limits)
        may = may and _BUDGET.try_promise(
            self._claim, price, headroom_bytes=headroom, margin_bytes=margin(seen, self._limits)
        )
        if self._log is not None:
            told = {"price_bytes": price, "headroom_bytes": headroom, "admitted": may}
            self._log.event("admission", seen.at_s, what=answer.rule, **told)
        return may

    def _tell(self) -> None:
        """Tell the trainer of knobs that it does not know."""
        if (knobs := self.pipeline.knobs) != self._said:
            self._said = knobs
            self._wire.send_later(messages.Retuned(self._number, self._generation, knobs.flat()))


class DeclaredMixture(CompiledMixture):
    """A mixture as a trainer declared it, its rank's part, and what that was compiled to."""

    def __init__(self, start: messages.Start) -> None:
        super().__init__()
        self.declared = start.mixture
        datasets, streamed = start.mixture["spec"]["datasets"], start.knobs["reader"] == "stream"
        if streamed and any(is_remote(one["path"] or one["data_dir"]) for one in datasets):
            from autoloader.pipeline.graph import files  # metadata too is read by TensorFlow

            files.enter()
        self.mixture = resolve_plain(self.declared)
        if streamed:  # by index a rank knows the whole
            for one in self.mixture.datasets:
                check_content(self.mixture, one.name, digest_of_sizes(one))
            self.mixture = mixture_part(self.mixture, Ranks(*start.ranks))


@dataclass(eq=False)
class TrainerService:
    """Runs the pipelines of one trainer, as its messages say.

    In the loader's child there is one service for each trainer. With ``isolation="thread"`` a
    thread of the trainer's process runs it.

    Attributes:
        connection: socket to the trainer.
        control: control of this process.
        pid: process id of the trainer; 0 where it cannot be seen from here.
        end: ends this process for a reason, and whether it gives way to one that begins where this
            one cannot; ``None``: the process is the trainer's.
        served: pipeline number → pipeline that runs.
    """

    connection: socket.socket
    control: Control
    pid: int = 0
    end: Callable[[str, bool], object] | None = None
    served: dict[int, ControlledPipeline] = field(default_factory=dict)
    _declared: dict[int, DeclaredMixture] = field(default_factory=dict)
    _late: dict[int, ControlledPipeline] = field(default_factory=dict)
    """Pipeline number → closed pipeline into whose ring threads still write."""
    pidfd: int = -1

    def __post_init__(self) -> None:
        self.wire = Wire(self.connection)
        if self.pid:
            with contextlib.suppress(OSError):
                self.pidfd = os.pidfd_open(self.pid)

    def serve(self) -> None:
        """Read messages until the trainer is done or gone."""
        for message in self.wire:
            try:
                self._handle(message)
            except Exception as error:  # noqa: BLE001 whatever the kernel refuses: threads, memory
                stage = type(message).__name__.lower()
                self.wire.tell(messages.Failed.of(message.pipeline, as_fault(error, stage)))

    def close(self) -> None:
        """End its pipelines; the memory they filled is the trainer's own."""
        for number in list(self._declared):
            self._end(number)
        self.wire.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)

    def _handle(self, message: Message) -> None:
        served = self.served.get(message.pipeline)
        if isinstance(message, messages.Start):
            self._start(message)
        elif isinstance(message, messages.Stop):
            self._end(message.pipeline, message.held_slots)
        elif served is None:
            logger.debug("a message for pipeline %d, which is over", message.pipeline)
        elif isinstance(message, messages.Release):
            served.pipeline.release(message.slot)
        elif isinstance(message, messages.Retune):
            served.retune(Knobs.build(message.knobs))
        elif isinstance(message, messages.Park):
            served.park(message.parked)
        elif isinstance(message, messages.AskActivity):
            self.wire.tell(served.activity())

    def _start(self, start: messages.Start) -> None:
        number = start.pipeline
        ring = self.wire.descriptor()
        declared = self._declared.get(number)
        if number in self.served:
            self._close(number)
            give_memory_back()
        late = self._late.pop(number, None)
        while late is not None and not late.ended(STUCK_S):
            if self.end is not None:
                self.end("threads that decode do not end", True)
        memory = None
        try:
            extend_import_path(start.import_path)
            if declared is None or declared.declared != start.mixture:
                if declared is not None:
                    declared.let_go()
                declared = DeclaredMixture(start)
                self._declared[number] = declared
            memory = RingMemory(declared.mixture.layout, descriptor=ring)
            self.served[number] = served = ControlledPipeline(self, start, declared, memory)
            served.start()
        except Exception:
            if memory is None:
                os.close(ring)
            elif number not in self.served:
                memory.close()
            raise

    def _end(self, number: int, held_slots: list[int] | None = None) -> None:
        """End a pipeline for good: its mixture and cached frames go too."""
        self._close(number, held_slots)
        if declared := self._declared.pop(number, None):
            declared.let_go()

    def _close(self, number: int, held_slots: list[int] | None = None) -> None:
        """Close a pipeline; keep it while its threads write on. A child waits for none yet."""
        if (served := self.served.pop(number, None)) is None:
            return
        served.close(held_slots)
        if self.end is None and not served.ended(STUCK_S):
            logger.warning(
                "decode threads have not ended %.0f s after they were told to; the ring is filled "
                "again when they have",
                STUCK_S,
            )
        if not served.ended(0.0):
            self._late[number] = served


class Control:
    """The control of one process: its loops, its probes, and what pipelines are admitted by.

    Args:
        headroom: source that policy and reflex read.

    Attributes:
        headroom: source of the machine's headroom.
        probes: probes that all pipelines share; there with the first one.
        loop, watched: govern pipelines whose knobs may move, and watch the others.
    """

    probes: Probes

    def __init__(self, headroom: HeadroomProbe) -> None:
        self.headroom = headroom
        self.loop, self.watched = ControlLoop(headroom), ControlLoop(None)
        self._has_tensorflow = False

    def admit(self, setup: PipelineSetup) -> admission.Opening:
        """Place of a pipeline in the budget, and the knobs that it may have."""
        request, knobs = setup.control, setup.knobs
        ring_bytes = setup.memory.allocated_bytes()  # pages that the ring holds already

        sizes = replace(setup.mixture.sizes, run_bytes=request.run_bytes)

        def price(wanted: Knobs) -> int:
            joining = wanted.reader != "stream" or self._has_tensorflow
            start = admission.price_start(wanted, sizes, joining=joining)
            return start.total_bytes - min(ring_bytes, start.parts["ring"])

        opening = admission.admit_opening(
            _BUDGET, self.headroom, knobs, request.limits, price, moves=request.moves
        )
        self._has_tensorflow |= knobs.reader == "stream"
        if not hasattr(self, "probes"):
            self.probes = Probes(request.visible_devices, request.trainer)
        return opening
