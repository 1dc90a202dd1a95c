"""``action_per: step``: a chunk of actions for each step of the window, as Octo takes them."""

from typing import Any

import numpy as np
import pytest
import torch
from rlds_files import Written, episode, png, write_dataset
from streams import dataset_of, spec_of

from autoloader import AutoLoader
from autoloader.errors import SpecError, UnsupportedError

OCTO = {"frame_offsets": [-1, 0], "state_offsets": [-1, 0], "action_horizon": 4,
        "action_per": "step"}  # fmt: skip
LENGTHS = (10, 1, 3)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    records = [episode(number, steps, encode=png) for number, steps in enumerate(LENGTHS)]
    return write_dataset(tmp_path_factory.mktemp("chunks"), [records])


def batches(written: Written | dict[str, Any], output: str = "numpy", **top: Any) -> list[Any]:
    how: dict[str, Any] = {
        "sample": OCTO, "mixing": {"epoch": "pass"}, "batch": {"size": 4, "drop_last": False}, **top
    }  # fmt: skip
    with AutoLoader(
        spec_of(written, **how), isolation="thread", ram_floor=0, controller=False,
        output=output,  # type: ignore[arg-type]
    ) as loader:  # fmt: skip
        return [
            {
                name: one.clone() if isinstance(one, torch.Tensor) else one.copy()
                for name, one in batch.items()
                if name in ("action", "action_mask", "provenance")
            }
            for batch in loader
        ]


@pytest.mark.parametrize("reader", ["stream", "indexed"])
def test_rows_may_lie_several_steps_apart(written: Written, reader: str):
    own = {"action_start": -1, "action_horizon": 3, "action_step": 2}
    seen = 0
    for batch in batches(written, reader=reader, sample=own):
        for k, (_, _, _, number, t) in enumerate(batch["provenance"].tolist()):
            last, rows = LENGTHS[number] - 1, [t - 1, t + 1, t + 3]
            held = [min(max(row, 0), last) for row in rows]
            np.testing.assert_array_equal(batch["action"][k][:, 1], held)
            assert batch["action_mask"][k][:, 0].tolist() == [0 <= row <= last for row in rows]
            seen += 1
    assert seen == sum(LENGTHS)


def test_datasets_that_disagree_on_chunks_are_refused(written: Written):
    other = dataset_of(written, name="other", sample={"action_per": "sample"})
    words = "'other' has no steps with their own actions"
    with pytest.raises(SpecError, match=words):
        spec_of(written, other, sample=OCTO)


def test_the_graph_says_that_it_has_no_such_chunks(written: Written):
    from autoloader.tfdata import as_dataset

    with pytest.raises(UnsupportedError, match="action_per: step"):
        as_dataset(spec_of(written, sample=OCTO))


def test_the_graph_says_that_it_has_no_features(written: Written):
    from autoloader.tfdata import as_dataset

    dataset = dataset_of(written, features={"pose": "observation/state"})
    with pytest.raises(UnsupportedError, match=r"datasets\[robot\].features.pose"):
        as_dataset(spec_of(dataset))
