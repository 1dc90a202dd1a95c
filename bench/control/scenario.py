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
    """One thing that happens ``at_s`` seconds after the first batch; says exactly one thing."""

    at_s: float = Field(ge=0)
    pace_s: float | None = Field(None, description="the trainer now computes so long for a batch")
    neighbour_leaves: str | None = Field(
        None, description="a neighbour takes memory until headroom is floor + this, then holds"
    )
    neighbour_keeps: str | None = Field(
        None, description="the same, but it takes what comes free, too"
    )
    neighbour_takes: int | None = Field(None, description="a neighbour takes so many bytes, holds")
    neighbour_lets_go: bool | None = None
    neighbour_burns: int | None = Field(None, description="cores that a neighbour keeps busy")
    limit: Mapping[Reader, str] | None = Field(None, description="the cgroup limit is now this")
    gpu: float | Literal["dead"] | None = Field(None, description="load that NVML tells")
    pressure: float | None = Field(None, description="per cent that PSI tells")
    readable: bool | None = Field(None, description="whether /proc/meminfo and PSI can be read")
    storage_ms: float | None = Field(None, description="what one read request takes, at least")
    stalls: bool | None = Field(None, description="one dataset's files do not answer")

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
    """One scenario file."""

    name: str
    about: str
    data: str = "demo_quarter"
    limit: str | None = Field("4GiB", description="of the memory cgroup; null: none is made")
    ram_floor: str = "1GiB"
    pace_s: float = Field(0.0, description="what the trainer computes for a batch; 0: nothing")
    knobs: Mapping[str, int | str] = Field(default_factory=dict)
    gpu: float | None = Field(None, description="load that a made-up NVML tells from the start")
    pressure: float | None = Field(None, description="per cent that a made-up PSI tells")
    own_meminfo: bool = Field(False, description="/proc/meminfo is a copy that may fail")
    slow_files: bool = Field(False, description="files lie on a file system that can be slowed")
    validate_every: int = Field(0, description="steps between two validations; 0: none")
    validate_batches: int = 10
    script: tuple[Event, ...] = ()
    after_s: float = Field(25.0, description="how long it runs on after the last event")
    window_s: float = Field(8.0, description="its end, over which waiting is judged")
    search: Search | None = Search()
    paired: bool = Field(False, description="held against the best static knobs pair by pair")
    climb_s: float = Field(20.0, description="what the controller has before the first pair")
    rival: bool = Field(False, description="tf.data AUTOTUNE goes through the same")
    jump_at_batch: int = Field(0, description="the batch from which on the data are others")
    states: tuple[str, ...] = Field((), description="states that the controller must go through")
    gives_back: tuple[str, ...] = Field((), description="knobs that must not be more at the end")
    at_minimum: bool = Field(False, description="the floor is crossed by others: minimum in 1 s")

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
