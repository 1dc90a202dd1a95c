"""Packages that tests need and ``.venv`` lacks, in a folder of their own."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import mkdtemp

import pytest

_ROOT = Path(__file__).parents[1]
_CONSTRAINTS = _ROOT / "constraints.txt"


def environment_with(
    packages: Iterable[str], config: pytest.Config, **variables: str
) -> dict[str, str]:
    """The environment of a process that can import packages; skips where there is no index.

    They are installed once for these versions, and kept between sessions.

    Args:
        packages: every one by name: what they require is not installed.
        config: pytest's, whose cache keeps them.
        variables: of the environment, beside.
    """
    wanted = f"{sys.version} {_CONSTRAINTS.read_text()} {sorted(packages)} {os.getuid()}"
    kept = config.cache.mkdir("packages")
    folder = kept / hashlib.sha256(wanted.encode()).hexdigest()[:16]
    if not folder.exists():
        new = mkdtemp(dir=kept)
        asked = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        asked += ["--disable-pip-version-check", "--retries", "0", "--timeout", "10"]
        asked += ["--constraint", str(_CONSTRAINTS), "--target", new]
        done = subprocess.run([*asked, *packages], capture_output=True, text=True, check=False)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:]
            pytest.skip(f"they cannot be had from here: {reason}")
        Path(new).rename(folder)
    path = os.pathsep.join([str(folder), str(_ROOT)])
    return {**os.environ, "PYTHONPATH": path, **variables}
