"""Whatever befalls a loader, every row is the one it says it is, and every pass is whole."""

import copy
from typing import Any

import numpy as np
import pytest
from coded_rows import CodedRows, coded_spec, write_coded
from loader_machine import Tally
from machines import SORTS, Sort, run_machines
from streams import opened

RUNS = 4
ROWS = {"indexed": 300, "stream": 150}
"""Of each run, by its reader; ``make hunt`` compares millions."""
STEPS = 5


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> CodedRows:
    return CodedRows(write_coded(tmp_path_factory.mktemp("coded")))


@pytest.mark.parametrize(
    ("number", "sort"),
    [(number, SORTS[number % len(SORTS)]) for number in range(RUNS)],
    ids=lambda part: part if isinstance(part, int) else part.reader,
)
def test_any_sequence_of_events_gives_the_rows_on_disk_each_once_a_pass(
    rows: CodedRows, number: int, sort: Sort
):
    tally = Tally()
    wanted = ROWS[sort.reader]
    first_seed = number * 1000
    for _ in run_machines(rows, wanted, tally, first_seed=first_seed, sorts=[sort], steps=STEPS):
        pass
    assert tally.rows >= wanted
    assert (tally.wrong, tally.missing, tally.twice) == (0, 0, 0)


@pytest.fixture(scope="module")
def whole(rows: CodedRows) -> dict[str, Any]:
    """A batch of every row."""
    spec = coded_spec(rows.written, batch={"size": len(rows), "drop_last": False})
    with opened(spec) as loader:
        return copy.deepcopy(dict(next(iter(loader))))


@pytest.mark.parametrize("column", ["images", "frame_mask", "frame_offset", "action",
    "action_mask", "state", "state_mask", "language", "dataset_index", "provenance"])  # fmt: skip
def test_a_row_that_holds_anything_of_another_is_found(
    rows: CodedRows, whole: dict[str, Any], column: str
):
    batch = copy.deepcopy(whole)
    assert not rows.wrong(batch).any()
    part = batch[column]
    part = part["primary"] if isinstance(part, dict) else part
    other = next(n for n in range(1, len(rows)) if not np.array_equal(part[n], part[0]))
    part[0] = copy.deepcopy(part[other])
    assert rows.wrong(batch).nonzero()[0].tolist() == [0]
