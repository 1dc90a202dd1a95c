"""Holds our samples against the loader classes of a checkout of GR00T or StarVLA.

    python tools/lerobot/gr00t_trees.py --tree ISAAC_GR00T --g1 DATASET [--python P]

The tree tells its release: N1, N1.5, N1.6, N1.7 or StarVLA. The dataset is a copy of the LeRobot
v2.1 one behind ``--g1`` with a ``modality.json`` of arms and hands. Every ninth step and the last
steps of each episode are compared: frames, texts, raw and normalised numbers, and statistics.

Without ``--python`` an environment with the packages of ``PACKAGES`` is made beside ``.venv``.
``gr00t_script.py`` runs in it.

Not here: GR00T's dialect without GR00T (``tests/lerobot/test_gr00t.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from witness import g1_subset

from autoloader import AutoLoader
from autoloader.layouts import Gr00tLayout

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".venv-gr00t"
PACKAGES = (
    "accelerate", "albumentations==2.0.8", "av==15.1.0", "einops", "numpydantic", "omegaconf",
    "opencv-python-headless", "pandas<3", "pyarrow", "scipy", "torch", "torchvision", "tqdm",
    "transformers",
)  # fmt: skip
MARKS = (
    ("starVLA/dataloader", "starvla"), ("gr00t/model/gr00t_n1d7", "n1.7"),
    ("gr00t/model/gr00t_n1d6", "n1.6"), ("gr00t/data/dataset.py", "n1.5"),
)  # fmt: skip
"""What a tree has → its release; N1 reads as N1.5 does."""
PARTS = {"left_arm": (0, 7), "right_arm": (7, 14), "left_hand": (14, 20), "right_hand": (20, 26)}
HORIZON = 16
BOUNDS = {"raw": 0.0, "normalised": 2e-6, "statistics": 5e-6}
"""Largest difference that is called equal; their statistics are sums of float32."""


def dataset(source: Path, root: Path) -> None:
    """The episodes with a video, and a modality of which one action is of differences."""
    g1_subset(source, root)
    (root / "meta/episodes_stats.jsonl").unlink()
    state = {key: {"start": start, "end": end} for key, (start, end) in PARTS.items()}
    modality = {
        "state": state,
        "action": {**state, "left_hand": {**state["left_hand"], "absolute": False}},
        "video": {"ego_view": {"original_key": "observation.images.cam_high"}},
        "annotation": {"human.task_description": {"original_key": "task_index"}},
    }
    (root / "meta/modality.json").write_text(json.dumps(modality))


def theirs(python: Path, tree: Path, *words: object) -> None:
    """Read the dataset by the tree's classes."""
    done = subprocess.run(
        [python, HERE / "gr00t_script.py", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{tree}: {done.stderr[-4000:]}")


def drafted(root: Path, release: str, mode: str) -> dict[str, Any]:
    """The spec that ``init`` writes for the release."""
    version = "n1.5" if release == "starvla" else release
    out = root.parent / f"{release}-{mode}.yaml"
    words = ["init", root, "--style", "gr00t", "--version", version, "-o", out]
    subprocess.run([sys.executable, "-m", "autoloader", *map(str, words)], check=True,
                   stdout=subprocess.PIPE)  # fmt: skip
    from autoloader.spec.reading import parse_yaml

    spec: dict[str, Any] = parse_yaml(out.read_text())
    if mode == "q99":
        clip = 2.2 if release == "starvla" else True
        how = {"method": "q01_q99", "clip": clip, "arithmetic": "gr00t"}
        spec["normalize"] |= {"action": how, "state": how}
    spec |= {"mixing": {"epoch": "pass"}, "batch": {"size": 8, "drop_last": False}}
    return spec


def named(step: Any, release: str) -> dict[str, Any]:
    """Raw numbers, frame and text of a step of the GR00T layout."""
    if release in ("n1.5", "starvla"):
        fields = {name: [one for key, one in step.items() if key.startswith(f"{name}.")]
                  for name in ("state", "action")}  # fmt: skip
        frame, text = step["video.ego_view"][0], step["annotation.human.task_description"][0]
    else:
        one = step[0]["content"]
        fields = {"state": list(one.states.values()), "action": list(one.actions.values())}
        frame, text = one.images["ego_view"][0], one.text
    rows = {f"raw_{name}": np.concatenate(several, axis=1) for name, several in fields.items()}
    return {**rows, "frame": frame, "text": text}


def packed(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample as StarVLA's model takes it."""
    return {
        "packed_state": sample["state"].astype(np.float16),
        "packed_action": sample["action"].astype(np.float16),
        "packed_lang": sample["text"],
        "packed_image": np.asarray(Image.fromarray(sample["frame"]).resize((224, 224))),
    }


def ours(spec: dict[str, Any], release: str, wanted: set[tuple[int, int]]) -> dict[Any, Any]:
    """(episode, t) → sample."""
    found: dict[Any, Any] = {}
    version: Any = "n1.5" if release == "starvla" else release
    layout = Gr00tLayout(spec, release=version)
    for source in (spec, layout.spec):
        with AutoLoader(source, ram_floor="500MB", output="numpy", controller=False) as loader:
            for batch in loader:
                steps = layout(batch, loader.dataset_names) if source is layout.spec else []
                for row, place in enumerate(batch["provenance"].tolist()):
                    if (key := (place[2], place[4])) not in wanted:
                        continue
                    sample = found.setdefault(key, {})
                    if steps:
                        sample |= named(steps[row], release)
                    else:
                        sample |= {name: batch[name][row].copy() for name in ("state", "action")}
    return found


def statistics_apart(spec: dict[str, Any], theirs: dict[str, Any], release: str) -> float:
    """The largest difference of statistics, by name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mix.json"
        path.write_text(json.dumps(spec))
        words = ["stats", path, "--format", "gr00t", "-o", Path(folder) / "out"]
        subprocess.run([sys.executable, "-m", "autoloader", *map(str, words)], check=True,
                       stdout=subprocess.PIPE)  # fmt: skip
        told = json.loads((Path(folder) / "out/dataset_statistics.json").read_text())
    (found,) = told.values()
    if release == "starvla":
        (theirs,) = theirs.values()
        found = {
            name: {
                kind: np.concatenate([part[kind] for part in found[name].values()])
                for kind in ("min", "max", "mean", "std", "q01", "q99")
            }
            for name in ("state", "action")
        }
        pairs = [(found[a][kind], theirs[a][kind]) for a in found for kind in found[a]]
    else:
        pairs = [
            (found[a][part][kind], values)
            for a, parts in theirs.items()
            for part, several in parts.items()
            for kind, values in several.items()
        ]
    assert pairs
    return max(float(np.abs(np.subtract(*pair)).max()) for pair in pairs)


def compare(spec: dict[str, Any], out: Path, release: str) -> tuple[dict[str, Any], bool]:
    """What differs, and whether that is within the bounds."""
    told = np.load(out)
    places = [tuple(place) for place in told["place"].tolist()]
    mine = ours(spec, release, set(places))
    missing = [place for place in places if place not in mine]
    worst = {"raw": 0.0, "normalised": 0.0, "grey levels": 0, "packed": 0.0}
    texts = 0
    for row, place in enumerate(places):
        sample = mine[place]
        sample |= packed(sample) if release == "starvla" else {}
        for name in told.files:
            if name in ("text", "packed_lang"):
                texts += str(told[name][row]) != sample[name]
            elif name != "place":
                apart = np.abs(np.subtract(sample[name], told[name][row], dtype=np.float64)).max()
                kind = (
                    "grey levels" if name in ("frame", "packed_image")
                    else "packed" if name.startswith("packed")
                    else "raw" if name.startswith("raw") else "normalised"
                )  # fmt: skip
                worst[kind] = max(worst[kind], float(apart))
    statistics = json.loads(out.with_suffix(".json").read_text())
    worst["statistics"] = statistics_apart(spec, statistics, release)
    good = all(worst[kind] <= bound for kind, bound in BOUNDS.items())
    good = good and not (missing or texts or worst["grey levels"])
    return {"samples": len(places), "missing": len(missing), "texts apart": texts, **worst}, good


def environment(place: Path) -> Path:
    if not (place / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        subprocess.run([place / "bin/pip", "install", "--quiet", *PACKAGES], check=True)
        (place / "ready").touch()
    return place / "bin/python"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tree", type=Path, action="append", required=True)
    parser.add_argument("--g1", type=Path, required=True, help="a v2.1 dataset with videos")
    parser.add_argument("--python", type=Path, help="an interpreter with the trees' packages")
    options = parser.parse_args()
    python = (options.python or environment(ENVIRONMENT)).absolute()
    wrong = 0
    for tree in options.tree:
        release = next((kind for mark, kind in MARKS if (tree / mark).exists()), None)
        if release is None:
            raise SystemExit(f"{tree} has none of {', '.join(mark for mark, _ in MARKS)}")
        for mode in ("min_max", "q99") if release in ("n1.5", "starvla") else ("own",):
            with tempfile.TemporaryDirectory(prefix="gr00t-") as folder:
                root = Path(folder) / "g1"
                dataset(options.g1, root)
                spec = drafted(root, release, mode)
                out = Path(folder) / "theirs.npz"
                theirs(python, tree.absolute(), release, root, out, mode, HORIZON)
                found, good = compare(spec, out, release)
            wrong += not good
            told = {"tree": tree.name, "release": release, "mode": mode, **found}
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
