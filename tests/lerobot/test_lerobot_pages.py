"""What the pages say of LeRobot data, followed literally on data of the kind that they name."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_files import LeRobotFiles
from rlds_files import TEXT, image, jpeg, numbers, write_dataset
from streams import opened, spec_file

from autoloader import AutoLoader, layouts
from autoloader.cli.app import main
from autoloader.spec.reading import parse_yaml

pytestmark = pytest.mark.usefixtures("one_child")

DOCS = Path(__file__).parents[2] / "docs"
TOP = "observation.images.top"


def yaml_blocks(page: str) -> list[dict[str, Any]]:
    found = re.findall(r"^```yaml\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    return [parse_yaml(one) for one in found]


def inline(page: str, word: str) -> dict[str, Any]:
    """The code span of a page that begins with a word, as YAML."""
    (found,) = re.findall(rf"`({word}: \{{[^`]*)`", (DOCS / page).read_text())
    return parse_yaml(found)  # type: ignore[no-any-return]


def placed(spec: dict[str, Any], data: Path) -> dict[str, Any]:
    """The spec of a page, with the data where the test has put it."""
    return json.loads(json.dumps(spec).replace("/data", str(data)))  # type: ignore[no-any-return]


def samples(spec: dict[str, Any], **how: Any) -> list[dict[str, Any]]:
    """Every sample of a pass, by dataset name and place."""
    spec = {"mixing": {"epoch": "pass"}, **spec, "batch": {"size": 4, "drop_last": False}}
    found = []
    with opened(spec, **how) as loader:
        for batch in loader:
            for row, place in enumerate(batch["provenance"].tolist()):
                one = {key: np.copy(value[row]) for key, value in batch.items()
                       if key in ("action", "action_mask", "frame_offset", "state")}  # fmt: skip
                one |= {"name": loader.dataset_names[place[0]], "t": place[4]}
                found.append({**one, "language": batch["language"][row]})
    return found


def arm(name: str) -> dict[str, Any]:
    fields = {"action": "action", "state": "observation.state", "language": "task"}
    return {"name": name, "path": f"/data/{name}", "images": {"top": TOP}, **fields}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    LeRobotFiles(fps=30).write(root / "thirty")
    LeRobotFiles(fps=10, version="v2.1").write(root / "ten")
    LeRobotFiles(fps=30).write(root / "lerobot/cups")
    high = {"observation.images.cam_high": 2}
    LeRobotFiles(fps=30, cameras=high).write(root / "lerobot/g1_pick")
    bridge = {
        "observation/image_0": image(), "observation/state": numbers(7), "action": numbers(7),
        "language_instruction": TEXT,
    }  # fmt: skip
    record = {
        "observation/image_0": [jpeg(0, step) for step in range(6)],
        "observation/state": [0.5] * 42, "action": [0.25] * 42,
        "language_instruction": [b"lift"] * 6,
    }  # fmt: skip
    write_dataset(root, [[record] * 2], name="bridge_dataset", features=bridge)
    return root


def test_the_mixture_of_the_tutorial_runs_as_it_stands(data: Path):
    (spec,) = yaml_blocks("tutorials/lerobot.md")
    found = samples(placed(spec, data))
    assert {one["name"] for one in found} == {"g1", "bridge"}
    assert {one["language"] for one in found} == {*LeRobotFiles.tasks, "lift"}


@pytest.mark.parametrize("rates", [{"thirty": 3}, {"ten": 1}, {"thirty": 3, "ten": 1}])
def test_offsets_in_seconds_are_rows_of_each_datasets_own_rate(
    rates: dict[str, int], data: Path, tmp_path: Path
):
    said = inline("tutorials/lerobot.md", "sample")
    spec = {
        "datasets": [arm(name) for name in rates], "cameras": {"top": {"size": [16, 16]}}, **said,
    }  # fmt: skip
    spec = placed(spec, data)
    lengths = dict(enumerate(LeRobotFiles.lengths))
    found = samples(spec)
    assert len(found) == len(rates) * sum(lengths.values())
    for one in found:
        step, t = rates[one["name"]], one["t"]
        episode = int(one["action"][0, 0])
        last = lengths[episode] - 1
        rows = [min(t + offset, last) for offset in (0, step)]
        np.testing.assert_array_equal(one["action"][:, 1], rows)
        np.testing.assert_array_equal(one["action_mask"].all(-1), [True, t + step <= last])
        np.testing.assert_array_equal(one["frame_offset"], [-min(t, step), 0])
    path = spec_file(tmp_path, spec)
    assert main(["verify", "--spec", str(path), "-n", "40", "--ram-floor", "64MiB"]) == 0


def test_integers_come_as_the_texts_that_the_page_names(data: Path, tmp_path: Path):
    language = inline("tutorials/lerobot.md", "language")
    texts = language["language"]["names"]
    spec = {
        "datasets": [{**arm("thirty"), **language}], "cameras": {"top": {"size": [16, 16]}},
    }  # fmt: skip
    spec = placed(spec, data)
    for one in samples(spec):
        assert one["language"] == texts[int(one["action"][0, 0]) % 2]
    path = spec_file(tmp_path, spec)
    assert main(["verify", "--spec", str(path), "-n", "20", "--ram-floor", "64MiB"]) == 0


def test_acts_spec_and_layout_give_what_its_policy_takes(data: Path):
    import torch

    spec = placed(yaml_blocks("howto/from-other-loaders.md")[-1], data)
    with AutoLoader(spec, ram_floor="64MiB", isolation="thread") as loader:
        batch = layouts.lerobot(next(iter(loader)), loader.dataset_names)
    shapes = {key: tuple(value.shape) for key, value in batch.items() if key != "task"}
    assert shapes[TOP] == (8, 3, 224, 224)
    assert batch[TOP].dtype == torch.float32
    assert 0.5 < batch[TOP].max() <= 1
    assert shapes["observation.state"] == (8, 2)
    assert shapes["action"] == (8, 100, 3)
    assert shapes["action_is_pad"] == (8, 100)
    assert batch["action_is_pad"][:, 20:].all()  # of episodes of 20 steps at most
    assert set(batch["task"]) <= set(LeRobotFiles.tasks)
