"""What an installation without extras is held against; shared by the tests of this folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rlds_files import episode, write_dataset

from autoloader.extras import EXTRA_OF

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FRAMEWORKS = {*EXTRA_OF, "jax"}


def project() -> dict[str, Any]:
    """What ``pyproject.toml`` declares."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names_in(requirements: list[str]) -> set[str]:
    """Modules that requirements bring."""
    names = {one.partition("[")[0].partition(">")[0].partition(";")[0] for one in requirements}
    return {name.strip().replace("-", "_") for name in names}


def local_data(folder: Path) -> Path:
    """A folder of one small dataset, as ``init`` takes it."""
    write_dataset(folder, [[episode(number, 40) for number in range(4)]])
    return folder


def ran(python: Path | str, data: Path, folder: Path, **environment: str) -> dict[str, Any]:
    """What ``core_script`` found with an interpreter."""
    command = [str(python), str(HERE / "core_script.py"), str(data), str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check(found: dict[str, Any]) -> None:
    """The core works, has imported no framework, and names the extra of everything else."""
    assert [found[name]["code"] for name in ("init", "plan", "measure")] == [0, 0, 0], found
    assert json.loads(found["plan"]["out"])["datasets"]["robot"]["reader"] == "indexed"
    assert json.loads(found["measure"]["out"])["samples_per_s"] > 0
    assert found["arrays"]["primary"][:2] == ["numpy", "uint8"]
    assert found["arrays"]["action"][:2] == ["numpy", "float32"]
    assert not FRAMEWORKS & set(found["modules"])
    extras = {
        "torch": "torch", "transfer": "torch", "stream": "stream", "remote": "stream",
        "lightning": "lightning", "tfdata": "stream", "demo": "stream", "tune": "tune",
        "verify": "stream", "peek": "report",
    }  # fmt: skip
    assert set(found["refused"]) == set(extras)
    for name, extra in extras.items():
        refused = found["refused"][name]
        wanted = f"this needs `pip install 'autoloader-rlds[{extra}]'`"
        assert wanted in refused.get("text", refused.get("told", "")), (name, refused)
        assert refused.get("kind", "MissingExtraError") == "MissingExtraError"
        assert refused.get("code", 2) == 2
    assert 'or use output="numpy"' in found["refused"]["torch"]["text"]
