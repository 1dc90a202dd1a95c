"""What the consumer's waits and steps are turned into."""

import pytest

from autoloader.telemetry.statistics import ConsumerMeter


def test_rate_and_wait_ratio_are_those_of_the_steps():
    meter = ConsumerMeter()
    for step in range(11):
        now = 10.0 * step
        meter.note(now - 2.5, now, 16)
    assert meter.samples_per_s == pytest.approx(1.6)
    assert meter.wait_ratio == pytest.approx(0.25)
    assert (meter.batches, meter.samples) == (11, 176)


def test_a_pause_counts_neither_as_a_step_nor_as_waiting():
    meter = ConsumerMeter()
    for now in (0.0, 1.0, 2.0):
        meter.note(now - 0.5, now, 4)
    meter.pause()
    meter.note(940.0, 1000.0, 4)  # cold again
    meter.note(1000.5, 1001.0, 4)
    assert meter.samples_per_s == pytest.approx(4.0)
    assert meter.wait_ratio == pytest.approx(0.5)
