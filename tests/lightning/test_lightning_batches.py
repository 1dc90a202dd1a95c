"""What a trainer written for another loader gets, and what is logged about the loader."""

import csv
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fits import Tiny, data, trainer
from left_behind import KNOBS, places
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner

from autoloader import AutoLoader, PipelineSpec, augment, layouts
from autoloader.integrations.lightning.datamodule import delivered
from autoloader.integrations.lightning.streams import HostBatch
from autoloader.lightning import LoaderMonitor, Stage2Layout
from autoloader.process.augmentation import augmenter

sys.path.insert(0, str(Path(__file__).parents[1] / "transfer"))
from fake_device import FakeDevice

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`:UserWarning"),
    pytest.mark.filterwarnings("ignore:`training_step` returned `None`:UserWarning"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`:UserWarning"),
]


class Stage2(LightningModule):
    """A Stage-2 training step as the field writes it, with what it expects of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3 * 2, 2)
        self.seen: list[tuple[str, str, int]] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        frames = batch["frames"]
        assert frames.dtype == torch.uint8
        assert frames.shape[1:] == (3, 2, 12, 16)
        count = len(frames)
        assert all(isinstance(text, str) for text in batch["language"])
        assert len(batch["language"]) == count
        assert batch["action"].shape == (count, 2)
        assert batch["action"].dtype == torch.float32
        for name, episode, idx in zip(
            batch["dataset_name"], batch["episode_id"], batch["frame_idx"].tolist(), strict=True
        ):
            assert name in ("a", "b")
            self.seen.append((name, episode, idx))
        first, last = frames[:, :, 0].float(), frames[:, :, 1].float()
        # The green of a frame names its step: the second is the next one, or the same at the end.
        steps = (last.mean((2, 3)) - first.mean((2, 3)))[:, 1] / 4
        assert all(-0.3 < step < 1.3 for step in steps.tolist())
        pooled = torch.cat([first.mean((2, 3)), last.mean((2, 3))], 1) / 255
        return torch.nn.functional.mse_loss(self.layer(pooled), batch["action"])

    validation_step = training_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-2)


@pytest.fixture(scope="module")
def pairs(mix: PipelineSpec) -> PipelineSpec:
    """Pairs of frames, one apart."""
    return mix.model_copy(
        update={"sample": mix.sample.model_copy(update={"frame_offsets": (0, 1)})}
    )


def test_a_stage_2_module_trains_unchanged(pairs: PipelineSpec, isolation: str):
    model = Stage2()
    module = data(pairs, isolation, to_batch=Stage2Layout())
    trainer(max_epochs=1).fit(model, datamodule=module)
    assert len(set(model.seen)) > 30
    assert {episode.split("/")[0] for _, episode, _ in model.seen} == {"a", "b"}


def test_layouts_take_frames_that_the_data_module_made_floats(
    mix: PipelineSpec, pairs: PipelineSpec
):
    seen: list[dict[str, Any]] = []

    class Look(Tiny):
        def training_step(self, batch: dict[str, Any], batch_idx: int) -> None:  # type: ignore[override]
            seen.append(batch)

    for layout, spec in ((layouts.octo, mix), (layouts.lerobot, pairs)):
        module = data(spec, to_batch=layout, frame_dtype=torch.float32)
        trainer(max_epochs=1, limit_train_batches=1, limit_val_batches=0).fit(
            Look(), datamodule=module
        )
    octo, lerobot = seen
    assert octo["observation"]["image_primary"].shape == (4, 1, 12, 16, 3)
    assert octo["observation"]["proprio"].shape == (4, 1, 3)
    assert octo["action"].shape == octo["action_pad_mask"].shape == (4, 1, 1, 2)
    assert set(octo["dataset_name"]) == {b"a", b"b"}
    assert lerobot["observation.images.primary"].shape == (4, 2, 3, 12, 16)
    assert lerobot["observation.images.primary"].dtype == torch.float32
    assert lerobot["action_is_pad"].tolist() == [[False]] * 4
    told = octo["task"]["language_instruction"].tolist()
    assert [text.encode() for text in lerobot["task"]] == told


def test_training_batches_are_augmented_and_validation_is_not(mix: PipelineSpec):
    plain = mix.model_dump(mode="json", exclude_none=True)
    plain["augment"] = {"primary": {"brightness": 0.4}}
    spec = PipelineSpec.from_mapping(plain)
    seen: dict[str, list[dict[str, Any]]] = {"train": [], "val": []}

    class Look(Tiny):
        def training_step(self, batch: dict[str, Any], batch_idx: int) -> None:  # type: ignore[override]
            seen["train"].append({k: batch["images"]["primary"].clone() for k in ("images",)})

        def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
            seen["val"].append({k: batch["images"]["primary"].clone() for k in ("images",)})

    trainer(max_epochs=1, limit_train_batches=2, num_sanity_val_steps=0).fit(
        Look(), datamodule=data(spec)
    )
    options: dict[str, Any] = {"isolation": "thread", "ram_floor": "64MiB", "knobs": KNOBS}
    with AutoLoader(spec, **options) as loader:
        expected = augment(next(iter(loader)))["images"]["primary"].clone()
    with AutoLoader(spec, split="val", **options, reproducible=True) as loader:
        plainly = next(iter(loader))["images"]["primary"].clone()
    assert torch.equal(seen["train"][0]["images"], expected)
    assert torch.equal(seen["val"][0]["images"], plainly)


def test_on_a_device_augmentation_and_layout_come_behind_the_copy(mix: PipelineSpec):
    """The delivery over a transfer whose copies are done at the end gives the host's batches."""
    plain = mix.model_dump(mode="json", exclude_none=True)
    spec = PipelineSpec.from_mapping(plain)
    device = FakeDevice()
    with AutoLoader(spec, isolation="thread", ram_floor="64MiB", knobs=KNOBS) as loader:
        move = loader.transfer(device)
        how = loader.dataset_names, augmenter(spec), Stage2Layout(), None
        batch = next(iter(loader))
        expected = Stage2Layout()(batch, loader.dataset_names)
        frames = expected["frames"].clone()
        moved = delivered(HostBatch(batch), move, *how)
        other = delivered([HostBatch(batch), torch.ones(2)], move, *how)
        device.advance()
        assert torch.equal(moved["frames"], frames)
        assert torch.equal(other[0]["frames"], frames)
        assert moved["episode_id"] == expected["episode_id"]
        assert len(move.pinned) == 1


def test_the_batch_size_finder_works_and_training_begins_at_the_beginning(
    mix: PipelineSpec, tmp_path: Path
):
    model, module = Tiny(), data(mix)
    run = trainer(max_epochs=1, limit_val_batches=0, default_root_dir=tmp_path)
    found = Tuner(run).scale_batch_size(
        model, datamodule=module, init_val=2, max_trials=2, steps_per_trial=1
    )
    assert module.batch_size == found
    model.seen.clear()
    run.fit(model, datamodule=module)
    with AutoLoader(mix, isolation="thread", ram_floor="64MiB", knobs=KNOBS) as loader:
        first = places(next(iter(loader)))
    flat = [place for batch in model.seen for place in batch]
    assert flat[:4] == first
    assert {len(batch) for batch in model.seen} == {found}


# --- the monitor --------------------------------------------------------------------------------


def test_the_monitor_logs_the_loaders_figures(
    mix: PipelineSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    class Retune(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, idx: int) -> None:
            if idx == 4:
                trainer.datamodule.loader.retune(ring_slots=5)

    caplog.set_level("INFO", logger="autoloader.integrations.lightning.monitor")
    log = CSVLogger(tmp_path)
    trainer(max_epochs=1, logger=log, callbacks=[Retune(), LoaderMonitor(every_n_steps=2)]).fit(
        Tiny(), datamodule=data(mix, controller=False)
    )
    with (Path(log.log_dir) / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name in ("wait_ratio", "samples_per_s", "headroom_bytes", "restarts", "dataset_share/a"):
        assert any(row.get(f"loader/{name}") for row in rows), name
    slots = [row["loader/knob/ring_slots"] for row in rows if row.get("loader/knob/ring_slots")]
    assert [float(value) for value in slots] == [4.0, 5.0]
    assert "ring_slots: 4 → 5" in caplog.text


# --- a process that is told to stop ---------------------------------------------------------------

SCRIPT = """
import sys
from autoloader import PipelineSpec
sys.path[:0] = {path!r}
from fits import Tiny, data, trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

class Tell(Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 3:
            print("child", trainer.datamodule.loader.statistics().worker_pids[0], flush=True)
            sys.stdin.readline()

spec = PipelineSpec.model_validate_json(sys.stdin.readline())
saver = ModelCheckpoint({folder!r}, save_on_exception=True)
trainer(max_steps=100000, limit_val_batches=0, callbacks=[Tell(), saver],
        enable_checkpointing=True).fit(Tiny(), datamodule=data(spec, "process"))
"""


def test_sigterm_ends_the_run_with_a_checkpoint_and_without_a_child(
    mix: PipelineSpec, tmp_path: Path, warm_python: Path
):
    here = Path(__file__).parent
    path = [str(here), str(here.parent)]
    with subprocess.Popen(
        [warm_python, "-c", SCRIPT.format(path=path, folder=str(tmp_path))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdin.write(mix.model_dump_json() + "\n")
        process.stdin.flush()
        word, pid = process.stdout.readline().split()
        assert word == "child"
        process.send_signal(signal.SIGTERM)
        process.stdin.write("\n")
        process.stdin.close()
        process.stdout.read()
    assert process.returncode == 0  # Lightning's
    assert len(list(tmp_path.glob("*.ckpt"))) == 1
    assert not Path(f"/proc/{pid}").exists()
