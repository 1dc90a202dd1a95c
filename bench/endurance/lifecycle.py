"""Opening and closing a hundred times, validations amid training.

Train and validation loaders live in one child, as a data module has them. A stretch of training,
then a validation, several times over; the last one comes right behind another.

Not here: memory over time (``bench.endurance.memory``).
"""

from __future__ import annotations

import gc
import time
from contextlib import closing
from itertools import islice

import psutil

from autoloader import AutoLoader
from autoloader.cli.demo import ensure_demo
from autoloader.lightning import AutoLoaderDataModule
from bench.checks import Check, most
from bench.control.trainer import endless
from bench.endurance.passes import Circumstances, passes_mixture

TIMES = 100
STRETCH_S, STEP_S, VALIDATIONS = 12.0, 0.1, 4
MIB = 2**20


def open_and_close(given: Circumstances) -> list[Check]:
    """Open, take twenty batches and close, again and again."""
    spec, times, me = passes_mixture(0.02), [], psutil.Process()
    for number in range(TIMES):
        with AutoLoader(spec, output="numpy", profile="local_dev", knobs=given.start) as loader:
            for _batch in islice(endless(loader), 20):
                pass
            started = time.perf_counter()
            loader.close()
            times.append(time.perf_counter() - started)
        gc.collect()
        if number == 9:
            before = me.memory_info().rss
    children = me.children()
    grown = (me.memory_info().rss - before) / MIB
    return [
        most(f"{TIMES} × open, 20 batches, close: longest close", max(times), 2, "s"),
        Check(
            "children left, descriptors open",
            f"{len(children)}, {me.num_fds()}",
            "0 children",
            not children,
        ),
        most(f"resident memory from the 10th to the {TIMES}th", grown, 5, "MiB", 1),
    ]


def validation(_: Circumstances) -> list[Check]:
    """Both readers: first batches of validations, and what they do to training and to memory."""
    return [check for reader in ("indexed", "stream") for check in _validations(reader)]


def _validations(reader: str) -> list[Check]:
    first_s: list[float] = []
    samples: list[int] = []
    held: dict[str, list[float]] = {"stretches of training, the end": [], "validations": []}
    module = AutoLoaderDataModule(
        ensure_demo(), profile="local_dev", knobs={"reader": reader}, controller=False
    )

    def train() -> None:
        next(batches)
        until = time.perf_counter() + STRETCH_S
        while time.perf_counter() < until:
            time.sleep(STEP_S)
            next(batches)
        look("stretches of training, the end")

    def look(behind: str) -> None:
        assert module.loader is not None
        held[behind].append((module.loader.statistics().loader_bytes or 0) / MIB)

    with closing(module):
        batches, val = endless(module.train_dataloader()), module.val_dataloader()
        assert not isinstance(val, list)
        for call in range(VALIDATIONS):
            if call < VALIDATIONS - 1:
                train()
            began, count = time.perf_counter(), 0
            for number, batch in enumerate(val):
                if not number:
                    first_s.append(time.perf_counter() - began)
                count += len(batch["dataset_index"])
            samples.append(count)
            look("validations")
        train()
        assert module.loader is not None
        told = module.loader.statistics()
    opened = [one.generations for one in told.datasets.values()]
    again = told.starts + told.restarts - 1 + sum(opened) - len(opened)
    return [
        most(f"{reader}: first batch of the first validation", first_s[0], 3, "s", 3),
        Check(
            f"{reader}: of later ones, the last right behind another",
            ", ".join(f"{one:.3f}" for one in first_s[1:]) + " s",
            "≤ 1 s",
            max(first_s[1:]) <= 1,
        ),
        Check(
            f"{reader}: samples of each validation",
            ", ".join(map(str, samples)),
            "the same",
            len(set(samples)) == 1,
        ),
        Check(f"{reader}: training pipelines or streams opened again", str(again), "0", again == 0),
        *(
            Check(
                f"{reader}: loader's memory behind {behind}",
                ", ".join(f"{one:.0f}" for one in sizes) + " MiB",
                "last ≤ 1.1 × second",
                sizes[-1] <= 1.1 * sizes[1],
            )
            for behind, sizes in held.items()
        ),
    ]
