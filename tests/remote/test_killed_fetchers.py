"""Processes that fetch a shard are killed at random moments; more in ``bench.remote.kills``."""

from __future__ import annotations

from pathlib import Path

from bench.remote.kills import kill_fetchers


def test_whoever_is_killed_leaves_no_wrong_byte_and_nothing_is_fetched_twice(
    tmp_path: Path,
) -> None:
    found = kill_fetchers(
        tmp_path, kills=3, processes=3, nbytes=3 * 2**20 + 777, seed=1, longest_s=0.5
    )
    assert found.good, found
    assert found.wholes
