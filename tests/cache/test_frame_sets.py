"""What a cache is told of a mixture's frames."""

from __future__ import annotations

from pathlib import Path

import pytest
import rlds_files

from autoloader.cache.forecast import FrameSet
from autoloader.decode.probe import DecodeCost
from autoloader.index.counting import count_mixture, quick_tables
from autoloader.order.mixture import mixture_order
from autoloader.order.reuse import foretell_reuse
from autoloader.planning.frame_sets import frame_sets
from autoloader.samples.resolve import resolve
from autoloader.spec import PipelineSpec

STEPS = [[30, 20], [25]]
COSTS = {"robot": DecodeCost(decode_s=4e-3, frames=2.0, encoded_bytes=900, samples=4)}


def sets_of(folder: Path, costs: dict[str, DecodeCost], **document: object) -> list[FrameSet]:
    """The frame sets of one dataset with two views, once it is indexed."""
    features = {**rlds_files.PLAIN, "observation/wrist": rlds_files.image()}
    shards = [[rlds_files.episode(n, steps) for n, steps in enumerate(part)] for part in STEPS]
    for part in shards:
        for one in part:
            one["observation/wrist"] = one["observation/image"]
    written = rlds_files.write_dataset(folder, shards, features=features)
    views = ["observation/image", "observation/wrist"]
    spec = PipelineSpec.model_validate(
        {
            "datasets": [
                {
                    "name": "robot",
                    "path": str(written.path),
                    "images": {"primary": views[0], "other": {"any_of": views}},
                    "action": "action",
                }
            ],
            "cameras": {"primary": {"size": [8, 10]}, "other": {"size": [6, 6]}},
            **document,
        }
    )
    mixture = resolve(spec)
    count_mixture(mixture)
    tables = quick_tables(mixture.datasets)
    order = mixture_order(mixture, {"robot": tables[0].samples})
    return list(frame_sets(mixture, order, tables, foretell_reuse(order, tables, 8), costs))


def test_every_choice_of_a_camera_has_frames_of_its_own_that_come_as_often_as_it_is_drawn(
    tmp_path: Path,
) -> None:
    primary, *choices = sets_of(tmp_path, COSTS, sample={"frame_offsets": [0]})
    assert (primary.camera, primary.frame_bytes, primary.chance) == ("primary", 8 * 10 * 3, 1)
    assert [(one.camera, one.frame_bytes, one.chance) for one in choices] == [
        ("other", 6 * 6 * 3, 0.5)
    ] * 2
    assert all(one.decode_s == 2e-3 and one.frames == 75 for one in (primary, *choices))
    assert primary.uses_per_position == pytest.approx(1)
    assert sum(one.uses_per_position for one in choices) == pytest.approx(1)


def test_drawn_t_chained_samples_and_goals_are_told(tmp_path: Path) -> None:
    drawn = sets_of(tmp_path / "drawn", COSTS, sample={"frame_offsets": [0], "per_episode": 5})[0]
    assert drawn.chance == pytest.approx(3 * 5 / 75)
    assert drawn.uses_per_position == pytest.approx(1)
    goal = sets_of(tmp_path / "goal", COSTS, sample={"frame_offsets": [0], "goal": "uniform"})[0]
    assert goal.goals == 1
    assert goal.uses_per_position == pytest.approx(2)
    chained = sets_of(
        tmp_path / "chained",
        COSTS,
        sample={"frame_offsets": [0, 2]},
        mixing={"chain": True, "block_length": 4},
    )[0]
    assert 1.25 <= chained.uses_per_position < 1.7


def test_without_a_known_cost_there_is_nothing_to_tell(tmp_path: Path) -> None:
    none = DecodeCost(decode_s=0.0, frames=2.0, encoded_bytes=900, samples=4)
    assert sets_of(tmp_path, {"robot": none}) == []
