"""Behaviour cloning with Hugging Face's ``Trainer``, by one process or by several.

python train_hf.py data/mix.yaml --steps 1000    # Ctrl-C saves; the same command goes on exactly
torchrun --nproc-per-node 2 train_hf.py data/mix.yaml
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from policy import Policy
from ranks import Stop, validated
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from autoloader import AutoLoader, validation_loaders


class Cloning(Trainer):
    def get_train_dataloader(self) -> Any:
        return loader.as_torch_dataloader()  # each rank has batches of its own

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return model(inputs)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        self.log(found := {"eval_error": validated(self.model, held)})
        self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
        return found


class Saves(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if stop.asked():
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:  # any rank's place is that of all, where data is local
            torch.save(loader.state_dict(), f"{given.folder}/checkpoint-{state.global_step}/loader")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("spec", help='has a camera "primary", a state and a split "val"')
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=200, help="steps between validations")
    parser.add_argument("--folder", type=Path, default=Path("policy"), help="of the checkpoints")
    given, stop = parser.parse_args(), Stop()
    arguments = TrainingArguments(  # these find out the ranks, so they come before the loader
        given.folder, max_steps=given.steps, eval_strategy="steps", eval_steps=given.every,
        use_cpu=not torch.cuda.is_available(), ignore_data_skip=True,
    )  # fmt: skip
    with validation_loaders(given.spec)["val"] as held, AutoLoader(given.spec) as loader:
        torch.manual_seed(0)
        last = get_last_checkpoint(given.folder) if given.folder.exists() else None
        if last is not None:
            loader.load_state_dict(torch.load(f"{last}/loader"))
        trainer = Cloning(Policy(loader), arguments, eval_dataset=held, callbacks=[Saves()])
        trainer.train(resume_from_checkpoint=last)
