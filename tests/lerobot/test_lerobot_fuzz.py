"""Damaged metadata of videos and Parquet files; the long run is ``fuzz_lerobot.py``."""

from __future__ import annotations

from pathlib import Path

import fuzz_lerobot
import pytest

from autoloader.index import lerobot


def test_damaged_metadata_is_left_out_or_stays_inside_its_files(tmp_path: Path) -> None:
    ended = fuzz_lerobot.run(400, seed=7, folder=tmp_path)
    assert sum(ended.values()) == 400
    for kind in (".mp4: left out", ".mp4: whole", ".parquet: left out", ".parquet: refused"):
        assert ended[kind] > 10


def test_the_trial_notices_a_range_behind_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lerobot.read_packets

    def further(path: str) -> lerobot.PacketTable:
        table = real(path)
        table.offset[-1] += 10_000
        return table

    monkeypatch.setattr(lerobot, "read_packets", further)
    with pytest.raises(AssertionError):
        fuzz_lerobot.run(5, seed=7, folder=tmp_path)
