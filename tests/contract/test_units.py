"""Sizes and durations: what is read, what is shown, what is refused."""

import pytest
from doubles import ManualClock
from hypothesis import given
from hypothesis import strategies as st

from autoloader.errors import UsageError
from autoloader.host.clock import Clock
from autoloader.host.units import GIB, MIB, format_bytes, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [("5GB", 5_000_000_000), ("5GiB", 5 * GIB), ("512 MiB", 512 * MIB), ("0", 0), (7, 7),
     ("1.5kB", 1500), ("2KiB", 2048)],
)  # fmt: skip
def test_sizes_are_read_in_decimal_and_binary_units(text: str | int, count: int):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "five", "5 GBs of memory", "-5GB", "GB", -1, -(2**40)])
def test_what_is_no_size_is_refused_with_its_name(text: str | int):
    with pytest.raises(UsageError, match="ram_floor"):
        parse_bytes(text, name="ram_floor")


@given(st.integers(0, 2**50))
def test_sizes_are_shown_in_binary_units_rounded_in_the_last_digit(count: int):
    number, unit = format_bytes(count).split()
    factor, rounding = {"GiB": (GIB, 0.0051), "MiB": (MIB, 0.051), "KiB": (1024, 0.051)}[unit]
    assert abs(float(number) - count / factor) <= rounding
    assert float(number) < 1024 or unit == "GiB"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("2min", 120), ("1h", 3600), ("250ms", 0.25), ("0ms", 0), ("3", 3),
     (".5s", 0.5), (2.5, 2.5)],
)  # fmt: skip
def test_durations_are_read_with_their_unit(text: str | float, seconds: float):
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "-3s", "3 weeks", "nan", "inf", "1e3"])
def test_what_is_no_duration_is_refused_with_its_name(text: str):
    with pytest.raises(UsageError, match="budget"):
        parse_seconds(text, name="budget")


def test_a_manual_clock_moves_only_when_told():
    clock = ManualClock(5)
    assert clock.now_s() == clock.now_s() == 5
    clock.sleep(2)
    clock.advance(0.5)
    assert clock.now_s() == 7.5
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)


def test_the_machines_clock_never_goes_back():
    clock = Clock()
    times = [clock.now_s() for _ in range(100)]
    clock.sleep(0)
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.01, "1 s"), (99.4, "99 s"), (150, "2 min"), (5999, "100 min"), (7200, "2.0 h")],
)
def test_durations_are_shown_in_one_unit(seconds: float, text: str):
    assert format_seconds(seconds) == text
