"""What loader, plan, statistics and spec say of themselves at a prompt, and a spec as YAML."""

from pathlib import Path

import pytest

from autoloader import AutoLoader, PipelineSpec
from autoloader.spec.reading import parse_yaml


@pytest.fixture
def small_spec(small_mix: Path) -> PipelineSpec:
    return PipelineSpec.from_yaml(small_mix)


def test_each_says_state_and_rate_first_in_at_most_twelve_lines(small_spec: PipelineSpec):
    options = {"ram_floor": "64MiB", "isolation": "thread", "output": "numpy"}
    with AutoLoader(small_spec, batch_size=4, **options) as loader:
        assert repr(loader).startswith("AutoLoader: running, batch 0, ")
        assert len(next(iter(loader))["language"]) == 4
        for one in (loader, loader.plan, loader.statistics(), small_spec):
            assert len(repr(one).splitlines()) <= 12
            assert " at 0x" not in repr(one)
        assert "batches of 4" in repr(loader)
        assert repr(loader.statistics()).splitlines()[1].split()[0] == "state"
        assert loader._repr_html_().startswith("<pre>AutoLoader: running, batch 1, ")
        assert loader.plan._repr_html_().startswith("<pre>LoaderPlan of PipelineSpec: ")
    assert repr(loader).startswith("AutoLoader: closed, batch 1, ")


def test_a_data_module_says_what_its_training_loader_does(small_spec: PipelineSpec):
    from autoloader.lightning import AutoLoaderDataModule

    options = {"ram_floor": "64MiB", "isolation": "thread"}
    module = AutoLoaderDataModule(small_spec, batch_size=4, **options)
    assert repr(module).startswith("AutoLoaderDataModule: not started, PipelineSpec: ")
    try:
        next(iter(module.train_dataloader()))
        assert repr(module).startswith("AutoLoaderDataModule: AutoLoader: running, batch 1, ")
        assert len(repr(module).splitlines()) <= 12
    finally:
        module.teardown("fit")


def test_a_spec_as_yaml_is_the_same_spec(small_mix: Path):
    plain = PipelineSpec.from_yaml(small_mix).model_dump(mode="json")
    first, second = plain["datasets"][:2]
    first |= {"weight": 2.5, "sample": {"action_horizon": 3}, "keep": {"language": "anywhere"}}
    first["action"] = [{"path": "action/world_vector", "ops": [{"clip": [0.0, 1.0]}]}]
    second["sample"] = {"per_episode": 2}
    plain |= {
        "seed": 7,
        "sample": {"action_horizon": 3, "frame_offsets": [-1, 0]},
        "normalize": {"action": {"method": "q01_q99", "clip": True}},
        "mixing": {"epoch": "pass", "block_length": 2},
        "augment": {"primary": {"brightness": 0.1}},
    }
    spec = PipelineSpec.from_mapping(plain)
    again = PipelineSpec.from_mapping(parse_yaml(spec.to_yaml()))
    assert again == spec
    assert again.model_dump(mode="json") == spec.model_dump(mode="json")
    assert again.sample_of(first["name"]) == spec.sample_of(first["name"])
