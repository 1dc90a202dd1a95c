"""NaN and infinite actions and states: kept and counted, replaced by repeats, or the end."""

import collections
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rlds_files import Written, episode, png, write_dataset, write_steps
from streams import opened_by

from autoloader import AutoLoader
from autoloader.errors import SourceError

STEPS = 6
READERS = pytest.mark.parametrize("reader", ["stream", "indexed", "processes"])


def build(folder: Path, name: str = "robot", *, value: float = math.nan) -> Written:
    """Twelve episodes; ``value`` in the action of record 1, t 2, and the state of record 7, t 4."""
    action = list(episode(1, STEPS)["action"])
    action[2 * 2] = value
    state = list(episode(7, STEPS)["observation/state"])
    state[4 * 3 + 1] = value
    odd: dict[int, dict[str, Any]] = {1: {"action": action}, 7: {"observation/state": state}}
    records = [episode(k, STEPS, encode=png, **odd.get(k, {})) for k in range(12)]
    return write_dataset(folder, [records[:6], records[6:]], name=name)


def load(reader: str, *written: Written, **errors: Any) -> AutoLoader:
    """One pass of each dataset is an epoch."""
    return opened_by(reader, *written, errors={"max_corrupt_ratio": 0.3, **errors})


def odd_rows(batches: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    """Provenance of the rows that hold something that is not finite."""
    return [
        tuple(place)
        for batch in batches
        for place, action, state in zip(
            batch["provenance"].tolist(), batch["action"], batch["state"], strict=True
        )
        if not (np.isfinite(action).all() and np.isfinite(state).all())
    ]


@pytest.mark.parametrize(
    ("reader", "value"), [("stream", math.nan), ("indexed", math.inf), ("processes", -math.inf)]
)
def test_by_default_they_are_handed_out_counted_and_told_once(
    reader: str, value: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    written = build(tmp_path, value=value)
    with caplog.at_level(logging.WARNING), load(reader, written) as loader:
        assert sorted(odd_rows(list(loader))) == [(0, 0, 0, 1, 2), (0, 0, 1, 1, 4)]
        assert loader.statistics().datasets["robot"].non_finite == 2
        assert not loader.quarantined()
    (told,) = [one for one in caplog.messages if "NaN" in one]
    assert "dataset robot" in told
    assert any(str(file) in told for file in written.files)
    assert "errors.non_finite: keep" in told


@READERS
def test_drop_repeats_another_sample_of_the_batch_and_names_the_record(reader: str, tmp_path: Path):
    with load(reader, build(tmp_path), non_finite="drop") as loader:
        batches = list(loader)
        found = loader.statistics().datasets["robot"].non_finite
        bad = loader.quarantined()
    came = collections.Counter(tuple(row) for b in batches for row in b["provenance"].tolist())
    assert not odd_rows(batches)
    assert sum(came.values()) == 12 * STEPS
    assert found == 2
    assert {(0, 0, 0, 1, 2), (0, 0, 1, 1, 4)}.isdisjoint(came)
    assert len(came) == 12 * STEPS - 2
    assert sorted((one.shard, one.record) for one in bad) == [(0, 1), (1, 1)]
    reasons = {one.shard: one.reason for one in bad}
    assert "action at t = 2" in reasons[0]
    assert "state at t = 4" in reasons[1]


@READERS
def test_error_stops_with_dataset_record_and_t(reader: str, tmp_path: Path):
    with load(reader, build(tmp_path), non_finite="error") as loader:
        with pytest.raises(SourceError, match=r"'robot', record 1 of .*: .*NaN") as caught:
            list(loader)
        assert caught.value.dataset == "robot"
        assert "errors.non_finite" in caught.value.remedy


def test_a_batch_without_any_finite_sample_is_a_source_error(tmp_path: Path):
    nothing = {"action": [math.nan] * 2 * STEPS}
    written = write_dataset(tmp_path, [[episode(k, STEPS, encode=png, **nothing) for k in (0, 1)]])
    with load("indexed", written, non_finite="drop", max_corrupt_ratio=1) as loader:
        with pytest.raises(SourceError, match="none of the 4 samples") as caught:
            list(loader)
        assert "action at t" in caught.value.what


def test_counts_outlive_a_second_epoch_and_are_by_dataset(tmp_path: Path):
    one = build(tmp_path, "one")
    two = write_steps(tmp_path, [[STEPS] * 4], encode=png, name="two")
    with load("indexed", one, two) as loader:
        for _ in range(2):
            list(loader)
        datasets = loader.statistics().datasets
    assert (datasets["one"].non_finite, datasets["two"].non_finite) == (4, 0)
