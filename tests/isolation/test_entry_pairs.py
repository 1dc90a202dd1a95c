"""Entries and loaders that differ in one field never show each other's rows, whatever is cached."""

from pathlib import Path

import pytest
from entry_pairs import OAK, Pair, Pairs, spec_of, write_oak


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pairs:
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path / "none"))  # and set back at the end
    return Pairs(tmp_path)


def test_pairs_that_differ_in_one_field_hold_the_rows_of_a_fresh_process(
    pairs: Pairs, tmp_path: Path
):
    turned = {"path": "observation/wrist", "ops": ["flip_channels"]}
    one = {"name": "one", "path": str(write_oak(tmp_path / "data")), **OAK}
    two = {**one, "name": "two", "images": {**OAK["images"], "wrist": turned}}
    knobs = {"cache_bytes": 2**26, "decode_threads": 2, "decode_processes": 2}
    pairs.check(Pair("images.wrist", [spec_of([one, two], reader="indexed")], [knobs]))
    large = spec_of([one], reader="indexed")
    small = {**large, "cameras": {**large["cameras"], "primary": {"size": [18, 12]}}}
    pairs.check(Pair("cameras.primary.size", [large, small], [knobs, knobs]))
    assert pairs.seen.wrong == 0, pairs.seen.faults
    assert pairs.seen.rows > 200
    assert pairs.seen.hits > 200
    # Whether frames come from the disk hangs on what a decode takes: ``make hunt`` counts them.
