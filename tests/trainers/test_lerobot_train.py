"""lerobot-train on this loader, with a stand-in of lerobot's script.

``make lerobot-train`` asks the real one. The stand-in calls what releases 0.4.4 and 0.6.1 call, in
their order.
"""

import importlib
import json
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lerobot_files import FPS, HEIGHT, WIDTH, LeRobotFiles, columns, shown

from autoloader import lerobot_train
from autoloader.errors import UsageError

TOP = "observation.images.top"
STATE = "observation.state"
LENGTHS = (12, 7, 20, 9)
SCRIPT = """
from pathlib import Path

def {maker}(cfg):
    return {made}

def cycle(dataloader):
    raise AssertionError("lerobot's own loader is asked")

def save_checkpoint(checkpoint_dir, step, cfg, **kept):
    (Path(checkpoint_dir) / "training_state").mkdir(parents=True)

def main():
    cfg = run.cfg
    made = {maker}(cfg)
    batches = cycle(object())
    for step in range(run.first, cfg.steps):
        run.seen.append(next(batches))
        if step + 1 == run.saved:
            folder = Path(cfg.output_dir) / "checkpoint"
            save_checkpoint(checkpoint_dir=folder, step=step + 1, cfg=cfg)
"""
MAKERS = {
    "0.4.4": {"maker": "make_dataset", "made": "run.dataset"},
    "0.6.1": {"maker": "make_train_eval_datasets", "made": "(run.dataset, None)"},
}
Install = Callable[[str], ModuleType]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a stand-in of a release, and gives its script."""

    def installed(version: str) -> ModuleType:
        told = tmp_path / "site" / f"lerobot-{version}.dist-info"
        scripts = tmp_path / "site/lerobot/scripts"
        for folder in (told, scripts):
            folder.mkdir(parents=True)
        (told / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: lerobot\nVersion: {version}\n"
        )
        how = MAKERS.get(version, MAKERS["0.6.1"])
        (scripts / "lerobot_train.py").write_text(SCRIPT.format(**how))
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        importlib.invalidate_caches()
        return importlib.import_module("lerobot.scripts.lerobot_train")

    yield installed
    for name in [name for name in sys.modules if name.split(".")[0] == "lerobot"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return LeRobotFiles(lengths=LENGTHS).write(tmp_path_factory.mktemp("lerobot") / "data")


def dataset(root: Path, deltas: dict[str, list[float]] | None, **more: Any) -> Any:
    """What the script's dataset says of itself."""
    features = json.loads((root / "meta/info.json").read_text())["features"]
    firsts = np.concatenate([[0], np.cumsum(LENGTHS)]).tolist()
    episodes = {
        "episode_index": list(range(len(LENGTHS))),
        "dataset_from_index": firsts[:-1],
        "dataset_to_index": firsts[1:],
    }
    meta = {
        "features": features, "camera_keys": [TOP], "image_keys": [], "depth_keys": [],
        "has_language_columns": False, "tasks": ["put it down"], "episodes": episodes,
    }  # fmt: skip
    told = {"root": root, "delta_timestamps": deltas, "episodes": None, "image_transforms": None}
    return SimpleNamespace(**{**told, "meta": SimpleNamespace(**{**meta, **more})})


def run(
    script: ModuleType, made: Any, place: Path, *, steps: int = 6, dropped: int = 0, **own: Any
) -> list[dict[str, Any]]:
    """The batches that a run trains on."""
    cfg = SimpleNamespace(
        seed=3, batch_size=4, steps=steps, output_dir=place, resume="first" in own,
        checkpoint_path=place / "checkpoint", dataset=SimpleNamespace(streaming=False),
        policy=SimpleNamespace(drop_n_last_frames=dropped),
    )  # fmt: skip
    seen: list[dict[str, Any]] = []
    told = {"cfg": cfg, "dataset": made, "seen": seen, "first": 0, "saved": 0, **own}
    script.run = SimpleNamespace(**told)  # type: ignore[attr-defined]
    lerobot_train.main()
    return seen


def table() -> dict[str, Any]:
    """The dataset's columns, episode behind episode."""
    firsts = np.concatenate([[0], np.cumsum(LENGTHS)]).tolist()
    rows = [columns(number, length, firsts[number], FPS) for number, length in enumerate(LENGTHS)]
    return {name: np.concatenate([np.asarray(row[name]) for row in rows]) for name in rows[0]}


def frames(count: int, first: int = 0) -> list[float]:
    return [k / FPS for k in range(first, first + count)]


def check(batch: dict[str, Any], deltas: dict[str, list[float]]) -> None:
    """Each number, mask and picture is what the files hold, at the step asked for."""
    told, ends = table(), np.cumsum(LENGTHS)
    for row, index in enumerate(batch["index"].tolist()):
        episode = int(told["episode_index"][index])
        first, last = int(ends[episode]) - LENGTHS[episode], int(ends[episode]) - 1
        assert batch["episode_index"][row] == episode
        assert batch["frame_index"][row] == index - first
        for key in (STATE, "action", TOP):
            asked = [index + round(delta * FPS) for delta in deltas.get(key, [0.0])]
            real = [min(max(place, first), last) for place in asked]
            if key == TOP:
                found = batch[key][row].reshape(len(asked), 3, HEIGHT, WIDTH).movedim(1, -1)
                scale = 1 if found.dtype == torch.uint8 else 255
                what = [shown((frame * scale).numpy()) for frame in found]
                assert what == [(0, episode, place - first) for place in real]
            else:
                want = told[key][real].astype(np.float32)
                np.testing.assert_array_equal(batch[key][row].reshape(want.shape), want)
            if key in deltas:
                assert batch[f"{key}_is_pad"][row].tolist() == [
                    place != there for place, there in zip(asked, real, strict=True)
                ]
            else:
                assert f"{key}_is_pad" not in batch


@pytest.mark.parametrize(
    ("version", "deltas", "axes"),
    [
        ("0.4.4", {"action": frames(5)}, {STATE: (2,), TOP: (), "action": (5, 3)}),
        ("0.6.1", {TOP: frames(2, -1), STATE: frames(2, -1), "action": frames(5, -1)},
         {STATE: (2, 2), TOP: (2,), "action": (5, 3)}),
        # A video with one observation has no axis of time; a state has one.
        ("0.6.1", {TOP: [0.0], STATE: [0.0], "action": frames(3)},
         {STATE: (1, 2), TOP: (), "action": (3, 3)}),
    ],
    ids=["act", "diffusion", "smolvla"],
)  # fmt: skip
def test_batches_are_those_of_lerobots_own_loader(
    version: str,
    deltas: dict[str, list[float]],
    axes: dict[str, tuple[int, ...]],
    install: Install,
    root: Path,
    tmp_path: Path,
):
    (batch,) = run(install(version), dataset(root, deltas), tmp_path / "out", steps=1)
    assert batch[TOP].shape == (4, *axes[TOP], 3, HEIGHT, WIDTH)
    assert batch[TOP].dtype == (torch.float32 if version == "0.4.4" else torch.uint8)
    assert {key: batch[key].shape[1:] for key in (STATE, "action")} == {
        key: axes[key] for key in (STATE, "action")
    }
    assert batch["task"] == [
        LeRobotFiles.tasks[number % 2] for number in batch["episode_index"].tolist()
    ]
    # Strides choose the kernels of convolutions, and so the last bits of a loss.
    assert {key for key in batch if key != "task" and not batch[key].is_contiguous()} == set()
    check(batch, deltas)


def test_a_resumed_run_goes_on_with_the_next_sample(install: Install, root: Path, tmp_path: Path):
    script, made = install("0.6.1"), dataset(root, {"action": frames(5)})
    whole = run(script, made, tmp_path / "whole", steps=12)
    first = run(script, made, tmp_path / "cut", steps=7, saved=5)
    rest = run(script, made, tmp_path / "cut", steps=12, first=5)
    places = [batch["index"].tolist() for batch in (*first[:5], *rest)]
    assert places == [batch["index"].tolist() for batch in whole]
    # 48 samples are one pass.
    assert sorted(place for row in places for place in row) == list(range(sum(LENGTHS)))


def test_the_last_steps_of_episodes_are_left_out_as_lerobots_sampler_does(
    install: Install, root: Path, tmp_path: Path
):
    made = dataset(root, {"action": frames(5)})
    seen = run(install("0.6.1"), made, tmp_path / "out", steps=6, dropped=7)
    starts = np.concatenate([[0], np.cumsum(LENGTHS)[:-1]])
    kept = [
        int(start) + step
        for start, length in zip(starts, LENGTHS, strict=True)
        for step in range(length - 7)
    ]
    # Episodes of 12, 7, 20 and 9 steps keep 5, 0, 13 and 2 of them: five batches are a pass.
    assert sorted(place for batch in seen[:5] for place in batch["index"].tolist()) == kept


def test_a_sample_has_an_index_of_its_own_over_a_mixture():
    from autoloader.layouts import lerobot

    batch = {
        "images": {}, "state": np.zeros((2, 1, 0)), "action": np.zeros((2, 1, 3)),
        "action_mask": np.ones((2, 1, 3), bool), "language": ["a", "b"],
        "features": {"index": np.array([[7], [7]])},
        "feature_mask": {"index": np.ones((2, 1), bool)}, "dataset_index": np.array([0, 1]),
    }  # fmt: skip
    found = lerobot(batch, features={"index": "index"})
    assert found["index"].tolist() == [7, 7 + 2**40]


def test_an_unknown_release_is_refused_by_name(
    install: Install, root: Path, capsys: pytest.CaptureFixture[str]
):
    install("0.9.0")
    with pytest.raises(UsageError, match=r"lerobot 0\.9\.0 is not supported"):
        lerobot_train.main()
    with pytest.raises(SystemExit) as ended:  # a command shows no traceback
        runpy.run_path(str(lerobot_train.__file__), run_name="__main__")
    assert ended.value.code == UsageError.exit_code
    assert capsys.readouterr().err.startswith("error: lerobot 0.9.0 is not supported")


@pytest.mark.parametrize(
    ("deltas", "meta", "reason"),
    [
        ({"action": frames(3), "next.reward": frames(3)}, {}, "rewards of several steps"),
        ({TOP: frames(2, -1), STATE: [0.0], "action": frames(3)}, {}, "windows that differ"),
        ({"action": frames(3)}, {"depth_keys": ["observation.depth"]}, "depth cameras"),
        ({"action": frames(3)}, {"camera_keys": []}, "without cameras"),
    ],
)
def test_what_this_loader_does_not_give_is_refused_before_training(
    deltas: dict[str, list[float]],
    meta: dict[str, Any],
    reason: str,
    install: Install,
    root: Path,
    tmp_path: Path,
):
    script = install("0.6.1")
    with pytest.raises(UsageError, match=reason):
        run(script, dataset(root, deltas, **meta), tmp_path / "out")
