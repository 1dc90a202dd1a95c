"""An installation without extras: reads local data by index; what it lacks it asks for by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from installation import FRAMEWORKS, HERE, ROOT, check, local_data, names_in, project, ran

from autoloader.extras import EXTRA_OF, needs


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
    assert sorted(every) == sorted(
        set(extras) - {"all", "bench", "dev", "jax", "postgresql", "vlm"}
    )


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
