"""How commands refuse: one document for programs, words that count and name what is wrong."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import rlds_files
import yaml
from command_lines import Cli
from ended import python
from streams import spec_file

from autoloader.errors import SourceError, SpecError
from autoloader.formats import open_source
from autoloader.samples.resolve import resolve
from autoloader.spec import PipelineSpec

DATASET: dict[str, Any] = {"name": "arm", "path": "arm", "images": {"primary": "image"}}
PLAIN: dict[str, Any] = {"datasets": [DATASET], "cameras": {"primary": {"size": [8, 8]}}}


HUGE = "9" * 400


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ram-floor", HUGE], "not a size"),
        (["--set", f"decode_threads={HUGE}"], "decode_threads"),
        (["--split", "\x1b[1m"], "\\x1b"),
        (["--profile", "~nobody-at-all/x.yaml"], "No such file"),
        (["--profile", "x" * 300 + ".yaml"], "File name too long"),
    ],
)
def test_values_that_no_option_takes_are_refused(
    tmp_path: Path, cli: Cli, words: list[str], told: str
):
    written = rlds_files.write_dataset(tmp_path, [[rlds_files.episode(0, 3)]])
    dataset = {"name": "arm", "path": str(written.path), "images": {"primary": "observation/image"}}
    spec = spec_file(tmp_path, {**PLAIN, "datasets": [dataset]})
    assert told in cli.json("plan", "--spec", spec, *words, code=2)["error"]["what"]


def test_a_field_that_the_data_lacks_is_told_with_the_line_unless_the_command_line_gave_it(
    tmp_path: Path, cli: Cli
):
    written = rlds_files.write_dataset(tmp_path, [[rlds_files.episode(0, 3)]])
    spec = tmp_path / "mix.yaml"
    dataset = {"name": "arm", "path": str(written.path), "images": {"primary": "picture"}}
    spec.write_text(json.dumps({**PLAIN, "datasets": [dataset]}, indent=1))
    field = "datasets[arm].images.primary: 'picture' is not a feature"
    told = cli.json("plan", spec, code=2)["error"]["what"]
    assert told.startswith(f"{spec}, line 7: {field}")
    assert cli.json("plan", spec, "--set", "datasets.arm.images.primary=picture", code=2)["error"][
        "what"
    ].startswith(field)
    told = cli.json("plan", spec, "--set", "batch.szie=3", code=2)["error"]["what"]
    assert told == "batch: unknown key 'szie'"


def test_a_spec_without_its_ending_and_an_option_without_its_value_are_told_what_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mix.yaml").write_text(json.dumps(PLAIN))
    assert "did you mean mix.yaml?" in cli("plan", "mix", code=2).err
    assert "`autoloader init max -o mix.yaml`" in cli("plan", "max", code=2).err
    assert "`autoloader init 'my data' -o mix.yaml`" in cli("plan", "my data", code=2).err
    assert "`autoloader peek --help`" in cli("peek", "mix.yaml", "-o", code=2).err


def test_a_folder_that_cannot_be_named_is_refused(cli: Cli):
    assert "does not exist" in cli.json("init", "x" * 300, code=4)["error"]["what"]


def refusal(*changes: tuple[str, Any]) -> SpecError:
    """What a spec with these values of its dataset, or of "cameras", is told."""
    plain = copy.deepcopy(PLAIN)
    for key, value in changes:
        (plain if key == "cameras" else plain["datasets"][0])[key] = value
    with pytest.raises(SpecError) as error:
        PipelineSpec.from_mapping(plain)
    return error.value


def test_one_fault_is_told_as_one():
    """An item that is wrong is not counted again as a list with too few items."""
    for changes in (("stride", 0), ("sample", {"frame_offsets": ["x"]}), ("weight", "much")):
        assert "also wrong" not in refusal(changes).what
    assert "also wrong" not in refusal(("cameras", {"primary": {"size": [0, 8]}})).what


def test_long_values_and_names_that_a_terminal_obeys_are_told_short_and_escaped():
    assert len(str(refusal(("images", {"primary": ["x" * 20_000]})))) < 1_000
    for found in (refusal(("\x1b[31mred", 1)), refusal(("name", "\x1b]0;x\x07"))):
        assert "\x1b" not in str(found)
        assert "\\x1b" in str(found)


@pytest.mark.parametrize(("kind", "told"), [("pipe", "named pipe"), ("folder", "directory")])
def test_a_shard_that_is_no_file_is_told_as_what_it_is(tmp_path: Path, kind: str, told: str):

    written = rlds_files.write_dataset(tmp_path, [[rlds_files.episode(0, 3)]])
    (shard,) = written.files
    shard.unlink()
    if kind == "pipe":
        os.mkfifo(shard)
    else:
        shard.mkdir()
    with pytest.raises(SourceError, match=f"{shard.name} is a {told}"):
        open_source(written.path, dataset="arm").resolve("train")


def test_a_mapping_that_holds_itself_is_refused():
    plain = copy.deepcopy(PLAIN)
    plain["datasets"][0]["transform"] = {"call": "lab:f", "kwargs": plain}
    with pytest.raises(SpecError, match="deeper than 64"):
        PipelineSpec.from_mapping(plain)


@pytest.mark.parametrize(
    ("path", "remedy"), [("$DATA/arm", "no variable is replaced"), ("arm", "has no folders")]
)
def test_a_path_that_is_not_there_is_told_what_may_be_meant(tmp_path: Path, path: str, remedy: str):
    with pytest.raises(SourceError) as told:
        open_source(tmp_path / path, dataset="arm")
    assert remedy in told.value.remedy


def test_a_spec_in_another_encoding_is_told_as_that(tmp_path: Path, cli: Cli):
    (tmp_path / "mix.yaml").write_text(json.dumps(PLAIN), encoding="utf-16")
    assert "not UTF-8\n  → save it as UTF-8" in cli("plan", tmp_path / "mix.yaml", code=2).err


def test_ctrl_c_while_the_commands_are_imported_ends_quietly(tmp_path: Path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    for module in ("autoloader", "autoloader.tune"):
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        assert python("-m", module, "plan", "mix.yaml", code=130, env=env).stderr == ""


def test_the_split_that_is_proposed_can_be_written_as_it_stands(tmp_path: Path):
    written = rlds_files.write_dataset(tmp_path, [[rlds_files.episode(0, 3)]])
    spec = {**PLAIN, "datasets": [{**DATASET, "path": str(written.path)}]}
    for split, line in (("val", "val: 'train[90%:]'"), ("train[:50%]", "part: 'train[:50%]'")):
        with pytest.raises(SpecError) as told:
            resolve(PipelineSpec.from_mapping(spec), split)
        assert line in told.value.remedy
        entry = {**DATASET, "split": yaml.safe_load(f"{{train: train, {line}}}")}
        PipelineSpec.from_mapping({**PLAIN, "datasets": [entry]})
