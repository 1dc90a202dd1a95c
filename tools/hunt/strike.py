"""Strikes training loops at every line, or by hundreds of signals: plain, DataLoader and Lightning.

    python tools/hunt/strike.py lines
    python tools/hunt/strike.py signals --count 500

Says what it counted, and ends with 1 where a row came twice or never, or where ``close`` hung.

Not here: what strikes and what counts (``tests/loader/strikes.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).parents[2] / "tests"
sys.path[:0] = [str(TESTS / folder) for folder in ("loader", ".")]

from strikes import (
    LOOPS,
    STRIKES,
    Books,
    LineRun,
    LineStriker,
    Sequences,
    SignalRun,
    SignalStriker,
    StruckError,
    Tally,
    mixture,
)

from autoloader import PipelineSpec
from autoloader.process import delivery


class Fit:
    """Lightning fits; each begins at the state that the last one left.

    Args:
        spec, sequences: of the run.
        steps: at most so many training steps a fit.
    """

    def __init__(self, spec: PipelineSpec, sequences: Sequences, steps: int = -1) -> None:
        self._spec, self._steps = spec, steps
        self.tally = Tally()
        self.books = Books(sequences, self.tally)
        self._state: dict[str, Any] | None = None

    def step(self, batch: Any) -> None:
        """The training step's part."""
        raise NotImplementedError

    def fit(self, raised: type[BaseException] | tuple[type[BaseException], ...]) -> None:
        """Fit until one of these is raised, or all steps are done; ``close_now`` comes next."""
        from lightning.pytorch import LightningModule, Trainer

        from autoloader.lightning import AutoLoaderDataModule

        step = self.step

        class Model(LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.part = torch.nn.Linear(1, 1)

            def training_step(self, batch: Any) -> Any:
                step(batch)
                return self.part(torch.ones(1, 1)).sum()

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), 0.1)

        self._data = AutoLoaderDataModule(
            self._spec, ram_floor="64MiB", controller=False, knobs={"ring_slots": 6}
        )
        if self._state is not None:
            self._data.load_state_dict(self._state)
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=-1,
            max_steps=self._steps,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with contextlib.suppress(raised):
            trainer.fit(Model(), datamodule=self._data)

    def close_now(self, *, between: bool) -> None:
        """Close the data module, and hold its state against the rows that were trained on."""
        began_s = time.monotonic()
        self._data.close()
        self.tally.longest_close_s = max(self.tally.longest_close_s, time.monotonic() - began_s)
        self._state = self._data.state_dict()
        self.books.settle(list(self._state["train"]["taken"].values()), between=between)


class FitRun(Fit):
    """Fits that are struck by signals.

    Args:
        spec, sequences, seed: of the run.
    """

    def __init__(self, spec: PipelineSpec, sequences: Sequences, seed: int) -> None:
        super().__init__(spec, sequences)
        self._striker = SignalStriker(seed, 0.1)
        self._armed = False

    def run(self, strikes: int) -> Tally:
        """Have so many."""
        with self._striker.handling():
            while self.tally.strikes < strikes:
                self._armed = False
                self.fit(STRIKES)
                self._striker.quiet = True
                self._striker.end()
                self.tally.strikes += 1
                self.close_now(between=self._striker.between)
        return self.tally

    def step(self, batch: Any) -> None:
        """Arm the striker in the first step; rows are noted unhurt."""
        striker = self._striker
        if not self._armed:
            self._armed = True
            striker.arm()
        striker.quiet = True
        self.books.note(batch)
        striker.speak()


class FitLineRun(Fit):
    """Fits of four steps; each line of the library behind the first step is struck in turn."""

    def __init__(self, spec: PipelineSpec, sequences: Sequences) -> None:
        super().__init__(spec, sequences, steps=4)
        self._striker = LineStriker(1)

    def run(self, every: int) -> Tally:
        """Strike one line of ``every`` until a fit ends unhurt."""
        for at in itertools.count(1, every):
            self._striker = LineStriker(at)
            try:
                self.fit(StruckError)
            finally:
                self._striker.disarm()
            before = len(self.tally.faults)
            self.close_now(between=False)
            if not self._striker.where:
                break
            self.tally.strikes += 1
            if len(self.tally.faults) > before:
                self.tally.faults[-1] += f" (struck at {self._striker.where})"
        return self.tally

    def step(self, batch: Any) -> None:
        """Lines count from the first step on; rows are noted unhurt."""
        self._striker.disarm()
        self.books.note(batch)
        self._striker.arm()


def lines(spec: PipelineSpec, rounds: int, only: str = "", every: int = 1) -> list[Tally]:
    """Every line, in both kinds of isolation and loop, and in Lightning fits."""
    sequences, found = Sequences(spec), []
    for isolation in ("process", "thread"):
        for name, loop in LOOPS.items():
            if only and name != only:
                continue
            run = LineRun(spec, sequences, isolation, loop)
            run.run(rounds)
            tally = run.closes()
            print(  # noqa: T201
                f"lines {isolation:8} {name:10} {tally}", flush=True
            )
            found.append(tally)
    if only in ("", "lightning"):
        tally = FitLineRun(spec, sequences).run(every)
        print(f"lines lightning {tally}", flush=True)  # noqa: T201
        found.append(tally)
    sequences.close()
    return found


def signals(spec: PipelineSpec, count: int, seed: int, only: str = "") -> list[Tally]:
    """Signals in each kind of loop."""
    sequences, found = Sequences(spec), []
    plain, wrapped = LOOPS["plain"], LOOPS["dataloader"]
    runs: dict[str, Callable[[], SignalRun | FitRun]] = {
        "for": lambda: SignalRun(spec, sequences, plain, seed),
        "next": lambda: SignalRun(spec, sequences, plain, seed + 1, by_next=True),
        "dataloader": lambda: SignalRun(spec, sequences, wrapped, seed + 2),
        "lightning": lambda: FitRun(spec, sequences, seed + 3),
    }
    for name, make in runs.items():
        if only and name != only:
            continue
        tally = make().run(count)
        print(f"signals {name:10} {tally}", flush=True)  # noqa: T201
        found.append(tally)
    sequences.close()
    return found


def main() -> int:
    """Run one kind; 1 where the promise was not kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("lines", "signals"))
    parser.add_argument("--count", type=int, default=500, help="signals, for each kind of loop")
    parser.add_argument("--rounds", type=int, default=4, help="times that each line is struck")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="plain, for, next, dataloader or lightning")
    parser.add_argument("--every", type=int, default=1, help="strike one line of so many in a fit")
    chosen = parser.parse_args()
    delivery._SHORT_STEP_S = 0.0  # the next batch is made beside the loop
    with tempfile.TemporaryDirectory() as folder:
        spec = mixture(Path(folder))
        if chosen.kind == "lines":
            found = lines(spec, chosen.rounds, chosen.only, chosen.every)
        else:
            found = signals(spec, chosen.count, chosen.seed, chosen.only)
    return int(not all(tally.clean for tally in found))


if __name__ == "__main__":
    sys.exit(main())
