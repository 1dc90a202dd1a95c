"""Runs the trainers' pages in the projects' own sources: openpi, OpenVLA, Octo, GR00T, StarVLA.

    make trainers DIR=sources ARGS="--g1 DATASET [--python P]"

DIR holds checkouts; what each is, its files tell. Of each is looked up whether the script still
takes the name that the page replaces. openpi, GR00T and StarVLA then train six steps on the CPU,
and the last three again from a checkpoint, as far as that goes without downloads
(``trainers_script.py``). A tree, or a package in
its release, that is not here is skipped by name.

``--g1`` is a LeRobot dataset of v2.1 with videos. ``--python`` has the projects' packages; default:
the environment of ``gr00t_trees.py``, which lacks those of openpi.

Not here: the same lines without the projects (``tests/trainers/test_trainer_pages.py``).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gr00t_trees import ENVIRONMENT, dataset, drafted, environment

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SEAMS = {
    "openpi": ("src/openpi/training/data_loader.py", "openpi.md",
               {"scripts/train.py": "create_data_loader",
                "scripts/train_pytorch.py": "create_data_loader"}),
    "openvla": ("prismatic/vla/datasets", "openvla.md", {"vla-scripts/finetune.py": "RLDSDataset"}),
    "octo": ("octo/data/dataset.py", "octo.md",
             {"examples/02_finetune_new_observation_action.py": "make_single_dataset"}),
    "starvla": ("starVLA/dataloader", "starvla.md",
                {"starVLA/training/train_starvla.py": "build_dataloader"}),
    "n1.7": ("gr00t/model/gr00t_n1d7", "gr00t.md",
             {"gr00t/experiment/experiment.py": "Gr00tTrainer"}),
    "n1.6": ("gr00t/model/gr00t_n1d6", "gr00t.md",
             {"gr00t/experiment/experiment.py": "Gr00tTrainer"}),
    "n1.5": ("gr00t/data/dataset.py", "gr00t.md",
             {"gr00t/experiment/runner.py": "DualBrainTrainer"}),
}  # fmt: skip
"""Project → what its tree has, its page, and script → the name that the page replaces."""
RUN = {"openpi": ("openpi", "openpi-torch")} | {
    kind: (kind,) for kind in ("starvla", "n1.5", "n1.6", "n1.7")
}
NOT_RUN = {
    "openvla": "needs weights of its base model, and CUDA",
    "octo": "needs weights of its base model",
}


def calls(path: Path) -> set[str]:
    """Names that a script calls, also as attributes."""
    found = [one.func for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Call)]
    return {one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in found}


def lines(kind: str) -> str:
    """``train_on_loader.py`` of the page."""
    page = (ROOT / "docs/howto" / SEAMS[kind][1]).read_text()
    found = re.findall(r"^```python\n(# train_on_loader.*?)^```", page, re.MULTILINE | re.DOTALL)
    text = found[0].replace('ram_floor="8GB"', 'ram_floor="300MB"')
    return text.replace('release="n1.6"', f'release="{kind}"') if kind == "n1.7" else text


def spec_of(kind: str, root: Path) -> dict[str, Any]:
    if kind != "openpi":
        spec = drafted(root, kind, "min_max")
        spec["mixing"] = {"epoch": "pass" if kind == "n1.5" else "forever"}
        return {**spec, "batch": {"size": 2}}
    how = {"method": "q01_q99", "arithmetic": "openpi"}
    return {
        "schema_version": 1,
        "datasets": [
            {
                "name": "arm", "path": str(root), "language": "task", "action": "action",
                "state": "observation.state",
                "images": {"primary": "observation.images.cam_high"},
            }
        ],
        "cameras": {"primary": {"size": [224, 224], "fit": "pad"}},
        "sample": {"action_horizon": 4},
        "normalize": {"action": how, "state": how},
        "batch": {"size": 2},
    }  # fmt: skip


def run(kind: str, name: str, tree: Path, python: Path, g1: Path) -> tuple[str, bool]:
    """What a run said, and whether it went wrong."""
    with tempfile.TemporaryDirectory(prefix="trainers-") as place:
        folder = Path(place)
        dataset(g1, folder / "g1")
        (folder / "mix.yaml").write_text(json.dumps(spec_of(kind, folder / "g1")))
        (folder / "lines.py").write_text(lines(kind))
        trees = [ROOT, tree, tree / "src", tree / "packages/openpi-client/src"]
        more = {"PYTHONPATH": ":".join(map(str, trees)), "HF_HUB_OFFLINE": "1",
                "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "WANDB_MODE": "disabled",
                "OMP_NUM_THREADS": "1"}  # fmt: skip
        done = subprocess.run(
            [python, HERE / "trainers_script.py", name, folder],
            cwd=folder, env={**os.environ, **more}, capture_output=True, text=True,
        )  # fmt: skip
    lacks = re.search(r"^(?:ModuleNotFound|Import)Error: (.*)$", done.stderr, re.MULTILINE)
    if done.returncode:
        if lacks is not None:
            return f"skipped: {lacks[1]}", False
        return f"failed: {done.stderr[-3000:]}", True
    told = json.loads(done.stdout.splitlines()[-1])
    return json.dumps(told), not told["the same again"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sources", type=Path, metavar="DIR", help="folder of checkouts")
    parser.add_argument("--g1", type=Path, help="a v2.1 dataset with videos; without: no run")
    parser.add_argument("--python", type=Path, help="an interpreter with the projects' packages")
    parser.add_argument("--only", nargs="*", default=list(SEAMS))
    options = parser.parse_args()
    trees = [options.sources, *sorted(one for one in options.sources.iterdir() if one.is_dir())]
    wrong = 0
    for kind, (mark, _, names) in SEAMS.items():
        if kind not in options.only:
            continue
        tree = next((one.absolute() for one in trees if (one / mark).exists()), None)
        if tree is None:
            say(kind, f"skipped: no folder of {options.sources} has {mark}")
            continue
        for script, name in names.items():
            good = (tree / script).exists() and name in calls(tree / script)
            wrong += not good
            say(kind, f"{script} {'calls' if good else 'does not call'} {name}")
        if kind in NOT_RUN or options.g1 is None:
            say(kind, f"not run: {NOT_RUN.get(kind, 'there is no --g1')}")
            continue
        python = (options.python or environment(ENVIRONMENT)).absolute()
        for name in RUN[kind]:
            told, bad = run(kind, name, tree, python, options.g1)
            wrong += bad
            say(name, told)
    return int(wrong > 0)


def say(name: str, text: str) -> None:
    sys.stdout.write(f"{name}: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
