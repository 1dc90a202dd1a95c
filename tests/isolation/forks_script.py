"""Forks beside, around and within open loaders, and says what came of it: one JSON line each.

Run by ``test_forks`` as ``forks_script.py FOLDER RUNS ISOLATION READER SCENARIO...``, in a process
that has no TensorFlow. A fork tries every entry of the loader that it has a copy of, and
ends in one of several ways; the parent reads on and counts its rows.
"""

import itertools
import json
import multiprocessing
import os
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coded_rows import CodedRows, coded_spec, write_coded
from forked import ENDS, USES, Opened, fork, refusals
from passes import Passes
from streams import endless

from autoloader import AutoLoader, PipelineSpec

ENDS["leave"] = lambda _: sys.exit(0)
ENDINGS = ("_exit", "leave", "close", "kill", "let go")
told: dict[str, Any] = {"tried": 0, "missed": []}


class Books:
    """Rows of a loader, each held against the files."""

    def __init__(self, known: CodedRows, loader: AutoLoader) -> None:
        self._known = known
        self.passes = Passes(loader)
        self.rows = self.wrong = 0

    def note(self, batch: Any) -> None:
        wrong = self._known.wrong(batch)
        self.rows += len(wrong)
        self.wrong += int(wrong.sum())
        self.passes.note(batch)

    def counts(self) -> dict[str, int]:
        self.passes.faults()
        missing, twice = self.passes.missing, self.passes.twice
        return {"rows": self.rows, "wrong": self.wrong, "missing": missing, "twice": twice}


def fork_once(loader: AutoLoader, live: Iterator[Any], ending: str) -> None:
    """A fork that tries everything and ends so; waited for."""
    told["tried"] += 1
    told["missed"] += fork(Opened([loader], [live], state, []), list(USES), ending).faults()


def finish(loader: AutoLoader, books: Books, rest: Iterator[Any]) -> None:
    """Read on until two more passes are over."""
    passes = books.passes
    until = next(n for n in itertools.count(1) if not passes.complete(n)) + 1
    while not passes.complete(until):
        books.note(next(rest))


def plain_forks(loader: AutoLoader, books: Books) -> None:
    """``os.fork`` at random moments, with and without a live iterator and batches in hand."""
    rest, live = endless(loader), iter(loader)
    kept = []
    for ending in drawn.sample(ENDINGS, len(ENDINGS)):
        for _ in range(drawn.randint(1, 4)):
            books.note(next(rest))
        kept.append(next(live))
        books.note(kept[-1])
        fork_once(loader, live, ending)
    kept.clear()
    finish(loader, books, rest)


def beside_a_loop(loader: AutoLoader, books: Books) -> None:
    """Forks by one thread while another one iterates."""
    rest, live = endless(loader), iter(loader)
    failed: list[BaseException] = []

    def loop() -> None:
        try:
            finish(loader, books, rest)
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


def use_copy(loader: AutoLoader, write: int) -> None:
    os.write(
        write, json.dumps(refusals(USES, Opened([loader], [iter(loader)], state, []))).encode()
    )


def use_own(spec: PipelineSpec, known: CodedRows, isolation: str, answers: Any) -> None:
    with AutoLoader(spec, isolation=isolation, output="numpy", ram_floor="256MB") as own:
        books = Books(known, own)
        for batch, _ in zip(own, range(10), strict=False):
            books.note(batch)
    answers.put(books.counts())


def processes(loader: AutoLoader, books: Books) -> None:
    """``multiprocessing``: a fork is refused the copy and makes its own, as a forkserver's does."""
    rest = endless(loader)
    for method in ("fork", "forkserver"):
        context: Any = multiprocessing.get_context(method)
        books.note(next(rest))
        if method == "fork":
            read, write = os.pipe()
            one = context.Process(target=use_copy, args=(loader, write))
            one.start()
            os.close(write)
            with os.fdopen(read) as answer:
                told["missed"] += json.loads(answer.read())
            one.join()
        else:
            try:
                context.Process(target=use_copy, args=(loader, 1)).start()
                told["missed"].append(method)
            except TypeError as error:
                if "make an AutoLoader in the process" not in str(error):
                    told["missed"].append(repr(error))
        answers = context.SimpleQueue()
        one = context.Process(target=use_own, args=(spec, known, isolation, answers))
        one.start()
        books.note(next(rest))
        counts = answers.get()
        one.join()
        if counts["wrong"] or counts["twice"] or not counts["rows"]:
            told["missed"].append(f"its own loader, by {method}: {counts}")
    finish(loader, books, rest)


SCENARIOS = {"forks": plain_forks, "beside_a_loop": beside_a_loop, "processes": processes}

if __name__ == "__main__":
    known = CodedRows(write_coded(Path(sys.argv[1])))
    spec = coded_spec(known.written, batch={"size": 16}, weights="natural")
    runs, isolation, reader, *scenarios = int(sys.argv[2]), *sys.argv[3:]
    state: dict[str, Any] = {}
    for scenario in scenarios:
        told = {"tried": 0, "missed": []}
        totals = {"rows": 0, "wrong": 0, "missing": 0, "twice": 0}
        for run in range(runs):
            drawn = random.Random(run)
            with AutoLoader(
                spec,
                isolation=isolation,
                output="numpy",
                ram_floor="256MB",
                knobs={"reader": reader, "ring_slots": 6},
            ) as loader:
                state = loader.state_dict()
                books = Books(known, loader)
                SCENARIOS[scenario](loader, books)
            for key, value in books.counts().items():
                totals[key] += value
        sys.stdout.write(json.dumps({"scenario": scenario, **totals, **told}) + "\n")
        sys.stdout.flush()  # what lies in the buffer would be written by a fork, too
