"""A process of the library imports what is installed, then what its starter could, and no more."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ended import python, ran
from rlds_files import write_steps
from streams import write_spec

from autoloader.errors import WorkerError
from autoloader.host.supervision import command, environment, import_path, ordered_path, start

SHADOWS = (
    "types", "json", "socket", "logging", "sitecustomize", "usercustomize", "numpy", "argparse",
    "tensorflow_io",
)  # fmt: skip
TRAP = """
import os
with open(os.path.join(os.path.dirname(__file__), "ran"), "a") as ran:
    ran.write(__name__ + "\\n")
raise SystemExit("a file of the working directory runs")
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with files named as modules of the standard library and of others."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(TRAP)
    return folder


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (["", "/std", "/site"], ["/std", "/site", "/here"]),
        (["/here", "/std", "/site"], ["/std", "/site", "/here"]),
        (["/script", "/mine", "/std", "/site", ""], ["/std", "/mine", "/site", "/script", "/here"]),
        (["/std", "/site"], ["/std", "/site"]),
        (["/site", "/x/lib-dynload", "/std", "/site"], ["/x/lib-dynload", "/std", "/site"]),
    ],
)
def test_the_working_directory_comes_last_and_only_where_it_was(
    entries: list[str], expected: list[str]
):
    last = ["/here", "/script"]
    assert ordered_path(entries, standard_library="/std", last=last) == expected


def started(module: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return ran(*command(module, ["--help"]), env=environment(), cwd=folder, code=None)


@pytest.mark.parametrize(
    "module", ["autoloader.process.worker", "autoloader.pipeline.decode_process"]
)
@pytest.mark.parametrize("python_path", ["", "{}:"])
def test_nothing_in_the_working_directory_runs(
    module: str, python_path: str, hostile: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(hostile)
    monkeypatch.setenv("PYTHONPATH", python_path.format(hostile))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    done = started(module, hostile)
    assert "in options" in done.stderr  # all is imported, and its command line is read
    assert not (hostile / "ran").exists()


def test_a_process_started_in_a_folder_that_is_gone_has_an_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert str(gone) not in import_path()
    assert "PYTHONPATH" in environment()


def test_a_loader_runs_in_a_folder_full_of_shadows(tmp_path: Path, hostile: Path):
    """A stream, for TensorFlow in the child; the trainer itself looks there last."""
    code = textwrap.dedent(
        """
        import sys
        sys.path.append("")
        from autoloader import AutoLoader
        knobs = {"reader": "stream"}
        with AutoLoader(sys.argv[1], knobs=knobs, ram_floor="64MiB", output="numpy") as loader:
            next(iter(loader))
        print("done")
        """
    )
    mix = write_spec(tmp_path, write_steps(tmp_path, [[8, 8]]))
    done = python("-c", f"import sys; sys.path.remove('')\n{code}", mix, cwd=hostile)
    assert done.stdout.split() == ["done"]
    assert not (hostile / "ran").exists()


def test_arguments_and_environment_arrive_and_nothing_else_does(tmp_path: Path):
    (tmp_path / "say.py").write_text(
        "import json, os, sys; print(json.dumps([sys.argv, dict(os.environ)]))"
    )
    sys.path.append(str(tmp_path))
    try:
        done = ran(*command("say", ["one"]), env=environment(X="y"))
    finally:
        sys.path.remove(str(tmp_path))
    arguments, variables = json.loads(done.stdout)
    assert arguments[1:] == ["one"]
    assert variables["X"] == "y"
    assert "AUTOLOADER_IMPORT_PATH" not in variables


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("", "glibc.cpu.x86_non_temporal_threshold=131072"),
        ("glibc.a=5", "glibc.a=5:glibc.cpu.x86_non_temporal_threshold=131072"),
        ("glibc.cpu.x86_non_temporal_threshold=9", "glibc.cpu.x86_non_temporal_threshold=9"),
    ],
)
def test_a_process_copies_frames_past_the_caches_and_as_the_user_says(
    own: str, expected: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GLIBC_TUNABLES", own)
    assert environment()["GLIBC_TUNABLES"] == expected
    assert environment(GLIBC_TUNABLES="")["GLIBC_TUNABLES"] == ""


def test_a_python_that_cannot_be_run_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", __file__)
    with pytest.raises(WorkerError, match="Permission denied") as caught:
        start("autoloader.process.worker")
    assert f"run {__file__!r}" in caught.value.remedy
