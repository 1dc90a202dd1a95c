"""What the consumer's waits and steps are turned into."""

from __future__ import annotations

import pytest

from autoloader.telemetry.batch_times import WINDOW_BATCHES, ConsumerMeter


def test_nothing_is_measured_before_there_is_something() -> None:
    meter = ConsumerMeter()
    assert (meter.samples_per_s, meter.wait_ratio, meter.latency_s()) == (None, None, None)
    meter.note(0.0, 2.0, 8)
    assert (meter.samples_per_s, meter.wait_ratio) == (None, None)
    assert meter.latency_s() == pytest.approx({"p50": 2, "p90": 2, "p99": 2})


def test_rate_and_wait_ratio_are_those_of_the_steps() -> None:
    meter = ConsumerMeter()
    for step in range(11):
        now = 10.0 * step
        meter.note(now - 2.5, now, 16)
    assert meter.samples_per_s == pytest.approx(1.6)
    assert meter.wait_ratio == pytest.approx(0.25)
    assert (meter.batches, meter.samples) == (11, 176)


def test_only_the_last_batches_count() -> None:
    meter = ConsumerMeter()
    for step in range(3 * WINDOW_BATCHES):
        now = float(step if step < 2 * WINDOW_BATCHES else 2 * step)
        meter.note(now - (0.5 if step < 2 * WINDOW_BATCHES else 1.0), now, 1)
    latency = meter.latency_s()
    assert latency is not None
    assert latency["p50"] == pytest.approx(1.0)
    assert meter.samples == 3 * WINDOW_BATCHES


def test_a_pause_counts_neither_as_a_step_nor_as_waiting() -> None:
    meter = ConsumerMeter()
    for now in (0.0, 1.0, 2.0):
        meter.note(now - 0.5, now, 4)
    meter.pause()
    meter.note(940.0, 1000.0, 4)  # cold again
    meter.note(1000.5, 1001.0, 4)
    assert meter.samples_per_s == pytest.approx(4.0)
    assert meter.wait_ratio == pytest.approx(0.5)


def test_the_first_wait_is_no_part_of_the_ratio() -> None:
    meter = ConsumerMeter()
    meter.note(0.0, 60.0, 4)  # a cold start
    meter.note(60.9, 61.0, 4)
    assert meter.wait_ratio == pytest.approx(0.1)
