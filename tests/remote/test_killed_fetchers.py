"""Processes that fetch a shard are killed, and cut off, at random moments.

More of both in ``bench.remote.kills`` and ``bench.remote.outage``.
"""

from pathlib import Path

import pytest

from bench.remote.kills import kill_fetchers
from bench.remote.outage import is_good, outage, why_not


def test_whoever_is_killed_leaves_no_wrong_byte_and_nothing_is_fetched_twice(tmp_path: Path):
    found = kill_fetchers(
        tmp_path, kills=3, processes=3, nbytes=3 * 2**20 + 777, seed=1, longest_s=0.5
    )
    assert found.good, found
    assert found.wholes


def test_while_a_servers_name_cannot_be_resolved_it_is_waited_for():
    if (why := why_not()) is not None:
        pytest.skip(why)
    found = outage(1.0, 3 * 2**20)
    assert is_good(found), found
