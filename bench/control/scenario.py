"""What a control scenario may say: what the loader begins with, and what happens to it when.

Not here: carrying it out (``bench.control.runner``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ByteSize, Field, TypeAdapter, model_validator

from bench.scenario import Strict, read_folder

FOLDER = Path(__file__).parents[1] / "scenarios" / "control"

Reader = Literal["stream", "indexed"]
READERS: tuple[Reader, ...] = ("stream", "indexed")

_SIZE = TypeAdapter(ByteSize)


class Event(Strict):
    """One thing that happens ``at_s`` seconds after the first batch; says exactly one thing.

    Attributes:
        pace_s: the trainer now computes so long for a batch
        neighbour_leaves: a neighbour takes memory until headroom is floor + this, then holds
        neighbour_keeps: the same, but it takes what comes free, too
        neighbour_takes: a neighbour takes so many bytes, holds
        neighbour_burns: cores that a neighbour keeps busy
        limit: the cgroup limit is now this
        gpu: load that NVML tells
        pressure: per cent that PSI tells
        readable: whether /proc/meminfo and PSI can be read
        storage_ms: what one read request takes, at least
        stalls: one dataset's files do not answer
    """

    at_s: float = Field(ge=0)
    pace_s: float | None = None
    neighbour_leaves: str | None = None
    neighbour_keeps: str | None = None
    neighbour_takes: int | None = None
    neighbour_lets_go: bool | None = None
    neighbour_burns: int | None = None
    limit: Mapping[Reader, str] | None = None
    gpu: float | Literal["dead"] | None = None
    pressure: float | None = None
    readable: bool | None = None
    storage_ms: float | None = None
    stalls: bool | None = None

    @model_validator(mode="after")
    def _one_thing(self) -> Event:
        if len(self.what) != 1:
            raise ValueError(f"an event says one thing, this one {sorted(self.what)}")
        return self

    @property
    def what(self) -> dict[str, Any]:
        """The thing it says."""
        plain = self.model_dump(exclude_none=True)
        del plain["at_s"]
        return plain


class Search(Strict):
    """The static settings that a scenario is held against."""

    settle_s: float = 1.5
    window_s: float = 2.5


class Scenario(Strict):
    """One scenario file.

    Attributes:
        limit: of the memory cgroup; null: none is made
        pace_s: what the trainer computes for a batch; 0: nothing
        gpu: load that a made-up NVML tells from the start
        pressure: per cent that a made-up PSI tells
        own_meminfo: /proc/meminfo is a copy that may fail
        slow_files: files lie on a file system that can be slowed
        validate_every: steps between two validations; 0: none
        after_s: how long it runs on after the last event
        window_s: its end, over which waiting is judged
        paired: held against the best static knobs pair by pair
        climb_s: what the controller has before the first pair
        rival: tf.data AUTOTUNE goes through the same
        jump_at_batch: the batch from which on the data are others
        states: states that the controller must go through
        gives_back: knobs that must not be more at the end
        at_minimum: the floor is crossed by others: minimum in 1 s
    """

    name: str
    about: str
    data: str = "demo_quarter"
    limit: str | None = "4GiB"
    ram_floor: str = "1GiB"
    pace_s: float = 0.0
    knobs: Mapping[str, int | str] = Field(default_factory=dict)
    gpu: float | None = None
    pressure: float | None = None
    own_meminfo: bool = False
    slow_files: bool = False
    validate_every: int = 0
    validate_batches: int = 10
    script: tuple[Event, ...] = ()
    after_s: float = 25.0
    window_s: float = 8.0
    search: Search | None = Search()
    paired: bool = False
    climb_s: float = 20.0
    rival: bool = False
    jump_at_batch: int = 0
    states: tuple[str, ...] = ()
    gives_back: tuple[str, ...] = ()
    at_minimum: bool = False

    @property
    def limit_bytes(self) -> int | None:
        """Of the cgroup."""
        return None if self.limit is None else size(self.limit)

    @property
    def floor_bytes(self) -> int:
        """The RAM floor."""
        return size(self.ram_floor)

    def knobs_of(self, reader: Reader) -> dict[str, int | str]:
        """The knobs that a reader heeds: a stream holds no frames."""
        left = () if reader == "indexed" else ("cache_bytes",)
        return {name: value for name, value in self.knobs.items() if name not in left}

    @property
    def disturbed_s(self) -> float:
        """When the last thing happens."""
        return max((event.at_s for event in self.script), default=0.0)

    @property
    def length_s(self) -> float:
        """Of a run, from the first batch on."""
        return self.disturbed_s + self.after_s

    def lasting(self) -> dict[str, Any]:
        """What is left of the script at its end: the conditions that static knobs are held in."""
        left: dict[str, Any] = {"pace_s": self.pace_s}
        for event in sorted(self.script, key=lambda one: one.at_s):
            left.update(event.what)
        if left.pop("neighbour_lets_go", None):
            for key in ("neighbour_leaves", "neighbour_keeps", "neighbour_takes"):
                left.pop(key, None)
        for key in ("gpu", "pressure", "readable"):
            left.pop(key, None)
        return {
            key: value for key, value in left.items() if value is not None and value is not False
        }


def size(text: str) -> int:
    """Bytes of "200MiB" or "-100MiB"."""
    sign = -1 if text.startswith("-") else 1
    return sign * int(_SIZE.validate_python(text.lstrip("-")))


def load_scenarios() -> dict[str, Scenario]:
    """Every scenario file, by name, in the order of their file names."""
    return read_folder(FOLDER, Scenario)
