"""What an installation does, and what it refuses; prints one JSON document.

    python usage_script.py RLDS_DIR LEROBOT_DIR FOLDER [core]

With "core" it looks at a dataset by the core's commands, and reads batches as NumPy arrays. Then it
tries everything that an extra brings. Where that works, ``tried`` has it as "works", and else the
error's words.
"""

import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from autoloader import AutoLoader, AutoloaderError, PipelineSpec, augment
from autoloader.cli.app import main

HELD = {"ram_floor": "100MB", "controller": False, "isolation": "thread"}
"""Of most loaders here; those that start a process of their own say so."""


class RefusedError(Exception):
    """A command ended with what it told."""


def command(words: Sequence[str]) -> dict[str, Any]:
    """A command's exit code, and what it wrote."""
    out, told = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(told):
        code = main(words)
    return {"code": code, "out": out.getvalue(), "told": told.getvalue()}


def outcome(call: Callable[[], Any]) -> str:
    """ "works", or what the error says that a call ends with."""
    try:
        with redirect_stdout(sys.stderr):  # ours is for the document alone
            call()
    except (AutoloaderError, RefusedError) as error:
        return f"{type(error).__name__}: {error}"
    return "works"


def ran(words: Sequence[str]) -> str:
    """What a command wrote, which must end well, or say what it lacks."""
    told = command(words)
    if told["code"]:
        raise RefusedError(told["told"])
    return str(told["out"])


class Uses:
    """One use of everything that extras bring; each by the name of its method."""

    def __init__(self, spec: Path, lerobot: Path, folder: Path) -> None:
        self.words = ["--spec", str(spec)]
        self.declared = PipelineSpec.from_yaml(spec)
        self.lerobot_data, self.folder = lerobot, folder

    @contextmanager
    def batches(self, **asked: Any) -> Iterator[Any]:
        with AutoLoader(self.declared, **{**HELD, **asked}) as loader:
            yield loader

    def torch(self) -> None:
        with self.batches() as loader:
            batch = next(iter(loader))
            assert type(batch["action"]).__module__ == "torch", type(batch["action"])
            assert batch["action"].isfinite().all()

    def torch_dataloader(self) -> None:
        with self.batches(output="numpy") as loader:
            loader.as_torch_dataloader()

    def transfer(self) -> None:
        with self.batches(output="numpy") as loader:
            move = loader.transfer("cpu")
            import torch

            batch = {"action": torch.zeros(2)}
            assert move(batch)["action"] is batch["action"]

    def augment(self) -> None:
        spec = self.folder / "augment.yaml"
        spec.write_text(
            (self.folder / "mix.yaml").read_text()
            + "augment: {primary: {random_resized_crop: {scale: [0.8, 0.9]}, hue: 0.1}}\n"
        )
        output = "torch" if find_spec("torch") else "numpy"
        with AutoLoader(str(spec), output=output, **HELD) as loader:
            batch = next(iter(loader))
            other = augment(batch)
            assert (other["images"]["primary"] != batch["images"]["primary"]).any()

    def stream(self) -> None:
        with self.batches(output="numpy", knobs={"reader": "stream"}) as loader:
            assert next(iter(loader))["images"]["primary"].dtype == "uint8"

    def remote(self) -> None:
        there = self.declared.datasets[0].model_copy(update={"path": "gs://a-bucket/robot/1.0.0"})
        AutoLoader(self.declared.model_copy(update={"datasets": (there,)}), output="numpy", **HELD)

    def tfdata(self) -> None:
        import autoloader.tfdata  # noqa: F401

    def lightning(self) -> None:
        from autoloader.lightning import AutoLoaderDataModule

        module = AutoLoaderDataModule(self.declared, **HELD)
        from lightning.pytorch import Trainer
        from lightning.pytorch.demos.boring_classes import BoringModel

        class Model(BoringModel):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                return self.layer(batch["action"].new_ones(1, 32)).sum()

        quiet = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
        trainer = Trainer(max_steps=2, limit_val_batches=0, enable_progress_bar=False, **quiet)
        trainer.fit(Model(), datamodule=module)
        assert trainer.global_step == 2

    def jax(self) -> None:
        import autoloader.jax  # noqa: F401

    def lerobot(self) -> None:
        spec = self.folder / "lerobot.yaml"
        spec.write_text(ran(["init", str(self.lerobot_data)]))
        with AutoLoader(str(spec), output="numpy", **HELD) as loader:
            next(iter(loader))

    def hdf5(self) -> None:
        place = self.lerobot_data.with_name(f"{self.lerobot_data.name}_hdf5")
        own = shutil.copytree(place, self.folder / "hdf5")  # found in nobody's cache
        spec = self.folder / "hdf5.yaml"
        spec.write_text(ran(["init", str(own)]))
        with AutoLoader(str(spec), output="numpy", **HELD) as loader:
            next(iter(loader))

    def metrics(self) -> None:
        asked = {"AUTOLOADER_METRICS_FILE": str(self.folder / "autoloader.prom")}
        with patch.dict(os.environ, asked), self.batches(output="numpy") as loader:
            next(iter(loader))

    def verify(self) -> None:
        ran(["verify", *self.words, "--ram-floor", "100MB"])

    def peek(self) -> None:
        ran(["peek", *self.words, "--ram-floor", "100MB", "--out", str(self.folder / "sheet.html")])

    def tune(self) -> None:
        small = ["--trials", "1", "--warmup", "1", "--batches", "2", "--ram-floor", "100MB"]
        store = ["--storage", f"sqlite:///{self.folder}/study.db", "--out", str(self.folder)]
        ran(["tune", *self.words, *small, *store])


def of_core(spec: Path, uses: Uses) -> dict[str, Any]:
    """What the core's commands say, what its batches hold, and what has been imported by then."""
    words = ["--spec", str(spec)]
    floor = [*words, "--ram-floor", "100MB", "--json"]
    found: dict[str, Any] = {
        "demo": command(["demo", str(uses.folder / "demo"), "--datasets", "1", "--scale", "0.01"]),
        "index": command(["index", *words, "--json"]),
        "stats": command(["stats", *words, "--json"]),
        "plan": command(["plan", *floor]),
        "measure": command(["measure", *floor, "--warmup", "1", "--batches", "2"]),
    }
    with uses.batches(output="numpy", isolation="process") as loader:
        batch = next(iter(loader))
        found["arrays"] = {
            name: [type(part).__module__, str(part.dtype), list(part.shape)]
            for name, part in {**batch, **batch["images"]}.items()
            if hasattr(part, "dtype")
        }
    found["modules"] = sorted({name.partition(".")[0] for name in sys.modules if sys.modules[name]})
    return found


def run(data: str, lerobot: Path, folder: Path, *, core: bool) -> dict[str, Any]:
    spec = folder / "mix.yaml"
    spec.write_text(ran(["init", data]))
    uses = Uses(spec, lerobot, folder)
    found: dict[str, Any] = {"core": of_core(spec, uses)} if core else {}
    names = [name for name in vars(Uses) if name[0] != "_" and name != "batches"]
    found["tried"] = {
        name: outcome(getattr(uses, name))
        for name in names
        # Where TensorFlow is there, a bucket is asked, which no test may rely on.
        if not (name == "remote" and find_spec("tensorflow"))
    }
    return found


if __name__ == "__main__":
    places = Path(sys.argv[2]), Path(sys.argv[3])
    sys.stdout.write(json.dumps(run(sys.argv[1], *places, core="core" in sys.argv[4:])))
