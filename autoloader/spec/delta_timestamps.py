"""Offsets around t in seconds, as LeRobot's ``delta_timestamps``, and what they are in frames.

Not here: the other words of ``sample`` (``sample``), what a window is (``samples.windows``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from autoloader.errors import SpecError
from autoloader.spec.block import Block

Seconds = Annotated[float, Field(ge=-1e5, le=1e5, allow_inf_nan=False)]
Part = Literal["frames", "state", "action"]
OFFSETS: dict[str, Part] = {
    "frame_offsets": "frames",
    "state_offsets": "state",
    "action_start": "action",
    "action_horizon": "action",
    "action_step": "action",
}
"""What says the same in frames."""
TOLERANCE_S = 1e-4
"""How far a time may lie beside a frame, as lerobot has it."""


class DeltaTimestamps(Block):
    """Offsets in seconds around t; what is left out is in frames."""

    frames: tuple[Seconds, ...] | None = Field(
        None, min_length=1, description="frames relative to t"
    )
    state: tuple[Seconds, ...] | None = Field(
        None, min_length=1, description="states relative to t"
    )
    action: tuple[Seconds, ...] | None = Field(
        None, min_length=1, max_length=10_000,
        description="action rows relative to t, each as long after the one before",
    )  # fmt: skip

    def __bool__(self) -> bool:
        """Whether anything is said in seconds."""
        return any(getattr(self, part) is not None for part in type(self).model_fields)

    def in_frames(self, fps: float, where: str) -> dict[str, Any]:
        """Fields of ``sample`` that say the same in frames.

        Args:
            fps: (strided) frames a second.
            where: path of the dataset in the spec.

        Raises:
            SpecError: a time lies beside the frames, or action rows are not evenly apart.
        """
        found: dict[str, Any] = {}
        for part, name in (("frames", "frame_offsets"), ("state", "state_offsets")):
            times = getattr(self, part)
            if times is not None:
                found[name] = _offsets(times, fps, f"{where}.sample.delta_timestamps.{part}")
        if self.action is not None:
            field = f"{where}.sample.delta_timestamps.action"
            rows = _offsets(self.action, fps, field)
            step = rows[1] - rows[0] if len(rows) > 1 else 1
            if step < 1 or any(after - row != step for row, after in itertools.pairwise(rows)):
                raise SpecError(
                    f"{field}: {list(self.action)} are frames {list(rows)} at {fps:g} a second, "
                    "and each action row lies as far behind the one before",
                    remedy=f"write times {1 / fps:g} s apart, or a multiple of it, in order",
                    path=field,
                )
            found |= {"action_start": rows[0], "action_horizon": len(rows), "action_step": step}
        return found


def _offsets(times: Sequence[float], fps: float, field: str) -> tuple[int, ...]:
    beside = [time for time in times if abs(time * fps - round(time * fps)) / fps > TOLERANCE_S]
    if beside:
        raise SpecError(
            f"{field}: {beside} lie beside the frames, of which there are {fps:g} a second",
            remedy=f"write multiples of {1 / fps:g} s; {TOLERANCE_S:g} s beside one is borne",
            path=field,
        )
    return tuple(round(time * fps) for time in times)
