"""Shares of the limits, and who is left out."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from bench.figures import limit_shares
from bench.peers import KINDS, LIMITS
from bench.report import show
from bench.scenario import Scenario, load_scenarios

KINDS_HERE = {"ours": "autoloader", "decoding": "decode_alone", "disk": "read_alone"}


def _turn(rate: float, **more: float) -> dict[str, float]:
    told = {"cpu_ms_per_sample": 1.0, "cpus_used": 1.0, "first_batch_s": 1.0, "peak_bytes": 2**20}
    return {"samples_per_s": rate, "others_cpus": 0.0, **told, **more}


def test_a_share_is_the_median_of_the_rounds_shares() -> None:
    turns = {
        "ours": [_turn(90), _turn(40), _turn(80)],
        "decoding": [_turn(100), _turn(50), _turn(100)],
        "disk": [_turn(900), _turn(900), _turn(800)],
    }
    found = limit_shares(KINDS_HERE, turns)
    assert found["ours"] == {"decode": pytest.approx(0.8), "disk": pytest.approx(0.1)}
    assert found["decoding"]["decode"] == 1.0


def test_without_a_limit_there_is_no_share() -> None:
    assert limit_shares({"ours": "autoloader"}, {"ours": [_turn(90)]}) == {"ours": {}}


def _scenario() -> Scenario:
    return Scenario.model_validate(
        {
            "name": "made up",
            "about": "nothing",
            "contenders": [{"name": name, "kind": kind} for name, kind in KINDS_HERE.items()],
            "figures": [
                {"title": "both", "kind": "ratio", "of": "ours", "against": ["decoding", "disk"]},
                {"title": "one", "kind": "ratio", "of": "ours", "against": ["disk"]},
                {"title": "alone", "kind": "value", "of": "disk"},
            ],
        }
    )


def test_who_is_left_out_takes_the_figures_along_that_need_it() -> None:
    left = _scenario().without({"disk"})
    assert left is not None
    assert [one.name for one in left.contenders] == ["ours", "decoding"]
    assert [(one.title, one.against) for one in left.figures] == [("both", ("decoding",))]
    assert _scenario().without(set(KINDS_HERE)) is None


def test_the_table_tells_shares_and_shuffle_beside_rates_and_who_was_left_out() -> None:
    turns = {
        "ours": [_turn(90, distinct_episodes=47.5, storage_correlation=0.01)],
        "decoding": [_turn(100)],
    }
    scenario = _scenario()
    load = {"load_average": [0.0, 0.0, 0.0], "time": "2026-01-01T00:00:00+0000"}
    run: dict[str, Any] = {
        "host": {"processor": "p", "cpus": 2, "python": "3", "versions": {"tensorflow": "2"}},
        "load": {"began": load, "ended": load},
        "figures": [],
        "left_out": {"grain": "grain is not measured: it needs grain"},
        "scenarios": {
            "made up": {"about": "a", "scenario": scenario.model_dump(mode="json"), "turns": turns}
        },
    }
    text = io.StringIO()
    show(run, Console(file=text, width=200))
    table = text.getvalue()
    (heading,) = [line for line in table.splitlines() if line.startswith("contender")]
    assert "of decode" in heading
    assert "episodes/batch" in heading
    (ours,) = [line for line in table.splitlines() if line.startswith("ours")]
    assert ours.split()[1:3] == ["90", "0.900"]
    assert "47.5" in ours
    assert "grain is not measured" in table


def test_every_kind_of_a_scenario_exists_and_every_peer_and_limit_takes_part_in_one() -> None:
    named = {one.kind for scenario in load_scenarios().values() for one in scenario.contenders}
    assert named == set(KINDS)
    assert set(LIMITS) <= named


def test_every_timed_scenario_of_samples_per_second_has_a_limit_beside_it() -> None:
    for scenario in load_scenarios().values():
        timed = [one for one in scenario.figures if one.measure == "samples_per_s"]
        if scenario.count_samples is None and timed:
            assert any(one.kind in LIMITS for one in scenario.contenders), scenario.name
