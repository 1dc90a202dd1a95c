"""How the bench counts shares."""

import pytest

from bench.shares import share_errors


def test_a_perfect_alternation_has_no_error():
    found = share_errors([0, 1] * 50, [0.5, 0.5], blocks=20)
    assert found == {"running": pytest.approx(2.381, abs=0.001), "whole": 0.0, "window": 0.0}


def test_a_dataset_that_comes_too_often_is_off_by_its_surplus():
    found = share_errors([0, 0, 0, 1] * 25, [0.5, 0.5], blocks=40)
    assert found["whole"] == pytest.approx(25.0)


def test_a_late_start_that_is_repaid_shows_while_it_lasts_only():
    order = [0] * 10 + [1] * 10 + [0, 1] * 40
    found = share_errors(order, [0.5, 0.5], blocks=10)
    assert found["running"] == pytest.approx(50.0)
    assert found["whole"] == pytest.approx(0.0)
    assert found["window"] == pytest.approx(50.0)


def test_blocks_of_several_samples_make_longer_stretches():
    order = [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4
    assert share_errors(order, [0.5, 0.5], blocks=2, block_length=4)["window"] == 0.0


def test_too_few_samples_for_one_stretch_are_refused():
    with pytest.raises(ValueError, match="fewer"):
        share_errors([0, 1], [0.5, 0.5], blocks=3)
