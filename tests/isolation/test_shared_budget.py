"""Train and validation loaders under one floor, in a real memory cgroup."""

import itertools
import json
from pathlib import Path

import pytest
from ended import python
from rlds_files import Written, written_steps
from shares_a_budget import SLOTS, SPARE_BYTES
from streams import dataset_of, spec_file, spec_of

from autoloader import AutoLoader, PipelineSpec
from autoloader.host.units import MIB

FLOOR = 64 * MIB
SPLITS = {"train": "train[:80%]", "val": "train[80%:]"}


written = written_steps([[50] * 5] * 2, name="a")


@pytest.fixture(scope="module")
def spec(written: Written) -> PipelineSpec:
    """Batches of 9 MiB, so that a ring of many is what a process holds."""
    return spec_of(
        dataset_of(written, split=SPLITS),
        cameras={"primary": {"size": [192, 256]}},
        batch={"size": 64, "drop_last": False},
        reader="indexed",
    )


def test_a_validation_opens_in_the_room_that_the_training_ring_gives_back(
    spec: PipelineSpec, small_group: Path, tmp_path: Path
):
    mix = spec_file(tmp_path, spec)
    script = Path(__file__).parent / "shares_a_budget.py"
    told = json.loads(python(script, small_group, mix, FLOOR).stdout)
    slot = told["slot"]
    headroom, ring = told["before"]
    assert ring >= (SLOTS - 3) * slot
    assert headroom < FLOOR + 256 * MIB + 2 * SPARE_BYTES
    # The training ring went to its least, and its pages are back at the kernel.
    assert told["slots"] == 4
    assert told["after"][1] <= 6 * slot
    assert told["after"][0] > headroom
    assert told["least"] >= told["floor"]
    assert told["restarts"] == 0
    # Nothing lost, nothing twice, on either side.
    val = list(itertools.chain.from_iterable(told["val"]))
    assert len(val) == told["val_samples"] == len({tuple(row) for row in val})
    options = {"isolation": "thread", "output": "numpy", "controller": False, "ram_floor": FLOOR}
    with AutoLoader(spec, **options) as calm:
        batches = itertools.chain.from_iterable(itertools.repeat(calm))
        wanted = [next(batches)["provenance"].tolist() for _ in told["train"]]
    assert told["train"] == wanted
