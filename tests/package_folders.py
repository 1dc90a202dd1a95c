"""Packages that tests need and ``.venv`` lacks, in a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]


def environment_with(packages: Iterable[str], folder: Path, **variables: str) -> dict[str, str]:
    """The environment of a process that can import packages; skips where there is no index.

    Args:
        packages: every one by name: what they require is not installed.
        folder: where they go.
        variables: of the environment, beside.
    """
    asked = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    asked += ["--disable-pip-version-check", "--retries", "0", "--timeout", "10"]
    asked += ["--constraint", str(_ROOT / "constraints.txt"), "--target", str(folder)]
    done = subprocess.run(
        [*asked, *packages],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:]
        pytest.skip(f"they cannot be had from here: {reason}")
    path = os.pathsep.join([str(folder), str(_ROOT)])
    return {**os.environ, "PYTHONPATH": path, **variables}
