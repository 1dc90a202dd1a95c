"""A pipeline that runs in the trainer's process, with the face of ``process.child.ChildPipeline``.

For debugging: TensorFlow, where it is needed, and torch share a process.

Not here: the pipeline (``pipeline.pipeline``), governing it (``process.control``).
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from autoloader.cache.slab import private_bytes
from autoloader.decode.activity import PipelineActivity
from autoloader.decode.message import BatchMessage
from autoloader.decode.quarantine import BadRecord
from autoloader.host.probes.headroom import HeadroomSource
from autoloader.host.probes.processes import loader_bytes
from autoloader.pipeline.pipeline import STUCK_S, Pipeline
from autoloader.pipeline.read.open_mixture import CompiledMixture
from autoloader.process.control import Control
from autoloader.process.setup import PipelineSetup
from autoloader.sampling.mixture import MixtureOrder
from autoloader.spec.knobs import Knobs

logger = logging.getLogger(__name__)


class ThreadPipeline:
    """One mixture in this process.

    Args:
        setup: what it is opened with.
        headroom: what the machine can still give.
        number: of the loader in the decision log.
    """

    restarts = 0

    def __init__(self, setup: PipelineSetup, headroom: HeadroomSource, number: int) -> None:
        self._setup = setup
        self.lock = threading.RLock()
        """See ``process.child.ChildPipeline.lock``; nobody else has it here."""
        self.number = self._number = number
        self._compiled = CompiledMixture()
        self._control = Control(headroom)
        self._past: list[Pipeline] = []
        self._baseline_bytes = _held_bytes()
        self._open()

    def _open(self) -> None:
        stuck = frozenset().union(*(one.slots for one in self._past))
        self._setup = replace(self._setup, stuck=stuck)
        self._controlled = self._control.open(
            self._setup,
            self._compiled,
            told=lambda *_: True,
            restart=None,
            number=self._number,
            own_process=False,
        )
        self._pipeline = self._controlled.pipeline

    def _leave(self) -> None:
        self._setup = replace(self._setup, knobs=self.knobs)
        self._control.leave(self._controlled)
        if not self._pipeline.close(STUCK_S):
            logger.warning(
                "threads that decode have not ended %.0f s after they were told to: what they "
                "write to stays out of use until they do",
                STUCK_S,
            )
        self._past.append(self._pipeline)
        self._look_back()

    def _look_back(self) -> None:
        """Have slots back to which threads of earlier pipelines do not write any more."""
        self._past = [one for one in self._past if one.slots or one.leased_frames]
        still = frozenset().union(*(one.slots for one in self._past))
        for slot in self._setup.stuck - still:
            self._pipeline.ended(slot)
        self._setup = replace(self._setup, stuck=self._setup.stuck & still)

    def start(self) -> None:
        """Begin at ``position()``."""
        self._pipeline.start()

    def go_to(self, order: MixtureOrder) -> None:
        """Begin at ``position()`` of ``order`` with the next ``start``."""
        self._leave()
        self._setup = replace(self._setup, order=order)
        self._open()

    def activate(self) -> bool:
        """Nothing: loaders in threads do not share a child."""
        return False

    def prepare(self) -> None:
        """Fill the ring; it stops by itself where that is full."""
        self.park(False)

    def suspend(self) -> None:
        """Let go of it all, the ring's pages too, until ``start``."""
        self._leave()
        self._compiled.let_go()
        self._setup.memory.punch_all_but({*self._setup.lent(), *self._setup.stuck})
        self._open()

    def next(self, timeout_s: float) -> BatchMessage | None:
        """See ``Pipeline.next``."""
        if self._past:
            self._look_back()
        return self._pipeline.next(timeout_s)

    def release(self, slot: int) -> None:
        """See ``Pipeline.release``."""
        self._pipeline.release(slot)

    @property
    def knobs(self) -> Knobs:
        """The values in force."""
        return self._pipeline.knobs

    def retune(self, knobs: Knobs) -> None:
        """See ``Pipeline.retune``."""
        self._controlled.retune(knobs)

    def park(self, parked: bool) -> None:
        """See ``Pipeline.park``."""
        self._controlled.park(parked)

    def activity(self) -> PipelineActivity:
        """See ``Pipeline.activity``."""
        found = self._pipeline.activity()
        if not self._past:
            return found
        stuck = sum(one.leased_frames for one in self._past)
        return replace(found, cache=replace(found.cache, stuck=stuck))

    def quarantined(self) -> tuple[BadRecord, ...]:
        """See ``Pipeline.quarantined``."""
        return self._pipeline.quarantined()

    @property
    def state(self) -> str:
        """The controller's state."""
        return self._controlled.state_name

    @property
    def control(self) -> dict[str, int]:
        """Counters of the controller."""
        return self._controlled.counted()

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes of its own."""
        return ()

    def held_bytes(self) -> int:
        """Bytes that this process holds, without frames, beyond those when this was made."""
        return max(0, _held_bytes() - self._baseline_bytes)

    def close(self) -> None:
        """End all threads."""
        self._leave()
        self._compiled.let_go()


def _held_bytes() -> int:
    return loader_bytes() - private_bytes()
