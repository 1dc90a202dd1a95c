"""How long to wait before a store is asked again: growing pauses with chance in them.

Theory of operation. Whoever is told to come back later must not come back together with everybody
else. So each pause is drawn evenly between nothing and a bound that doubles (full jitter; Brooker,
"Exponential Backoff and Jitter", 2015). A pause that the server asks for is kept, and the bound is
added to it. The waiting ends after ``PATIENCE_S`` without one success.

Not here: which failures may pass (``storage.faults``), the requests (``storage.store``).
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from autoloader.host.clock import Clock, SystemClock
from autoloader.storage.faults import PassingError, UnreachableError

FIRST_S = 0.25
LONGEST_S = 32.0
LONGEST_ASKED_S = 300.0
"""A longer pause than this is not waited for at once, whatever a server asks."""
PATIENCE_S = 600.0
TRIES = 5
"""So often at least is asked, however long one answer takes; no oftener where each is wrong."""

Answer = TypeVar("Answer")


def pause_s(tries: int, after_s: float | None, draw: float) -> float:
    """Seconds before the next try.

    Args:
        tries: that have failed, from 1.
        after_s: what the server asks for.
        draw: a number in [0, 1).
    """
    bound = min(LONGEST_S, FIRST_S * 2 ** min(tries, 16))
    return float(min(after_s or 0.0, LONGEST_ASKED_S) + draw * bound)


@dataclass(frozen=True)
class Patience:
    """Asks again what failed for a moment.

    Attributes:
        wait: waits so many seconds, or less where the answer is not wanted any more; whether it is
            still wanted.
        told: called with each failure that is waited for, and the pause.
        patience_s: see ``PATIENCE_S``.
        clock: tells the time.
    """

    wait: Callable[[float], bool]
    told: Callable[[PassingError, float], object] = lambda _, __: None
    patience_s: float = PATIENCE_S
    clock: Clock = SystemClock()  # noqa: RUF009 it has no state

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """The answer.

        Raises:
            UnreachableError: it has failed for longer than the patience, or is not wanted any more.
            OSError: it failed, and not for a moment.
        """
        begun, tries, wrong = self.clock.now_s(), 0, 0
        while True:
            try:
                return question()
            except PassingError as error:
                tries += 1
                wrong = wrong + 1 if error.wrong else 0
                over = self.clock.now_s() - begun > self.patience_s and tries >= TRIES
                over = over or wrong > TRIES
                # Chance keeps many clients apart; nothing secret hangs on it.
                pause = pause_s(tries, error.after_s, random.random())  # noqa: S311
                if not over:
                    self.told(error, pause)
                if over or not self.wait(pause):
                    raise UnreachableError(
                        errno.EHOSTUNREACH,
                        f"it cannot be reached: {error.strerror}, {tries} times",
                        error.filename,
                    ) from None
