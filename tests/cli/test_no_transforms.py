"""A spec of somebody else's: what it may run, and how it is looked at without running anything."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_lines import Cli
from ended import python, ran
from rlds_files import episode, write_dataset

from autoloader.host.supervision import command, environment
from autoloader.samples.transforms import transform

TRAP = "import pathlib; pathlib.Path(__file__).with_name('ran').write_text(__name__)\n"
TAKES_A_SPEC = ("plan", "peek", "verify", "index", "stats", "measure", "tune")


@pytest.fixture(autouse=True)
def permitted_afterwards() -> Iterator[None]:
    """A command refuses transforms for its whole process, and the tests' process goes on."""
    yield
    transform.permit()


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A folder with a spec, and traps under the names that might be imported."""
    written = write_dataset(tmp_path, [[episode(0, 8)], [episode(1, 8)]])
    plain = {
        "datasets": [
            {"name": "robot", "path": str(written.path), "action": "action",
             "images": {"primary": "observation/image"}}
        ],
        "cameras": {"primary": {"size": [12, 16]}},
        "batch": {"size": 4},
    }  # fmt: skip
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump(plain))
    for name in ("types", "json", "sitecustomize", "pandas", "tensorflow_io", "h5py", "jax"):
        (tmp_path / f"{name}.py").write_text(TRAP)
    return tmp_path


def with_transform(folder: Path) -> Path:
    """Where the module of the transform lies, which says that it ran."""
    plain: dict[str, Any] = yaml.safe_load((folder / "mix.yaml").read_text())
    plain["datasets"][0]["transform"] = {"call": "bridge_hook:same"}
    (folder / "mix.yaml").write_text(yaml.safe_dump(plain))
    (folder / "hook").mkdir()
    hook = folder / "hook/bridge_hook.py"
    hook.write_text(f"{TRAP}def same(episode):\n    return episode\n")
    return hook.parent


def ran_in(folder: Path, *words: str) -> tuple[int, Any, str]:
    """(exit code, document, stderr) of a command in that folder, beside its traps."""
    program = Path(sys.executable).with_name("autoloader")
    done = python(program, *words, "--json", cwd=folder, code=None)
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


def test_of_a_spec_without_a_transform_nothing_that_lies_beside_it_runs(foreign: Path):
    code, found, said = ran_in(
        foreign, "measure", "--spec", "mix.yaml", "--batches", "1", "--warmup", "0",
        "--ram-floor", "64MiB",
    )  # fmt: skip
    assert code == 0, said
    assert found["samples"] > 0
    assert not (foreign / "ran").exists(), (foreign / "ran").read_text()


@pytest.mark.parametrize("verb", TAKES_A_SPEC)
def test_no_transforms_refuses_a_spec_with_one_and_runs_nothing(
    verb: str, foreign: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(with_transform(foreign)))
    found = cli.json(verb, "--spec", foreign / "mix.yaml", "--no-transforms", code=2)
    assert found["error"]["kind"] == "SpecError"
    assert "datasets[robot].transform.call" in found["error"]["what"]
    assert "'bridge_hook:same', and --no-transforms forbids it" in found["error"]["what"]
    assert not (foreign / "hook/ran").exists()


def test_tensorflow_io_is_taken_from_installed_packages_only(foreign: Path):
    for name in ("pandas", "h5py", "jax"):  # TensorFlow looks for these by itself
        (foreign / f"{name}.py").unlink()
    (foreign / "ask.py").write_text(
        "import sys\n"
        f"sys.path.append({str(foreign)!r})\n"
        "from autoloader.pipeline.graph import files\n"
        "print(repr(files.answer('size', ('s3://bucket/shard',))))\n"
    )
    sys.path.append(str(foreign))
    try:
        done = ran(*command("ask"), env=environment(), cwd="/", code=None)
    finally:
        sys.path.remove(str(foreign))
    assert "TensorFlow has no file system for s3://" in done.stdout, done.stderr
    assert not (foreign / "ran").exists()
