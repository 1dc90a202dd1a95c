"""What installations are held against: what is declared, and what each part of it brings to work.

Shared by the tests of this folder and by ``make compat``.
"""

import json
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ended import ran as ended
from hdf5_files import write_robomimic
from lerobot_files import LeRobotFiles
from rlds_files import write_steps

from autoloader.host.extras import EXTRA_OF

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PINS = HERE / "pins"
FRAMEWORKS = {*EXTRA_OF, "jax"}
COMMANDS = ("demo", "index", "stats", "plan", "measure")
EXTRA_OF_USE = {
    "torch": "torch", "torch_dataloader": "torch", "transfer": "torch", "augment": "torch",
    "stream": "stream", "tfdata": "stream", "verify": "stream",
    "remote": "stream", "lightning": "lightning", "jax": "jax", "lerobot": "lerobot",
    "hdf5": "hdf5",
    "peek": "report", "tune": "tune", "metrics": "metrics",
}  # fmt: skip
"""Uses that ``usage_script`` tries: the extra that brings each."""


def project() -> dict[str, Any]:
    """What ``pyproject.toml`` declares."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements(*extras: str) -> list[str]:
    """What the core requires, and these extras, with those that they name."""
    declared = project()
    found, left = list(declared["dependencies"]), list(extras)
    while left:
        for one in declared["optional-dependencies"][left.pop()]:
            if one.startswith("autoloader-rlds["):
                left += one.partition("[")[2].rstrip("]").split(",")
            else:
                found.append(one)
    return found


def names_in(requirements: list[str]) -> set[str]:
    """Modules that requirements bring."""
    names = {one.partition("[")[0].partition(">")[0].partition(";")[0] for one in requirements}
    return {name.strip().replace("-", "_") for name in names}


def modules_of(*extras: str) -> set[str]:
    """Modules of ``EXTRA_OF`` that extras bring."""
    return names_in(requirements(*extras)) & FRAMEWORKS


def local_data(folder: Path) -> Path:
    """A folder of one small dataset, as ``init`` takes it."""
    write_steps(folder, [[40] * 4])
    return folder


def lerobot_data(folder: Path) -> Path:
    """A folder of one small LeRobot dataset with a video; beside it lies one of HDF5."""
    LeRobotFiles(lengths=(40, 30, 12)).write(folder / "one")
    demos = {f"demo_{number}": 30 for number in range(9)}
    write_robomimic(folder.with_name(f"{folder.name}_hdf5") / "demos.hdf5", demos)
    return folder


def ran(
    python: Path | str, data: Path, folder: Path, *, lerobot: Path, core: bool = True
) -> dict[str, Any]:
    """What ``usage_script`` found with an interpreter: of the core, and of the extras."""
    script = HERE / "usage_script.py"
    command = [str(python), str(script), str(data), str(lerobot), str(folder)]
    command += ["core"] if core else []
    done = ended(*command, cwd=folder, env={**os.environ, "PYTHONPATH": ""})
    return json.loads(done.stdout)


def check(found: dict[str, Any], there: Collection[str] = ()) -> None:
    """The core works by itself; of uses, those do whose modules are there; others say their extra.

    Args:
        found: by ``usage_script``.
        there: modules of ``EXTRA_OF`` that are installed.
    """
    if "core" in found:
        _check_core(found["core"])
    not_tried = {"remote"} if "tensorflow" in there else set()
    assert set(found["tried"]) == set(EXTRA_OF_USE) - not_tried
    for use, told in found["tried"].items():
        extra = EXTRA_OF_USE[use]
        if modules_of(extra) <= set(there):
            assert told == "works", (use, told)
        else:
            assert told.partition(":")[0] in ("MissingExtraError", "RefusedError"), (use, told)
            assert f"run `pip install 'autoloader-rlds[{extra}]'`" in told, (use, told)
    if "torch" not in there:
        assert 'or use output="numpy"' in found["tried"]["torch"]


def _check_core(found: dict[str, Any]) -> None:
    assert [found[name]["code"] for name in COMMANDS] == [0] * len(COMMANDS), found
    assert json.loads(found["plan"]["out"])["datasets"]["robot"]["reader"] == "indexed"
    assert json.loads(found["measure"]["out"])["samples_per_s"] > 0
    assert found["arrays"]["primary"][:2] == ["numpy", "uint8"]
    assert found["arrays"]["action"][:2] == ["numpy", "float32"]
    assert not FRAMEWORKS & set(found["modules"])
