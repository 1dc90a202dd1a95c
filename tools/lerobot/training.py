"""Trains by the real lerobot-train, on this library's batches and on lerobot's own.

    make lerobot-train [ARGS="0.6.1 --policy diffusion"]

Each release has an environment of its own (gigabytes, once), in which this library is installed
too. Shown for each release and policy:

- the losses of twenty steps are those of lerobot's own samples with the same indices;
- a run that is killed at step 11 and resumed trains on the samples of an undisturbed one;
- two ranks train on each sample once, beside what lerobot's own loader does in the same cases.

Not here: samples against lerobot's (``witness.py``), the same without lerobot
(``tests/trainers/test_lerobot_train.py``).
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / ".venv-lerobot-train"
RELEASES = {
    "0.4.4": ["lerobot==0.4.4", "diffusers"],
    "0.6.1": ["lerobot[training,diffusion]==0.6.1"],
}
PYTHONS = {"0.4.4": "python3.11", "0.6.1": "python3.12"}
OURS = ("google-crc32c", "nvidia-ml-py", "platformdirs", "psutil", "simplejpeg", "ruamel.yaml",
        "rich", "typer", "pydantic", "pyarrow")  # fmt: skip
STEPS, BATCH, KILLED_AT = 20, 4, 11
FLAGS = {
    "act": ["dim_model=64", "dim_feedforward=128", "n_encoder_layers=1", "n_decoder_layers=1",
            "chunk_size=10", "n_action_steps=10", "latent_dim=8"],
    "diffusion": ["down_dims=[32,64]", "crop_shape=[56,56]", "n_groups=4"],
}  # fmt: skip


class Release:
    """A release of lerobot in its environment, and a dataset to train on.

    Args:
        version: of lerobot.
        environments: folder of the environments.
        place: folder for datasets, records and checkpoints.
    """

    def __init__(self, version: str, environments: Path, place: Path) -> None:
        self.version, self.place = version, place
        self._bin = environments / version / "bin"
        if not (environments / version / "ready").exists():
            self._install(environments / version)
        self.data = place / "data"
        if not self.data.exists():
            script = [self._bin / "python", HERE / "training_script.py", "write", self.data]
            subprocess.run(script, check=True, capture_output=True)

    def _install(self, folder: Path) -> None:
        subprocess.run([PYTHONS[self.version], "-m", "venv", folder], check=True)
        pip = [self._bin / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *RELEASES[self.version]], check=True)
        subprocess.run([*pip, *OURS], check=True)
        subprocess.run([*pip, "--no-deps", "--editable", ROOT], check=True)
        (folder / "ready").touch()

    def train(
        self, way: str, name: str, policy: str, *flags: str,
        ranks: int = 1, killed_at: int = 0, resume: str = "", steps: int = STEPS, given: str = "",
    ) -> list[list[dict[str, Any]]]:  # fmt: skip
        """Run lerobot-train.

        Returns:
            Each rank's steps: the samples' indices and the loss.
        """
        record, out = self.place / name, self.place / f"{resume or name}-out"
        words = [HERE / "training_script.py", way, record, killed_at, "--"]
        if resume:
            last = out / "checkpoints/last/pretrained_model/train_config.json"
            words += [f"--config_path={last}", "--resume=true"]
        else:
            shutil.rmtree(out, ignore_errors=True)
            words += [
                "--dataset.repo_id=local/data", f"--dataset.root={self.data}",
                f"--policy.type={policy}", "--policy.device=cpu", "--policy.push_to_hub=false",
                "--policy.pretrained_backbone_weights=null", f"--batch_size={BATCH}",
                "--num_workers=0", f"--steps={steps}", "--save_freq=5", "--log_freq=1",
                "--wandb.enable=false", f"--output_dir={out}", "--dataset.video_backend=pyav",
                "--eval_freq=0" if self.version == "0.4.4" else "--env_eval_freq=0",
                *(f"--policy.{flag}" for flag in FLAGS[policy]), *flags,
            ]  # fmt: skip
        start = [self._bin / "torchrun", "--standalone", f"--nproc-per-node={ranks}"]
        start = start if ranks > 1 else [self._bin / "python"]
        more = {
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "ACCELERATE_USE_CPU": "true",
            "OMP_NUM_THREADS": "1",
        }
        more["GIVEN"] = str(self.place / f"{given}.0")
        more["PYTHONPATH"] = str(ROOT)  # environments may be shared by checkouts
        done = subprocess.run(
            [*map(str, [*start, *words])],
            env={**os.environ, **more},
            capture_output=True,
            text=True,
        )
        if done.returncode and not killed_at:
            raise SystemExit(f"lerobot {self.version}, {name}: {done.stderr[-4000:]}")
        files = [record.with_suffix(f".{rank}") for rank in range(ranks)]
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def indices(steps: list[dict[str, Any]]) -> list[int]:
    return [index for step in steps for index in step["index"]]


def shown(release: Release, policy: str, way: str) -> dict[str, Any]:
    """A run that is killed and resumed, and one of two ranks, over one pass of the samples."""
    whole = release.train(way, f"{policy}-{way}", policy)[0]
    first = release.train(way, f"{policy}-{way}-killed", policy, killed_at=KILLED_AT)[0]
    saved = KILLED_AT // 5 * 5
    second = release.train(way, f"{policy}-{way}-again", policy, resume=f"{policy}-{way}-killed")[0]
    ranks = release.train(way, f"{policy}-{way}-ranks", policy, ranks=2, steps=STEPS // 2)
    seen = collections.Counter(index for steps in ranks for index in indices(steps))
    resumed = [*indices(first[:saved]), *indices(second)]
    return {
        "resumed as undisturbed": resumed == indices(whole),
        "samples twice, killed": len(resumed) - len(set(resumed)),
        "samples twice, two ranks": sum(seen.values()) - len(seen),
        "samples, two ranks": len(seen),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("release", nargs="*", default=list(RELEASES))
    parser.add_argument("--policy", nargs="*", default=list(FLAGS))
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    options = parser.parse_args()
    wrong = 0
    for version in options.release:
        with tempfile.TemporaryDirectory(prefix="lerobot-") as folder:
            release = Release(version, options.environments, Path(folder))
            for policy in options.policy:
                ours = release.train("ours", f"{policy}-loss", policy)[0]
                theirs = release.train("given", f"{policy}-given", policy, given=f"{policy}-loss")[
                    0
                ]
                losses = [[step["loss"] for step in steps] for steps in (ours, theirs)]
                apart = float(np.abs(np.subtract(*losses)).max())
                found = {way: shown(release, policy, way) for way in ("ours", "theirs")}
                wrong += apart > 1e-5 or indices(ours) != indices(theirs)
                wrong += not found["ours"]["resumed as undisturbed"]
                wrong += found["ours"]["samples twice, killed"] > 0
                wrong += found["ours"]["samples twice, two ranks"] > 0
                told = {"lerobot": version, "policy": policy, "losses apart": apart, **found}
                sys.stdout.write(json.dumps(told, indent=1) + "\n")
                sys.stdout.flush()
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
