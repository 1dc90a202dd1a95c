"""Validations in the middle of training: how long their first batch takes, and what they leave.

Train and validation loaders of the demo mixture live in one child, as a data module has them. A
stretch of training, then a validation, several times over; the last one comes right behind another.

Not here: what a validation gives (``autoloader.loader``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from autoloader.cli.demo import ensure_demo
from autoloader.lightning import AutoLoaderDataModule
from bench.endurance.claims import Circumstances, Claim

STRETCH_S = 12.0
STEP_S = 0.1
VALIDATIONS = 4


@dataclass(slots=True)
class Seen:
    """What came of a run.

    Attributes:
        first_s: seconds to the first batch of each validation; no training before the last one.
        samples: of each validation.
        train_bytes: loader's memory behind each stretch of training, the last one at the end.
        val_bytes: behind each validation.
        train_starts: times the training pipeline began.
        train_generations: by dataset, times its stream was opened.
    """

    first_s: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    train_bytes: list[int] = field(default_factory=list)
    val_bytes: list[int] = field(default_factory=list)
    train_starts: int = 0
    train_generations: dict[str, int] = field(default_factory=dict)


def validation(_: Circumstances) -> list[Claim]:
    """Both readers: first batches of validations, and what they do to training and to memory."""
    return [claim for reader in ("indexed", "stream") for claim in _claims(reader)]


def _claims(reader: str) -> list[Claim]:
    seen = _run_validations(reader)
    first, *later = seen.first_s
    trained = [bytes_ / 2**20 for bytes_ in seen.train_bytes]
    validated = [bytes_ / 2**20 for bytes_ in seen.val_bytes]
    opened = sum(seen.train_generations.values())
    again = seen.train_starts - 1 + opened - len(seen.train_generations)
    return [
        Claim(
            f"{reader}: first batch of the first validation", f"{first:.3f} s", "≤ 3 s", first <= 3
        ),
        Claim(
            f"{reader}: of later ones, the last right behind another",
            ", ".join(f"{one:.3f}" for one in later) + " s",
            "≤ 1 s",
            max(later) <= 1,
        ),
        Claim(
            f"{reader}: samples of each validation",
            ", ".join(map(str, seen.samples)),
            "the same",
            len(set(seen.samples)) == 1,
        ),
        Claim(f"{reader}: training pipelines or streams opened again", str(again), "0", again == 0),
        Claim(
            f"{reader}: loader's memory behind stretches of training, the end",
            ", ".join(f"{one:.0f}" for one in trained) + " MiB",
            "last ≤ 1.1 × second",
            trained[-1] <= 1.1 * trained[1],
        ),
        Claim(
            f"{reader}: loader's memory behind validations",
            ", ".join(f"{one:.0f}" for one in validated) + " MiB",
            "last ≤ 1.1 × second",
            validated[-1] <= 1.1 * validated[1],
        ),
    ]


def _run_validations(reader: str) -> Seen:
    """Train for a stretch, validate, and so on; with knobs held still."""
    seen = Seen()
    module = AutoLoaderDataModule(
        ensure_demo(), profile="local_dev", knobs={"reader": reader}, controller=False
    )
    with closing(module):
        train = _endless(module)
        validation = module.val_dataloader()
        assert not isinstance(validation, list)
        for call in range(VALIDATIONS):
            if call < VALIDATIONS - 1:
                _train(train)
                seen.train_bytes.append(_held(module))
            began, samples = time.perf_counter(), 0
            for number, batch in enumerate(validation):
                if not number:
                    seen.first_s.append(time.perf_counter() - began)
                samples += len(batch["dataset_index"])
            seen.samples.append(samples)
            seen.val_bytes.append(_held(module))
        _train(train)
        seen.train_bytes.append(_held(module))
        assert module.loader is not None
        told = module.loader.statistics()
        seen.train_starts = told.starts + told.restarts
        seen.train_generations = {name: one.generations for name, one in told.datasets.items()}
    return seen


def _endless(module: AutoLoaderDataModule) -> Iterator[Any]:
    while True:
        yield from module.train_dataloader()


def _train(batches: Iterator[Any]) -> None:
    next(batches)
    began = time.perf_counter()
    while time.perf_counter() - began < STRETCH_S:
        time.sleep(STEP_S)
        next(batches)


def _held(module: AutoLoaderDataModule) -> int:
    assert module.loader is not None
    return module.loader.statistics().loader_bytes or 0
