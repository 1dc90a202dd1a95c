"""Each extra alone brings what it is for to work; what is not there is asked for by name."""

import os
from pathlib import Path

import pytest
from installation import (
    FRAMEWORKS,
    PINS,
    check,
    lerobot_data,
    local_data,
    modules_of,
    names_in,
    project,
    ran,
    requirements,
)
from packaging.requirements import Requirement
from rlds_files import once
from views import closure, make_view

from autoloader import MissingExtraError
from autoloader.host import extras
from autoloader.host.extras import EXTRA_OF, needs, quiet

CONTRIBUTORS = {"bench", "dev", "jax", "postgresql", "ray", "vlm"}
"""Extras that ``make setup`` does not install for users: they are no part of ``all``."""
EXTRAS = ("", "torch", "lightning", "stream", "tune", "report", "metrics", "lerobot", "hdf5")
WITHIN = {"torch": "lightning", "report": "tune"}
"""Extras whose uses are tried in the environment of another, which brings them."""


data = once(local_data)


lerobot = once(lerobot_data)


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra or "core")
def test_each_extra_alone_is_enough_for_its_uses_and_brings_no_others(
    extra: str, data: Path, lerobot: Path, tmp_path: Path
):
    packages = closure(*filter(None, [extra]))
    there = modules_of(extra) if extra else set()
    of_others = {name for name in FRAMEWORKS - there if name.replace("_", "-") in packages}
    # TFDS requires the first as well, TensorFlow the second, torch the last.
    assert of_others <= {"pyarrow", "h5py", "jinja2"}, "nothing else is pulled in"
    if extra in WITHIN:  # lint's contracts: what needs the smaller never asks for the larger
        assert packages < closure(WITHIN[extra])
        return
    python = make_view(tmp_path / "environment", packages)
    (tmp_path / "run").mkdir()
    check(ran(python, data, tmp_path / "run", lerobot=lerobot, core=not extra), there | of_others)


def test_extras_of_the_project_bring_what_the_core_does_without():
    declared = project()
    declared_extras = declared["optional-dependencies"]
    assert not names_in(declared["dependencies"]) & FRAMEWORKS
    for module, extra in EXTRA_OF.items():
        assert module in names_in(declared_extras[extra])
    every = declared_extras["all"][0].partition("[")[2].rstrip("]").split(",")
    assert sorted(every) == sorted(set(declared_extras) - {"all"} - CONTRIBUTORS)
    assert set(EXTRAS) == {"", *every} - {"remote"}, "remote needs a bucket to be tried"
    assert "autoloader-rlds[stream]" in declared_extras["remote"]


def test_a_deflate_that_keeps_the_interpreter_while_it_inflates_is_not_enough():
    ours = {one.name: one for one in map(Requirement, requirements("hdf5"))}
    assert not ours["deflate"].specifier.contains("0.8.1")
    assert ours["deflate"].specifier.contains("0.9.0")


def test_what_libraries_tell_at_their_import_is_not_shown(
    capfd: pytest.CaptureFixture[str],
):
    with quiet():
        os.write(2, b"there is no GPU")
    os.write(2, b"ours")
    assert capfd.readouterr().err == "ours"


def test_a_broken_package_is_not_taken_for_a_missing_extra():
    with pytest.raises(ModuleNotFoundError, match="numpy_of_nobody"), needs("a part"):
        import numpy_of_nobody  # noqa: F401


@pytest.mark.parametrize(
    ("source", "fault", "remedy"),
    [
        pytest.param(
            "raise ImportError('it wants NumPy 2')",
            r"a part needs package_of_nobody, which cannot be imported here: it wants NumPy 2",
            "pip install 'autoloader-rlds[lerobot]'` with a version of",
            id="another NumPy",
        ),
        pytest.param(
            "import package_of_nobody.lite",
            r"a part needs package_of_nobody, and its installation is incomplete: .*\.lite",
            "pip install --force-reinstall package-of-nobody",
            id="a part of its own",
        ),
    ],
)
def test_a_package_that_lacks_something_is_not_called_missing(
    source: str, fault: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "package_of_nobody").mkdir()
    (tmp_path / "package_of_nobody/__init__.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(extras, "EXTRA_OF", {"package_of_nobody": "lerobot"})
    with pytest.raises(MissingExtraError, match=fault) as caught, needs("a part"):
        import package_of_nobody  # noqa: F401
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("pins", ["openpi", "openvla"])
def test_what_other_projects_pin_is_within_our_bounds(pins: str):
    ours = {one.name: one for one in map(Requirement, requirements("torch", "stream"))}
    ours["opencv-python"] = ours["opencv-python-headless"]
    ours["tensorflow-cpu"] = ours["tensorflow"]
    lines = (PINS / f"{pins}.txt").read_text().splitlines()
    asked = filter(None, (line.partition("#")[0].strip() for line in lines))
    theirs = {one.name: one for one in map(Requirement, asked)}
    shared = {name: one for name, one in theirs.items() if name in ours}
    assert {"torch", "numpy", "tensorflow-datasets"} < set(shared)
    for name, one in shared.items():
        for pinned in one.specifier:
            if pinned.operator == "==":
                assert ours[name].specifier.contains(pinned.version), (name, pinned)
