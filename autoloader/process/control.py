"""A pipeline in the loader's process: opens it, hands its batches over, has policy and reflex act.

Used in the loader's child, and in the trainer's process with ``isolation="thread"``. The
parts of a pipeline (TensorFlow among them) are imported only where they are needed.

Before a pipeline opens or takes more memory, its price is compared with a fresh reading of
headroom. It is then promised to the pipeline in the budget that all pipelines of the process share.

A pipeline's gate is closed when its trainer has parked it or the reflex admits no reads. The two
are kept apart here, so that neither opens what the other has closed.

Not here: reading the pipeline and its host (``process.observer``), deciding
(``controller``), running (``pipeline``), messages (``process.worker``).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from autoloader.cache.disk import FramesOnDisk
from autoloader.controller.admission import (
    Opening,
    PipelineSizes,
    SharedBudget,
    admit_opening,
    price_change,
)
from autoloader.controller.decisions import DecisionLog
from autoloader.controller.observation import Observation, Reading
from autoloader.controller.policy import Decision, Verdict, admitted, decide
from autoloader.controller.proposals import lowered_cache, margin, missing_bytes
from autoloader.controller.reflex import (
    Action,
    ControlLoop,
    ReflexLimits,
    ReflexState,
    is_calm,
    react,
)
from autoloader.controller.states import ControllerState, State
from autoloader.errors import AutoloaderError
from autoloader.host.headroom import HeadroomSource, headroom_or_none
from autoloader.host.threads import LoaderThread
from autoloader.pipeline.messages import Activity, BatchReady, Failed, Retuned, Wire
from autoloader.pipeline.read.open_mixture import CompiledMixture
from autoloader.process.observer import Observer, Probes, SnapshotWriter
from autoloader.process.setup import PipelineSetup
from autoloader.sampling.dealing import Deal, NodePart
from autoloader.spec.knobs import Knobs

if TYPE_CHECKING:
    from autoloader.pipeline.pipeline import MixtureReader, Pipeline

logger = logging.getLogger(__name__)

_BUDGET = SharedBudget()
os.register_at_fork(after_in_child=_BUDGET.forget_all)
"""Of this process, however many ``Control`` it has (``isolation="thread"``: one a loader)."""
_POLL_S = 0.25
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
    deal = Deal.of(
        order,
        mixture.spec.batch,
        setup.ranks,
        base=start.position,
        in_epoch=start.in_epoch,
        first_number=start.first_number,
    )
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
        if any(one.remote for one in mixture.datasets):
            from autoloader.storage.shards import kept_free  # local data goes without

            kept.enter_context(kept_free(setup.control.disk_floor_bytes))
        pipeline = Pipeline(
            mixture,
            reader,
            setup.knobs,
            setup.memory,
            deal=deal,
            held=sorted(setup.lent()),
            stuck=setup.stuck,
            disk=disk or None,
        )
        pipeline.at_close = kept.pop_all().close
    return pipeline


class ControlledPipeline:
    """One pipeline of a trainer, in its current generation, under control.

    Its knobs are those that the budget admits; see ``controller.reflex.Governed``.

    Args:
        control: control of this process.
        setup: setup of the pipeline; its knobs are those asked for.
        compiled: compiled mixture, as for ``open_pipeline``.
        wire: connection to the trainer.
        number: number of the pipeline among those of its trainer.
        generation: number of this start of it.
        earlier: earlier pipelines of the same loader whose threads still write into the ring.
        restart: ends this process so that it starts again small; ``None`` where the process is not
            the loader's alone.
    """

    def __init__(
        self,
        control: Control,
        setup: PipelineSetup,
        compiled: CompiledMixture,
        *,
        wire: Wire,
        number: int,
        generation: int,
        earlier: list[ControlledPipeline],
        restart: Callable[[str], None] | None,
    ) -> None:
        request = setup.control
        opening = control.admit(setup)
        setup = replace(setup, knobs=opening.knobs)
        self._control, self._share = control, opening.share
        self._wire, self._number, self._generation = wire, number, generation
        self._memory = setup.memory
        self._earlier = earlier
        self._stuck = setup.stuck
        self._moves = request.moves
        self._limits = request.limits
        self._headroom = control.headroom
        self._restart = restart
        self._lock = threading.RLock()
        self._parked = self._closed = False
        self._admit = self._open_gate = True
        self._state = ControllerState()
        self._begun_s: float | None = None
        self._parked_seen_s = float("-inf")
        self._said = ""
        self._reflex = ReflexState()
        self._reflex_limits = ReflexLimits(self._limits.ram_floor_bytes, self._limits.margin_bytes)
        self._counted: Counter[str] = Counter()
        self._trim_next_s = float("-inf")
        try:
            self._observer = Observer(setup, control.probes, own_process=restart is not None)
            self.pipeline = open_pipeline(setup, compiled)
            self._snapshots = SnapshotWriter(setup, number, self.pipeline.quarantined)
            self._log = DecisionLog.wanted(request, number)
        except BaseException:
            _BUDGET.leave(self._share)
            raise
        if self._log is not None:
            self._log.admission(
                time.monotonic(),
                "open" if opening.as_asked else "open, with the least knobs",
                opening.price_bytes,
                opening.headroom_bytes,
                opening.as_asked,
            )
        if not opening.as_asked:
            self._tell()
        control.govern(self, moves=self._moves)
        self._thread = LoaderThread(target=self._deliver, name=f"autoloader-deliver-{number}")

    def start(self) -> None:
        """Begin to read, and to hand batches to the trainer."""
        self.pipeline.start()
        self._thread.start()

    def _deliver(self) -> None:
        # A trainer that is gone is noticed where its messages are read.
        with contextlib.suppress(OSError):
            try:
                while not self._closed:
                    batch = self.pipeline.next(_POLL_S)
                    if self._earlier:
                        self._take_back()
                    if batch is not None:
                        ready = BatchReady(self._number, self._generation, batch.plain())
                        self._wire.send(ready)
            except AutoloaderError as error:
                logger.debug("pipeline %d failed", self._number, exc_info=True)
                if not self._closed:
                    self._wire.send(Failed.of(self._number, error))

    def _take_back(self) -> None:
        """Use the slots again that threads of earlier pipelines no longer write to."""
        self._earlier[:] = [one for one in self._earlier if one.leftovers]
        still = stuck_slots(self._earlier)
        for slot in self._stuck - still:
            self.pipeline.ended(slot)
        self._stuck &= still

    def activity(self, request: int) -> Activity:
        """Activity of the pipeline, and frames that earlier ones still pin; answers a request."""
        found = self.pipeline.activity()
        if stuck := sum(one.pipeline.leased_frames for one in self._earlier):
            found = replace(found, cache=replace(found.cache, stuck=stuck))
        bad = [asdict(one) for one in self.pipeline.quarantined()]
        return Activity(self._number, request, asdict(found), bad, dict(self._counted))

    def close(self, held_slots: Collection[int] | None = None) -> None:
        """End it; give the ring's pages back, except those of ``held_slots`` (default: all)."""
        self._closed = True
        self._control.leave(self)
        _BUDGET.leave(self._share)
        if self._log is not None:
            self._log.close()
        self._snapshots.close()
        self.pipeline.close()
        if held_slots is not None:
            self._memory.punch_all_but({*held_slots, *self._stuck, *self.pipeline.slots})
        self._memory.close()

    def ended(self, within_s: float) -> bool:
        """True if, in time, nobody writes into the ring any more; asked once it is closed."""
        return self.pipeline.close(within_s)

    @property
    def leftovers(self) -> bool:
        """True while threads of the closed pipeline write to slots, or pin cached frames."""
        return bool(self.pipeline.slots or self.pipeline.leased_frames)

    @property
    def state_name(self) -> str:
        """The controller's state."""
        return self._state.name.value

    # --- from the trainer -------------------------------------------------------------------------

    def park(self, parked: bool) -> None:
        """The trainer uses another loader (True), or this one."""
        with self._lock:
            self._parked = parked
            self._share.in_use = not parked
            self._set_gate()

    def retune(self, knobs: Knobs) -> None:
        """A person's wish; it stands until the policy finds better."""
        with self._lock:
            prices, shards = self._observer.prices, self._limits.knobs.shards
            before = self.pipeline.knobs
            _BUDGET.take(self._share, price_change(before, knobs, shards, prices))
            self._move(knobs, "person", "retune")

    def _move(
        self, knobs: Knobs, by: str, why: str = "", short: tuple[float, int | None] | None = None
    ) -> None:
        """Move to other knobs, under the lock; all changes go this way.

        Args:
            knobs: values of all knobs from now on.
            by: who wants it.
            why: for people; not where memory is short.
            short: time and headroom where memory is short; ``None``: it is not.
        """
        before = self.pipeline.knobs
        self.pipeline.retune(knobs)
        if short is not None:
            self._counted["shrinks"] += 1
            why = self._snapshots.pressure.shrunk(*short, before, knobs)
        self._snapshots.moved(by, why, knobs, before)
        self._tell()

    # --- the reflex's thread ----------------------------------------------------------------------

    def reflex(self, at_s: float, headroom_bytes: int | None, growth_bytes: int) -> None:
        """See ``Governed.reflex``."""
        before = self._reflex
        limits = self._reflex_limits
        if is_calm(before, headroom_bytes, growth_bytes, limits):
            return
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
                self._observer.surplus_bytes(at_s, self._limits.least(self.pipeline.knobs))
                if before.may_restart(at_s)
                else None
            ),
            limits=limits,
        )
        self._reflex = reaction.state
        with self._lock:
            self._admit = reaction.admit
            self._set_gate()
        if self._log is not None and (
            before.closed != reaction.state.closed
            or reaction.action in (Action.DROP, Action.RESTART)
        ):
            self._log.reflex(at_s, reaction.action.value, headroom_bytes)
        if reaction.action in (Action.DROP, Action.RESTART):
            self._drop(at_s, headroom_bytes)
        if reaction.action is Action.RESTART and self._restart is not None:
            self._restart("below the RAM floor and still too large: starting again small")

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
            self._log.frames(at_s, headroom_bytes, held, given)
        return given

    def _drop(self, at_s: float, headroom_bytes: int | None) -> None:
        self._counted["drops"] += 1
        with self._lock:
            least = self._limits.least(self.pipeline.knobs)
            if least != self.pipeline.knobs:
                self._move(least, "reflex", short=(at_s, headroom_bytes))
            self.pipeline.drop()
        if at_s >= self._trim_next_s:
            began = time.thread_time()
            give_memory_back()
            self._trim_next_s = at_s + (time.thread_time() - began) / _TRIM_COST_RATIO

    def _set_gate(self) -> None:
        """Under the lock; the pipeline's threads are woken where something changes only."""
        opened = self._admit and not self._parked
        if opened != self._open_gate:
            self.pipeline.park(not opened)
            self._open_gate = opened

    # --- the policy's thread ----------------------------------------------------------------------

    def govern(self, at_s: float, growth_bytes: int) -> None:
        """See ``Governed.govern``; without a controller nothing is decided, and all is said."""
        if self._parked and at_s - self._parked_seen_s < _PARKED_EVERY_S:
            return
        self._parked_seen_s = at_s if self._parked else float("-inf")
        if self._moves and self._begun_s is None:
            self._begun_s = at_s
            self._state = ControllerState(since_s=at_s)
        seen = self.observe(at_s, growth_bytes)
        said: dict[str, Any] = {}
        if self._moves:
            rule = self._decide(seen)
            said = {"state": self.state_name, "why": rule, "counted": self._counted}
        self._snapshots.publish(
            seen,
            self._activity,
            opened=self.pipeline.opened,
            knobs=self.pipeline.knobs,
            **said,
        )

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
            self._snapshots.judged(answer.verdict.value)
        if answer.knobs is not None:
            self._apply(seen, answer)
        self._tell()
        if back := self._snapshots.pressure.look(seen.at_s, _bytes(seen), self._state.name):
            self._snapshots.moved("policy", back, seen.knobs, seen.knobs)
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
            headroom_bytes=None if headroom is None else Reading(headroom),
            room_bytes=_BUDGET.room_bytes(self._share, headroom, margin_bytes),
            growth_bytes=Reading(growth_bytes),
            **readings,
        )

    def _apply(self, seen: Observation, answer: Decision) -> None:
        """Apply a decision, unless the world has changed since it was made."""
        assert answer.knobs is not None
        with self._lock:
            if self.pipeline.knobs != seen.knobs:
                return
            price = price_change(seen.knobs, answer.knobs, self._limits.knobs.shards, seen.prices)
            if price > 0 and not self._promised(price, seen, answer):
                self._counted["refused"] += 1
                return
            self._counted["changes"] += 1
            logger.info("%s: %s", answer.rule, dict(answer.changes))
            shrinks = answer.state.name in (State.SHRINK, State.EMERGENCY)
            short = (seen.at_s, _bytes(seen)) if shrinks else None
            self._move(answer.knobs, "policy", answer.rule, short)

    def _promised(self, price: int, seen: Observation, answer: Decision) -> bool:
        """Hold a growth against a fresh reading: the one decided on is some milliseconds old."""
        assert answer.knobs is not None
        headroom = headroom_or_none(self._headroom)
        may = headroom is not None and admitted(
            replace(seen, room_bytes=None), answer.knobs, self._limits, headroom=Reading(headroom)
        )
        may = may and _BUDGET.promised(
            self._share,
            price,
            headroom_bytes=headroom,
            margin_bytes=margin(seen, self._limits),
        )
        if self._log is not None:
            self._log.admission(seen.at_s, answer.rule, price, headroom, may)
        return may

    def _tell(self) -> None:
        knobs, state = self.pipeline.knobs, self._state.name.value
        text = f"{state} {knobs.flat()}"
        if text != self._said:
            self._said = text
            self._wire.send_later(Retuned(self._number, self._generation, knobs.flat(), state))


def _bytes(seen: Observation) -> int | None:
    return None if seen.headroom_bytes is None else int(seen.headroom_bytes.value)


def stuck_slots(closed: Sequence[ControlledPipeline]) -> frozenset[int]:
    """Slots that threads of closed pipelines still write to."""
    return frozenset().union(*(one.pipeline.slots for one in closed))


def give_memory_back() -> None:
    """Have the C library return what it holds free to the kernel (``malloc_trim``)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Control:
    """The control of one process: its loops, its probes, and what pipelines are admitted by.

    Args:
        headroom: source that policy and reflex read.

    Attributes:
        headroom: source of the machine's headroom.
        probes: probes that all pipelines share; there with the first one.
    """

    probes: Probes

    def __init__(self, headroom: HeadroomSource) -> None:
        self.headroom = headroom
        self._loop, self._watched = ControlLoop(headroom), ControlLoop(None)
        self._has_tensorflow = False

    def admit(self, setup: PipelineSetup) -> Opening:
        """Place of a pipeline in the budget, and the knobs that it may have."""
        request, knobs = setup.control, setup.knobs
        ring_bytes = setup.memory.allocated_bytes()
        opening = admit_opening(
            _BUDGET,
            self.headroom,
            knobs,
            request.limits,
            PipelineSizes(setup.mixture.sizes, ring_bytes, self._has_tensorflow),
            name=request.run,
            moves=request.moves,
        )
        self._has_tensorflow |= knobs.reader == "stream"
        if not hasattr(self, "probes"):
            self.probes = Probes.of_this_host(request.visible_devices, request.trainer)
        return opening

    def govern(self, one: ControlledPipeline, *, moves: bool) -> None:
        """Govern a pipeline; one whose knobs do not move is only watched."""
        (self._loop if moves else self._watched).add(one)

    def leave(self, one: ControlledPipeline) -> None:
        """Govern it no more."""
        self._loop.remove(one)
        self._watched.remove(one)
