"""Forks beside, around and within open loaders, and says what came of it: one JSON line each.

Run by ``test_forks`` as ``forks_script.py SPEC TABLE RUNS ISOLATION READER SCENARIO...``, in a
process that has no TensorFlow. A fork tries every entry of the loader that it has a copy of, and
ends in one of several ways; the parent reads on and counts its rows.
"""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from witness import Witness

from autoloader import AutoLoader, PipelineSpec
from autoloader.errors import UsageError

ENDINGS = ("_exit", "exit", "close", "killed", "collect")
told: dict[str, Any] = {"refused": 0, "tried": 0, "missed": []}


def entries(loader: AutoLoader, live: Iterator[Any]) -> dict[str, Callable[[], Any]]:
    """Everything of a loader that a fork may not use."""
    return {
        "iter": lambda: next(iter(loader)),
        "next": lambda: next(live),
        "len": lambda: len(loader),
        "knobs": lambda: loader.knobs,
        "retune": lambda: loader.retune(decode_threads=1),
        "statistics": loader.statistics,
        "state_dict": loader.state_dict,
        "load_state_dict": lambda: loader.load_state_dict(state),
        "quarantined": loader.quarantined,
        "park": loader.park,
        "unpark": lambda: loader.park(False),
        "prepare": loader.prepare,
        "suspend": loader.suspend,
        "transfer": lambda: loader.transfer("cuda"),
        "with": loader.__enter__,
    }


def try_all(loader: AutoLoader, live: Iterator[Any], write: int) -> None:
    """In a fork: how many entries refused, and which did not."""
    refused, missed = 0, []
    every = entries(loader, live)
    for name, call in every.items():
        try:
            call()
        except UsageError as error:
            refused += 1
            if f"process {os.getppid()}" not in error.what or "make an AutoLoader" not in str(
                error
            ):
                missed.append(f"{name}: {error}")
        except BaseException as error:  # noqa: BLE001 whatever it was is told
            missed.append(f"{name}: {error!r}")
        else:
            missed.append(name)
    os.write(write, json.dumps([refused, len(every), missed]).encode())


def fork_once(loader: AutoLoader, live: Iterator[Any], ending: str) -> None:
    """A fork that tries everything and ends so; waited for."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try_all(loader, live, write)
        if ending == "exit":
            raise SystemExit(0)  # through the with block, and all that runs at an exit
        if ending == "close":
            loader.close()
            loader.close()
        if ending == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if ending == "collect":
            del loader, live
            gc.collect()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        refused, tried, missed = json.loads(answer.read())
    os.waitpid(pid, 0)
    told["refused"] += refused
    told["tried"] += tried
    told["missed"] += missed


def endless(loader: AutoLoader) -> Iterator[Any]:
    while True:
        yield from loader


def finish(loader: AutoLoader, witness: Witness, rest: Iterator[Any]) -> None:
    """Read on until two more passes are over."""
    until = witness.passes() + 2
    while witness.passes() < until:
        witness.note(next(rest))


def plain_forks(loader: AutoLoader, witness: Witness) -> None:
    """``os.fork`` at random moments, with and without a live iterator and batches in hand."""
    rest, live = endless(loader), iter(loader)
    kept = []
    for ending in drawn.sample(ENDINGS, len(ENDINGS)):
        for _ in range(drawn.randint(1, 4)):
            witness.note(next(rest))
        kept.append(next(live))
        witness.note(kept[-1])
        fork_once(loader, live, ending)
    kept.clear()
    finish(loader, witness, rest)


def beside_a_loop(loader: AutoLoader, witness: Witness) -> None:
    """Forks by one thread while another one iterates."""
    rest, live = endless(loader), iter(loader)
    failed: list[BaseException] = []

    def loop() -> None:
        try:
            finish(loader, witness, rest)
        except BaseException as error:  # noqa: BLE001 whatever it was is told
            failed.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    for ending in itertools.cycle(ENDINGS):
        fork_once(loader, live, ending)
        if not thread.is_alive():
            break
    thread.join()
    told["missed"] += map(repr, failed)


def kept_batches(loader: AutoLoader, witness: Witness) -> None:
    """A fork keeps batches that its parent drops and whose slots it fills anew."""
    rest = endless(loader)
    kept = [next(rest) for _ in range(2)]
    for batch in kept:
        witness.note(batch)
    expected = [int(batch["images"]["primary"].sum()) for batch in kept]
    go_read, go_write = os.pipe()
    answer_read, answer_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        for batch in kept:
            batch["action"][:] = -1.0  # its own now
        os.write(answer_write, b".")
        os.read(go_read, 1)
        same = [int(batch["images"]["primary"].sum()) for batch in kept] == expected
        kept.clear()
        gc.collect()
        os.write(answer_write, b"+" if same else b"-")
        raise SystemExit(0)
    os.read(answer_read, 1)
    if any(bool((batch["action"] == -1.0).all()) for batch in kept):
        told["missed"].append("what a fork writes is seen by its parent")
    kept.clear()
    for _ in range(3 * loader.knobs.ring_slots):
        witness.note(next(rest))
    os.write(go_write, b".")
    if os.read(answer_read, 1) != b"+":
        told["missed"].append("a batch has changed in the fork")
    os.waitpid(pid, 0)
    for descriptor in (go_read, go_write, answer_read, answer_write):
        os.close(descriptor)
    finish(loader, witness, rest)


class Around(IterableDataset[Any]):
    """What people write around a loader."""

    def __init__(self, loader: AutoLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def data_loader(loader: AutoLoader, witness: Witness) -> None:
    """A torch ``DataLoader`` around the loader: without workers it is as good, else refused."""
    rest = endless(loader)
    for workers in range(5):
        witness.note(next(rest))
        wrapped: DataLoader[Any] = DataLoader(
            Around(loader),
            batch_size=None,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )
        if not workers:
            for batch in itertools.islice(wrapped, 5):
                witness.note(batch)
            continue
        told["tried"] += 1
        try:
            next(iter(wrapped))
        except (UsageError, RuntimeError) as error:
            told["refused"] += "num_workers=0" in str(error)
        else:
            told["missed"].append(f"a DataLoader with {workers} workers")
    finish(loader, witness, rest)


def use_copy(loader: AutoLoader, write: int) -> None:
    try_all(loader, iter(loader), write)


def use_own(spec: PipelineSpec, table: Path, isolation: str, answers: Any) -> None:
    with AutoLoader(spec, isolation=isolation, output="numpy", ram_floor="256MB") as own:
        witness = Witness(table, own)
        for batch, _ in zip(own, range(10), strict=False):
            witness.note(batch)
    answers.put(witness.counts())


def processes(loader: AutoLoader, witness: Witness) -> None:
    """``multiprocessing``: a fork is refused the copy and makes its own, as a forkserver's does."""
    rest = endless(loader)
    for method in ("fork", "forkserver"):
        context: Any = multiprocessing.get_context(method)
        witness.note(next(rest))
        if method == "fork":
            read, write = os.pipe()
            one = context.Process(target=use_copy, args=(loader, write))
            one.start()
            os.close(write)
            with os.fdopen(read) as answer:
                refused, tried, missed = json.loads(answer.read())
            one.join()
            told["refused"] += refused
            told["tried"] += tried
            told["missed"] += missed
        else:
            told["tried"] += 1
            try:
                context.Process(target=use_copy, args=(loader, 1)).start()
            except TypeError as error:
                told["refused"] += "make an AutoLoader in the process" in str(error)
        answers = context.SimpleQueue()
        one = context.Process(target=use_own, args=(spec, Path(sys.argv[2]), isolation, answers))
        one.start()
        witness.note(next(rest))
        counts = answers.get()
        one.join()
        if counts["wrong"] or counts["twice"] or not counts["rows"]:
            told["missed"].append(f"its own loader, by {method}: {counts}")
    finish(loader, witness, rest)


SCENARIOS = {
    "forks": plain_forks,
    "beside_a_loop": beside_a_loop,
    "kept_batches": kept_batches,
    "data_loader": data_loader,
    "processes": processes,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    spec = PipelineSpec.from_mapping(json.loads(Path(sys.argv[1]).read_text()))
    runs, isolation, reader, *scenarios = int(sys.argv[3]), *sys.argv[4:]
    state: dict[str, Any] = {}
    for scenario in scenarios:
        told = {"refused": 0, "tried": 0, "missed": []}
        totals = {"rows": 0, "wrong": 0, "missing": 0, "twice": 0}
        for run in range(runs):
            drawn = random.Random(run)
            with AutoLoader(
                spec,
                isolation=isolation,
                output="torch" if scenario == "data_loader" else "numpy",
                ram_floor="256MB",
                knobs={
                    "reader": reader,
                    "cycle_length": 1,
                    "num_parallel_calls": 1,
                    "ring_slots": 6,
                },
            ) as loader:
                state = loader.state_dict()
                witness = Witness(Path(sys.argv[2]), loader)
                SCENARIOS[scenario](loader, witness)
            for key, value in witness.counts().items():
                totals[key] += value
        sys.stdout.write(json.dumps({"scenario": scenario, **totals, **told}) + "\n")
        sys.stdout.flush()  # what lies in the buffer would be written by a fork, too
