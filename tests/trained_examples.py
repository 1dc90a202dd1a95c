"""Runs a script of ``examples/`` in forks, and says what its policy was trained on.

    python trained_examples.py train_hf.py SPEC FOLDER [WORD...]

``whole`` is undisturbed; ``one`` is told to stop behind its third batch, by Ctrl-C, and started
again; so are ``two``, which are two ranks: the last one is told by SIGTERM, as SLURM tells a job
whose time is over. ``fewer`` is one rank that goes on with what two have left. The loader runs in
the script's process here, which costs less. Beside ``train_hf.py``, ``epochs`` is what
``trainers/trainer_script.py`` gives.
"""

import functools
import hashlib
import json
import os
import runpy
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ended import ran
from rlds_files import episode, write_dataset
from streams import dataset_of

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
STEPS, CUT = 8, 3
IMPORTED: dict[str, tuple[str, ...]] = {
    "train_bc.py": ("torch.distributed", "torch.nn.parallel"),
    "train_accelerate.py": ("accelerate",),
    "train_hf.py": ("transformers.trainer",),
    "train_lightning.py": ("gcsfs", "lightning.pytorch"),
}
PLAIN = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def written_spec(folder: Path) -> Path:
    """20 samples in batches of four: two ranks carry four over the end of an epoch."""
    shards = [[episode(2 * s + n, 5) for n in range(2)] for s in range(3)]
    written = write_dataset(folder, shards[:2], splits={"held": shards[2:]})
    path = folder / "mix.yaml"
    path.write_text(
        f"datasets: [{dataset_of(written, split={'train': 'train', 'val': 'held'})}]\n"
        "weights: natural\n"
        "normalize: {action: {method: mean_std}, state: {method: mean_std}}\n"
        "cameras: {primary: {size: [32, 32]}}\n"
        "batch: {size: 4}\n"
        "validation: {samples: 8}\n"
    )
    return path


def check(
    example: str,
    folder: Path,
    *words: str,
    python: Path,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """An example goes on exactly where a signal stopped it, by one process and by two.

    Returns what each run was trained on.

    Args:
        example: name of the script.
        folder: an empty one.
        words: of the script, beside.
        python: the interpreter.
        environment: in which the script's packages can be imported.

    Raises:
        AssertionError: it does not.
    """
    words = (python, __file__, example, written_spec(folder), folder, *words)
    done = ran(*words, cwd=folder, env={"PYTHONPATH": str(ROOT), **environment, **PLAIN})
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    ((whole, weights),) = found["whole"]
    ((first, _), (rest, resumed)) = found["one"]
    assert (len(whole), len(first)) == (STEPS, CUT)
    assert first + rest == whole
    assert resumed == weights
    pairs = found["two"]
    assert [len(batches) for batches, _ in pairs] == [CUT, CUT, STEPS // 2 - CUT, STEPS // 2 - CUT]
    ranks = [pairs[rank][0] + pairs[2 + rank][0] for rank in range(2)]
    assert [batch for step in zip(*ranks, strict=True) for batch in step] == whole
    assert pairs[2][1] == pairs[3][1]  # the ranks have the same weights
    for batches, _ in found["fewer"]:
        assert batches == whole[2 * CUT :]
    return found


def run(
    words: tuple[str, ...], folder: str, steps: int, stop: int, rank: int, ranks: int, port: int
) -> tuple[list[str], str]:
    """Digests of the batches that one process was trained on, and of its weights at the end."""
    import policy
    import torch

    from autoloader import AutoLoader

    seen, trained = [], []
    forward, opened = policy.Policy.forward, AutoLoader.__init__

    def noted(self: Any, batch: Any) -> Any:
        if torch.is_grad_enabled():
            trained[:] = [self]
            seen.append(hashlib.sha256(str(batch["provenance"].tolist()).encode()).hexdigest())
            if len(seen) == stop and rank == ranks - 1:
                os.kill(os.getpid(), signal.SIGINT if ranks == 1 else signal.SIGTERM)
        return forward(self, batch)

    def in_thread(self: Any, *words: Any, **options: Any) -> None:
        opened(self, *words, **{**options, "isolation": "thread", "ram_floor": "64MiB"})

    policy.Policy.forward = noted
    AutoLoader.__init__ = in_thread
    sys.argv = [*words, "--steps", str(steps), "--every", "2"]
    if words[0] == "train_bc.py":
        Path(folder).mkdir(exist_ok=True)
        sys.argv += ["--checkpoint", f"{folder}/policy.pt"]
    else:
        sys.argv += ["--folder", folder]
    if ranks > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        told = {**names, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in told.items()})
        if words[0] == "train_lightning.py":
            sys.argv += ["--devices", str(ranks)]
    runpy.run_path(str(EXAMPLES / words[0]), run_name="__main__")
    weights = [one.detach().numpy().tobytes() for one in trained[0].parameters()]
    return seen, hashlib.sha256(b"".join(weights)).hexdigest()


def main(example: str, spec: str, folder: str, *words: str) -> dict[str, Any]:
    from tests.in_forks import one_by_one, together

    whole, one, two, fewer = (
        functools.partial(run, (example, spec, *words), f"{folder}/{name}")
        for name in ("whole", "one", "two", "fewer")
    )
    pairs: list[Any] = []
    for stop in (CUT, 0):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        pairs += together(two, [(STEPS // 2, stop, rank, 2, port) for rank in range(2)])
        if stop and example == "train_bc.py":
            shutil.copytree(f"{folder}/two", f"{folder}/fewer")
    epochs: list[Any] = []
    if example == "train_hf.py":
        from tests.trainers import trainer_script

        epochs = one_by_one(trainer_script.main, [(spec, f"{folder}/epochs")])
    return {
        "epochs": epochs,
        "whole": one_by_one(whole, [(STEPS, 0, 0, 1, 0)]),
        "one": one_by_one(one, [(STEPS, stop, 0, 1, 0) for stop in (CUT, 0)]),
        "two": pairs,
        "fewer": one_by_one(fewer, [(STEPS - CUT, 0, 0, 1, 0)][: example == "train_bc.py"]),
    }


if __name__ == "__main__":
    sys.path.insert(0, str(EXAMPLES))
    for name in IMPORTED[sys.argv[1]]:  # once, and not in every fork
        __import__(name)
    import torch

    torch.optim.AdamW([torch.zeros(1)])  # imports a second's worth as well
    sys.stdout.write("\n" + json.dumps(main(*sys.argv[1:])))
