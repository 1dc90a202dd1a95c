"""The trainings of ``examples/`` are short, and go on exactly, by one process and by two."""

from pathlib import Path

import pytest
from trained_examples import EXAMPLES, check


@pytest.mark.parametrize("example", ["train_bc.py", "train_lightning.py"])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(
    example: str, tmp_path: Path, warm_python: Path
):
    check(example, tmp_path, python=warm_python)


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_enough_to_read(script: Path):
    assert len(script.read_text().splitlines()) <= 60
