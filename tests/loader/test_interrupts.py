"""Ctrl-C in the midst of an iteration, as a notebook sends it: the loader goes on afterwards."""

from __future__ import annotations

import collections
import random
import signal
import time
from collections.abc import Iterator
from typing import Literal

import pytest
from rlds_files import write_pair
from streams import spec_of

from autoloader import AutoLoader, delivery


class Striker:
    """Sends SIGINT once, a random moment after it was armed, wherever the main thread is then."""

    def __init__(self) -> None:
        self._random = random.Random(2)
        self.armed = False

    def arm(self) -> None:
        self.armed = True
        signal.setitimer(signal.ITIMER_REAL, self._random.uniform(1e-5, 1e-3))

    def strike(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def striker() -> Iterator[Striker]:
    """One that SIGALRM sets off."""
    found = Striker()
    before = signal.signal(signal.SIGALRM, found.strike)
    yield found
    found.armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_after_300_interrupts_at_any_moment_the_loader_goes_on(
    isolation: Literal["process", "thread"],
    striker: Striker,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "_SHORT_STEP_S", 0.0)  # the next batch is made beside
    pair = write_pair(tmp_path_factory.mktemp("pair"), a=[[3, 5, 4]], b=[[7], [5]])
    spec = spec_of(*pair, mixing={"epoch": "forever"})
    seen: collections.Counter[tuple[int, ...]] = collections.Counter()
    interrupted = 0
    with AutoLoader(
        spec,
        isolation=isolation,
        ram_floor="64MiB",
        knobs={"ring_slots": 4},
        output="numpy",
        controller=False,
    ) as loader:
        seen.update(map(tuple, next(iter(loader))["provenance"].tolist()))
        while interrupted < 300:
            batch = None
            try:
                striker.arm()
                for batch in loader:  # noqa: B007 Python does not raise between it and its store
                    break
                striker.armed = False
            except KeyboardInterrupt:
                interrupted += 1
            if batch is not None:
                seen.update(map(tuple, batch["provenance"].tolist()))
            del batch
        began = time.monotonic()
        for _, batch in zip(range(20), loader, strict=False):
            seen.update(map(tuple, batch["provenance"].tolist()))
        assert time.monotonic() - began < 60
        assert set(seen.values()) == {1}
        assert loader.statistics().restarts == 0
        assert sum(seen.values()) == loader.state_dict()["position"]
