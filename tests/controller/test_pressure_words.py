"""Pressure is told in one line each way: what is missing, who took it, and what was given up."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoloader.controller.states import State
from autoloader.host.processes import OtherProcesses
from autoloader.host.units import GIB, MIB
from autoloader.process.observer import Pressure
from autoloader.spec.knobs import Knobs

FLOOR = 5 * GIB
LARGE = Knobs.build({"ring_slots": 16, "read_ahead": 4})
SMALL = Knobs.build({"ring_slots": 4, "read_ahead": 1}, base=LARGE)
SMALLER = Knobs.build({"decode_threads": 1}, base=SMALL)


def a_host(folder: Path, **held: int) -> Path:
    """A ``/proc`` in which processes hold so many MiB."""
    for pid, mib in held.items():
        place = folder / pid.removeprefix("p")
        place.mkdir(parents=True, exist_ok=True)
        pages = (mib + 7) * MIB // 4096
        (place / "statm").write_text(f"999999 {pages} {7 * MIB // 4096} 1 0 {pages} 0\n")
        (place / "comm").write_text(f"job{place.name}\n")
    return folder


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "autoloader.process.observer"):
        yield caplog


def test_a_shrink_says_what_is_missing_who_took_it_and_what_was_given_up(
    said: pytest.LogCaptureFixture, tmp_path: Path
):
    pressure = Pressure(FLOOR, OtherProcesses(a_host(tmp_path, p7=100, p4711=500)))
    pressure.look(0.0, 6 * GIB, State.HOLD)
    a_host(tmp_path, p7=120, p4711=500 + 2458)
    pressure.shrunk(1.0, FLOOR - 1946 * MIB, LARGE, SMALL)
    (record,) = said.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "headroom 1.90 GiB below the floor of 5.00 GiB (+2.40 GiB by pid 4711 job4711): "
        "read_ahead 4→1, ring_slots 16→4"
    )


def test_an_episode_is_one_line_each_way(said: pytest.LogCaptureFixture, tmp_path: Path):
    pressure = Pressure(FLOOR, OtherProcesses(a_host(tmp_path)))
    pressure.look(0.0, 6 * GIB, State.GROW)
    pressure.shrunk(1.0, FLOOR + 100 * MIB, LARGE, SMALL)
    pressure.look(1.5, FLOOR + 100 * MIB, State.SHRINK)
    pressure.shrunk(2.0, FLOOR - 100 * MIB, SMALL, SMALLER)
    pressure.look(2.5, FLOOR - 100 * MIB, State.EMERGENCY)
    pressure.look(3.5, FLOOR + 2 * GIB, State.HOLD)
    pressure.look(4.5, FLOOR + 2 * GIB, State.GROW)
    warned = [one.getMessage() for one in said.records if one.levelno == logging.WARNING]
    assert warned == [
        "headroom 100.0 MiB above the floor of 5.00 GiB: read_ahead 4→1, ring_slots 16→4",
        "memory is back: headroom 2.00 GiB above the floor of 5.00 GiB; knobs grow again where "
        "that pays",
    ]
    told = [one.getMessage() for one in said.records]
    assert len(told) == 3
    assert "decode_threads" in told[1]
