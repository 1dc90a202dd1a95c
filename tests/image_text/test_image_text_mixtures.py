"""TFRecords, LeRobot, HDF5 and image–text in one spec: shares, flags, resumes of several ranks."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hdf5_files import write_robomimic
from image_text_files import records, spec_of, write_lines, write_tar
from lerobot_files import LeRobotFiles
from rlds_files import write_steps

from autoloader import AutoLoader, PipelineSpec, SpecError

pytestmark = pytest.mark.usefixtures("one_child")

HOW: dict[str, Any] = {"output": "numpy", "ram_floor": "64MiB"}
WEIGHTS = {"talk": 3.0, "tar": 1.0, "demos": 2.0, "lero": 1.0, "oak": 1.0}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """(a file of records, the other datasets of the spec)."""
    folder = tmp_path_factory.mktemp("mixture")
    path = write_lines(folder / "talk.jsonl", records(folder, [1, 0, 1, 1, 0, 1, 1]))
    (folder / "t").mkdir()
    write_tar(folder / "t/talk.tar", [1, 1, 0])
    write_robomimic(folder / "demos/d.hdf5", {"demo_0": 14, "demo_1": 11})
    lero = LeRobotFiles(lengths=(12, 7)).write(folder / "lero")
    oak = write_steps(folder, [[9, 4], [12]], name="oak").path
    own = [
        ("tar", folder / "t", None, "image_0"),
        ("demos", folder / "demos", "actions[:2]", "obs/agentview_image"),
        ("lero", lero, "action[:2]", "observation.images.top"),
        ("oak", oak, "action[:2]", "observation/image"),
    ]
    return path, [
        {"name": name, "path": str(place), "images": {"top": shown}, "weight": WEIGHTS[name]}
        | ({"action": action} if action else {"kind": "image_text"})
        for name, place, action, shown in own
    ]


def mixed(parts: tuple[Path, list[dict[str, Any]]], **more: Any) -> PipelineSpec:
    path, others = parts
    sample = {"frame_offsets": [-1, 0], "action_horizon": 3}
    own: dict[str, Any] = {"sample": sample, "mixing": {"epoch": 96}, **more}
    return spec_of(path, *others, weight=WEIGHTS["talk"], **own)


def places(batch: Any) -> list[tuple[int, ...]]:
    return [tuple(place) for place in batch["provenance"].tolist()]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shares_are_exact_and_a_resume_goes_on(
    parts: tuple[Path, list[dict[str, Any]]], ranks: int
):
    spec = mixed(parts)
    whole, cut = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    every = [{"rank": rank, "world_size": ranks, **HOW} for rank in range(ranks)]
    for one in every:
        with AutoLoader(spec, **one) as loader:
            for batch in loader:
                whole.update(places(batch))
                for row, of in enumerate(batch["dataset_index"].tolist()):
                    robot = of > 1
                    assert batch["has_action"][row] == robot == batch["action_mask"][row].any()
                    assert robot or not batch["action"][row].any()
                    assert batch["frame_mask"]["top"][row].sum() <= 1 + robot
                    assert (batch["features"]["answer"][row] != "") != robot
    for one in every:
        with AutoLoader(spec, **one) as loader:
            for _, batch in zip(range(4), loader, strict=False):
                cut.update(places(batch))
            state = loader.state_dict()
        with AutoLoader(spec, **one) as loader:
            loader.load_state_dict(state)
            for batch in loader:
                cut.update(places(batch))
    assert whole == cut
    shares = Counter(place[0] for place in whole.elements())
    wanted = {k: int(96 * weight / 8) for k, weight in enumerate(WEIGHTS.values())}
    assert shares == wanted


def test_offsets_in_seconds_need_no_frame_rate_of_records(parts: tuple[Path, list[dict[str, Any]]]):
    path, _ = parts
    sample = {"delta_timestamps": {"frames": [-0.1, 0.0], "action": [0.0, 0.05]}}
    with AutoLoader(spec_of(path, sample=sample, batch={"size": 7}), **HOW) as loader:
        (batch,) = loader
    assert batch["images"]["top"].shape[:2] == (7, 2)
    shown = batch["frame_mask"]["top"]
    assert not shown[:, 0].any()
    assert np.count_nonzero(shown[:, 1]) == 5


UNIT: dict[str, Any] = {
    "mixing": {"unit": "batch", "epoch": 94},
    "batch": {"size": 4, "drop_last": False},
}


def steps_of(spec: PipelineSpec, ranks: int, epochs: int = 1) -> list[list[list[tuple[int, ...]]]]:
    """The samples of each step, by rank."""
    found: list[list[list[tuple[int, ...]]]] = []
    for rank in range(ranks):
        with AutoLoader(spec, rank=rank, world_size=ranks, **HOW) as loader:
            mine = [places(batch) for _ in range(epochs) for batch in loader]
        found = found or [[] for _ in mine]
        for step, own in zip(found, mine, strict=True):
            step.append(own)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_batch_is_of_one_kind_on_all_ranks(parts: tuple[Path, list[dict[str, Any]]], ranks: int):
    steps = steps_of(mixed(parts, **UNIT), ranks, epochs=2)
    kinds = [{place[0] > 1 for own in step for place in own} for step in steps]
    assert all(len(kind) == 1 for kind in kinds)
    assert sum(len(own) for step in steps for own in step) == 2 * 94
    assert len({len(own) for step in steps for own in step}) > 1  # the last ones are uneven
    assert abs(sum(True in kind for kind in kinds) - len(steps) / 2) <= 1
    seen = Counter(place[0] for step in steps for own in step for place in own)
    texts = seen[0] + seen[1]
    assert abs(seen[0] - texts * 3 / 4) <= 1
    assert abs(seen[2] - (188 - texts) / 2) <= 1


def test_another_world_size_and_batch_lose_and_repeat_nothing(
    parts: tuple[Path, list[dict[str, Any]]],
):
    seen: Counter[tuple[int, ...]] = Counter()
    state: dict[str, Any] | None = None
    for ranks, size in ((2, 4), (1, 4), (3, 3)):
        mixing = {"unit": "batch", "epoch": "forever"}
        spec = mixed(parts, mixing=mixing, batch={"size": size})
        for rank in range(ranks):
            with AutoLoader(spec, rank=rank, world_size=ranks, **HOW) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for _, batch in zip(range(5), loader, strict=False):
                    own = places(batch)
                    assert len({place[0] > 1 for place in own}) == 1
                    seen.update(own)
                left = loader.state_dict()
        state = left
    assert set(seen.values()) == {1}
    for of, length in {0: 7, 1: 3}.items():
        by_pass = Counter(place[1] for place in seen if place[0] == of)
        assert all(by_pass[number] == length for number in range(max(by_pass)))


def test_a_resume_of_whole_batches_is_exact(parts: tuple[Path, list[dict[str, Any]]]):
    spec = mixed(parts, **UNIT)
    for rank in range(2):
        own = {"rank": rank, "world_size": 2, **HOW}
        with AutoLoader(spec, **own) as loader:
            whole = [places(batch) for _ in range(2) for batch in loader]
        with AutoLoader(spec, **own) as loader:
            cut = [places(batch) for batch in loader]
            cut += [places(batch) for _, batch in zip(range(5), loader, strict=False)]
            state = loader.state_dict()
        with AutoLoader(spec, **own) as loader:
            loader.load_state_dict(state)
            cut += [places(batch) for batch in loader]
        assert cut == whole


@pytest.mark.parametrize(
    ("mixing", "more", "said"),
    [
        ({"chain": True, "block_length": 4}, {}, "chain"),
        ({"locality": {}}, {}, "locality"),
        ({"block_length": 2}, {}, "block_length"),
        ({"strategy": "sample"}, {}, "strategy: sample"),
        ({"epoch": "pass"}, {}, "epoch: pass"),
        ({}, {"reader": "stream"}, "reader: stream"),
        ({}, {"weights": "natural"}, "weights: natural"),
        ({}, {"weights": {"to": {"talk": 1}, "over": 9}}, "a schedule"),
    ],
)
def test_what_says_otherwise_how_batches_are_filled_is_refused(
    tmp_path: Path, mixing: dict[str, Any], more: dict[str, Any], said: str
):
    with pytest.raises(SpecError, match=said):
        spec_of(tmp_path, mixing={"unit": "batch", **mixing}, **more)


@pytest.mark.parametrize(
    "camera", [{"any_of": ["image_1", "image_0"]}, {"path": "image_0", "present": "has_image_1"}]
)
def test_a_camera_shows_one_picture_where_a_record_has_it(tmp_path: Path, camera: dict[str, Any]):
    with pytest.raises(SpecError, match=r"datasets\[talk\].images: .* may lack a picture"):
        spec_of(tmp_path, images={"top": camera})
