"""A clock, headroom, probes, processors and a profile that a test tells what to say."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic, TypeVar

from autoloader.controller.profile import Profile
from autoloader.host.headroom import Headroom
from autoloader.host.machine import Processors

T = TypeVar("T")


class ManualClock:
    """A clock that moves only when told to; ``sleep`` moves it."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move ``seconds`` forward.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if seconds < 0:
            raise ValueError("a monotonic clock does not go back")
        self._now_s += seconds


class FakeHeadroom:
    """Headroom that is told, for tests: set ``headroom_bytes``, or let ``take`` lower it."""

    def __init__(self, headroom_bytes: int) -> None:
        self.headroom_bytes = headroom_bytes
        self.reads = 0

    def take(self, count: int) -> None:
        """Some process took ``count`` bytes (negative: gave back)."""
        self.headroom_bytes -= count

    def read(self) -> Headroom:
        self.reads += 1
        free = max(0, self.headroom_bytes)
        return Headroom(free, "fake")


class FakeProbe(Generic[T]):
    """A probe that is told: set ``value``, or ``error`` to have it fail."""

    def __init__(self, value: T | None = None) -> None:
        self.value = value
        self.error: Exception | None = None
        self.reads = 0

    def read(self) -> T | None:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.value


class FakeProcessors:
    """Processors that are told, for tests."""

    def __init__(self, processors: Processors) -> None:
        self.processors = processors

    def read(self) -> Processors:
        return self.processors


def profile_of(text: str, name: str = "box.yaml") -> Profile:
    """A profile from a file of this name that holds ``text``."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        return Profile.from_yaml(path)
