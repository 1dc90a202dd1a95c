"""A run's document, as tables, as a page, in the docs; scenario files that spell less out."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bench.figures import work_out
from bench.host import fingerprint, load
from bench.report import write_docs
from bench.scenario import Scenario, load_scenarios

TURN = {
    "samples_per_s": 100.0,
    "cpu_ms_per_sample": 1.0,
    "cpus_used": 1.0,
    "first_batch_s": 1.0,
    "peak_bytes": 2**20,
    "memory": [(1.0, 2**19), (2.0, 2**20)],
    "others_cpus": 0.0,
}


@pytest.fixture
def run() -> dict[str, Any]:
    scenario = Scenario.model_validate(
        {
            "name": "made-up",
            "about": "nothing <real>",
            "common": {"kind": "autoloader", "settings": {"reader": "indexed"}},
            "contenders": [{"name": "base"}, {"name": "twice", "settings": {"decode_threads": 2}}],
            "ladder": "base",
        }
    )
    turns = {"base": [TURN] * 6, "twice": [{**TURN, "samples_per_s": 200.0}] * 6}
    return {
        "schema_version": 2,
        "host": fingerprint(),
        "load": {"began": load(), "ended": load()},
        "figures": [dataclasses.asdict(figure) for figure in work_out(scenario, turns)],
        "scenarios": {
            "made-up": {
                "about": scenario.about,
                "scenario": scenario.model_dump(mode="json"),
                "turns": turns,
            }
        },
    }


def test_only_tables_between_marks_of_what_was_measured_are_written(
    run: dict[str, Any], tmp_path: Path
):
    page = tmp_path / "benchmarks.md"
    page.write_text(
        "By hand.\n<!-- measured: made-up -->\nold\n<!-- end -->\nBetween.\n"
        "<!-- measured: tax -->\nkept\n<!-- end -->\n<!-- measured: host -->\n<!-- end -->\nEnd.\n"
    )
    assert write_docs(run, page) == ["made-up", "host"]
    text = page.read_text()
    assert "By hand.\n<!-- measured: made-up -->\n| contender" in text
    assert "old" not in text
    assert "<!-- measured: tax -->\nkept\n<!-- end -->" in text
    assert "make bench ARGS" in text
    again = text
    write_docs(run, page)
    assert page.read_text() == again


def test_the_docs_name_every_scenario():
    page = (Path(__file__).parents[2] / "docs/explanation/benchmarks.md").read_text()
    for name in load_scenarios():
        assert f"`{name}`" in page, name
