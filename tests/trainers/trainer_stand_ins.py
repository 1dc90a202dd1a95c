"""Stand-ins of the trainers' packages and scripts: the seams' calls in their order, and no more.

``seam`` is what a test hands a script, and where the script leaves what it trained on.
"""

from collections.abc import Mapping

_JAX = """
class tree:
    @staticmethod
    def map(make, *trees):
        if isinstance(trees[0], dict):
            return {key: tree.map(make, *(one[key] for one in trees)) for key in trees[0]}
        return make(*trees)

def make_array_from_process_local_data(sharding, array):
    assert sharding == "over the data axis"
    return array
"""
_OPENPI_TRANSFORMS = """
def compose(several):
    def applied(data):
        for one in several:
            data = one(data)
        return data
    return applied
"""
_OPENPI_MODEL = """
import numpy as np
import torch

class Observation:
    @classmethod
    def from_dict(cls, data):
        for key, one in data["image"].items():
            if one.dtype == np.uint8:
                data["image"][key] = one.astype(np.float32) / 255.0 * 2.0 - 1.0
            elif one.dtype == torch.uint8:
                data["image"][key] = one.to(torch.float32).permute(0, 3, 1, 2) / 255.0 * 2.0 - 1.0
        return {key: one for key, one in data.items() if key != "actions"}
"""
_OPENPI_DATA = """
def create_data_loader(config, **_):
    raise AssertionError("openpi's own loader is asked")
"""
_OPENPI_RUN = """
import numpy as np
import seam
from types import SimpleNamespace
from openpi.training import data_loader

def tokens(data):
    text = data.pop("prompt")
    return {**data, "tokenized_prompt": np.asarray([len(data["state"]), len(text)], np.int32)}

def padded(data):
    state = np.zeros(32, np.float32)
    state[: len(data["state"])] = data["state"]
    return {**data, "state": state}

def create(assets_dirs, model):
    return SimpleNamespace(
        norm_stats={}, asset_id="arm", model_transforms=SimpleNamespace(inputs=[tokens, padded])
    )

config = seam.config
config.data = SimpleNamespace(create=create)

def newest():
    return max(int(one.name) for one in config.checkpoint_dir.iterdir())
"""
_OPENPI_JAX = (
    _OPENPI_RUN
    + """
loader = data_loader.create_data_loader(config, sharding="over the data axis", shuffle=True)
batches = iter(loader)
batch = next(batches)
first = newest() + 1 if config.resume else 0
for step in range(first, config.num_train_steps):
    seam.seen.append(batch)
    batch = next(batches)
    last = step == config.num_train_steps - 1
    if (step % config.save_interval == 0 and step > first) or last:
        assert loader.data_config().asset_id == "arm"
        (config.checkpoint_dir / str(step)).mkdir(parents=True)
"""
)
_OPENPI_TORCH = (
    _OPENPI_RUN
    + """
loader = data_loader.create_data_loader(config, framework="pytorch", shuffle=True)
sample = next(iter(data_loader.create_data_loader(config, framework="pytorch", shuffle=False)))
step = newest() if config.resume else 0
while step < config.num_train_steps:
    for observation, actions in loader:
        if step >= config.num_train_steps:
            break
        seam.seen.append((observation, actions))
        step += 1
        if step % config.save_interval == 0 or step == config.num_train_steps - 1:
            assert loader.data_config().asset_id == "arm"
            (config.checkpoint_dir / str(step)).mkdir(parents=True)
"""
)
_OPENVLA = """
class RLDSDataset:
    def __init__(self, *_, **__):
        raise AssertionError("OpenVLA's own dataset is asked")
"""
_OPENVLA_RUN = """
import json
import seam
from prismatic.vla.datasets import RLDSDataset
from torch.utils.data import DataLoader

def batch_transform(rlds_batch):
    text = rlds_batch["task"]["language_instruction"].decode().lower()
    return {
        "image": rlds_batch["observation"]["image_primary"][0].copy(),
        "lang": text,
        "action": rlds_batch["action"][0].copy(),
        "dataset_name": rlds_batch["dataset_name"],
    }

data = RLDSDataset(
    "datasets", "arm", batch_transform, resize_resolution=(12, 16), shuffle_buffer_size=10,
    image_aug=False,
)
plain = lambda one: one.tolist()
with open("dataset_statistics.json", "w") as file:
    json.dump(data.dataset_statistics, file, default=plain)
collate = lambda rows: {key: [row[key] for row in rows] for key in rows[0]}
loader = DataLoader(data, batch_size=seam.size, sampler=None, collate_fn=collate, num_workers=0)
for number, batch in enumerate(loader):
    seam.seen.append(batch)
    if number + 1 == seam.steps:
        break
"""
_OCTO = """
def make_single_dataset(**_):
    raise AssertionError("Octo's own dataset is asked")
"""
_OCTO_RUN = """
import json
import copy
import seam
from octo.data.dataset import make_single_dataset

dataset = make_single_dataset(
    dataset_kwargs={"name": "arm"}, traj_transform_kwargs={"window_size": 1},
    frame_transform_kwargs={}, train=True,
)
batches = dataset.repeat().unbatch().shuffle(10000).batch(seam.size).iterator()

def processed(batch):
    texts = batch["task"]["language_instruction"]
    batch["task"]["language_instruction"] = [one.decode("utf-8") for one in texts]
    del batch["dataset_name"]
    return copy.deepcopy(batch)

batches = map(processed, batches)
example_batch = next(batches)
with open("statistics.json", "w") as file:
    json.dump(dataset.dataset_statistics, file, default=lambda one: one.tolist())
for step in range(seam.steps):
    seam.seen.append(next(batches))
"""
_STARVLA = """
def build_dataloader(cfg, dataset_py="lerobot_datasets_oxe"):
    raise AssertionError("StarVLA's own loader is asked")
"""
_STARVLA_RUN = """
import re
from pathlib import Path
import seam
from starVLA.dataloader import build_dataloader

cfg = seam.cfg
folder = Path(cfg.output_dir, "checkpoints")
folder.mkdir(parents=True, exist_ok=True)
loader = build_dataloader(cfg=cfg, dataset_py=cfg.datasets.vla_data.dataset_py)
steps = [int(re.match(r"steps_(\\d+)_", one.name)[1]) for one in folder.iterdir()]
step = max(steps) if cfg.trainer.is_resume else 0
batches = iter(loader)
while step < cfg.trainer.max_train_steps:
    seam.seen.append(next(batches))
    step += 1
    epoch = round(step / len(loader), 2)
    if step % 2 == 0:  # its evaluation takes a batch
        seam.seen.append(next(batches))
    if step % cfg.trainer.save_interval == 0:
        (folder / f"steps_{step}_pytorch_model.pt").touch()
"""
_GR00T_TAGS = """
from enum import Enum

class EmbodimentTag(Enum):
    NEW_EMBODIMENT = "new_embodiment"
"""
_GR00T_TYPES = """
from dataclasses import dataclass, field

@dataclass
class VLAStepData:
    images: dict
    states: dict
    actions: dict
    masks: object = None
    text: str = None
    embodiment: object = None
    is_demonstration: bool = False
    metadata: dict = field(default_factory=dict)
"""
_GR00T_TRAINER = """
import copy
from types import SimpleNamespace
import seam

class Made:
    def __init__(self, dataset):
        self.train_dataset, self.data_collator = dataset, list
        self.args = SimpleNamespace(output_dir=str(seam.output), ignore_data_skip=False)
        self.state = SimpleNamespace(global_step=0, is_world_process_zero=True)
        self.callbacks = []

    def add_callback(self, one):
        self.callbacks.append(one)

    def get_train_dataloader(self):
        raise AssertionError("GR00T's own loader is asked")

    def train(self):
        self.state.global_step = seam.first
        for batch in self.get_train_dataloader():
            seam.seen.append(batch)
            self.state.global_step += 1
            folder = seam.output / f"checkpoint-{self.state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            for one in self.callbacks:
                one.on_save(self.args, self.state, None)
            if self.state.global_step == seam.steps:
                break
        assert self.args.ignore_data_skip
"""
_GR00T_N15_RUN = """
import copy
from types import SimpleNamespace
from gr00t.experiment.runner import DualBrainTrainer

trainer = DualBrainTrainer(SimpleNamespace(transforms=copy.deepcopy))
assert len(trainer.get_train_dataloader()) > 0
trainer.train()
"""
_GR00T_RUN = """
import copy
from types import SimpleNamespace
from gr00t.data.types import VLAStepData
from gr00t.experiment.trainer import Gr00tTrainer

def processor(messages):
    (message,) = messages
    assert message["type"] == "episode_step" and isinstance(message["content"], VLAStepData)
    found = copy.deepcopy(vars(message["content"]))
    return {**found, "embodiment": found["embodiment"].value}

Gr00tTrainer(SimpleNamespace(processor=processor)).train()
"""
FILES: Mapping[str, str] = {
    "seam.py": "", "jax/__init__.py": _JAX, "openpi/__init__.py": "",
    "openpi/transforms.py": _OPENPI_TRANSFORMS, "openpi/models/__init__.py": "",
    "openpi/models/model.py": _OPENPI_MODEL, "openpi/training/__init__.py": "",
    "openpi/training/data_loader.py": _OPENPI_DATA, "scripts/train.py": _OPENPI_JAX,
    "scripts/train_pytorch.py": _OPENPI_TORCH, "prismatic/__init__.py": "",
    "prismatic/vla/__init__.py": "", "prismatic/vla/datasets/__init__.py": _OPENVLA,
    "vla-scripts/finetune.py": _OPENVLA_RUN, "octo/__init__.py": "", "octo/data/__init__.py": "",
    "octo/data/dataset.py": _OCTO, "examples/02_finetune_new_observation_action.py": _OCTO_RUN,
    "starVLA/__init__.py": "", "starVLA/dataloader/__init__.py": _STARVLA,
    "starVLA/training/__init__.py": "", "starVLA/training/train_starvla.py": _STARVLA_RUN,
    "transformers/__init__.py": "class TrainerCallback: ...", "gr00t/__init__.py": "",
    "gr00t/data/__init__.py": "", "gr00t/data/embodiment_tags.py": _GR00T_TAGS,
    "gr00t/data/types.py": _GR00T_TYPES, "gr00t/experiment/__init__.py": "",
    "gr00t/experiment/trainer.py": _GR00T_TRAINER + "\nclass Gr00tTrainer(Made): ...\n",
    "gr00t/experiment/runner.py": _GR00T_TRAINER + "\nclass DualBrainTrainer(Made): ...\n",
    "gr00t/experiment/launch_finetune.py": _GR00T_RUN, "scripts/gr00t_finetune.py": _GR00T_N15_RUN,
}  # fmt: skip
"""Path → text."""
