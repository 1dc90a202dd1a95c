"""Says what takes long while it goes on: never more than five seconds without a word.

Theory of operation. Whoever does something that may take long says what with ``doing``, as often as
it likes: that only sets a text. While a ``told`` block lasts, a thread looks at that text every
five seconds and says it; a block that ends sooner says nothing. Of a block within another one only
the name is said, by the thread of the outer one. What waits in a loop of its own calls
``Patience.look`` instead.

Words go to the logger of this module at INFO. If a process has set up no logging, as in a notebook
or a plain script, they go to its stderr at once. ``AUTOLOADER_PROGRESS=off`` silences them.

Not here: what is said of a batch that does not come (``process.delivery``), bars of commands
(``cli``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autoloader.host.threads import LoaderThread
from autoloader.host.units import format_seconds

logger = logging.getLogger(__name__)

VARIABLE = "AUTOLOADER_PROGRESS"
"""Environment variable: "off" for no word about what takes long."""
_SAY_S = 4.5
"""Seconds between two words: a word takes a moment, and five seconds are the most."""
_now = ""
_blocks: list[str] = []


def doing(what: str) -> None:
    """This process does ``what`` now, such as "reading the metadata of bridge (3 of 29)"."""
    global _now
    _now = what


def current() -> str:
    """Present work of this process, as it said last; "" if it has said none."""
    return _now


def shard_words(path: str) -> str:
    """A shard file in few words: "shard 3/1024" where its name says so, else its name."""
    name = path.rpartition("/")[2]
    found = re.search(r"(\d+)-of-(\d+)", name)
    return f"shard {int(found[1])}/{int(found[2])}" if found else name


def say(text: str) -> None:
    """Say a word of progress; to stderr, where nobody shows records of this library."""
    if os.environ.get(VARIABLE, "").lower() == "off":
        return
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    logger.info("%s", text)
    if not logger.hasHandlers():
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
            sys.stderr.write(f"autoloader: {text}\n")
            sys.stderr.flush()


@contextmanager
def told(what: str) -> Iterator[None]:
    """A block, or a function, that may take long: every five seconds its work and time are said.

    Args:
        what: name of the whole work, such as "starting the loader".
    """
    done, began_s = threading.Event(), time.monotonic()
    doing("")

    def run() -> None:
        while not done.wait(_SAY_S):
            inmost, now = (_blocks or [what])[-1], f": {_now}" if _now else ""
            say(f"{inmost}, {format_seconds(time.monotonic() - began_s)} so far{now}")

    thread = None
    if not _blocks:
        thread = LoaderThread(target=run, name="autoloader-progress")
        thread.start()
    _blocks.append(what)
    try:
        yield
    finally:
        _blocks.remove(what)
        doing("")
        if thread is not None:
            done.set()
            thread.join()


class Patience:
    """For who waits in a loop of its own: says every five seconds what for."""

    _next_s = 0.0

    def look(self, since_s: float, words: Callable[[], str]) -> None:
        """Say what the caller still waits for, now and then.

        Args:
            since_s: begin of the wait, by the monotonic clock.
            words: gives the reason for the wait; called where something is to be said.
        """
        now_s = time.monotonic()
        if now_s >= max(self._next_s, since_s + _SAY_S):
            self._next_s = now_s + _SAY_S
            say(f"{words()}, {format_seconds(now_s - since_s)} so far")
