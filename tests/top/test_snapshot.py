"""A moment of a run crosses processes and versions as JSON, and loses nothing on the way."""

import json

import pytest
from moments import a_moment

from autoloader.errors import UsageError
from autoloader.telemetry.statistics import Statistics


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "7", json.dumps(a_moment().as_dict())[:-9], '{"run": "a", "moves": 3}']
)
def test_what_is_no_snapshot_is_refused_in_words(text: str):
    with pytest.raises(UsageError, match=r"has no run, the name|holds no statistics of a run"):
        Statistics.from_json(text)


def test_a_share_of_the_bound_and_the_room_above_the_floor_follow_from_what_was_measured():
    moment = a_moment()
    assert moment.bound_ratio == 0.25
    assert moment.above_floor_bytes == -2 * 2**30
    assert a_moment(bound_per_s=None).bound_ratio is None
    assert a_moment(headroom_bytes=None).above_floor_bytes is None
