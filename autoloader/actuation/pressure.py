"""Tells people that memory got short and what the loader gave up for it, and when it is back.

Theory of operation. Pressure comes in episodes: it begins with the first time that knobs shrink
because memory is short, and ends when the controller is neither in SHRINK nor in EMERGENCY. One
line says that it began, with who took the memory, another one that it is over; what else shrinks
meanwhile is told at INFO, and so is an episode soon after another one.

Not here: shrinking (``actuation.pipeline``), when pressure is over (``controller.policy``).
"""

from __future__ import annotations

import logging

from autoloader.controller.states import State
from autoloader.errors import printable
from autoloader.knobs import Knobs
from autoloader.probes.other_processes import OtherProcesses
from autoloader.telemetry.verdict import changes_words
from autoloader.units import MIB, format_bytes

logger = logging.getLogger(__name__)

_SHORT = (State.SHRINK, State.EMERGENCY)
_QUIET_S = 60.0
"""An episode that begins so soon after another one is the same trouble: it is told at INFO."""
_MUCH_BYTES = 64 * MIB
"""Who took less than this is not named: processes grow and shrink all the time."""


class Pressure:
    """Tells of one pipeline; the reflex's thread and the policy's call it in turns.

    Args:
        floor_bytes: the RAM floor.
        neighbours: who may have taken memory.
    """

    def __init__(self, floor_bytes: int, neighbours: OtherProcesses | None = None) -> None:
        self._floor_bytes = floor_bytes
        self._neighbours = neighbours or OtherProcesses()
        self._level: int | None = None
        self._over_s = float("-inf")

    def shrunk(self, at_s: float, headroom_bytes: int | None, before: Knobs, after: Knobs) -> str:
        """Knobs have become smaller because memory is short: say so.

        Args:
            at_s: of a monotonic clock.
            headroom_bytes: what the machine could give; ``None``: not known.
            before: the knobs.
            after: the knobs now.

        Returns:
            Why, in short: "headroom 1.90 GiB below the floor of
            4.66 GiB (+2.40 GiB by pid 4711 python)".
        """
        why = f"{self._where(headroom_bytes)}{self._who(at_s)}"
        level = logging.INFO
        if self._level is None:
            soon = at_s - self._over_s < _QUIET_S
            self._level = level = logging.INFO if soon else logging.WARNING
        changes = {key: (was, now) for key, (now, was) in after.changed(before).items()}
        logger.log(level, "%s: %s", why, changes_words(changes))
        return why

    def look(self, at_s: float, headroom_bytes: int | None, state: State) -> str:
        """The controller has looked: in this state it is now.

        Args:
            at_s: of a monotonic clock.
            headroom_bytes: what the machine can give.
            state: the controller's.

        Returns:
            That memory is back, where it is since this look; else "".
        """
        back = ""
        if state in _SHORT:
            return back
        if self._level is not None:
            level, self._level, self._over_s = self._level, None, at_s
            back = f"memory is back: {self._where(headroom_bytes)}"
            logger.log(level, "%s; knobs grow again where that pays", back)
        self._neighbours.look(at_s)
        return back

    def _where(self, headroom_bytes: int | None) -> str:
        if headroom_bytes is None:
            return "headroom unknown"
        above = headroom_bytes - self._floor_bytes
        where = "above" if above >= 0 else "below"
        floor = format_bytes(self._floor_bytes)
        return f"headroom {format_bytes(abs(above))} {where} the floor of {floor}"

    def _who(self, at_s: float) -> str:
        most = self._neighbours.most_grown(at_s)
        if most is None or most.grown_bytes < _MUCH_BYTES:
            return ""
        name = f" {printable(most.name)}" if most.name else ""
        return f" (+{format_bytes(most.grown_bytes)} by pid {most.pid}{name})"
