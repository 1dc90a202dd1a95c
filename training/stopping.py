"""Ctrl-C and SIGTERM: finish the step, save a checkpoint, leave.

Theory of operation. While ``deferred``, the first signal is only remembered; the trainer asks after
each step, saves where model and loader agree on what was seen, and leaves by ``StoppedError``. A
second signal, or one at any other time, ends the process at once, through every ``finally``.

Not here: what a checkpoint holds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from training.module import Stage2Module

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppedError(Exception):
    """The run was asked to stop, and its checkpoint is written."""


class StopSignals:
    """What signals asked for.

    Attributes:
        requested: the signal that asked to stop; ``None`` while there was none.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._deferred = False

    @property
    def exit_code(self) -> int:
        """What the shell says of a process that this signal ended."""
        return 0 if self.requested is None else 128 + self.requested

    def install(self) -> None:
        """Handle the signals here, and here alone."""
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    @contextmanager
    def handled(self) -> Iterator[StopSignals]:
        """Handles signals inside, and as before afterwards."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.install()
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """The first signal inside is remembered and does nothing else."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        first = self.requested is None
        self.requested = signal.Signals(number)
        if self._deferred and first:
            # Not by print: its buffer may be in use where the signal came.
            os.write(2, b"stopping after this step; once more to stop at once\n")
            return
        raise SystemExit(128 + number)


class SaveAndStop(Callback):
    """Saves ``path`` when the run was asked to stop or has done its steps, at the step's end.

    Args:
        signals: who knows whether to stop.
        path: the checkpoint.
    """

    def __init__(self, signals: StopSignals, path: Path) -> None:
        self._signals = signals
        self._path = path

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Lightning's own handler would leave without a checkpoint.
        self._signals.install()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step >= trainer.max_steps >= 0:
            trainer.save_checkpoint(self._path)
        else:
            self._stop_if_asked(trainer)

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if isinstance(pl_module, Stage2Module):
            pl_module.hurry = self._signals.requested is not None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_if_asked(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Save what there is, beside the last good checkpoint; the batch at fault is left out."""
        ours = not isinstance(exception, Exception) or isinstance(exception, StoppedError)
        if not ours and trainer.world_size == 1 and trainer.global_step:
            trainer.save_checkpoint(self._path.with_name("exception.ckpt"))

    def _stop_if_asked(self, trainer: Trainer) -> None:
        asked = self._signals.requested is not None
        if trainer.world_size > 1:
            asked = bool(trainer.strategy.reduce_boolean_decision(asked, all=False))
        if asked:
            # Another rank may have got the signal.
            self._signals.requested = self._signals.requested or signal.SIGTERM
            trainer.save_checkpoint(self._path)
            raise StoppedError
