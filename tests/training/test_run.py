"""Whole runs over a small mixture: what they leave, how they end, how they go on."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from ended import ran
from lightning.pytorch import Callback, LightningModule, Trainer

from autoloader.cli.app import run_command
from autoloader.errors import UsageError
from autoloader.spec import PipelineSpec
from training.record import Figures
from training.run import LAST, Options, run
from training.stage1 import kept_quantiser, origin_of
from training.stage2 import app
from training.stopping import StopSignals

STEPS = 9


class Witness(Callback):
    """Keeps every step's samples and loss; does something at a chosen place.

    Args:
        at: what to do, by place: ("step", n) before step n's batch is learned from, ("val", n) at
            the n-th validation batch.
    """

    def __init__(self, at: dict[tuple[str, int], Callable[[], None]] | None = None) -> None:
        self.samples: list[list[list[int]]] = []
        self.losses: list[float] = []
        self.validations = 0
        self._at = at or {}

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._at.get(("step", trainer.global_step), int)()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.samples.append(batch["provenance"].tolist())
        self.losses.append(float(outputs["loss"]))

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.validations += 1
        self._at.get(("val", self.validations), int)()


def options(small_mix: Path, output: Path, **other: Any) -> Options:
    chosen = {
        "spec": PipelineSpec.from_yaml(small_mix),
        "output": output,
        "ram_floor": "100MB",
        "max_steps": STEPS,
        "laq_steps": 3,
        "val_every": 4,
        "log_every": 0,
        "accelerator": "cpu",
        "action_head": True,
        **other,
    }
    return Options(**chosen)


def train(chosen: Options, witness: Witness) -> tuple[Figures, StopSignals]:
    signals = StopSignals()
    with signals.handled():
        figures = run(chosen, signals, callbacks=(witness,))
    return figures, signals


@pytest.fixture(scope="module")
def whole(small_mix: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Witness]:
    """A run that nothing interrupted: its folder and what it saw."""
    output, witness = tmp_path_factory.mktemp("whole"), Witness()
    figures, _ = train(options(small_mix, output), witness)
    assert figures.steps == STEPS
    return output, witness


def test_an_ideal_loader_repeats_one_batch_and_leaves_the_validation_as_it_is(
    whole: tuple[Path, Witness], small_mix: Path, tmp_path: Path
):
    whole_output, uninterrupted = whole
    witness = Witness()
    chosen = options(
        small_mix,
        tmp_path,
        isolation="thread",
        laq_checkpoint=whole_output / "quantiser.pt",
        ideal_loader=True,
    )
    figures, _ = train(chosen, witness)
    assert figures.steps == STEPS
    assert witness.samples == [uninterrupted.samples[0]] * STEPS
    assert witness.validations == uninterrupted.validations


def loaders_children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "worker" in str(child.cmdline())]


def test_a_run_leaves_checkpoint_quantiser_log_and_pictures_and_no_process(
    whole: tuple[Path, Witness],
):
    output, witness = whole
    names = {str(file.relative_to(output)) for file in output.rglob("*") if file.is_file()}
    assert {"checkpoints/last.ckpt", "quantiser.pt", "logs/version_0/metrics.csv"} <= names
    assert {f"pictures/validation-{step:06d}.png" for step in (4, 8)} <= names
    assert witness.validations == 2 * 2
    assert not loaders_children()


def environment_of(pid: int) -> bytes:
    """What a process was started with; nothing where that cannot be seen."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(("isolation", "place"), [("process", "step"), ("thread", "val")])
def test_a_run_stopped_by_a_signal_goes_on_as_if_it_had_not_been(
    isolation: str, place: str, whole: tuple[Path, Witness], small_mix: Path, tmp_path: Path
):
    whole_output, uninterrupted = whole
    moment = random.Random(f"{isolation} {place}").randrange(1, 4 if place == "val" else STEPS - 1)
    before = Witness({(place, moment): lambda: signal.raise_signal(signal.SIGTERM)})
    quantiser = whole_output / "quantiser.pt"
    chosen = options(small_mix, tmp_path, isolation=isolation, laq_checkpoint=quantiser)
    figures, signals = train(chosen, before)
    assert signals.exit_code == 143
    assert 0 < figures.steps == len(before.losses) < STEPS
    after = Witness()
    again = options(
        small_mix, tmp_path, isolation=isolation, resume=tmp_path / LAST, action_head=False
    )
    figures, signals = train(again, after)
    assert figures.steps == STEPS
    assert signals.exit_code == 0
    assert before.samples + after.samples == uninterrupted.samples
    assert before.losses + after.losses == uninterrupted.losses


def test_a_run_that_raises_keeps_a_checkpoint_to_go_on_from(
    whole: tuple[Path, Witness], small_mix: Path, tmp_path: Path
):
    def fail() -> None:
        raise ZeroDivisionError("out of patience")

    given = {"val_every": 0, "max_steps": 4, "laq_checkpoint": whole[0] / "quantiser.pt"}
    chosen = options(small_mix, tmp_path, **given)
    with pytest.raises(ZeroDivisionError, match="out of patience"):
        train(chosen, Witness({("step", 2): fail}))
    assert not loaders_children()
    after = Witness()
    checkpoint = tmp_path / LAST.parent / "exception.ckpt"
    figures, _ = train(options(small_mix, tmp_path, resume=checkpoint, **given), after)
    assert figures.steps == 4
    assert len(after.losses) == 2


def test_a_second_signal_ends_the_run_at_once(
    whole: tuple[Path, Witness], small_mix: Path, tmp_path: Path
):
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    given = {"val_every": 0, "laq_checkpoint": whole[0] / "quantiser.pt"}
    with pytest.raises(SystemExit) as end:
        train(options(small_mix, tmp_path, **given), Witness({("step", 1): twice}))
    assert end.value.code == 130
    assert not loaders_children()


def test_a_quantiser_is_kept_for_the_same_question_only(
    whole: tuple[Path, Witness], small_mix: Path
):
    spec, path = PipelineSpec.from_yaml(small_mix), whole[0] / "quantiser.pt"
    assert kept_quantiser(path, origin_of(spec, "primary", 3, 0)) is not None
    other = spec.model_copy(update={"weights": "natural"})
    assert kept_quantiser(path, origin_of(other, "primary", 3, 0)) is None
    assert kept_quantiser(path, origin_of(spec, "primary", 4, 0)) is None
    assert kept_quantiser(path.with_name("none.pt"), origin_of(spec, "primary", 3, 0)) is None


def test_what_makes_no_sense_is_refused_before_anything_is_built(small_mix: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="no camera 'wrist'"):
        train(options(small_mix, tmp_path, camera="wrist"), Witness())
    spec = PipelineSpec.from_yaml(small_mix)
    one = spec.model_copy(update={"sample": spec.sample.model_copy(update={"frame_offsets": (0,)})})
    with pytest.raises(UsageError, match="between two frames"):
        train(options(small_mix, tmp_path, spec=one), Witness())
    strange = tmp_path / "strange.ckpt"
    torch.save({"hyper_parameters": {}}, strange)
    with pytest.raises(UsageError, match="Stage-2 checkpoint"):
        train(options(small_mix, tmp_path, resume=strange), Witness())
    assert not loaders_children()


def test_the_command_line_trains_and_answers_with_one_json_document(
    small_mix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = f"--spec {small_mix} --ram-floor 100MB --output {tmp_path} --laq-steps 2 --max-steps 3"
    more = " --val-every 3 --batch-size 3 --image-size 16 --accelerator cpu --json"
    assert run_command(app, (words + more).split(), "stage2") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["steps"] == 3
    assert set(answer["end"]) == {"loss", "loss_of_mean", "loss_blind"}
    assert answer["validation"]["latent_mse"] > 0
    assert answer["validation"]["share/cup"] == 1
    assert run_command(app, ["--resume", "no.ckpt"], "stage2") == 2
    assert "there is no file no.ckpt" in capsys.readouterr().err


def test_errors_are_told_by_dataset_whatever_metadata_the_spec_asks_for(
    small_mix: Path, tmp_path: Path
):
    spec = PipelineSpec.from_yaml(small_mix).model_dump(mode="json", by_alias=True)
    spec["metadata"] = "none"
    spec["datasets"][0]["split"]["val"], spec["datasets"][1]["split"]["val"] = "train[3:]", "train"
    chosen = options(
        small_mix, tmp_path, spec=PipelineSpec.from_mapping(spec), isolation="thread", max_steps=2,
        val_every=2,
    )  # fmt: skip
    figures = run(chosen, StopSignals())
    assert 0 < figures.validation["share/cup"] < 1


def test_a_rank_whose_samples_are_all_padding_changes_neither_gradients_nor_figures(
    warm_python: Path,
):
    script, env = (
        Path(__file__).with_name("ranks_script.py"),
        {**os.environ, "OMP_NUM_THREADS": "1"},
    )
    one, two = (
        json.loads(ran(warm_python, script, ranks, env=env, timeout=230).stdout) for ranks in (1, 2)
    )
    assert two == pytest.approx(one, rel=1e-5)
    assert one["gradients"] != 0


def test_frames_that_are_never_there_in_pairs_are_refused_before_training(
    small_mix: Path, tmp_path: Path
):
    spec = PipelineSpec.from_yaml(small_mix)
    sample = spec.sample.model_copy(update={"frame_offsets": (0, 100)})
    far = spec.model_copy(update={"sample": sample})
    with pytest.raises(UsageError, match="100 batches have no two samples with both frames of"):
        train(options(small_mix, tmp_path, spec=far, isolation="thread"), Witness())


def test_ctrl_c_ends_the_process_with_a_checkpoint_and_nothing_left(
    small_mix: Path, tmp_path: Path, warm_python: Path
):
    words = f"--spec {small_mix} --ram-floor 100MB --laq-steps 2 --max-steps -1 --log-every 1"
    command = [warm_python, "-m", "training.stage2", *words.split(), "--val-every", "0"]
    with subprocess.Popen(
        [*command, "--output", str(tmp_path)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OF_THE_RUN": str(tmp_path)},
    ) as one:
        assert one.stderr is not None
        before = list(itertools.takewhile(lambda line: "step 3:" not in line, one.stderr))
        children = [
            process
            for process in psutil.process_iter()
            if f"OF_THE_RUN={tmp_path}".encode() in environment_of(process.pid)
        ]
        assert len(children) >= 2, "".join(before)  # the run, and the loader's child
        one.send_signal(signal.SIGINT)
        said = one.stderr.read()
        assert one.wait(60) == 128 + signal.SIGINT, said
    assert "stopping after this step" in said
    assert "Traceback" not in said
    assert sum(line.startswith("Stage 2") for line in before) == 2, before  # two steps
    assert (tmp_path / LAST).is_file()
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_a_source_that_fails_in_the_middle_ends_the_command_with_its_code_and_a_checkpoint(
    small_mix: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    copy = tmp_path / "mix"
    shutil.copytree(small_mix.parent, copy)
    spec = copy / small_mix.name
    spec.write_text(spec.read_text().replace(str(small_mix.parent), str(copy)))

    def cut() -> None:
        for shard in copy.rglob("*.tfrecord*"):
            os.truncate(shard, 100)

    monkeypatch.setattr("training.run.run", partial(run, callbacks=(Witness({("step", 3): cut}),)))
    words = f"--spec {spec} --ram-floor 100MB --laq-steps 2 --max-steps -1 --log-every 1"
    more = f" --val-every 0 --accelerator cpu --output {tmp_path / 'out'}"
    assert run_command(app, (words + more).split(), "stage2") == 4
    said = capsys.readouterr().err
    assert "cannot be read" in said
    assert "Traceback" not in said
    assert (tmp_path / "out" / LAST.parent / "exception.ckpt").is_file()
    assert not loaders_children()
