"""A spec held against real files: what is bound, counted and refused, without reading pictures."""

from pathlib import Path
from typing import Any

import pytest
from rlds_files import episode, write_dataset
from streams import dataset_of, mixture_of, spec_of

from autoloader.errors import SourceError, SpecError
from autoloader.index.counting import count_mixture
from autoloader.process.planning import plan_loader
from autoloader.samples.resolve import resolve


def shards(*lengths: list[int]) -> list[list[Any]]:
    return [[episode(i, steps) for i, steps in enumerate(part)] for part in lengths]


def test_a_split_that_a_dataset_lacks_is_refused_and_null_leaves_it_out(tmp_path: Path):
    one = write_dataset(tmp_path, shards([3]), name="one")
    two = write_dataset(tmp_path, shards([3]), name="two")
    with pytest.raises(SpecError, match="'val'"):
        resolve(spec_of(one, two), "val")
    both = spec_of(
        dataset_of(one, split={"train": "train", "val": None}),
        dataset_of(two, split={"train": None, "val": "train"}),
    )
    assert resolve(both, "train").names == ("one",)
    assert resolve(both, "val").names == ("two",)
    nobody = spec_of(dataset_of(one, split={"train": "train", "val": None}))
    with pytest.raises(SpecError, match="no dataset takes part"):
        resolve(nobody, "val")


def test_widths_are_the_widest_datasets_or_what_pad_to_says(tmp_path: Path):
    one = write_dataset(tmp_path, shards([3]), name="one")
    two = write_dataset(tmp_path, shards([3]), name="two")
    narrow = dataset_of(one, action="action[:1]", state=None)
    layout = mixture_of(narrow, two).layout
    assert (layout.action_width, layout.state_width) == (2, 3)
    padded = mixture_of(narrow, two, pad_to={"action": 7, "state": 8}).layout
    assert (padded.action_width, padded.state_width) == (7, 8)
    with pytest.raises(
        SpecError, match=r"pad_to\.state: 2 is too small: the state of dataset 'two' has 3"
    ):
        mixture_of(narrow, two, pad_to={"state": 2})


def test_a_dataset_that_takes_nothing_is_refused(tmp_path: Path):
    one = write_dataset(tmp_path, shards([3]), name="one")
    two = write_dataset(tmp_path, shards([3]), name="two")
    empty = dataset_of(two, images={}, action=None, state=None)
    with pytest.raises(SpecError, match=r"datasets\[two\]"):
        mixture_of(one, empty)


# --- counts -------------------------------------------------------------------------------------


def test_a_dataset_whose_every_episode_is_too_short_is_named(tmp_path: Path):
    written = write_dataset(tmp_path, shards([2, 3]))
    mixture = mixture_of(written, sample={"frame_offsets": [0, 5], "edges": {"end": "drop"}})
    with pytest.raises(SourceError, match="'robot': none of its 2 episodes is long enough"):
        count_mixture(mixture)


# --- shares and epochs --------------------------------------------------------------------------


@pytest.mark.parametrize(("cap", "natural"), [("all", 9 / 12), (3, 3 / 6)])
def test_natural_scaled_multiplies_by_every_valid_t_whatever_per_episode_draws(
    cap: Any, natural: float, tmp_path: Path
):
    one = write_dataset(tmp_path, [[episode(0, 9)]], name="one")
    two = write_dataset(tmp_path, [[episode(0, 3)]], name="two")
    shares = {}
    for weights, weight in (("natural_scaled", 2), ("natural", 1)):
        spec = spec_of(
            dataset_of(one, weight=weight), two,
            weights=weights, sample={"per_episode": cap}, mixing={"epoch": 100},
        )  # fmt: skip
        shares[weights] = plan_loader(spec, ram_floor="64MiB").order.shares
    assert shares["natural_scaled"] == pytest.approx((18 / 21, 3 / 21))
    assert shares["natural"] == pytest.approx((natural, 1 - natural))  # passes end together


# --- layout -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dims", "own", "word"),
    [([2], {}, "action has 2 columns"), ([0, 1, 3], {}, "3, but"),
     ([0], {"state": None}, "no state"),
     ([1], {"state": "observation/state[:1]"}, "state has 1 column")],
)  # fmt: skip
def test_differences_need_the_dim_in_action_and_state(
    dims: list[int], own: dict[str, Any], word: str, tmp_path: Path
):
    written = write_dataset(tmp_path, shards([3]))
    with pytest.raises(SpecError, match=word) as caught:
        mixture_of(dataset_of(written, **own), sample={"action_relative_to_state": dims})
    assert caught.value.path == "datasets[robot].sample.action_relative_to_state"


def test_a_dataset_without_an_action_has_no_differences_to_take(tmp_path: Path):
    written = write_dataset(tmp_path, shards([3]))
    plain = dataset_of(written, action=None, state=None)
    assert mixture_of(plain, sample={"action_relative_to_state": [5]}).layout.action_width == 0
