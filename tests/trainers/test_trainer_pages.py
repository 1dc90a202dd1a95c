"""The lines of the pages of openpi, OpenVLA, Octo, StarVLA and GR00T, in stand-ins of the seams.

A stand-in calls what the project's script calls, in its order. ``make trainers`` runs the lines in
the projects' own sources.
"""

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from gr00t_files import Gr00tFiles
from rlds_files import episode, write_dataset
from streams import opened
from trainer_stand_ins import FILES

from autoloader import layouts

PAGES = Path(__file__).parents[2] / "docs/howto"
STAND_INS = ("gr00t", "jax", "octo", "openpi", "prismatic", "seam", "starVLA", "transformers")
Start = Callable[..., list[Any]]


def lines(page: str) -> str:
    """``train_on_loader.py`` of a page, for a small host."""
    blocks = re.findall(r"^```python\n(# train_on_loader.*?)^```", (PAGES / page).read_text(),
                        re.MULTILINE | re.DOTALL)  # fmt: skip
    (text,) = blocks
    return text.replace('ram_floor="8GB"', 'ram_floor="64MiB", isolation="thread"')


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Runs a page's lines on a stand-in's script; gives the batches that it trained on."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    saved = dict(sys.modules)

    def begun(page: str, script: str = "", **own: Any) -> list[Any]:
        forget()
        seam = importlib.import_module("seam")
        vars(seam).update(own, seen=[])
        monkeypatch.setattr(sys, "argv", ["train_on_loader.py", *([script] if script else [])])
        code = compile(lines(page), page, "exec")
        scope = ModuleType("train_on_loader")
        vars(scope)["__name__"] = "__main__"
        exec(code, vars(scope))
        return seam.seen

    yield begun
    forget()
    sys.modules.update({k: v for k, v in saved.items() if k.split(".")[0] in STAND_INS})


def forget() -> None:
    """Take the stand-ins, and others of their names, out of the imported modules."""
    for name in [name for name in sys.modules if name.split(".")[0] in STAND_INS]:
        del sys.modules[name]


def rlds(folder: Path, **more: Any) -> dict[str, Any]:
    """Two episodes of six steps, and a spec of them in ``mix.yaml``."""
    write_dataset(folder, [[episode(k, 6) for k in range(2)]], name="arm")
    how = {"method": "q01_q99", "arithmetic": "openpi"}
    spec = {
        "schema_version": 1,
        "datasets": [
            {
                "name": "arm", "path": "arm/1.0.0", "images": {"primary": "observation/image"},
                "action": "action", "state": "observation/state",
                "language": "language_instruction",
            }
        ],
        "cameras": {"primary": {"size": [12, 16]}},
        "sample": {"action_horizon": 4},
        "normalize": {"action": how, "state": how},
        "batch": {"size": 2},
        **more,
    }  # fmt: skip
    (folder / "mix.yaml").write_text(yaml.safe_dump(spec))
    return spec


def values(tree: Any) -> Any:
    """Nested arrays and tensors as lists."""
    if isinstance(tree, Mapping):
        return {key: values(one) for key, one in tree.items()}
    if isinstance(tree, list | tuple):
        return [values(one) for one in tree]
    return tree.tolist() if hasattr(tree, "tolist") else tree


def plain(spec: Any, count: int) -> list[dict[str, Any]]:
    """The first batches of a spec."""
    found: list[dict[str, Any]] = []
    with opened(spec) as loader:
        for batch in chain.from_iterable(repeat(loader)):
            found.append({
                key: {name: one.copy() for name, one in value.items()}
                if isinstance(value, Mapping) else value.copy() if hasattr(value, "copy") else value
                for key, value in batch.items()
            })  # fmt: skip
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("framework", ["jax", "pytorch"])
def test_openpis_scripts_train_on_the_loaders_batches_and_go_on_with_the_next_sample(
    framework: str, start: Start, tmp_path: Path
):
    spec = rlds(tmp_path)
    script = "scripts/train.py" if framework == "jax" else "scripts/train_pytorch.py"

    def config(place: str, steps: int, *, resume: bool = False) -> Any:
        return SimpleNamespace(
            checkpoint_dir=tmp_path / place, save_interval=3, num_train_steps=steps, resume=resume,
            assets_dirs="assets", batch_size=2,
            model=SimpleNamespace(model_type=SimpleNamespace(value="pi05")),
        )  # fmt: skip

    whole = start("openpi.md", script, config=config("whole", 12))
    cut = start("openpi.md", script, config=config("cut", 8))
    rest = start("openpi.md", script, config=config("cut", 12, resume=True))
    trained = 12 - len(rest)
    assert trained == (8 if framework == "jax" else 7)
    for ours, undisturbed in zip([*cut[:trained], *rest], whole, strict=True):
        assert values(ours) == values(undisturbed)
    for (observation, actions), batch in zip(whole, plain(spec, 12), strict=True):
        shown = np.asarray(observation["image"]["base_0_rgb"])
        frames = batch["images"]["primary"][:, 0].astype(np.float32) / 255 * 2 - 1
        moved = np.moveaxis(frames, -1, 1) if framework == "pytorch" else frames
        np.testing.assert_allclose(shown, moved, atol=1e-6)
        assert observation["image_mask"]["left_wrist_0_rgb"].tolist() == [False, False]
        wanted = [[3, len(one)] for one in batch["language"]]
        assert observation["tokenized_prompt"].tolist() == wanted
        np.testing.assert_array_equal(observation["state"][:, :3], batch["state"][:, 0])
        assert tuple(observation["state"].shape) == (2, 32)
        np.testing.assert_array_equal(actions[:, :, :2], batch["action"])
        assert isinstance(actions, torch.Tensor) == (framework == "pytorch")


def test_openvlas_script_trains_beyond_a_pass_and_saves_the_loaders_statistics(
    start: Start, tmp_path: Path
):
    how = {"method": "q01_q99", "arithmetic": "openvla", "clip": True}
    spec = rlds(tmp_path, normalize={"action": how}, mixing={"epoch": "pass"},
                sample={"action_horizon": 1})  # fmt: skip
    seen = start("openvla.md", "vla-scripts/finetune.py", steps=9, size=2)
    assert len(seen) == 9
    first = plain(spec, 6)
    for batch, trained in zip(first, seen, strict=False):
        assert trained["lang"] == [one.lower() for one in batch["language"]]
        np.testing.assert_array_equal(np.stack(trained["action"]), batch["action"][:, 0])
        np.testing.assert_array_equal(np.stack(trained["image"]), batch["images"]["primary"][:, 0])
        assert trained["dataset_name"] == [b"arm"] * 2
    saved = json.loads((tmp_path / "dataset_statistics.json").read_text())["arm"]
    assert {"q01", "q99", "mask"} <= set(saved["action"])
    assert saved["num_transitions"] == 12


def test_octos_script_trains_on_the_loaders_batches_by_its_own_statistics(
    start: Start, tmp_path: Path
):
    how = {"method": "mean_std", "arithmetic": "octo"}
    spec = rlds(tmp_path, normalize={"action": how, "state": how})
    seen = start("octo.md", "examples/02_finetune_new_observation_action.py", steps=4, size=2)
    wanted = [layouts.octo(batch, ["arm"]) for batch in plain(spec, 5)][1:]
    for trained, batch in zip(seen, wanted, strict=True):
        assert set(trained) == {"observation", "task", "action", "action_pad_mask"}
        np.testing.assert_array_equal(trained["action"], batch["action"])
        assert trained["action"].shape == (2, 1, 4, 2)
        np.testing.assert_array_equal(
            trained["observation"]["image_primary"], batch["observation"]["image_primary"]
        )
        texts = [one.decode() for one in batch["task"]["language_instruction"]]
        assert trained["task"]["language_instruction"] == texts
    saved = json.loads((tmp_path / "statistics.json").read_text())
    assert {"mean", "std", "max", "min", "p01", "p99"} <= set(saved["action"])
    assert saved["action"]["p01"] == saved["action"]["q01"]


def gr00t(folder: Path, release: str, **more: Any) -> dict[str, Any]:
    """A dataset of GR00T's, and the spec of ``init`` in ``mix.yaml``."""
    from autoloader.cli.app import main
    from autoloader.spec.reading import parse_yaml

    Gr00tFiles(lengths=(22, 18)).write(folder / "data/arm")
    words = ["init", str(folder / "data"), "--style", "gr00t", "--version", release]
    assert main([*words, "-o", str(folder / "drafted.yaml")]) == 0
    spec: dict[str, Any] = parse_yaml((folder / "drafted.yaml").read_text())
    spec |= {"batch": {"size": 2}, **more}
    (folder / "mix.yaml").write_text(json.dumps(spec))
    return spec


def test_starvlas_script_trains_on_the_loaders_batches_and_goes_on_with_the_next_sample(
    start: Start, tmp_path: Path
):
    spec = gr00t(tmp_path, "n1.5")

    def config(place: str, steps: int, *, resume: bool = False) -> Any:
        return SimpleNamespace(
            output_dir=str(tmp_path / place),
            trainer=SimpleNamespace(save_interval=3, max_train_steps=steps, is_resume=resume),
            datasets=SimpleNamespace(
                vla_data=SimpleNamespace(per_device_batch_size=2, dataset_py="lerobot_datasets")
            ),
        )

    whole = start("starvla.md", cfg=config("whole", 10))
    cut = start("starvla.md", cfg=config("cut", 8))
    rest = start("starvla.md", cfg=config("cut", 10, resume=True))
    assert (len(whole), len(rest)) == (15, 6)  # four steps and two evaluations behind step 6
    for ours, undisturbed in zip([*cut[:9], *rest], whole, strict=True):
        for one, other in zip(ours, undisturbed, strict=True):
            np.testing.assert_array_equal(one["action"], other["action"])
            np.testing.assert_array_equal(np.asarray(one["image"]), np.asarray(other["image"]))
    for examples, batch in zip(whole, plain(spec, 15), strict=True):
        for row, one in enumerate(examples):
            assert set(one) == {"image", "lang", "state", "action", "robot_tag"}
            assert (one["action"].dtype, one["action"].shape) == (np.float16, (16, 9))
            np.testing.assert_array_equal(one["action"], batch["action"][row].astype(np.float16))
            assert (one["state"].dtype, one["state"].shape[0]) == (np.float16, 1)
            assert [picture.size for picture in one["image"]] == [(224, 224)]
            assert one["lang"] == batch["language"][row]
    (tag,) = (saved := json.loads((tmp_path / "whole/dataset_statistics.json").read_text()))
    assert tag == "new_embodiment"
    assert set(saved[tag]) == {"action", "state", "num_transitions", "num_trajectories"}
    assert {"mean", "std", "min", "max", "q01", "q99", "mask"} <= set(saved[tag]["action"])


@pytest.mark.parametrize("release", ["n1.5", "n1.6"])
def test_gr00ts_trainer_trains_on_the_loaders_steps_and_goes_on_with_the_next_sample(
    release: str, start: Start, tmp_path: Path
):
    gr00t(tmp_path, release, **({"mixing": {"epoch": "pass"}} if release == "n1.5" else {}))
    script = {"n1.5": "scripts/gr00t_finetune.py",
              "n1.6": "gr00t/experiment/launch_finetune.py"}[release]  # fmt: skip

    def run(place: str, steps: int, *, first: int = 0) -> list[Any]:
        return start("gr00t.md", script, output=tmp_path / place, steps=steps, first=first)

    whole, cut = run("whole", 4), run("cut", 3)
    rest = run("cut", 4, first=2)
    for ours, undisturbed in zip([*cut[:2], *rest], whole, strict=True):
        assert values(ours) == values(undisturbed)
    for batch in whole:
        assert len(batch) == 2
        for step in batch:
            if release == "n1.5":
                assert step["video.ego_view"].shape == (1, 64, 96, 3)
                assert step["action.left_arm"].dtype == np.float64
            else:
                assert step["images"]["ego_view"][0].shape == (64, 96, 3)
                assert step["embodiment"] == "new_embodiment"
                assert step["actions"]["left_arm"].shape == (16, 3)
