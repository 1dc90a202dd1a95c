"""The words of the command line: where a spec stands, what ``--set`` changes, what help says."""

import re
from pathlib import Path
from typing import Any

import pytest
import rlds_files
import typer.main
from command_lines import Cli
from ended import python
from streams import spec_file

from autoloader.cli.app import app, main
from autoloader.errors import BudgetInfeasibleError
from autoloader.tune import offline

PROGRAM: Any = typer.main.get_command(app)
COMMANDS: Any = PROGRAM.commands


@pytest.fixture
def mix(tmp_path: Path) -> str:
    episodes = [[rlds_files.episode(k, 6) for k in range(2)]]
    datasets = [
        {"name": name, "path": str(rlds_files.write_dataset(tmp_path, episodes, name=name).path),
         "images": {"primary": "observation/image"}, "action": "action"}
        for name in ("arm", "sample")
    ]  # fmt: skip
    spec = {"datasets": datasets, "cameras": {"primary": {"size": [8, 8]}}, "batch": {"size": 4}}
    return str(spec_file(tmp_path, spec))


def planned(cli: Cli, *words: str, code: int = 0) -> Any:
    return cli.json("plan", *words, "--ram-floor", "64MiB", code=code)


def test_a_spec_is_the_same_by_its_place_and_by_its_option(mix: str, cli: Cli):
    found = [planned(cli, *words) for words in ([mix], ["--spec", mix], [f"--spec={mix}"])]
    assert {one["spec"] for one in found} == {mix}


def test_set_takes_knobs_and_fields_in_any_number(mix: str, cli: Cli):
    words = ["--set", "batch.size=2", "datasets.arm.weight=3", "cameras.primary.size=[4, 6]"]
    found = planned(cli, *words, "ring_slots=7", mix, "--set", "knobs.reader=indexed")
    assert found["batch"]["images/primary"]["shape"][0] == 2
    assert found["batch"]["images/primary"]["shape"][2:4] == [4, 6]
    assert [one["share"] for one in found["datasets"].values()] == [0.75, 0.25]
    assert found["knobs"]["ring_slots"]["value"] == 7
    assert found["knobs"]["reader"]["from"] == "--set"


@pytest.mark.parametrize(
    ("word", "told"),
    [("reader=stream", "knobs.reader"), ("sample.cycle_length=2", "knobs.sample.cycle_length")],
)
def test_a_setting_that_means_two_things_is_refused(word: str, told: str, mix: str, cli: Cli):
    error = planned(cli, mix, "--set", word, code=2)["error"]
    assert told in f"{error['what']} {error['remedy']}"


def test_a_study_has_the_settings_and_its_measuring_children_get_them(
    mix: str, monkeypatch: pytest.MonkeyPatch
):
    seen: list[offline.TuneOptions] = []

    def tune(options: offline.TuneOptions, watcher: Any, **rest: Any) -> None:
        seen.append(options)
        raise BudgetInfeasibleError("no room", remedy="make room")

    monkeypatch.setattr(offline, "tune", tune)
    words = ["batch.size=2", "ring_slots=9", "reader=indexed"]
    assert main(["tune", mix, "--set", *words]) == 3
    (options,) = seen
    assert options.spec.batch.size == 2
    assert options.knobs == {"ring_slots": "9", "reader": "indexed"}
    command = offline.measure_command(options)
    assert command[-6:] == [part for word in words for part in ("--set", word)]


def test_every_command_has_an_example_and_a_heading_on_the_first_screen(cli: Cli):
    screen = cli("--help").out
    for heading in ("Look at a mixture", "Data", "Runs", "Tune"):
        assert f" {heading} " in screen
    leaves = [(n, c, i) for n, c in COMMANDS.items() for i in getattr(c, "commands", {None: 0})]
    assert len(leaves) == 18
    options = [one for one in PROGRAM.params if one.name != "help"]
    for name, command, inner in leaves:
        own = command.commands[inner] if inner else command
        assert own.epilog.startswith(f"Example: autoloader {name} {inner or ''}".rstrip())
        assert all(one.help for one in own.params if not getattr(one, "hidden", False))
        taken = own.get_params(typer.Context(own))
        options += [one for one in taken if (one.param_type_name, one.name) != ("option", "help")]
    assert sum(one.param_type_name == "option" for one in options) <= 105


def test_no_help_is_cut_at_80_columns_or_gives_a_flag_a_type(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    leaves = [[n, i] for n, c in COMMANDS.items() for i in getattr(c, "commands", {})]
    for words in [[], *([name] for name in COMMANDS), *leaves]:
        screen = cli(*words, "--help").out
        assert not re.search(r"\w…|<bool>|range>|Usage.*\{", screen), screen
        assert not re.search("--verbose.*(N|<)", screen)


def test_help_imports_nothing_that_only_the_work_needs():
    heavy = ("numpy", "torch", "rich.live", "autoloader.spec.model", "autoloader.loader")
    code = (
        "import sys; from autoloader.cli.app import main\n"
        f"for name in {sorted(COMMANDS)}: main([name, '--help'])\n"
        f"sys.exit(' '.join(one for one in {heavy} if one in sys.modules))"
    )
    assert python("-c", code, code=None).stderr.strip() == ""


def test_a_library_that_logs_by_the_root_has_no_line_written_twice():
    code = (
        "import logging; from autoloader.cli.output import log_to_stderr\n"
        "log_to_stderr(1); logging.info('as TFDS does'); logging.getLogger().setLevel('INFO')\n"
        "logging.getLogger('autoloader.plan').info('ours')\n"
        "logging.getLogger('theirs').info('quiet'); logging.getLogger('theirs').warning('loud')"
    )
    assert python("-c", code).stderr.splitlines() == ["INFO autoloader.plan: ours", "loud"]
