"""A start: the child comes up while its trainer plans, and goes again where the plan is refused."""

from typing import Any

import pytest
from leftovers import loader_children

from autoloader import AutoLoader, PipelineSpec
from autoloader.errors import BudgetInfeasibleError, SourceError, SpecError
from autoloader.pipeline.messages import Retuned
from autoloader.process.child import Child
from autoloader.process.ranks import Neighbours


@pytest.mark.parametrize(
    ("broken", "own", "error"),
    [
        ({"path": "/nowhere/1.0.0"}, {}, SourceError),
        ({"split": {"train": "train[:0%]"}}, {}, SpecError),
        ({}, {"ram_floor": "900TB"}, BudgetInfeasibleError),
    ],
)
def test_a_refused_start_has_ended_its_child_when_it_says_so(
    broken: dict[str, Any], own: dict[str, Any], error: type[Exception], small_spec: PipelineSpec
):
    plain = small_spec.model_dump(mode="json")
    plain["datasets"][0].update(broken)
    with pytest.raises(error):
        AutoLoader(PipelineSpec.from_mapping(plain), output="numpy", **{"ram_floor": "1GB", **own})
    assert loader_children() == []
    assert Child._current == {}


def test_a_second_loader_that_is_refused_leaves_the_first_one_its_child(small_spec: PipelineSpec):
    with AutoLoader(small_spec, output="numpy", ram_floor="1GB") as loader:
        batches = iter(loader)
        next(batches)
        pids = loader_children()
        with pytest.raises(BudgetInfeasibleError):
            AutoLoader(small_spec, output="numpy", ram_floor="900TB")
        next(batches)
        assert loader_children() == pids
        assert loader.statistics().restarts == 0


def test_a_child_that_is_expected_outlives_the_loader_before_it(small_spec: PipelineSpec):
    first = AutoLoader(small_spec, output="numpy", ram_floor="1GB")
    child = Child.shared(Neighbours())
    first.close()
    assert child.usable
    child.spare()
    assert not child.usable


def test_knobs_of_before_a_loader_shrank_do_not_come_back_with_a_late_message(
    small_spec: PipelineSpec,
):
    knobs = {"ring_slots": 12}
    with AutoLoader(small_spec, output="numpy", ram_floor="1GB", knobs=knobs) as loader:
        next(iter(loader))
        (pipeline,) = Child.open_clients()
        before = loader.knobs
        pipeline.shrink_to_minimum()
        pipeline.take(Retuned(pipeline.number, 1, before.flat()))
        assert loader.knobs.ring_slots == 4
