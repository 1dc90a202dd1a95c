"""``autoloader verify --against``: two specs, value by value."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rlds_files import PLAIN, TEXT, Written, episode, write_dataset

from autoloader.cli.app import main

LENGTHS = (9, 7, 5)
FEATURES = {**PLAIN, "other_words": TEXT}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Written]:
    folder = tmp_path_factory.mktemp("data")
    return [
        write_dataset(
            folder,
            [[episode(10 * k + n, steps, other_words=[b"done"] * steps)]
             for n, steps in enumerate(LENGTHS)],
            name=name, features=FEATURES,
        )
        for k, name in enumerate(("arm", "hand"))
    ]  # fmt: skip


@pytest.fixture
def plain(written: list[Written]) -> dict[str, Any]:
    return {
        "datasets": [
            {"name": one.name, "path": str(one.path), "action": "action",
             "state": "observation/state", "language": "language_instruction",
             "images": {"primary": "observation/image"}}
            for one in written
        ],
        "cameras": {"primary": {"size": [12, 16]}},
        "sample": {"goal": "uniform"},
    }  # fmt: skip


Compare = Callable[..., tuple[int, Any]]


@pytest.fixture
def compare(tmp_path: Path, plain: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> Compare:
    """Compares ``plain`` with a changed copy of it: exit code and answer."""

    def run(change: Callable[[dict[str, Any]], None], *words: str) -> tuple[int, Any]:
        other = copy.deepcopy(plain)
        change(other)
        for name, spec in (("a", plain), ("b", other)):
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(spec))
        code = main(
            ["verify", "--spec", str(tmp_path / "a.yaml"), "--against", str(tmp_path / "b.yaml"),
             "--ram-floor", "1MB", *(words or ("--json",))]
        )  # fmt: skip
        told = capsys.readouterr().out
        return code, told if words else json.loads(told)

    return run


def test_specs_that_say_the_same_in_other_words_are_equal(compare: Compare) -> None:
    def change(other: dict[str, Any]) -> None:
        other["seed"] = 99
        other["datasets"].reverse()
        other["datasets"][0]["name"] = "fingers"
        other["datasets"][1]["action"] = ["action[:1]", "action[1:]"]
        other["datasets"][1]["weight"] = 7.0
        other["augment"] = {"primary": {"brightness": 0.5}}
        other["batch"] = {"size": 3}

    code, found = compare(change)
    assert code == 0
    assert found["same"]
    assert found["datasets"]["hand"]["other_name"] == "fingers"
    for one in found["datasets"].values():
        assert one["samples"] == sum(LENGTHS)
        assert {"action", "images/primary", "language", "state"} <= set(one["equal"])


def test_each_part_that_differs_is_told_with_columns_and_the_first_place(compare: Compare) -> None:
    def change(other: dict[str, Any]) -> None:
        first = other["datasets"][0]
        first["action"] = ["action[:1]", {"path": "action[1:]", "ops": ["invert"]}]
        first["language"] = "other_words"
        first["state"] = "observation/state[:2]"

    code, found = compare(change)
    assert code == 4
    assert not found["same"]
    one = found["datasets"]["arm"]
    assert set(one["differing"]) == {"action", "language", "state", "state_mask"}
    action = one["differing"]["action"]
    assert action["columns"] == [1]
    assert action["samples"] == sum(LENGTHS)  # 1 − x is x nowhere: x is whole
    assert action["largest"] == pytest.approx(2 * (LENGTHS[0] - 1) - 1)
    assert action["first"].startswith("episode 0, t 0: 0 here, 1 there")
    assert one["differing"]["language"]["first"].endswith("'episode 0' here, 'done' there")
    assert one["differing"]["state_mask"]["columns"] == [2]
    assert found["datasets"]["hand"]["differing"] == {}


def test_features_that_samples_pass_on_are_compared(
    compare: Compare, plain: dict[str, Any]
) -> None:
    plain["datasets"][0]["features"] = {"pose": "observation/state", "words": "other_words"}

    def change(other: dict[str, Any]) -> None:
        other["datasets"][0]["features"] = {"pose": "action", "words": "language_instruction"}

    code, found = compare(change)
    assert code == 4
    told = found["datasets"]["arm"]["differing"]
    assert told["features/pose"]["first"].endswith("shape [1, 3] here, [1, 2] there")
    assert told["features/words"]["first"].endswith("['done'] here, ['episode 0'] there")
    assert found["datasets"]["hand"]["equal"]


def test_steps_that_a_rule_removes_are_named(compare: Compare) -> None:
    def change(other: dict[str, Any]) -> None:
        other["datasets"][0]["stride"] = 2
        other["datasets"][1]["sample"] = {"edges": {"end": "drop"}, "action_horizon": 3}
        other["datasets"][1]["sample"]["action_reduce"] = "sum"

    code, found = compare(change)
    assert code == 4
    assert found["datasets"]["arm"]["samples"] == sum((n + 1) // 2 for n in LENGTHS)
    assert found["datasets"]["arm"]["only_here"] == [
        [e, t] for e, steps in enumerate(LENGTHS) for t in range(1, steps, 2)
    ]
    ends = [[e, t] for e, steps in enumerate(LENGTHS) for t in (steps - 2, steps - 1)]
    assert found["datasets"]["hand"]["only_here"] == ends
    _, told = compare(change, "-n", "4")
    assert "only here: step 1 of episode 0" in told
    assert "arm: frame_offset" in told or "arm: images/primary" in told


def test_datasets_that_one_spec_alone_has_are_named(compare: Compare, written: Any) -> None:
    def change(other: dict[str, Any]) -> None:
        del other["datasets"][1]

    code, found = compare(change)
    assert (code, found["only_here"], found["only_there"]) == (4, ["hand"], [])
    assert found["datasets"]["arm"]["differing"] == {}


def test_specs_of_other_data_are_refused(
    compare: Compare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = write_dataset(tmp_path, [[episode(0, 4)]], name="elsewhere")

    def change(other: dict[str, Any]) -> None:
        del other["datasets"][1:]
        other["datasets"][0]["path"] = str(elsewhere.path)

    code, found = compare(change)
    assert code == 2
    assert "no version directory in common" in found["error"]["what"]
