"""``examples/train_lightning.py`` trains and goes on exactly, by one process and by two."""

from __future__ import annotations

from pathlib import Path

from trained_examples import check


def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    check("train_lightning.py", tmp_path)
