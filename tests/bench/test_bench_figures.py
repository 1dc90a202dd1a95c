"""Figures of a scenario, worked out from turns that are made up."""

from typing import Any

import pytest

from bench.figures import work_out
from bench.scenario import Scenario, load_scenarios


def _turns(**rates: list[float]) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [{"samples_per_s": rate, "peak_bytes": 1e9 / rate} for rate in own]
        for name, own in rates.items()
    }


def _scenario(**figure: Any) -> Scenario:
    contenders = [{"name": name, "kind": "autoloader"} for name in ("a", "b", "c")]
    return Scenario.model_validate(
        {
            "name": "made up",
            "about": "",
            "contenders": contenders,
            "figures": [{"title": "t", "of": "a", **figure}],
        }
    )


def test_a_ratio_is_taken_against_the_better_of_several():
    turns = _turns(a=[300.0] * 6, b=[100.0] * 6, c=[200.0] * 6)
    (figure,) = work_out(_scenario(kind="ratio", against=["b", "c"], at_least=1.5), turns)
    assert figure.against == "c"
    assert figure.value.median == pytest.approx(1.5)
    assert figure.met is True


def test_a_figure_below_its_target_falls_short():
    turns = _turns(a=[100.0] * 6, b=[100.0] * 6, c=[1.0] * 6)
    (figure,) = work_out(_scenario(kind="ratio", against=["b"], at_least=1.5), turns)
    assert figure.met is False
    assert figure.target == "≥ 1.5"


def test_every_scenario_file_can_be_read_and_promises_an_interval():
    found = load_scenarios()
    assert {"mixture", "tax", "shares"} <= set(found)
    for scenario in found.values():
        assert scenario.count_samples or scenario.pairs >= 6


def test_rounds_that_others_disturbed_are_left_out_where_enough_were_calm():
    turns = _turns(a=[200.0] * 8, b=[100.0] * 8, c=[1.0] * 8)
    turns["a"][2] = {"samples_per_s": 20.0, "others_cpus": 0.9}
    (figure,) = work_out(_scenario(kind="ratio", against=["b"]), turns)
    assert (figure.value.count, figure.value.low) == (7, 2.0)
