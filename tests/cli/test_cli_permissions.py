"""What may not be read or written ends with one clear error, or is left out by name."""

import os
from pathlib import Path

import pytest
from command_lines import Cli
from permissions import permissions_hold
from rlds_files import Written, episode, write_dataset
from streams import opened, spec_file, spec_of

from autoloader.cli.app import main
from autoloader.cli.output import write_output


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return write_dataset(tmp_path / "data", [[episode(0, 3)], [episode(1, 4)]])


@pytest.fixture
def spec(written: Written, tmp_path: Path) -> str:
    return str(spec_file(tmp_path, spec_of(written)))


@pytest.mark.parametrize("command", ["plan", "index"])
@pytest.mark.parametrize("shut", ["dataset", "version", "metadata", "shard"])
def test_data_that_may_not_be_read_is_named(
    shut: str, command: str, spec: str, written: Written, cli: Cli
):
    place = {
        "dataset": written.path.parent,
        "version": written.path,
        "metadata": written.path / "dataset_info.json",
        "shard": written.files[0],
    }[shut]
    mode = place.stat().st_mode
    place.chmod(0)
    try:
        with permissions_hold():
            floor = ["--ram-floor=64MiB"] * (command == "plan")
            said = cli(command, "--spec", spec, *floor, code=4).err
    finally:
        place.chmod(mode)
    assert "dataset robot" in said
    assert str(written.path) in said
    assert "Permission denied" in said
    assert "Traceback" not in said


def test_a_spec_that_may_not_be_read_is_told_as_a_file_that_is_not_there(spec: str, cli: Cli):
    Path(spec).chmod(0)
    try:
        with permissions_hold():
            said = cli("plan", spec, code=2)
    finally:
        Path(spec).chmod(0o644)
    assert f"{spec}: Permission denied\n  → give this user permission" in said.err


def test_a_folder_that_may_not_be_read_is_left_out_of_a_proposed_spec_by_name(
    written: Written, cli: Cli
):
    root = written.path.parents[1]
    (root / "locked").mkdir(mode=0)
    shut = write_dataset(root, [[episode(0, 3)]], name="shut").path
    shut.chmod(0)
    try:
        with permissions_hold():
            said = cli("init", root)
    finally:
        shut.chmod(0o755)
    assert "name: robot" in said.out
    assert "shut" not in said.out
    for folder in (root / "locked", shut):
        assert f"{folder}: left out: Permission denied" in said.err


@pytest.mark.parametrize("beside", [[], ["--beside"]])
def test_an_index_that_cannot_be_kept_is_an_error_of_the_command_that_keeps_it(
    beside: list[str],
    spec: str,
    written: Written,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Cli,
):
    monkeypatch.setenv("AUTOLOADER_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o555)
    written.path.chmod(0o555)
    try:
        with permissions_hold():
            said = cli("index", "--spec", spec, *beside, code=4)
    finally:
        written.path.chmod(0o755)
    assert said.out == ""
    assert "cannot be written" in said.err
    assert "Permission denied" in said.err
    assert "AUTOLOADER_CACHE_DIR" in said.err


LOCKED = pytest.mark.parametrize("way", ["a folder that may not be entered", "a name too long"])


def place_of(way: str, folder: Path) -> Path:
    """A file that cannot be asked about."""
    if way == "a name too long":
        return Path("/" + "x" * 300, "file.yaml")
    (folder / "locked").mkdir(mode=0)
    return folder / "locked/in/file.yaml"


@LOCKED
@pytest.mark.parametrize(
    "variable",
    ["AUTOLOADER_CACHE_DIR", "AUTOLOADER_CONFIG_DIR", "AUTOLOADER_RUN_DIR", "AUTOLOADER_DECISIONS"],
)
def test_a_run_goes_without_files_beside_it_whose_place_cannot_be_asked_about(
    way: str, variable: str, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(variable, str(place_of(way, tmp_path)))
    with (
        permissions_hold(),
        opened(spec) as loader,
    ):
        next(iter(loader))


@LOCKED
@pytest.mark.parametrize("command", [["plan"], ["report"], ["replay"], ["init"], ["inspect"]])
def test_a_file_that_cannot_be_asked_about_is_named(
    way: str, command: list[str], tmp_path: Path, cli: Cli
):
    with permissions_hold():
        said = cli(*command, place_of(way, tmp_path), code=None)
    assert said.code in (2, 4)
    assert "file.yaml" in said.err


def test_saved_profiles_that_may_be_listed_and_not_read_are_passed_over(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AUTOLOADER_CONFIG_DIR", str(tmp_path))
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/mine.yaml").touch()
    (tmp_path / "profiles").chmod(0o444)
    with permissions_hold():
        assert main(["plan", spec, "--ram-floor=64MiB"]) == 0


def test_a_spec_and_metrics_leave_a_pipe_what_it_is(
    spec: str, written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert main(["init", str(written.path), "-o", str(pipe)]) == 0
    assert b"name: robot" in os.read(reader, 2**16)
    monkeypatch.setenv("AUTOLOADER_METRICS_FILE", str(pipe))
    with opened(spec) as loader:
        next(iter(loader))
    assert pipe.is_fifo()
    os.close(reader)


def test_a_reader_of_an_output_file_has_the_old_text_or_the_new(tmp_path: Path):
    place, link = tmp_path / "there", tmp_path / "link"
    place.write_text("old")
    link.symlink_to(place)
    with place.open() as reader:
        write_output(link, "new")
        assert reader.read() == "old"
    assert (link.is_symlink(), place.read_text()) == (True, "new")
