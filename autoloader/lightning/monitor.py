"""``LoaderMonitor``: the loader's figures in whatever logger the trainer has.

Logs numbers by ``log_metrics`` (so CSV, TensorBoard, W&B and the rest all get them), shows two in
the progress bar, and says what happened to the loader (knobs that moved, the controller's state, a
child started again) as it happens, in the Python log and as text where the logger takes text.

Each of ``STATISTICS`` is logged under its name. "Not measured" is left out, never 0.

Not here: collecting the figures (``loader.statistics``), parking the training side during a
validation, by which the loader knows of it (``streams``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from autoloader.errors import UsageError
from autoloader.lightning.datamodule import AutoLoaderDataModule
from autoloader.loader import AutoLoader
from autoloader.telemetry.statistics import Statistics
from autoloader.units import GIB

logger = logging.getLogger(__name__)

STATISTICS = {
    "wait_ratio": "share of the training time spent waiting for batches; above 0.01 look at it",
    "samples_per_s": "samples that the trainer takes in a second",
    "headroom_gib": "memory that the machine can still give, in GiB",
    "loader_gib": "memory that the loader holds without the ring, in GiB",
    "ring_occupancy_ratio": "filled / slots of the ring; near 0 the loader is the bottleneck",
    "restarts": "times the loader's child was started again",
    "share/DATASET": "share of a dataset in the samples handed out so far",
    "knob/KNOB": "a knob's value in force, each time it is another one",
}
"""What is logged, each below ``prefix``: name → meaning."""


class LoaderMonitor(Callback):
    """Logs the training loader of an ``AutoLoaderDataModule``.

    Args:
        every_n_steps: how often; ``None`` takes the trainer's ``log_every_n_steps``.
        progress_bar: show wait_ratio and samples/s in it.
        prefix: of the names.
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
        self._knobs: dict[str, Any] = {}
        self._restarts = 0
        self._state: str | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the data module.

        Raises:
            UsageError: the trainer has another one.
        """
        del pl_module, stage
        if not isinstance(getattr(trainer, "datamodule", None), AutoLoaderDataModule):
            raise UsageError(
                "LoaderMonitor finds no AutoLoaderDataModule in this trainer",
                remedy="call trainer.fit(model, datamodule=AutoLoaderDataModule(...))",
            )
        self._knobs, self._restarts, self._state = {}, 0, None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Log, every so many batches."""
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
        metrics = {f"{self._prefix}{name}": value for name, value in _figures(statistics)}
        for knob, value in self._moved(statistics).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                metrics[f"{self._prefix}knob/{knob}"] = value
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
        self._knobs, self._restarts = dict(statistics.knobs), statistics.restarts
        self._state = statistics.state

    def _moved(self, statistics: Statistics) -> dict[str, Any]:
        return {
            knob: value
            for knob, value in statistics.knobs.items()
            if self._knobs.get(knob) != value
        }

    def _events(self, statistics: Statistics) -> Iterator[str]:
        if self._knobs:
            for knob, value in self._moved(statistics).items():
                yield f"{knob}: {self._knobs.get(knob)} → {value}"
        if statistics.state is not None and statistics.state != self._state:
            yield f"the controller's state: {self._state or 'none'} → {statistics.state}"
        if statistics.restarts > self._restarts:
            yield f"the loader's child was started again ({statistics.restarts} times in all)"


def _figures(statistics: Statistics) -> Iterator[tuple[str, float]]:
    plain: dict[str, float | None] = {
        "wait_ratio": statistics.wait_ratio,
        "samples_per_s": statistics.samples_per_s,
        "headroom_gib": _gib(statistics.headroom_bytes),
        "loader_gib": _gib(statistics.loader_bytes),
        "ring_occupancy_ratio": statistics.ring.occupancy_ratio,
        "restarts": float(statistics.restarts),
        **{f"share/{name}": own.share for name, own in statistics.datasets.items()},
    }
    yield from ((name, value) for name, value in plain.items() if value is not None)


def _gib(value: int | None) -> float | None:
    return None if value is None else value / GIB
