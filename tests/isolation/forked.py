"""Forks of a process that has loaders open: what is tried there, and how the fork ends.

A fork that uses a loader of its parent must get a ``UsageError``; one that leaves it alone
must end as it wanted to. Whatever it does, the parent is looked at by the parent.

Not here: the parent's rows (``loader_machine``).
"""

import atexit
import faulthandler
import gc
import json
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoloader import AutoLoader
from autoloader.errors import UsageError

HANG_S = 40
"""After so long a fork is taken for hung."""
LINGERS_S = 1.5
CHANGED = 71
"""Exit status of a fork whose held batches have changed."""


@dataclass
class Opened:
    """What a process has open when it forks.

    Attributes:
        loaders, iterations: and a running iteration of each.
        state: of theirs.
        held: batches, each with a copy of its arrays by name.
    """

    loaders: list[AutoLoader]
    iterations: list[Iterator[dict[str, Any]]]
    state: dict[str, Any]
    held: list[tuple[dict[str, Any], dict[str, np.ndarray]]]


def arrays(batch: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The parts of a batch that lie in the ring."""
    for key, part in batch.items():
        if isinstance(part, dict):
            yield from ((f"{key}.{camera}", one) for camera, one in part.items())
        elif not isinstance(part, list):
            yield key, part


def changed(held: list[tuple[dict[str, Any], dict[str, np.ndarray]]]) -> list[str]:
    """Parts of held batches that are not what they were."""
    return [
        f"{key} of a batch that is still held has changed"
        for batch, copied in held
        for key, part in arrays(batch)
        if not np.array_equal(np.asarray(part), copied[key])
    ]


USES: dict[str, Callable[[AutoLoader, Opened], object]] = {
    "iter": lambda one, _: next(iter(one)),
    "next of a live iteration": lambda _, opened: [next(it, None) for it in opened.iterations],
    "len": lambda one, _: len(one),
    "knobs": lambda one, _: one.knobs,
    "retune": lambda one, _: one.retune(decode_threads=1),
    "statistics": lambda one, _: one.statistics(),
    "state_dict": lambda one, _: one.state_dict(),
    "load_state_dict": lambda one, opened: one.load_state_dict(opened.state),
    "quarantined": lambda one, _: one.quarantined(),
    "park": lambda one, _: one.park(),
    "unpark": lambda one, _: one.park(False),
    "prepare": lambda one, _: one.prepare(),
    "suspend": lambda one, _: one.suspend(),
    "transfer": lambda one, _: one.transfer("cuda"),
    "with": lambda one, _: one.__enter__(),
}
"""Entries of a loader, each of which must know whose loader it is."""


def _close(opened: Opened) -> None:
    for loader in opened.loaders:
        loader.close()


def _linger(opened: Opened) -> None:
    time.sleep(LINGERS_S)
    if changed(opened.held):
        os._exit(CHANGED)


def _let_go(opened: Opened) -> None:
    opened.held.clear()
    opened.loaders.clear()
    opened.iterations.clear()
    gc.collect()


ENDS: dict[str, Callable[[Opened], object]] = {
    "_exit": lambda _: None,
    "close": _close,
    "let go": _let_go,
    # Not the whole of an exit: a watchdog of faulthandler, whose thread a fork lacks, blocks that.
    "exit": lambda _: atexit._run_exitfuncs(),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "linger": _linger,
}
"""How a fork ends; none of them is an error."""


@dataclass
class Fork:
    """A fork under way."""

    pid: int
    pipe: int
    end: str

    def faults(self) -> list[str]:
        """Wait for it; what it did that it must not."""
        with os.fdopen(self.pipe) as said:
            told = said.read()
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        found = [] if told.endswith("\n") else ["said nothing"]
        found += json.loads(told) if told.endswith("\n") else []
        wanted = -signal.SIGKILL if self.end == "kill" else 0
        if code == -signal.SIGALRM:
            found.append(f"{self.end}: hung for {HANG_S} s")
        elif code == CHANGED:
            found.append("a batch that it held has changed")
        elif code != wanted:
            found.append(f"{self.end}: ended with {code}")
        return found


def fork(opened: Opened, uses: list[str], end: str) -> Fork:
    """Fork; there try each of ``uses``, and end by ``end``."""
    if end == "let go":
        # What other tests left must not be collected in the fork: TensorFlow's iterators and
        # FFmpeg's decoders wait there for threads that a fork lacks, for ever.
        gc.collect()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads are running, and that is the point
        pid = os.fork()
    if pid:
        os.close(writing)
        return Fork(pid, reading, end)
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, file=2, chain=True)  # says where it hangs
        signal.alarm(HANG_S)
        found = refusals(uses, opened) + changed(opened.held)
        os.write(writing, json.dumps(found).encode() + b"\n")
        os.close(writing)
        ENDS[end](opened)
        os._exit(0)
    except SystemExit:
        raise  # through the with block, and all that runs at an exit
    except BaseException:  # noqa: BLE001 the boundary of this process
        os._exit(70)


def refusals(uses: Iterable[str], opened: Opened) -> list[str]:
    """What is wrong with how each of ``uses`` was answered; in the fork."""
    # An iteration that has refused is over, and refuses no more.
    every = [(use, loader) for use in dict.fromkeys(uses) for loader in opened.loaders]
    return [fault for use, loader in every if (fault := _fault(use, loader, opened))]


def _fault(use: str, loader: AutoLoader, opened: Opened) -> str:
    try:
        USES[use](loader, opened)
    except UsageError as error:
        if f"process {os.getppid()}" in error.what and "make an AutoLoader" in f"{error}":
            return ""
        return f"{use}: refused without a word of the process: {error}"
    except BaseException as error:  # noqa: BLE001 told to the parent
        return f"{use}: {type(error).__name__}: {error}"
    return f"{use}: not refused"
