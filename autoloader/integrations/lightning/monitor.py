"""``LoaderMonitor``: the loader's figures in whatever logger the trainer has.

Logs numbers by ``log_metrics``, so CSV, TensorBoard, W&B and all other loggers get them, and shows
two in the progress bar. Events of the loader (moved knobs, the controller's state, a restarted
child) go to the Python log at once, and as text to loggers that take text.

The names are those of ``AutoLoader.metrics``. "Not measured" is left out, never 0. A knob is logged
each time its value changes. Each dataset has its share, and its faults if there were any.

On several nodes four numbers of each rank are gathered for the worst and the mean. So the callback
must be on every rank, as Lightning wants of any.

Not here: collecting the figures (``loader.statistics``), parking the training side during a
validation, by which the loader knows of it (``streams``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import distributed

from autoloader.errors import UsageError
from autoloader.integrations.lightning.datamodule import AutoLoaderDataModule
from autoloader.loader import AutoLoader
from autoloader.telemetry.statistics import FAULTS, Statistics

logger = logging.getLogger(__name__)

_LEFT_OUT = ("dataset_weight/", "dataset_queue/", "stage_", "limited_by/")
_WHERE_ANY = tuple(f"dataset_{name}/" for name in FAULTS)
"""Of every dataset a line, and mostly 0."""


class LoaderMonitor(Callback):
    """Logs the training loader of an ``AutoLoaderDataModule``.

    Args:
        every_n_steps: steps between two logs; ``None``: the trainer's ``log_every_n_steps``.
        progress_bar: show wait_ratio and samples/s in it.
        prefix: text before each metric's name.
    """

    def __init__(
        self,
        *,
        every_n_steps: int | None = None,
        progress_bar: bool = True,
        prefix: str = "loader/",
    ) -> None:
        self._every_n_steps = every_n_steps
        self._progress_bar = progress_bar
        self._prefix = prefix
        self._last = Statistics()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the data module.

        Raises:
            UsageError: the trainer has another one.
        """
        if not isinstance(getattr(trainer, "datamodule", None), AutoLoaderDataModule):
            raise UsageError(
                "LoaderMonitor finds no AutoLoaderDataModule in this trainer",
                remedy="call trainer.fit(model, datamodule=AutoLoaderDataModule(...))",
            )
        self._last = Statistics()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Log figures of the loader after every ``every_n_steps`` batches."""
        loader = self._loader(trainer)
        every = self._every_n_steps or getattr(trainer, "log_every_n_steps", 0) or 1
        if loader is not None and trainer.fit_loop.total_batch_idx % every == every - 1:
            self._log(trainer, pl_module, loader)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last figures before the loader is parked."""
        loader = self._loader(trainer)
        if loader is not None and not trainer.sanity_checking:
            self._log(trainer, pl_module, loader, bar=False)

    def _loader(self, trainer: Trainer) -> AutoLoader | None:
        module = getattr(trainer, "datamodule", None)
        return module.loader if isinstance(module, AutoLoaderDataModule) else None

    def _log(
        self, trainer: Trainer, module: LightningModule, loader: AutoLoader, *, bar: bool = True
    ) -> None:
        statistics = loader.statistics()
        step = trainer.global_step
        moved = self._moved(statistics)
        everywhere = loader.spans_nodes and distributed.is_available()
        everywhere = everywhere and distributed.is_initialized()
        metrics = {
            f"{self._prefix}{name}": value
            for name, value in loader.metrics(statistics, all_ranks=everywhere).items()
            if _worth_a_line(name, value)
            and (not name.startswith("knob/") or name.removeprefix("knob/") in moved)
        }
        for one in trainer.loggers:
            one.log_metrics(metrics, step=step)
        for event in self._events(statistics):
            logger.info("step %d: %s", step, event)
            for one in trainer.loggers:
                add_text = getattr(getattr(one, "experiment", None), "add_text", None)
                if add_text is not None:
                    add_text(f"{self._prefix}event", event, step)
        if bar and self._progress_bar:
            for name in ("wait_ratio", "samples_per_s"):
                if (value := getattr(statistics, name)) is not None:
                    module.log(name, value, prog_bar=True, logger=False, batch_size=1)
        self._last = statistics

    def _moved(self, statistics: Statistics) -> dict[str, Any]:
        return {
            knob: value
            for knob, value in statistics.knobs.items()
            if self._last.knobs.get(knob) != value
        }

    def _events(self, statistics: Statistics) -> Iterator[str]:
        last = self._last
        if last.knobs:
            for knob, value in self._moved(statistics).items():
                yield f"{knob}: {last.knobs.get(knob)} → {value}"
        if statistics.state is not None and statistics.state != last.state:
            yield f"the controller's state: {last.state or 'none'} → {statistics.state}"
        if statistics.restarts > last.restarts:
            yield f"the loader's child was started again ({statistics.restarts} times in all)"


def _worth_a_line(name: str, value: float) -> bool:
    return not name.startswith(_LEFT_OUT) and (value > 0 or not name.startswith(_WHERE_ANY))
