"""Samples of a dataset as users write them: offsets around t, edges, steps, and rules (``keep``).

Rules of ``keep`` restrict t only: windows may reach steps that are not kept. All rules given must
hold. They speak of the episode as a transform leaves it, where there is one.

Not here: the rest of the spec (``model``); frames that follow from offsets (``samples.windows``);
whether features exist, and what rules leave (``samples.transforms.keep``).
"""

from __future__ import annotations

import functools
import itertools
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, PlainSerializer, field_validator, model_validator
from pydantic_core import SchemaError, SchemaValidator, core_schema

from autoloader.errors import SpecError, shown
from autoloader.spec.block import Block, is_number, wrong
from autoloader.spec.fields import Expression, FieldExpression

Offset = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
Dim = Annotated[int, Field(ge=0, le=9_999)]
Samples = Annotated[int, Field(ge=1, le=10**12)]


class Finish(NamedTuple):
    """Steps between the values of a field's rows and the values that a sample holds.

    Attributes:
        relative: columns from which those of the state at t are taken away.
        zero_outside: columns that are zero in rows outside of the episode.
        summed: whether a sample's rows inside are added to one.
    """

    relative: tuple[int, ...] = ()
    zero_outside: tuple[int, ...] = ()
    summed: bool = False


PLAIN = Finish()


class EdgesSpec(Block):
    """Padding of a window that leaves its episode.

    Attributes:
        start: before the first frame: it again, zeros, or no such sample
        end: after the last frame: it again, zeros, or no such sample
    """

    start: Literal["repeat", "zero", "drop"] = "repeat"
    end: Literal["repeat", "zero", "drop"] = "repeat"


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
    """Offsets in seconds around t; what is left out is in frames.

    Attributes:
        frames: frames relative to t
        state: states relative to t
        action: action rows relative to t, each as long after the one before
    """

    frames: tuple[Seconds, ...] | None = Field(default=None, min_length=1)
    state: tuple[Seconds, ...] | None = Field(default=None, min_length=1)
    action: tuple[Seconds, ...] | None = Field(default=None, min_length=1, max_length=10_000)

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
                    "which are not evenly spaced",
                    remedy=f"write times {1 / fps:g} s apart, or a multiple of it, in order",
                )
            found |= {"action_start": rows[0], "action_horizon": len(rows), "action_step": step}
        return found


def _offsets(times: Sequence[float], fps: float, field: str) -> tuple[int, ...]:
    beside = [time for time in times if abs(time * fps - round(time * fps)) / fps > TOLERANCE_S]
    if beside:
        raise SpecError(
            f"{field}: no frame lies at {beside} s: at {fps:g} frames a second they are "
            f"{1 / fps:g} s apart",
            remedy=f"write multiples of {1 / fps:g} s, within {TOLERANCE_S:g} s",
        )
    return tuple(round(time * fps) for time in times)


class SampleSpec(Block):
    """Contents of a sample, as offsets in (strided) frames around t.

    Attributes:
        frame_offsets: frames relative to t
        state_offsets: states relative to t
        action_start: first action row relative to t
        action_horizon: action rows
        action_step: frames from one to the next
        action_reduce: sum: one row, the sum over the rows that lie in the episode
        action_per: step: a chunk for each of frame_offsets, [B, window, horizon, A]
        action_relative_to_state: dims of action from which the same dims of the state at t are
            taken away
        action_zero_outside: dims of action that are zero in rows outside of the episode
        edges: windows over the ends
        goal: uniform: one more frame, drawn from the rest of the episode
        per_episode: all valid t, or n drawn uniformly per episode and pass
        delta_timestamps: offsets in seconds instead
    """

    frame_offsets: tuple[Offset, ...] = Field(default=(0,), min_length=1)
    state_offsets: tuple[Offset, ...] = Field(default=(0,), min_length=1)
    action_start: Offset = 0
    action_horizon: int = Field(default=1, ge=1, le=10_000)
    action_step: int = Field(default=1, ge=1, le=1_000_000)
    action_reduce: Literal["none", "sum"] = "none"
    action_per: Literal["sample", "step"] = "sample"
    action_relative_to_state: tuple[Dim, ...] = ()
    action_zero_outside: tuple[Dim, ...] = ()
    edges: EdgesSpec = Field(default_factory=EdgesSpec)
    goal: Literal["none", "uniform"] = "none"
    per_episode: Literal["all"] | Samples = "all"
    delta_timestamps: DeltaTimestamps = Field(default_factory=DeltaTimestamps)

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

    def finish(self, field: str) -> Finish:
        """Finish of the rows of "action" or "state"."""
        if field != "action":
            return PLAIN
        summed = self.action_reduce == "sum"
        return Finish(self.action_relative_to_state, self.action_zero_outside, summed)

    @property
    def frames(self) -> int:
        """Frames of a camera in a sample (F): the offsets', then the goal's."""
        return self.window + (self.goal != "none")

    @property
    def decodes(self) -> int:
        """Different frames of a camera in a sample, the goal's among them."""
        return len(set(self.frame_offsets)) + (self.goal != "none")

    @field_validator("action_relative_to_state", "action_zero_outside")
    @classmethod
    def _names_each_dim_once(cls, dims: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(dims)) < len(dims):
            raise wrong(f"{list(dims)} lists a column twice", "list each column of action once")
        return dims

    @model_validator(mode="after")
    def _says_each_offset_once(self) -> SampleSpec:
        for name, part in OFFSETS.items():
            default = type(self).model_fields[name].default
            if getattr(self.delta_timestamps, part) and getattr(self, name) != default:
                raise wrong(
                    f"{name} and delta_timestamps.{part} both say which steps a sample has",
                    f"leave out {name}, or delta_timestamps.{part}",
                )
        return self


def merged(sample: SampleSpec, own: SampleSpec) -> SampleSpec:
    """A mixture's ``sample`` with the fields that a dataset's own one sets."""
    said = own.model_dump(exclude_unset=True)
    seconds = {part: times for part, times in said.pop("delta_timestamps", {}).items() if times}
    whole = sample.model_dump()
    before = whole.pop("delta_timestamps")
    for name, part in OFFSETS.items():
        if part in seconds:
            whole.pop(name)
        elif name in said:
            before[part] = None
    return SampleSpec.model_validate({**whole, **said, "delta_timestamps": {**before, **seconds}})


OwnSample = Annotated[
    SampleSpec, PlainSerializer(lambda own: own.model_dump(exclude_unset=True), return_type=dict)
]
"""A dataset's own ``sample``: the fields that are set go over the mixture's."""


class StepsSpec(Block):
    """Steps that are taken away from every episode; the ops of fields run in between.

    Attributes:
        drop_first: steps taken away at the start
        every: then 3 takes every third; ops see these
        drop_last: steps taken away at the end, once ops have seen them
    """

    drop_first: int = Field(default=0, ge=0, le=1_000_000)
    every: int = Field(default=1, ge=1, le=1_000_000)
    drop_last: int = Field(default=0, ge=0, le=1_000_000)

    @property
    def takes_all(self) -> bool:
        """True if no step is taken away."""
        return (self.drop_first, self.every, self.drop_last) == (0, 1, 0)


@functools.cache
def matcher(pattern: str) -> Callable[[str], bool]:
    """Test for ``pattern`` in a text, in time that grows with the text's length alone.

    The engine is Rust's ``regex``, which pydantic brings: it never backtracks, so it knows no
    look-around and no backreferences.

    Raises:
        ValueError: ``pattern`` is no regular expression, or has look-around or backreferences;
            says why.
    """
    try:
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True)
        return SchemaValidator(schema).isinstance_python
    except SchemaError as error:
        last = str(error).strip().splitlines()[-1].strip()
        raise ValueError(last.removeprefix("error: ")) from error


def key_parts(key: str) -> tuple[tuple[str, str | None], ...]:
    """(text, the feature behind it or ``None``) of a formatted key, in order.

    Raises:
        ValueError: the key is no format of plain ``{feature}`` fields; says why.
    """
    parts = []
    for text, feature, spec, conversion in string.Formatter().parse(key):
        if feature is not None and (not feature.strip("/ ") or spec or conversion):
            raise ValueError("braces hold the path of a feature, and no format such as ':5'")
        parts.append((text, None if feature is None else feature.strip("/ ")))
    if all(feature is None for _, feature in parts):
        raise ValueError("it would be the same for every episode")
    return tuple(parts)


class RangesSpec(Block):
    """Ranges of steps from a JSON file: a mapping of keys to lists of [start, end).

    Attributes:
        file: JSON: key → [[start, end), …] in steps (before stride, after transform)
        key: an episode's key in it, from {features} of the episode
    """

    file: str
    key: str

    @field_validator("key")
    @classmethod
    def _names_a_feature(cls, key: str) -> str:
        try:
            key_parts(key)
        except ValueError as error:
            remedy = 'put a feature alone in braces, such as "{episode_metadata/file_path}"'
            raise wrong(f"{shown(key)} is not a key: {error}", remedy) from error
        return key


class SampleWeightSpec(Block):
    """Weight of each step, from a file.

    Attributes:
        file: Parquet or npz: columns episode, step (or LeRobot's names) and weights
        key: column of the weights; progress_… is LeRobot's RA-BC
        use: batch: given as `sample_weight`; draw: samples come in these shares, by the largest
            remainders over a pass, and never where it is 0 (indexed reader)
    """

    file: str = Field(min_length=1)
    key: str = Field(min_length=1)
    use: Literal["batch", "draw"] = "batch"


class MovingSpec(Block):
    """Only steps where a number is further from zero than a bound.

    Attributes:
        path: columns of one feature, before the stride
        above: one bound, or one for each column; a step moves where |x| of any is above its
    """

    path: Expression
    above: float | tuple[float, ...]

    @field_validator("path")
    @classmethod
    def _is_one_feature(cls, path: FieldExpression) -> FieldExpression:
        if len(path.terms) > 1 or path.terms[0].ops:
            raise wrong("it takes columns of one feature", "give one feature, such as action[:6]")
        return path

    @field_validator("above")
    @classmethod
    def _bounds(cls, above: float | tuple[float, ...]) -> float | tuple[float, ...]:
        for bound in above if isinstance(above, tuple) else (above,):
            if not is_number(bound) or bound < 0:
                raise wrong(f"a bound of {bound} is not allowed", "give numbers of at least 0")
        return above


class KeepSpec(Block):
    """Which t a dataset keeps; windows may leave what is kept.

    Attributes:
        language: required: only steps whose language is not blank; anywhere: only episodes with
            such a step
        match: text feature → regular expression found in it
        ranges: only steps in ranges listed in a file
        flags: booleans of the episode or of a step that must be true
        moving: only steps that move
    """

    language: Literal["required", "anywhere"] | None = None
    match: Mapping[Annotated[str, Field(min_length=1)], str] = Field(default_factory=dict)
    ranges: RangesSpec | None = None
    flags: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    moving: MovingSpec | None = None

    @property
    def looks_at_texts(self) -> bool:
        """True if there are rules besides ``moving``, which a pass over each episode applies."""
        return bool(self.language or self.match or self.ranges or self.flags)

    @property
    def of_episodes(self) -> KeepSpec | None:
        """The rules that say which recordings are meant (``flags``, ``match``), if there are any.

        So do Octo's ``filter_functions``; the other rules choose among what was recorded.
        """
        if not self.match and not self.flags:
            return None
        return KeepSpec(match=self.match, flags=self.flags)

    @field_validator("match")
    @classmethod
    def _are_regular_expressions(cls, match: Mapping[str, str]) -> Mapping[str, str]:
        for path, pattern in match.items():
            try:
                matcher(pattern)
            except ValueError as error:
                what = f"is not a regular expression: {error}"
                remedy = (
                    "fix its syntax, and quote it in YAML with single quotes; look-around and "
                    "backreferences are not supported"
                )
                if "size limit" in what:
                    what, remedy = "is too large when compiled (10 MiB)", "lower its repeat counts"
                raise wrong(f"{shown(pattern)} of {shown(path)} {what}", remedy) from error
        return match

    @model_validator(mode="after")
    def _has_a_rule(self) -> KeepSpec:
        if not self.looks_at_texts and self.moving is None:
            raise wrong(
                "keep has no rule",
                "give it at least one of the fields language (language: required), match, ranges, "
                "flags and moving; or remove keep",
            )
        return self
