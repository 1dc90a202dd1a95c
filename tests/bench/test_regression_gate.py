"""The regression gate lets the loader through as it is, and stops it when it became worse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLANTED = Path(__file__).with_name("planted")
ROOT = Path(__file__).parents[2]


def _gate(planted: str) -> tuple[int, list[str]]:
    """Exit code of the gate's short form, and the figures that failed."""
    path = [str(PLANTED), str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "bench.gate", "--short", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), "PLANTED": planted},
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    verdicts = json.loads(done.stdout)
    return done.returncode, [one["figure"] for one in verdicts if not one["passed"]]


def test_the_loader_as_it_is_passes_the_gate() -> None:
    assert _gate("") == (0, [])


@pytest.mark.parametrize(
    ("planted", "figure"),
    [
        ("extra_copy", "copies_per_batch"),
        ("lost_thread", "threads"),
        ("leaked_frame", "growth_bytes_per_batch"),
    ],
)
def test_the_gate_stops_a_planted_regression(planted: str, figure: str) -> None:
    code, failed = _gate(planted)
    assert code == 1
    assert figure in failed
