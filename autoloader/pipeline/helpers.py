"""Helpers on other hosts as a pipeline asks them, and what two hosts must have in common.

Theory of operation. A process beside the loader's child is Ray's driver
(``integrations.ray.driver``), and the only one of the loader that imports Ray: it may end when the
cluster does, and ends nobody else. It is started when helpers are first wanted, and ended when none
are. It is asked for a batch, and told the batch's slot once there is one. It answers that the batch
lies there, or that it is lost and written nowhere. Where a slot was given and the process says
nothing for a while it is killed, and waited for, before anybody else fills the slot.

Where the process cannot reach the cluster, or dies again and again, that is said once, and the
loader goes on with the builders here.

A helper says the same of itself when it joins, and every field that differs is named. Modification
times are no part of it: a copy of the data is as good.

Not here: who fills which batch (``pipeline.pipeline``), the process's side
(``integrations.ray.driver``).
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from autoloader.decode.message import BatchMessage
from autoloader.host.machine import versions
from autoloader.index.dataset import DatasetIndex
from autoloader.pipeline import messages
from autoloader.pipeline.messages import Message, Peer, Wire
from autoloader.samples.block import Place
from autoloader.samples.resolve import ResolvedMixture
from autoloader.spec.knobs import BATCHES_OF_A_HELPER

logger = logging.getLogger(__name__)

_SILENT_S = 2.0
"""A process that has a slot to fill, and says nothing for so long, is killed."""
_LONGEST_CHANGE_S = 60.0
"""After which a change of the number of helpers counts as done, whatever the cluster gave."""
_IDLE_S = 20.0
"""Helpers that had nothing to do for so long are given back, until there is something again."""


@dataclass(frozen=True, slots=True)
class HelperRequest:
    """Request of a loader for helpers on other hosts.

    Attributes:
        address: address of the Ray cluster that they belong to.
        ram_floor_bytes: bytes of memory that must stay free on each of their hosts.
    """

    address: str
    ram_floor_bytes: int


class Answers(Protocol):
    """Who is told of what helpers do; from the thread that serves the process."""

    def done(self, number: int, batch: BatchMessage) -> None:
        """A batch is in its slot."""
        ...

    def lost(self, numbers: Sequence[int] | None = None, *, late: bool = False) -> None:
        """Nobody fills these, or any, any more; they are written nowhere."""
        ...

    def helped(self) -> None:
        """There may be more helpers, or fewer; called many times a second."""
        ...


class Helpers(Peer):
    """Asks helpers for batches.

    Args:
        start: makes what the process is told first.
        ring: descriptor of the ring's memory.
        answers: told of what comes; its lock may be held by whoever calls this.
        bad: told of records to be quarantined.

    Attributes:
        present: number of helpers that work now.
        possible: for how many the cluster has processors; 0: not known.
        compared, different: batches that were filled here too, and those that differed.
    """

    look_s = 0.05

    def __init__(
        self,
        start: Callable[[], messages.HelpersStart],
        ring: int,
        answers: Answers,
        *,
        bad: Callable[[Place, str], None],
    ) -> None:
        super().__init__(
            "the process that asks helpers",
            "autoloader.integrations.ray.driver",
            remedy="leave helpers out",
            thread="autoloader-helpers",
        )
        self._start, self._ring = start, ring
        self._answers, self._bad = answers, bad
        self._wanted = 0
        self._changed_s = self._busy_s = self._heard_s = time.monotonic()
        self._asked: set[int] = set()
        self._given: set[int] = set()
        self._gone = False
        self.present = self.possible = self.compared = self.different = 0
        self.thread.start()

    @property
    def over(self) -> bool:
        """True if no helpers are wanted, or none any more."""
        return self.closed or not self._wanted

    @property
    def room(self) -> int:
        """Batches that they may have at a time."""
        return BATCHES_OF_A_HELPER * min(self.present, self._wanted)

    @property
    def settled(self) -> bool:
        """True if there are as many as are wanted, or as the cluster gives."""
        awaited = min(self._wanted, self.possible or self._wanted)
        late = time.monotonic() - self._changed_s > _LONGEST_CHANGE_S
        return self._gone or self.present == awaited or late

    def want(self, count: int) -> None:
        """Have so many helpers from now on; 0 ends the process."""
        with self.condition:
            self._busy_s = time.monotonic()
            if count == self._wanted:
                return
            self._wanted, self._changed_s = count, self._busy_s
            if count:
                self.send(messages.HelpersWanted(0, count))
            elif self.wire is not None:
                self.wire.shut_down()
            self.condition.notify_all()

    def ask(self, number: int, span: tuple[int, int]) -> None:
        """Have a helper fill a batch."""
        self._asked.add(number)
        self.send(messages.HelperAsk(0, number, list(span)))

    def give(self, number: int, slot: int) -> None:
        """The slot of a batch that was asked for."""
        if not self._given:
            self._heard_s = time.monotonic()
        self._given.add(number)
        self.send(messages.HelperSlot(0, number, slot))

    def begin(self) -> Wire | None:
        """See ``Peer.begin``; waits until helpers are wanted."""
        with self.condition:
            self.condition.wait_for(lambda: self._wanted or self.closed)
            if self.closed:
                return None
        start = self._start()
        wire = self.spawn([f"--ring={self._ring}"], self._ring)
        wire.send(start)  # long, and read when the process has started: nobody waits for a lock
        with self.condition:
            wire.send(messages.HelpersWanted(0, self._wanted))
            self.wire = wire
            if self.over:
                wire.shut_down()
        return wire

    def take(self, message: Message) -> None:
        """See ``Peer.take``."""
        self._heard_s = time.monotonic()
        if isinstance(message, messages.BatchReady):
            self.supervisor.progress()
            self._forget([message.generation])
            self._answers.done(message.generation, BatchMessage.from_plain(message.batch))
        elif isinstance(message, messages.HelpersLost):
            self._forget(message.numbers)
            self._answers.lost(message.numbers, late=message.late)
        elif isinstance(message, messages.HelpersHere):
            self.present, self.possible = message.present, message.possible
        elif isinstance(message, messages.HelperCompared):
            self.compared += 1
            self.different += not message.same
        elif isinstance(message, messages.Bad):
            self._bad(Place(*message.place), message.reason)
        elif isinstance(message, messages.Logged):
            logging.getLogger(message.name).log(message.level, "%s", message.text)
        elif isinstance(message, messages.Failed):
            raise message.to_error()

    def look(self) -> None:
        """See ``Peer.look``."""
        now = time.monotonic()
        if self._asked:
            self._busy_s = now
        elif now - self._busy_s > _IDLE_S:
            self.want(0)
        if self._given and now - self._heard_s > _SILENT_S:
            self.kill()
        self._answers.helped()

    def gone(self) -> None:
        """See ``Peer.gone``."""
        self.present = self.possible = 0
        self._answers.lost()
        self._asked.clear()
        self._given.clear()

    def failed(self, error: BaseException) -> None:
        """This host builds all batches itself from now on."""
        self._gone = True
        if not self.closed:
            logger.warning("no more helpers: this host builds all batches itself: %s", error)

    def _forget(self, numbers: Iterable[int]) -> None:
        self._asked.difference_update(numbers)
        self._given.difference_update(numbers)


_PACKAGES = {
    "numpy": "numpy",
    "OpenCV": "opencv-python-headless",
    "simplejpeg": "simplejpeg",
    "av": "av",
}


def identity_of(
    mixture: ResolvedMixture, order: Mapping[str, Any], indexes: Sequence[DatasetIndex]
) -> dict[str, str]:
    """Field → value, of this host.

    Args:
        mixture: as it was resolved here.
        order: the mixture's order, as plain values.
        indexes: of every dataset, as they are open here.
    """
    spec = json.dumps([mixture.plain(), order], sort_keys=True)
    return {
        **packages(),
        "spec": _digest([spec.encode(), repr(mixture.layout).encode()]),
        **{f"index of {one.dataset.name}": one.digest() for one in indexes},
    }


def packages() -> dict[str, str]:
    """Field → value, of what is installed on this host."""
    installed = versions(("autoloader-rlds", *_PACKAGES.values()))
    return {
        "autoloader": installed.get("autoloader-rlds", "not installed"),
        "code": _code_digest(),
        "python": platform.python_version(),
        **{name: installed.get(one, "not installed") for name, one in _PACKAGES.items()},
    }


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Every field that differs, for people: "numpy: 2.4.6 here, 2.2.6 there"."""
    return [
        f"{name}: {ours.get(name, 'nothing')} here, {theirs.get(name, 'nothing')} there"
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    ]


@functools.cache
def _code_digest() -> str:
    """Of the source of this package: one version may be two checkouts."""
    folder = Path(__file__).parents[1]

    def sources() -> Iterator[bytes]:
        for path in sorted(folder.rglob("*.py")):
            yield str(path.relative_to(folder)).encode()
            yield path.read_bytes()

    return _digest(sources())


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
