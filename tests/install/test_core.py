"""An installation without extras: reads local data by index; what it lacks it asks for by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoloader.extras import EXTRA_OF, needs
from tests.rlds_files import episode, write_dataset

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


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the core does where no process can import what extras bring."""
    folder = tmp_path_factory.mktemp("core")
    data = local_data(tmp_path_factory.mktemp("data"))
    return ran(sys.executable, data, folder, PYTHONPATH=f"{HERE / 'no_extras'}:{ROOT}")


def test_without_any_extra_the_core_works_and_names_what_is_missing(core: dict[str, Any]) -> None:
    check(core)


def test_extras_of_the_project_bring_what_the_core_does_without() -> None:
    declared = project()
    extras = declared["optional-dependencies"]
    assert not names_in(declared["dependencies"]) & FRAMEWORKS
    for module, extra in EXTRA_OF.items():
        assert module in names_in(extras[extra])
    every = extras["all"][0].partition("[")[2].rstrip("]").split(",")
    assert sorted(every) == sorted(set(extras) - {"all", "bench", "dev", "postgresql", "vlm"})


def test_a_broken_package_is_not_taken_for_a_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match="numpy_of_nobody"), needs("a part"):
        import numpy_of_nobody  # noqa: F401


def test_the_tests_hide_every_package_that_extras_bring() -> None:
    code = "import json, sys; print(json.dumps([n for n, m in sys.modules.items() if m is None]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(HERE / "no_extras")},
    )  # fmt: skip
    assert set(json.loads(done.stdout)) >= FRAMEWORKS
