"""What a run's batch log says of its mixture, from real runs and from made-up ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoloader import AutoLoader
from autoloader.telemetry.batch_times import VARIABLE
from bench.mixture_analysis.__main__ import main
from bench.mixture_analysis.findings import find, switch_rate
from bench.mixture_analysis.recorded import BatchLogError, Recorded, read_runs


def _recorded(counts: list[list[int]], weights: list[float], waits: list[float]) -> Recorded:
    return Recorded(
        "run",
        tuple("abc"[: len(weights)]),
        np.array(weights),
        np.array(counts),
        np.arange(len(counts), dtype=float),
        np.array(waits),
    )


@pytest.fixture
def logged(tmp_path: Path, demo_mix: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Any]:
    """A folder with the batch log of a real run, and the dataset of each of its samples."""
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/logs/")
    given = []
    knobs = {"reader": "indexed", "decode_threads": 1, "ring_slots": 4}
    with AutoLoader(
        demo_mix, profile="local_dev", output="numpy", isolation="thread", knobs=knobs
    ) as loader:
        for batch, _ in zip(loader, range(12), strict=False):
            given.append(batch["dataset_index"].copy())
    return tmp_path / "logs", given


def test_a_run_logs_what_its_batches_held(logged: tuple[Path, Any]) -> None:
    folder, given = logged
    (run,) = read_runs(folder)
    assert run.batches >= len(given)
    for counts, datasets in zip(run.counts, given, strict=False):
        np.testing.assert_array_equal(counts, np.bincount(datasets, minlength=len(run.datasets)))
    assert run.weights.sum() == pytest.approx(1.0)
    assert (np.diff(run.at_s) > 0).all()
    assert (run.wait_s >= 0).all()


def test_the_command_leaves_both_plots_and_the_summary(
    logged: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = logged
    monkeypatch.setattr("sys.argv", ["mixture_analysis", str(folder)])
    assert main() == 0
    summary = (folder / "mixture_summary.txt").read_text()
    assert capsys.readouterr().out == summary
    for name in read_runs(folder)[0].datasets:
        assert name in summary
    for plot in ("mixture_over_time.svg", "mixture_windows.svg"):
        assert "</svg>" in (folder / plot).read_text()


def test_shares_are_held_against_weights() -> None:
    found = find(_recorded([[3, 1], [3, 1]], [0.5, 0.5], [0.0, 0.0]))
    assert found.errors.tolist() == [25.0, -25.0]


def test_a_large_weight_alone_dominates_and_does_not_lead() -> None:
    found = find(_recorded([[6, 2, 0], [6, 0, 2], [6, 2, 0]], [0.75, 0.125, 0.125], [0.0] * 3))
    assert found.dominant.tolist() == [0, 0, 0]
    assert found.leading.tolist() == [1, 2, 1]
    assert switch_rate(found.dominant) == 0.0
    assert switch_rate(found.leading) == 1.0


def test_the_samples_of_a_slow_dataset_are_those_that_were_waited_for() -> None:
    found = find(_recorded([[4, 0], [2, 2], [4, 0]], [0.8, 0.2], [0.1, 1.1, 0.1]))
    assert found.waits_s.tolist() == pytest.approx([0.3, 1.1])


def test_a_gap_is_the_longest_stretch_without_a_dataset_ends_included() -> None:
    counts = [[1, 0], [0, 1], [0, 1], [1, 0], [0, 1], [0, 1], [0, 1]]
    found = find(_recorded(counts, [0.5, 0.5], [0.0] * 7))
    assert found.gaps.tolist() == [3, 1]
    assert found.gap_from.tolist() == [4, 0]
    assert found.expected_gaps.tolist() == [2.0, 2.0]


def test_a_line_that_a_killed_writer_left_is_passed_over(tmp_path: Path) -> None:
    start = {"schema_version": 1, "split": "train", "names": ["a"], "weights": [1.0]}
    batch = {"number": 0, "at_s": 1.0, "wait_s": 0.5, "samples": [[0, 4]]}
    whose = {"run": "host-1", "pipeline": 0}
    lines = [
        json.dumps({**whose, "kind": "start", **start}),
        json.dumps({**whose, "kind": "batch", **batch}),
        '{"run": "host-1", "pipel',
    ]
    (tmp_path / "batch_times.jsonl").write_text("\n".join(lines))
    assert read_runs(tmp_path)[0].counts.tolist() == [[4]]


def test_a_folder_without_a_log_is_refused_with_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(BatchLogError, match="AUTOLOADER_BATCH_TIMES"):
        read_runs(tmp_path)
