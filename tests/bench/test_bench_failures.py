"""A contender that fails takes itself out of a run, and nobody else."""

from bench.data import ensure_data
from bench.runner import Patience, run_scenario
from bench.scenario import Scenario


def test_a_contender_that_fails_is_named_and_what_the_others_gave_stands():
    scenario = Scenario.model_validate(
        {"name": "made up", "about": "a", "window_s": 0.1, "warmup_batches": 1,
         "contenders": [{"name": "broken", "kind": "read_alone", "settings": {"shovels": 2}},
                        {"name": "whole", "kind": "read_alone"}], "figures": []},
    )  # fmt: skip
    told: list[str] = []
    ran = run_scenario(
        scenario,
        {scenario.data: ensure_data("counted")},
        pairs=2,
        patience=Patience(0.0, 0),
        told=told.append,
    )
    assert list(ran.turns) == ["whole"]
    assert len(ran.turns["whole"]) == 2
    assert list(ran.failed) == ["broken"]
    assert "shovels" in ran.failed["broken"]
    assert told == [f"made up: {name}" for name in ("broken", "whole", "whole", "broken")]
