"""Runs a page's lines in a project's own sources, on the CPU, with a model of a few numbers.

    python trainers_script.py openpi|openpi-torch|n1.5|n1.6|n1.7|starvla FOLDER

FOLDER has ``mix.yaml`` and ``lines.py``, the page's file; ``trainers.py`` writes both, and has the
tree on ``PYTHONPATH``. Trained are six steps, then steps 4 to 6 from the checkpoint of step 3. What
only downloads give (weights, tokenizers, processors of pictures and texts) is small and made here.
Missing packages that a script imports and these steps do not use are empty modules.

The last line printed is JSON: how many batches came, and whether the resumed ones are the same.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import runpy
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

STEPS, SAVED = 6, 3


class Empty(types.ModuleType):
    """A module that has every name, each an empty class."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def missing(*names: str) -> None:
    """Have an empty module for each of these that is not installed."""
    empty(*(name for name in names if importlib.util.find_spec(name) is None))


def empty(*names: str) -> None:
    """Have an empty module for each of these."""
    for name in names:
        sys.modules[name] = Empty(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.stderr.write(f"an empty module: {name}\n")


class Numbers(torch.nn.Module):
    """A model of one number: the mean square of the actions around it."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = torch.nn.Parameter(torch.zeros(1))

    def around(self, actions: torch.Tensor) -> torch.Tensor:
        return (actions.float() - self.middle).pow(2).mean()


def digest(*arrays: Any) -> list[float]:
    """A few numbers that tell one batch from another."""
    rows = [np.asarray(one, np.float64) for one in arrays]
    return [float(value) for one in rows for value in (one.sum(), (one**2).sum(), one.flat[0])]


def lines(folder: Path, name: str, *argv: str) -> dict[str, Any]:
    """The page's file, run as ``name``."""
    sys.argv = ["train_on_loader.py", *argv]
    return runpy.run_path(str(folder / "lines.py"), run_name=name)


def hugging_face(folder: Path, trainer: Any, data: Any, collate: Any, **more: Any) -> Any:
    """Six steps of a trainer of Hugging Face's, then the last three again."""
    from transformers import TrainingArguments

    class Model(Numbers):
        def forward(self, *given: Any, **inputs: Any) -> dict[str, torch.Tensor]:
            batch = given[0] if given else inputs
            return {"loss": self.around(batch["action"])}

    def run(resume: str | None) -> list[Any]:
        seen: list[Any] = []

        def collated(samples: list[Any]) -> dict[str, Any]:
            seen.append(digest(*(one["action"] for one in samples)))
            return {"action": torch.stack([torch.as_tensor(one["action"]) for one in samples])}

        arguments = TrainingArguments(
            str(folder / "out"), max_steps=STEPS, save_steps=SAVED, use_cpu=True, report_to=[],
            remove_unused_columns=False, per_device_train_batch_size=2, disable_tqdm=True,
            learning_rate=0.1,
        )  # fmt: skip
        made = trainer(
            model=Model(), args=arguments, train_dataset=data,
            data_collator=collated if collate is None else collate(collated), **more,
        )  # fmt: skip
        made.train(resume_from_checkpoint=resume)
        return seen

    return run(None), run(str(folder / f"out/checkpoint-{SAVED}"))


def later_gr00t(folder: Path) -> Any:
    """N1.6's and N1.7's trainer and mixture; the processor has their numbers, no pictures."""
    import gr00t_script
    from gr00t.configs.data.embodiment_configs import MODALITY_CONFIGS
    from gr00t.data.dataset.sharded_mixture_dataset import ShardedMixtureDataset
    from gr00t.data.dataset.sharded_single_step_dataset import ShardedSingleStepDataset
    from gr00t.data.embodiment_tags import EmbodimentTag
    from gr00t.data.state_action.state_action_processor import StateActionProcessor
    from gr00t.experiment.trainer import Gr00tTrainer

    gr00t_script.stand_in()
    lines(folder, "lines", "gr00t/experiment/launch_finetune.py")
    tag, root = EmbodimentTag.NEW_EMBODIMENT, folder / "g1"
    gr00t_script.configured(root, tag, 16)

    class Processor:
        def __init__(self) -> None:
            configs = {tag.value: MODALITY_CONFIGS[tag.value]}
            self.numbers = StateActionProcessor(configs, use_relative_action=True)

        def set_statistics(self, statistics: Any, override: bool = False) -> None:
            self.numbers.set_statistics(statistics, override=override)

        def __call__(self, messages: Any) -> dict[str, Any]:
            step = messages[0]["content"]
            _, action = self.numbers.apply(step.states, step.actions, step.embodiment.value)
            return {"action": np.concatenate(list(action.values()), axis=1)}

    single = ShardedSingleStepDataset(root, tag, MODALITY_CONFIGS[tag.value])
    return hugging_face(
        folder, Gr00tTrainer, ShardedMixtureDataset([single], [1.0], Processor()), None
    )


def first_gr00t(folder: Path) -> Any:
    """N1.5's trainer and dataset, with its transforms of numbers."""
    import gr00t_script

    gr00t_script.stand_in()
    empty("gr00t.model.gr00t_n1", "gr00t.model.transforms")
    lines(folder, "lines", "scripts/gr00t_finetune.py")
    from gr00t.experiment.runner import DualBrainTrainer

    data, keys = gr00t_script.single("n1.5", folder / "g1", "min_max", 16)
    numbers = data.transforms

    def joined(raw: Any) -> dict[str, Any]:
        made = numbers(raw)
        return {"action": np.concatenate([np.asarray(made[key]) for key in keys["action"]], 1)}

    data.transforms = joined
    return hugging_face(folder, DualBrainTrainer, data, None, compute_dtype=torch.float32)


def starvla(folder: Path) -> Any:
    """StarVLA's whole script."""
    import accelerate
    import gr00t_script

    gr00t_script.stand_in()
    missing("qwen_vl_utils", "wandb")
    whole = accelerate.Accelerator
    vars(accelerate)["DeepSpeedPlugin"] = lambda: None
    vars(accelerate)["Accelerator"] = lambda deepspeed_plugin=None: whole(cpu=True)
    seen: list[Any] = []

    class Model(Numbers):
        def forward(self, examples: Any) -> dict[str, torch.Tensor]:
            actions = np.stack([one["action"] for one in examples])
            seen.append(digest(actions, *(np.asarray(one["image"][0]) for one in examples)))
            return {"action_loss": self.around(torch.as_tensor(actions))}

    base = importlib.import_module("starVLA.model.framework.base_framework")
    vars(base)["build_framework"] = lambda cfg: Model()
    from omegaconf import OmegaConf

    def run(*, resume: bool) -> list[Any]:
        seen.clear()
        trainer = {
            "max_train_steps": STEPS, "save_interval": SAVED, "eval_interval": 1000,
            "logging_frequency": 1, "is_resume": resume, "gradient_clipping": 1.0,
            "learning_rate": {"base": 1e-2}, "lr_scheduler_type": "constant",
            "num_warmup_steps": 0, "scheduler_specific_kwargs": {},
            "optimizer": {"betas": [0.9, 0.95], "weight_decay": 0.0, "eps": 1e-8},
        }  # fmt: skip
        vla = {"data_mix": "arm", "per_device_batch_size": 2, "dataset_py": "lerobot_datasets"}
        cfg = {
            "run_root_dir": str(folder), "run_id": "out", "seed": 1, "is_debug": False,
            "trainer": trainer, "datasets": {"vla_data": vla}, "framework": {"name": "none"},
            "wandb_project": "none", "wandb_entity": "none",
        }  # fmt: skip
        OmegaConf.save(OmegaConf.create(cfg), folder / "config.yaml")
        sys.modules.pop("starVLA.training.train_starvla", None)
        lines(folder, "__main__", "--config_yaml", str(folder / "config.yaml"))
        return list(seen)

    undisturbed = run(resume=False)
    for one in (folder / "out/checkpoints").glob(f"steps_{STEPS}_*"):
        one.unlink()
    return undisturbed, run(resume=True)


def openpi(folder: Path, *, in_torch: bool) -> Any:
    """openpi's whole scripts on its debug configuration of pi0.5."""
    missing("wandb", "lerobot", "lerobot.common", "lerobot.common.datasets")
    for name in ("lerobot.common", "lerobot.common.datasets",
                 "lerobot.common.datasets.lerobot_dataset"):  # fmt: skip
        sys.modules.setdefault(name, Empty(name))

    class Model(Numbers):
        def __init__(self, _: Any) -> None:
            super().__init__()

        def forward(self, observation: Any, actions: torch.Tensor) -> torch.Tensor:
            assert observation.images["base_0_rgb"].shape[1] == 3
            return self.around(actions)

    made = Empty("openpi.models_pytorch.pi0_pytorch")  # theirs wants a patched transformers
    vars(made)["PI0Pytorch"] = Model
    sys.modules[made.__name__] = made
    vars(importlib.import_module("openpi.models_pytorch"))["pi0_pytorch"] = made
    from openpi.models import siglip, tokenizer
    from openpi.training import config as configs

    class Tokens:
        def __init__(self, length: int) -> None:
            self.length = length

        def tokenize(self, prompt: str, state: Any = None) -> Any:
            ids = [*prompt.encode(), *([] if state is None else range(len(state)))][: self.length]
            rest = [0] * (self.length - len(ids))
            return np.asarray(ids + rest), np.asarray([True] * len(ids) + [False] * len(rest))

    vars(tokenizer)["PaligemmaTokenizer"] = Tokens
    module = siglip.Module
    vars(siglip)["Module"] = lambda **given: module(**{**given, "variant": "mu/14"})
    data = configs.FakeDataConfig

    def create(self: Any, assets_dirs: Any, model: Any) -> Any:
        return configs.DataConfig(
            repo_id="fake", asset_id="arm", norm_stats={},
            model_transforms=configs.ModelTransformFactory()(model),
        )  # fmt: skip

    data.create = create
    seen: list[Any] = []
    script = "scripts/train_pytorch.py" if in_torch else "scripts/train.py"
    tree = Path(configs.__file__).parents[3]

    def run(*more: str) -> list[Any]:
        seen.clear()
        scope = lines(
            folder, "lines", str(tree / script), "debug_pi05", "--exp-name=run", "--batch-size=2",
            f"--num-train-steps={STEPS}", f"--save-interval={SAVED}", "--log-interval=1",
            f"--checkpoint-base-dir={folder}", "--no-wandb-enabled", "--model.action-horizon=4",
            f"--keep-period={SAVED}", *more,
        )  # fmt: skip
        batches = scope["Batches"]
        whole = batches.made

        def recorded(self: Any, batch: Any) -> Any:
            found = whole(self, batch)
            seen.append(digest(found[1], found[0].state))
            return found

        batches.made = recorded
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
        return list(seen)

    undisturbed = run("--overwrite")
    kept = sorted(int(one.name) for one in (folder / "debug_pi05/run").glob("[0-9]*"))
    for step in kept[1:]:
        shutil.rmtree(folder / f"debug_pi05/run/{step}")
    first = kept[0] + (not in_torch)
    again = run("--resume", "--no-overwrite")
    return undisturbed[: first + len(again)], again


RUNS: dict[str, Callable[[Path], Any]] = {
    "openpi": lambda folder: openpi(folder, in_torch=False),
    "openpi-torch": lambda folder: openpi(folder, in_torch=True),
    "n1.5": first_gr00t,
    "n1.6": later_gr00t,
    "n1.7": later_gr00t,
    "starvla": starvla,
}


def main(kind: str, place: str) -> None:
    undisturbed, again = RUNS[kind](Path(place).absolute())
    same = bool(again) and again == undisturbed[-len(again) :]
    told = {"batches": len(undisturbed), "again": len(again), "the same again": same}
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
