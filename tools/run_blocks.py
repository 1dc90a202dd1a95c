"""Runs the Python blocks of the pages, on small data: those of a page in order, in one namespace.

    make docs                                                      # among others; a minute
    .venv/bin/python tools/run_blocks.py docs/howto/resume.md

Blocks run as they stand, but for where data lie and how long a training takes (``SAID``), in a
folder with a ``mix.yaml``. What a page takes for granted, such as a model, it is given (``GIVEN``);
what it only defines is called then (``THEN``). Above a block that cannot run everywhere stands what
it needs: ``<!-- needs: a GPU -->``, of ``NEEDS`` or an importable name; elsewhere it is left out,
and that is said. The quickstart is followed by a test of its own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib.util
import io
import os
import re
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from rlds_files import episode, write_dataset

OWN_TESTS = ("docs/quickstart.md",)
"""Pages that tests follow with everything that is on them."""
_BLOCK = re.compile(
    r"(?:^ *<!-- needs: (?P<needs>[^\n]*?) -->\n)?^ *```python\n(?P<body>.*?)^ *```",
    re.MULTILINE | re.DOTALL,
)
_MARK = re.compile(r"<!-- needs:")
_LONGEST_S = 300.0


def _gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


NEEDS: Mapping[str, Callable[[], bool]] = {
    "a GPU": _gpu,
    "a Ray cluster": lambda: False,  # tests/cluster has one
    "32 processes with a GPU each": lambda: False,
}
"""What is no package → whether it is here."""

SAID = {
    'ram_floor="5GB"': 'ram_floor="64MiB"',
    'ram_floor="8GB"': 'ram_floor="64MiB"',
    "max_steps=100_000": "max_steps=4",
    "val_check_interval=2_000": "val_check_interval=2",
    "seed=7, batched=True)": "seed=7, batched=True, passes=1)",
    'service="grpc://host:5000"': "service=server",
    "loss = ...": "loss = model(batch['state'][:, 0], batch['action'][:, 0])['loss']",
    "/data/fractal20220817_data/0.1.0": "one/1.0.0",
    "/data/lab_pick/1.0.0": "one/1.0.0",
    "robots.yaml": "mix.yaml",
    "texts.yaml": "mix.yaml",
}
"""What pages say → what is run."""

_LOADER = """
from autoloader import AutoLoader
loader = AutoLoader("mix.yaml", ram_floor="64MiB")
"""
_MODULE = """
import torch
from lightning.pytorch import LightningModule
class Policy(LightningModule):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 2)
    def training_step(self, batch, number):
        return (self.head(batch["state"][:, 0]) - batch["action"][:, 0]).pow(2).mean()
    def validation_step(self, batch, number, dataloader_idx=0):
        self.log("val", self.training_step(batch, number))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
model = Policy()
"""
_JAX_STEP = """
import jax, jax.numpy as jnp, numpy as np, autoloader.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from autoloader import AutoLoader
def train_step(parameters, images, state, action):
    return parameters, jnp.abs(images["primary"]).mean() + state.mean() + action.mean()
parameters = jnp.zeros(3)
"""

GIVEN: Mapping[str, str] = {
    "docs/howto/after-the-run.md": "from autoloader import AutoLoader; spec = 'mix.yaml'",
    "docs/howto/gpu.md": "from autoloader import AutoLoader",
    "docs/howto/lightning.md": _MODULE,
    "docs/howto/ray.md": "from autoloader import AutoLoader",
    "docs/howto/resume.md": "import torch; model = torch.nn.Linear(2, 2)"
    + _LOADER
    + "next(iter(loader))",
    "docs/howto/tfdata.md": """
import tensorflow as tf
dispatcher = tf.data.experimental.service.DispatchServer()
server = dispatcher.target
worker = tf.data.experimental.service.WorkerServer(
    tf.data.experimental.service.WorkerConfig(dispatcher_address=server.partition("//")[2]))
""",
    "docs/howto/trainers.md": """
import json
from pathlib import Path
import torch
with __import__("contextlib").suppress(ImportError):
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint
with __import__("contextlib").suppress(ImportError):
    from accelerate import Accelerator
class Policy(torch.nn.Linear):
    def forward(self, inputs, labels):
        found = super().forward(inputs)
        return {"loss": (found - labels).pow(2).mean(), "logits": found}
def inputs(batch):
    return {"inputs": batch["state"][:, 0], "labels": batch["action"][:, 0]}
folder = Path("trained")
model = Policy(3, 2)
optimiser = torch.optim.SGD(model.parameters(), 0.01)
"""
    + _LOADER,
    "docs/reference/api.md": _LOADER
    + "with __import__('contextlib').suppress(ImportError):"
    + textwrap.indent(_JAX_STEP, "    "),
    "docs/reference/batch.md": _LOADER,
    "docs/reference/metrics.md": _LOADER
    + """
logged, scalars = [], []
class wandb:
    log = staticmethod(lambda values, step: logged.append(values))
class writer:
    add_scalar = staticmethod(lambda name, value, step: scalars.append((name, float(value), step)))
""",
    "docs/reference/recipes.md": "from autoloader import PipelineSpec",
    "docs/tutorials/jax.md": _JAX_STEP,
}  # fmt: skip
"""Page → what it takes for granted."""
THEN: Mapping[str, str] = {
    "docs/howto/from-other-loaders.md": """
from pathlib import Path
from torch.utils.data import DataLoader
first = next(train_data_iter)
assert first["task"]["image_primary"].shape == (4, 16, 16, 3)
assert dataset_statistics is None
loader.close()
plain = Path("mix.yaml").read_text().replace("sample: {goal: uniform}", "")
normal = "normalize: {action: {method: q01_q99, clip: true, arithmetic: openvla}}"
Path("openvla.yaml").write_text(plain + normal)
vla_dataset = LoaderDataset("openvla.yaml", lambda row: (row["action"][0], row["dataset_name"]))
actions, names = next(iter(DataLoader(vla_dataset, batch_size=3, num_workers=0)))
assert actions.shape == (3, 2) and set(names) <= {b"one", b"two"}
assert len(vla_dataset) > 0
vla_dataset.loader.close()
Path("act.yaml").write_text(plain + "sample: {action_horizon: 100}")
loader = AutoLoader("act.yaml", ram_floor="64MiB")
act = lerobot(next(iter(loader)), loader.dataset_names)
assert act["observation.state"].shape == (4, 3) and act["action"].shape == (4, 100, 2)
assert act["observation.images.primary"].shape == (4, 3, 16, 16)
assert 0 < act["observation.images.primary"].max() <= 1
assert act["action_is_pad"].any() and not act["action_is_pad"].all()
""",
    "docs/howto/lightning.md": "assert trainer.global_step == 4",
    "docs/howto/trainers.md": "accelerator.save_state('state')\nassert trainer.state.global_step",
    "docs/reference/metrics.md": """
assert {"loader/batches", "loader/ring_slots"} <= set(logged[0]) & {name for name, *_ in scalars}
""",
    "docs/reference/recipes.md": "assert spec.datasets[0].action",
    "docs/reference/spec.md": """
step = lambda *shape: np.ones((5, *shape), np.float32)
told = {"observation": {"image_0": step(1)}, "action": step(7)}
assert bridge(told)["action"].shape == (5, 7) and "primary" in told["observation"]
""",
}
"""Page → what is done with it behind its last block."""


@dataclass(frozen=True)
class Block:
    """A block of Python.

    Attributes:
        line: of the page, where its text begins; from 1.
        text: as it stands.
        needs: what it needs; "": nothing.
    """

    line: int
    text: str
    needs: str

    @property
    def missing(self) -> bool:
        """Whether what it needs is not here."""
        if not self.needs:
            return False
        if (is_here := NEEDS.get(self.needs)) is not None:
            return not is_here()
        found = importlib.util.find_spec(self.needs)
        return found is None or found.origin is None  # a folder beside this file is no package


def blocks(text: str) -> list[Block]:
    """The blocks of a page.

    Raises:
        ValueError: a mark belongs to no block, or names what can be no need.
    """
    found = [
        Block(text.count("\n", 0, one.start("body")) + 1, one["body"], (one["needs"] or "").strip())
        for one in _BLOCK.finditer(text)
    ]
    marks = [one.needs for one in found if one.needs]
    if len(marks) != len(_MARK.findall(text)):
        raise ValueError("a mark `needs` stands above no Python block, or is empty")
    unknown = [one for one in marks if one not in NEEDS and not one.isidentifier()]
    if unknown:
        raise ValueError(f"needs {unknown[0]!r}: no importable name, and none of {list(NEEDS)}")
    return found


def pages() -> list[Path]:
    """Those with Python that no test of their own runs."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    own = [ROOT / name for name in OWN_TESTS]
    read = (page for page in every if "_build" not in page.parts and page not in own)
    return [page for page in read if "```python" in page.read_text()]


def furnish(place: Path) -> None:
    """Data and a ``mix.yaml`` for pages to find."""
    for number, name in enumerate(("one", "two")):
        records = [[episode(4 * number + k, 6)] for k in range(4)]
        write_dataset(place, records, name=name)
    (place / "mix.yaml").write_text(_MIXTURE)


_DATASET = """
  - name: {0}
    path: {0}/1.0.0
    images: {{primary: observation/image}}
    action: action
    state: observation/state
    language: language_instruction"""
_MIXTURE = f"""schema_version: 1
defaults: {{split: {{train: "train[:75%]", val: "train[75%:]"}}}}
datasets:{_DATASET.format("one")}{_DATASET.format("two")}
sample: {{goal: uniform}}
cameras: {{primary: {{size: [16, 16]}}}}
batch: {{size: 4}}
validation: {{samples: 4}}
"""


def faults(page: Path, text: str | None = None) -> Iterator[str]:
    """What does not run of a page, and why; the rest of that page is left out then.

    Args:
        page: its name says what it is given.
        text: of it; default: as it is.
    """
    name = page.relative_to(ROOT).as_posix()
    words = page.read_text() if text is None else text
    namespace: dict[str, Any] = {"__name__": "__main__"}
    try:
        found = blocks(words)
        here = [one for one in found if not one.missing]
        for one in found:
            if one not in here:
                sys.stderr.write(f"{name}:{one.line}: not run, it needs {one.needs}\n")
        if here:
            _run(GIVEN.get(name, ""), 1, f"what {name} is given", namespace)
        for one in here:
            text = one.text
            for said, run in SAID.items():
                text = text.replace(said, run)
            _run(text, one.line, name, namespace)
        if len(here) == len(found):
            _run(THEN.get(name, ""), 1, f"what is done with {name}", namespace)
    except BaseException as error:  # noqa: BLE001 whatever the page raises is its fault
        at = next((f for f in reversed(traceback.extract_tb(error.__traceback__))
                   if name in f.filename), None)  # fmt: skip
        line = f"{at.filename}:{at.lineno}" if at else name
        yield f"{line}: {type(error).__name__}: {error}"
    finally:
        if (loader := namespace.get("loader")) is not None:
            loader.close()
        namespace.clear()
        gc.collect()


def _run(text: str, line: int, name: str, namespace: dict[str, Any]) -> None:
    """Run code whose lines are called as they are on the page."""
    exec(compile("\n" * (line - 1) + text, name, "exec"), namespace)


@contextlib.contextmanager
def furnished() -> Iterator[Path]:
    """A folder to run pages in, which is the working directory meanwhile."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        furnish(Path(folder))
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def main() -> int:
    """Run the pages; 1 where something fails."""
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or pages()
    with furnished() as place:
        os.environ["AUTOLOADER_CACHE_DIR"] = str(place / "cache")
        found = []
        for page in chosen:
            sys.stderr.write(f"{page.relative_to(ROOT)}\n")
            faulthandler.dump_traceback_later(_LONGEST_S, exit=True)
            with contextlib.redirect_stdout(io.StringIO()):
                found += list(faults(page))
        faulthandler.cancel_dump_traceback_later()
    sys.stdout.writelines(f"{fault}\n" for fault in found)
    sys.stdout.write(f"{len(chosen)} pages, {len(found)} faults\n")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
