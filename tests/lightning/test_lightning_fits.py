"""Real Lightning fits over real TFDS files: what is trained on, what a checkpoint resumes with."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from fits import Tiny, data, endless, trainer
from left_behind import KNOBS, places
from leftovers import loader_children
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from autoloader import PipelineSpec
from autoloader.errors import UsageError
from autoloader.spec.model import ValidationSpec

pytestmark = [
    # Lightning's own, with this version of torch.
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
    # What it says to tests that resume without the callback that saved.
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning"),
]


def fit(spec: PipelineSpec, isolation: str = "thread", **flags: Any) -> Tiny:
    model = Tiny()
    trainer(**flags).fit(model, datamodule=data(spec, isolation))
    return model


def flat(batches: list[list[tuple[int, ...]]]) -> list[tuple[int, ...]]:
    return list(itertools.chain.from_iterable(batches))


@pytest.fixture(scope="module")
def undisturbed(mix: PipelineSpec) -> Tiny:
    """Three epochs without validation."""
    return fit(mix, max_epochs=3, limit_val_batches=0)


# --- epochs and validations ---------------------------------------------------------------------


def test_an_epoch_of_the_trainer_is_an_epoch_of_the_loader(undisturbed: Tiny):
    assert [undisturbed.epochs.count(epoch) for epoch in range(3)] == [10, 10, 10]
    assert len(set(flat(undisturbed.seen[:5]))) == 20


def test_validation_sees_the_same_samples_at_every_call_and_does_not_move_training(
    mix: PipelineSpec, isolation: str, undisturbed: Tiny
):
    model = fit(mix, isolation, max_epochs=2, val_check_interval=3)
    calls = [flat(model.validated[start : start + 2]) for start in range(0, 12, 2)]
    assert [len(call) for call in calls] == [6] * 6
    assert all(call == calls[0] for call in calls)
    assert flat(model.sanity) == calls[0]
    assert model.seen == undisturbed.seen[:20]


class Apart(Tiny):
    """Notes what each validation loader gives."""

    def validation_step(  # type: ignore[override]
        self, batch: dict[str, Any], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.validated.append([(dataloader_idx, *place) for place in places(batch)])


def test_per_dataset_validates_each_dataset_apart_with_the_same_samples_every_time(
    mix: PipelineSpec, undisturbed: Tiny
):
    apart = mix.model_copy(update={"validation": ValidationSpec(samples=5, per_dataset=True)})
    # Each held out part is one shard, those of training are two.
    knobs = {**KNOBS, "a.queue_samples": 8, "a.cycle_length": 2, "cycle_length": 2}
    module, model = data(apart, knobs=knobs), Apart()
    names: list[str] = []

    class Noting(Callback):
        def on_validation_end(self, *_: Any) -> None:
            names.extend(module.validation_loaders)

    flags: dict[str, Any] = {"max_epochs": 1, "val_check_interval": 5, "num_sanity_val_steps": 0}
    run = trainer(**flags, callbacks=[Noting()])
    run.fit(model, datamodule=module)
    assert names == ["a", "b"] * 2
    calls = [flat(model.validated[start : start + 3]) for start in (0, 3)]
    assert calls[0] == calls[1]
    assert [row[0] for row in calls[0]] == [0] * 5 + [1] * 4
    assert len(set(calls[0])) == 9
    assert model.seen == undisturbed.seen[:10]


def test_both_loaders_live_in_one_child(mix: PipelineSpec):
    counted = []

    class Count(Callback):
        def on_validation_end(self, *_: Any) -> None:
            counted.append(loader_children())

    fit(mix, "process", max_epochs=1, val_check_interval=5, callbacks=[Count()])
    assert [len(pids) for pids in counted] == [1, 1, 1]
    assert len(set(flat(counted))) == 1  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:Total length of:UserWarning")  # Lightning says there is none
def test_a_spec_without_a_validation_split_trains_without_validation(mix: PipelineSpec):
    plain = mix.model_dump(mode="json")
    for dataset in plain["datasets"]:
        dataset["split"] = {"train": "train"}
    model = fit(PipelineSpec.from_mapping(plain), max_epochs=1)
    assert len(model.seen) == 10
    assert model.validated == []


@pytest.mark.parametrize("flags", [
    {"max_steps": 13},
    {"max_epochs": 4, "limit_train_batches": 4},
    {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1, "limit_train_batches": 4},
    {"max_epochs": 1, "val_check_interval": 0.25},
    {"max_steps": 13, "val_check_interval": 4, "check_val_every_n_epoch": None},
    {"max_epochs": 2, "accumulate_grad_batches": 3},
], ids=lambda flags: "-".join(flags))  # fmt: skip
def test_whatever_cuts_the_epochs_the_sequence_goes_on(
    mix: PipelineSpec, undisturbed: Tiny, flags: dict[str, Any]
):
    model = fit(mix, **flags)
    assert model.seen
    assert model.seen == undisturbed.seen[: len(model.seen)]
    if flags.get("max_epochs") == 4:
        assert model.epochs == [epoch for epoch in range(4) for _ in range(4)]
    if model.validated:
        assert len(set(flat(model.validated)[:4])) == 4


# --- checkpoints --------------------------------------------------------------------------------


class SaveAt(Callback):
    """Saves a checkpoint after so many training steps, and may stop there."""

    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize(("step", "forever"), [(10, False), (7, True)])
def test_a_checkpoint_resumes_with_the_next_batch_and_the_same_losses(
    mix: PipelineSpec, tmp_path: Path, step: int, forever: bool
):
    spec = endless(mix) if forever else mix
    whole = Tiny()
    saver = SaveAt(tmp_path / "at.ckpt", step)
    flags: dict[str, Any] = {"max_steps": 17, "val_check_interval": 4,
                             "check_val_every_n_epoch": None}  # fmt: skip
    trainer(callbacks=[saver], **flags).fit(whole, datamodule=data(spec))
    resumed = Tiny()
    trainer(**flags).fit(resumed, datamodule=data(spec), ckpt_path=str(saver.path))
    assert resumed.seen == whole.seen[step:]
    assert resumed.losses == whole.losses[step:]


@pytest.mark.parametrize("size", [3, 6])
def test_a_resumed_fit_has_the_epochs_and_validations_of_an_undisturbed_one(
    mix: PipelineSpec, tmp_path: Path, size: int
):
    """Forty samples in threes: the loader's third epoch has a batch more, those before left one."""

    class Told(Tiny):
        def on_validation_epoch_end(self) -> None:
            self.epochs.append(-1)

    def run(model: Tiny, size: int, **own: Any) -> list[int]:
        flags = {"max_epochs": 6, "num_sanity_val_steps": 0}
        saver = SaveAt(tmp_path / "at.ckpt", 30)
        trainer(callbacks=[saver], **flags).fit(model, datamodule=data(mix, batch_size=size), **own)
        return model.epochs

    whole, resumed = run(Told(), 3), run(Told(), size, ckpt_path=str(tmp_path / "at.ckpt"))
    assert whole == [told for epoch in range(6) for told in [epoch] * 13 + [-1]]
    left = whole[32:] if size == 3 else [t for e in range(2, 6) for t in [e] * 6 + [-1]][3:]
    assert resumed == left


def test_a_state_of_another_version_is_refused(mix: PipelineSpec):
    with pytest.raises(UsageError, match="schema_version 9"):
        data(mix).load_state_dict({"schema_version": 9, "train": None})


# --- its face -----------------------------------------------------------------------------------


def test_by_hand_an_iteration_is_one_epoch_and_setup_may_be_called_twice(
    mix: PipelineSpec, undisturbed: Tiny
):
    module = data(mix)
    module.setup("fit")
    module.setup("fit")
    stream = module.train_dataloader()
    assert stream is module.train_dataloader()
    assert len(stream) == 10
    first, second = [places(b) for b in stream], [places(b) for b in stream]
    assert first + second == undisturbed.seen[:20]
    module.close()
    module.close()
    assert module.state_dict()["train"]["position"] == 80


# --- the end of a run ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("isolation", "error"), [("thread", RuntimeError), ("process", KeyboardInterrupt)]
)
def test_a_run_that_raises_or_is_interrupted_leaves_a_checkpoint_and_nothing_else(
    mix: PipelineSpec, isolation: str, tmp_path: Path, undisturbed: Tiny, error: type[BaseException]
):
    class Break(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 4:
                raise error("broken")

    saver = ModelCheckpoint(tmp_path, save_on_exception=True)
    model = Tiny()
    run = trainer(max_epochs=1, callbacks=[saver, Break()], enable_checkpointing=True)
    with pytest.raises(SystemExit if error is KeyboardInterrupt else error):
        run.fit(model, datamodule=data(mix, isolation))
    assert loader_children() == []
    (saved,) = tmp_path.glob("*.ckpt")
    resumed = Tiny()
    trainer(max_steps=6).fit(resumed, datamodule=data(mix), ckpt_path=str(saved))
    assert (model.seen + resumed.seen)[:6] == undisturbed.seen[:6]
