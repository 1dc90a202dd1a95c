"""What rewrites whole episodes, on LeRobot datasets: steps, ops along the episode, functions."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_checks import SIDE, TOP, samples_of, spec_of
from lerobot_files import FPS, LeRobotFiles
from streams import opened

from autoloader.formats import open_source
from autoloader.formats.lerobot.metadata import EpisodeList
from autoloader.samples.resolve import resolve

FILES = LeRobotFiles(pictures=[SIDE])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FILES.write(tmp_path_factory.mktemp("episodes") / "arm")


def test_steps_and_ops_along_the_episode_see_what_lies_in_the_rows(root: Path):
    dataset = {
        "steps": {"drop_first": 1, "every": 2, "drop_last": 1},
        "action": [{"path": "observation.state[:1]", "ops": ["relabel"]}, "action[:2]"],
        "keep": {"moving": {"path": "action[1:2]", "above": 4}},
    }
    found = samples_of(spec_of(root, dataset=dataset, sample={"frame_offsets": [0, 1]}))
    expected = set()
    for number, length in enumerate(FILES.lengths):
        left = list(range(1, length, 2))[:-1]
        expected |= {(number, step) for step in left if step > 4}
    assert set(found) == expected
    for (number, step), sample in found.items():
        np.testing.assert_array_equal(sample["action"][0], [4, number, step])
        frames = FILES.frames(root, TOP, number)
        last = list(range(1, FILES.lengths[number], 2))[-2]
        shown = [frames[step], frames[min(step + 2, last)]]
        np.testing.assert_array_equal(sample["frames"]["top"], shown)


def test_records_alone_ask_for_no_video(root: Path, monkeypatch: pytest.MonkeyPatch):
    asked, videos_of = list[str](), EpisodeList.videos_of

    def noted(episodes: EpisodeList, path: str, cameras: Any) -> Any:
        asked.append(path)
        return videos_of(episodes, path, cameras)

    monkeypatch.setattr(EpisodeList, "videos_of", noted)
    directory = open_source(root, dataset="arm")
    assert len(list(directory.records(directory.splits["train"]))) == len(FILES.lengths)
    assert asked == []


def test_a_function_may_turn_drop_and_rename_what_an_episode_holds(root: Path):
    dataset = {
        "transform": {"call": "lerobot_functions:backwards"},
        "images": {"top": "cameras/front", "side": "cameras/wrist"},
        "action": "moves",
        "state": "joints",
        "language": "words",
    }
    sizes = {"top": {"size": [64, 96]}, "side": {"size": [64, 96]}}
    sample = {"frame_offsets": [0, 1]}
    found = samples_of(spec_of(root, dataset=dataset, cameras=sizes, sample=sample))
    taken = {e: list(range(n - 1, -1, -2)) for e, n in enumerate(FILES.lengths) if e != 1}
    assert set(found) == {(e, step) for e, steps in taken.items() for step in steps}
    for (number, step), one in found.items():
        shown = [step, max(step - 2, taken[number][-1])]
        assert one["action"][0, :2].tolist() == [number, step]
        assert one["text"] == FILES.tasks[number % 2]
        for name, camera in (("top", TOP), ("side", SIDE)):
            frames = FILES.frames(root, camera, number)
            np.testing.assert_array_equal(one["frames"][name], [frames[k] for k in shown])


def test_rules_and_functions_know_the_number_of_an_episode(root: Path, tmp_path: Path):
    kept = tmp_path / "keep.json"
    kept.write_text(json.dumps({"0": [[2, 4]], "2": [[0, 1], [5, 7]]}))
    ranges = {"file": str(kept), "key": "{episode_metadata/episode_index}"}
    held = {"episode": "episode_metadata/episode_index"}
    dataset = {"keep": {"ranges": ranges}, "features": held}
    spec = spec_of(root, dataset=dataset, sample={"frame_offsets": [0]})
    with opened(spec, controller=False) as loader:
        rows = [
            (int(number), round(float(state[0, 0]) / 2), -round(float(state[0, 1])))
            for batch in loader
            for number, state in zip(
                np.ravel(batch["features"]["episode"]), batch["state"], strict=True
            )
        ]
    wanted = {0: (2, 3), 2: (0, 5, 6)}
    assert sorted(rows) == [(e, step, e) for e, steps in wanted.items() for step in steps]


IN_SECONDS = {"frames": [-1 / FPS, 0, 2 / FPS], "action": [0, 1 / FPS, 2 / FPS + 5e-5]}


def test_offsets_in_seconds_are_those_in_frames(root: Path):
    seconds = resolve(spec_of(root, sample={"delta_timestamps": IN_SECONDS})).datasets[0].sample
    frames = {"frame_offsets": [-1, 0, 2], "action_horizon": 3}
    assert seconds == resolve(spec_of(root, sample=frames)).datasets[0].sample
    state = {"delta_timestamps": {"state": [-0.4, 0.0], "action": [-0.2, 0.0]}}
    strided = spec_of(root, dataset={"stride": 2, "sample": state})
    sample = resolve(strided).datasets[0].sample
    assert (sample.frame_offsets, sample.state_offsets) == ((-1, 0, 2), (-2, 0))
    assert (sample.action_start, sample.action_horizon) == (-1, 2)


@pytest.mark.parametrize(
    ("more", "words"),
    [({"sample": {"delta_timestamps": {"frames": [0.05]}}},
      ("[0.05]", "10 frames a second", "0.1 s")),
     ({"sample": {"delta_timestamps": {"action": [0, 0.1, 0.4]}}},
      ("not evenly spaced", "[0, 1, 4]")),
     ({"dataset": {"fps": 12}}, ("fps: 12", "and 10 in the LeRobot dataset")),
     ({"sample": {"frame_offsets": [1], "delta_timestamps": {"frames": [0]}}},
      ("frame_offsets and delta_timestamps.frames",))],
)  # fmt: skip
def test_times_that_fit_no_frame_are_refused(
    root: Path, more: dict[str, Any], words: tuple[str, ...]
):
    with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
        resolve(spec_of(root, **more))
    for word in words[1:]:
        assert word in str(caught.value) + getattr(caught.value, "remedy", "")
