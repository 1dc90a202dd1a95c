"""Contents of a sample as users write them: offsets around t, and rules at an episode's ends.

Not here: the rest of the spec (``model``), which frames follow from it (``samples.windows``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from autoloader.errors import SpecError
from autoloader.spec.block import Block, wrong

Offset = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
Dim = Annotated[int, Field(ge=0, le=9_999)]
Samples = Annotated[int, Field(ge=1, le=10**12)]


class EdgesSpec(Block):
    """Padding of a window that leaves its episode."""

    start: Literal["repeat", "zero", "drop"] = Field("repeat", description="before the first frame")
    end: Literal["repeat", "zero", "drop"] = Field("repeat", description="after the last frame")


def each_once(dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dims as they are; refuses one that is named twice."""
    for dim in dims:
        if dims.count(dim) > 1:
            raise wrong(f"dim {dim} is named twice", "name each dim of action once")
    return dims


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
        """True if anything is given in seconds."""
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


class SampleSpec(Block):
    """Contents of a sample, as offsets in (strided) frames around t."""

    frame_offsets: tuple[Offset, ...] = Field(
        (0,), min_length=1, description="frames relative to t"
    )
    state_offsets: tuple[Offset, ...] = Field(
        (0,), min_length=1, description="states relative to t"
    )
    action_start: Offset = Field(0, description="first action row relative to t")
    action_horizon: int = Field(1, ge=1, le=10_000, description="action rows")
    action_step: int = Field(1, ge=1, le=1_000_000, description="frames from one to the next")
    action_reduce: Literal["none", "sum"] = Field(
        "none", description="sum: one row, the sum over the rows that lie in the episode"
    )
    action_per: Literal["sample", "step"] = Field(
        "sample",
        description="step: a chunk for each of frame_offsets, [B, window, horizon, A]",
    )
    action_relative_to_state: tuple[Dim, ...] = Field(
        (), description="dims of action from which the same dims of the state at t are taken away"
    )
    edges: EdgesSpec = Field(default_factory=EdgesSpec, description="windows over the ends")
    goal: Literal["none", "uniform"] = Field(
        "none", description="uniform: one more frame, drawn from the rest of the episode"
    )
    per_episode: Literal["all"] | Samples = Field(
        "all", description="all valid t, or n drawn uniformly per episode and pass"
    )
    delta_timestamps: DeltaTimestamps = Field(
        default_factory=DeltaTimestamps, description="offsets in seconds instead"
    )

    @property
    def window(self) -> int:
        """Frames of a camera, the goal's left out."""
        return len(self.delta_timestamps.frames or self.frame_offsets)

    @property
    def state_rows(self) -> int:
        """Rows of the batch's ``state``."""
        return len(self.delta_timestamps.state or self.state_offsets)

    @property
    def action_rows(self) -> int:
        """Rows of the batch's ``action``: the horizon, or 1 where it is summed."""
        horizon = len(self.delta_timestamps.action or ()) or self.action_horizon
        return 1 if self.action_reduce == "sum" else horizon

    @property
    def action_offsets(self) -> tuple[int, ...]:
        """Action rows relative to t, or to the step that their chunk belongs to, before any sum."""
        rows = range(self.action_horizon)
        return tuple(self.action_start + self.action_step * row for row in rows)

    @property
    def action_steps(self) -> int:
        """Steps of the window that have a chunk of their own; 0 where the sample has one."""
        return self.window if self.action_per == "step" else 0

    @property
    def frames(self) -> int:
        """Frames of a camera in a sample (F): the offsets', then the goal's."""
        return self.window + (self.goal != "none")

    @field_validator("action_relative_to_state")
    @classmethod
    def _names_each_dim_once(cls, dims: tuple[int, ...]) -> tuple[int, ...]:
        return each_once(dims)

    @model_validator(mode="after")
    def _says_each_offset_once(self) -> SampleSpec:
        check_said_once(self, ((0,), (0,), 0, 1, 1))
        return self


class SampleOverride(Block):
    """A dataset's own ``sample``; what it leaves out comes from the mixture's."""

    frame_offsets: tuple[Offset, ...] | None = Field(None, min_length=1)
    state_offsets: tuple[Offset, ...] | None = Field(None, min_length=1)
    action_start: Offset | None = None
    action_horizon: int | None = Field(None, ge=1, le=10_000)
    action_step: int | None = Field(None, ge=1, le=1_000_000)
    action_reduce: Literal["none", "sum"] | None = None
    action_per: Literal["sample", "step"] | None = None
    action_relative_to_state: tuple[Dim, ...] | None = None
    edges: EdgesSpec | None = None
    goal: Literal["none", "uniform"] | None = None
    per_episode: Literal["all"] | Samples | None = None
    delta_timestamps: DeltaTimestamps = Field(default_factory=DeltaTimestamps)

    @field_validator("action_relative_to_state")
    @classmethod
    def _names_each_dim_once(cls, dims: tuple[int, ...] | None) -> tuple[int, ...] | None:
        return None if dims is None else each_once(dims)

    @model_validator(mode="after")
    def _says_each_offset_once(self) -> SampleOverride:
        check_said_once(self, (None,) * len(OFFSETS))
        return self


def check_said_once(sample: SampleSpec | SampleOverride, nothing: tuple[Any, ...]) -> None:
    """Refuse offsets in frames beside the same ones in seconds.

    Args:
        sample: the block as it was written.
        nothing: what each of ``OFFSETS`` is where nothing is said.
    """
    said = dict(zip(OFFSETS, nothing, strict=True))
    for name, part in OFFSETS.items():
        if getattr(sample.delta_timestamps, part) and getattr(sample, name) != said[name]:
            raise wrong(
                f"{name} beside delta_timestamps.{part}, which says the same in seconds",
                f"leave out {name}, or delta_timestamps.{part}",
            )


def merged(sample: SampleSpec, own: SampleOverride) -> SampleSpec:
    """A mixture's ``sample`` with what a dataset says over it, in frames or in seconds."""
    said = own.model_dump(exclude_none=True)
    seconds = said.pop("delta_timestamps", {})
    whole = sample.model_dump()
    before = whole.pop("delta_timestamps")
    for name, part in OFFSETS.items():
        if seconds.get(part):
            whole.pop(name)
        elif name in said:
            before[part] = None
    return SampleSpec.model_validate({**whole, **said, "delta_timestamps": {**before, **seconds}})


class StepsSpec(Block):
    """Steps that are taken away from every episode; the ops of fields run in between."""

    drop_first: int = Field(0, ge=0, le=1_000_000, description="steps taken away at the start")
    every: int = Field(
        1,
        ge=1,
        le=1_000_000,
        description="then 3 takes every third; ops see these",
    )
    drop_last: int = Field(
        0, ge=0, le=1_000_000, description="steps taken away at the end, once ops have seen them"
    )

    @property
    def takes_all(self) -> bool:
        """True if no step is taken away."""
        return (self.drop_first, self.every, self.drop_last) == (0, 1, 0)
