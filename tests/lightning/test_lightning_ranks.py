"""A Lightning fit on two ranks of one node: one child, one sequence, and a checkpoint for one."""

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ended import ran
from fits import Tiny, data, trainer
from leftovers import ends_within

from autoloader import PipelineSpec

pytestmark = [
    # Lightning's own, with this version of torch.
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
    # What it says to tests that resume without the callback that saved.
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning"),
]
HERE = Path(__file__).parent
SAVE_AT = 3  # as the script


@pytest.fixture(scope="module")
def unbroken(mix: PipelineSpec) -> PipelineSpec:
    """The mixture with an epoch that drops nothing."""
    batch = mix.batch.model_copy(update={"drop_last": False})
    return mix.model_copy(update={"batch": batch})


@pytest.fixture(scope="module")
def one_rank(unbroken: PipelineSpec) -> Tiny:
    model = Tiny()
    trainer(max_epochs=2, num_sanity_val_steps=0).fit(model, datamodule=data(unbroken))
    return model


@pytest.fixture(scope="module")
def folder(
    unbroken: PipelineSpec, tmp_path_factory: pytest.TempPathFactory, warm_python: Path
) -> Path:
    """What two ranks wrote; see the script."""
    place = tmp_path_factory.mktemp("ddp")
    (place / "mix.yaml").write_text(unbroken.model_dump_json())  # JSON is YAML
    path = os.pathsep.join([*map(str, (HERE, HERE.parent)), os.environ.get("PYTHONPATH", "")])
    words = (warm_python, HERE / "ddp_script.py", place / "mix.yaml", place)
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ran(*words, env=env, cwd=HERE.parents[1], timeout=230)
    return place


@pytest.fixture(scope="module")
def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


def dealt(told: list[dict[str, Any]], what: str) -> list[tuple[int, ...]]:
    steps = zip(*(one[what] for one in told), strict=True)
    return [tuple(row) for step in steps for part in step for row in part]


def flat(batches: list[list[tuple[int, ...]]]) -> list[tuple[int, ...]]:
    return list(itertools.chain.from_iterable(batches))


def test_the_ranks_of_a_trainer_share_a_child_that_ends_with_them(told: list[dict[str, Any]]):
    assert [one["ranks"] for one in told] == [[0, 2], [1, 2]]
    assert told[0]["pids"] == told[1]["pids"]
    assert len(told[0]["pids"]) == 1
    assert ends_within(told[0]["pids"][0], 10)


def test_an_epoch_over_two_ranks_is_disjoint_complete_and_of_equal_steps(
    told: list[dict[str, Any]], one_rank: Tiny
):
    assert [len(one["seen"]) for one in told] == [one["length"] for one in told] == [5, 5]
    found = dealt(told, "seen")
    assert found == flat(one_rank.seen[:10])
    assert len(set(found)) == len(found) == 40


def test_a_validation_over_two_ranks_is_the_one_ranks(told: list[dict[str, Any]], one_rank: Tiny):
    assert dealt(told, "validated") == flat(one_rank.validated[: len(one_rank.validated) // 2])


def test_a_checkpoint_of_two_ranks_goes_on_in_the_middle_of_the_epoch_on_one(
    folder: Path, unbroken: PipelineSpec, one_rank: Tiny
):
    resumed = Tiny()
    trainer(max_epochs=1, num_sanity_val_steps=0).fit(
        resumed, datamodule=data(unbroken), ckpt_path=str(folder / "at.ckpt")
    )
    done = SAVE_AT * 2
    assert resumed.seen == one_rank.seen[done:10]
