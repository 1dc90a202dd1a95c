"""The command line of ``measure`` and ``tune``: words in, documents and exit codes out."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_lines import Cli

from autoloader.cli.app import main, parse_settings, read_spec
from autoloader.errors import BudgetInfeasibleError, UsageError
from autoloader.tune import measurement, offline
from autoloader.tune.__main__ import main as tune_main
from autoloader.tune.trial import TrialProgress

FOUND: dict[str, Any] = {
    "samples_per_s": 100.0,
    "batches_per_s": 2.0,
    "batch_latency_s": {"p50": 0.5, "p90": 0.6, "p99": 0.7},
    "time_to_first_batch_s": 3.0,
    "peak_rss_bytes": 2**30,
    "wait_ratio": 1.0,
    "mixture": {"a": {"weight": 1.0, "share": 1.0}},
    "knobs": {"decode_threads": 4},
    "samples": 960,
    "datasets": 1,
    "interrupted": False,
    **dict.fromkeys(("min_headroom_bytes", "decodes_per_sample", "cache", "batch_call_s", "trace")),
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the loader and its measurement were asked; nothing is measured."""
    seen: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    Path("mix.yaml").write_text(
        "datasets: [{name: a, path: a/1.0.0, images: {primary: image}, action: action}]\n"
        "cameras: {primary: {size: [8, 8]}}\n"
    )

    def measure(open_loader: Any, **options: Any) -> dict[str, Any]:
        seen.update(
            options,
            **open_loader.keywords,
            names=tuple(one.name for one in open_loader.args[0].datasets),
        )
        if options["progress"] is not None:
            options["progress"](TrialProgress(10, 99.0))
        return FOUND

    monkeypatch.setattr(measurement, "measure", measure)
    return seen


def test_json_is_the_one_document_on_stdout(asked: dict[str, Any], cli: Cli):
    assert cli.json("measure", "--spec", "mix.yaml") == FOUND


def test_people_get_a_table_and_are_told_when_it_says_little(asked: dict[str, Any], cli: Cli):
    said = cli("measure", "--spec", "mix.yaml", "--batches", "5")
    first = [line.split(maxsplit=1)[0] for line in said.out.splitlines()[:4]]
    assert first == ["Rate", "Memory", "Limit", "Next"]
    assert "100 samples/s, 2.0 batches/s" in said.out
    assert "500.0 ms / 600.0 ms / 700.0 ms" in said.out
    assert "decode_threads" in said.out
    assert re.search(r"min headroom +-", said.out)
    assert "say little" in said.err


def test_an_interrupted_measurement_is_shown_and_ends_as_ctrl_c_does(
    asked: dict[str, Any], cli: Cli, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(measurement, "measure", lambda *_, **__: {**FOUND, "interrupted": True})
    said = cli("measure", "mix.yaml", code=130)
    assert said.out.startswith("Rate   100 samples/s")
    assert "interrupted: the figures are of the first 960 samples" in said.err


@pytest.mark.parametrize("word", ["decode_threads", "=4", "decode_threads="])
def test_a_set_without_knob_or_value_is_refused(word: str):
    with pytest.raises(UsageError, match="--set"):
        parse_settings([word])
    assert main(["measure", "--spec", "mix.yaml", "--set", word]) == 2


def test_a_set_puts_no_field_into_what_is_no_block(tmp_path: Path):
    mix = tmp_path / "mix.yaml"
    mix.write_text("datasets: [{name: a, path: /a, split: train}]\ncameras: {}\n")
    with pytest.raises(UsageError, match="split is 'train', which is no block of fields"):
        read_spec(mix, ["datasets.a.split.val=val"])


@pytest.mark.parametrize("run", [lambda words: main(["tune", *words]), tune_main])
def test_tune_has_the_same_words_and_exit_codes_under_both_names(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    seen: list[offline.TuneOptions] = []

    def tune(options: offline.TuneOptions, watcher: Any, **rest: Any) -> None:
        seen.append(options)
        raise BudgetInfeasibleError("no room", remedy="make room")

    words = ["--host-profile", "local_dev", "--ram-floor", "5GB", "--spec", "mix.yaml"]
    words += ["--trials", "3", "--budget", "2m", "--study", "s", "--out", "o", "--json"]
    words += ["--storage", "sqlite:///x.db"]
    monkeypatch.setattr(offline, "tune", tune)
    monkeypatch.setattr("sys.argv", ["autoloader.tune", *words])
    code = run() if run is tune_main else run(words)
    assert code == 3
    options = seen[0]
    assert options.host_profile == "local_dev"
    assert options.floor_bytes == 5 * 10**9
    assert options.budget_s == 120
    assert (options.trials, options.study, options.out) == (3, "s", Path("o"))
    assert options.command.startswith("autoloader.tune --host-profile local_dev --ram-floor 5GB")
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 3
