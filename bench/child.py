"""Processes that the bench starts: their environment, one that gives an answer, one that obeys.

Not here: which process (``bench.runner``, ``bench.peers``, ``bench.control``).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from autoloader.host.supervision import tunables

LONGEST_S = 600.0


class ChildFailedError(Exception):
    """A process of the bench failed; the message holds the end of what it said."""


def environment() -> dict[str, str]:
    """No device, a quiet TensorFlow, and the copies of library and bench that this process uses."""
    places = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]
    return {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        # What the loader's own processes have, for everybody: copies of frames are faster.
        "GLIBC_TUNABLES": tunables(os.environ.get("GLIBC_TUNABLES", "")),
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
    }


def answer(
    module: str,
    *words: str,
    python: str = sys.executable,
    beside: Callable[[int], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    longest_s: float = LONGEST_S,
    own: Mapping[str, str] = {},
) -> Any:
    """What a module that runs in a process of its own prints as its last line, in JSON.

    Args:
        module: run as ``python -m``.
        words: its arguments.
        python: what runs it.
        beside: called with its number; the block lasts as long as the process.
        longest_s: after which it is killed.
        own: further variables of its environment.

    Raises:
        ChildFailedError: it gave none.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        child = subprocess.Popen(
            [python, "-m", module, *words],
            stdout=subprocess.PIPE, stderr=log, text=True, env=environment() | dict(own),
        )  # fmt: skip
        try:
            with beside(child.pid):
                out, _ = child.communicate(timeout=longest_s)
        except subprocess.TimeoutExpired as error:
            raise ChildFailedError(f"no result in {longest_s:.0f} s") from error
        finally:
            child.kill()
            child.wait()
        if child.returncode != 0 or not out.strip():
            raise ChildFailedError(f"ended with {child.returncode}:\n{last_words(log, 8)}")
    return json.loads(out.strip().splitlines()[-1])


def last_words(log: IO[str], lines: int) -> str:
    """The end of what was written to a file."""
    log.seek(0)
    return "\n".join(log.read().strip().splitlines()[-lines:])


_Player = TypeVar("_Player", bound="Player")


class Player:
    """A process that obeys JSON lines on its stdin and says lines; ended by the ``with`` block.

    Args:
        module: run as ``python -m``.
        words: its arguments.
        env: its environment.
        hears: called with each line that it says, on a thread; ``None`` when it says no more.
        log: where its stderr goes.
    """

    def __init__(
        self,
        module: str,
        *words: str,
        env: dict[str, str],
        hears: Callable[[str | None], None] = lambda _: None,
        log: IO[str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env,
        )  # fmt: skip
        threading.Thread(target=self._listen, args=(hears,), daemon=True).start()

    def __enter__(self: _Player) -> _Player:
        return self

    def __exit__(self, *_: object) -> None:
        """Its stdin ends; what does not end with it is killed."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait(5.0)
        self.process.kill()
        self.process.wait()

    def say(self, command: dict[str, Any]) -> None:
        """One JSON line to a process that may be gone."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()

    def _listen(self, hears: Callable[[str | None], None]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            hears(line)
        hears(None)
