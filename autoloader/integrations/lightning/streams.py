"""Iterables for a trainer: one endless sequence cut into epochs, and a fixed piece of another.

Theory of operation. The trainer decides its epochs (``limit_train_batches``, a resume, an early
stop), the spec decides the loader's. So the training stream cuts the loader's sequence wherever the
trainer does, and continues from there. Lightning fetches a batch, and hands it to the training step
later, at times one batch later. Until then the loader keeps it in hand: a saved state begins with
it, and an iteration that is dropped before leaves it to the next one.

An iteration that is made and never advanced takes nothing; Lightning makes several of those.

Invariants:
    1. Every batch of the loader is handed to the training step once, in order.
    2. A state begins with the first batch that was not handed out.
    3. The validation stream gives the same samples at every call.

Not here: the move to the device and Lightning (``datamodule``), the sequence itself
(``loader``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from autoloader.host.frozen import frozen
from autoloader.loader import AutoLoader
from autoloader.process.delivery import InHand, Iteration, Way, as_it_is
from autoloader.process.torch_dataloader import epoch_length
from autoloader.process.transfer import Transfer
from autoloader.samples.layout import Batch

ToBatch = Callable[[Batch, Sequence[str]], Any]
"""Maps a loader's batch, with ``loader.dataset_names``, to what a trainer wants."""


@frozen
class Consumer:
    """Facts that a stream needs of its consumer; those of a ``for`` loop without a trainer.

    Attributes:
        counts: whether the consumer counts batches and stops in time (a Lightning fit).
        repeats: every iteration begins with the first sample again (``overfit_batches``).
        moves: the data module moves every batch to the device for it, and brings the batch into
            the trainer's layout then. For other consumers the stream does that. In training the
            module tells each such batch (``AutoLoader.shown``), which counts as delivered then.
    """

    counts: bool = False
    repeats: bool = False
    moves: bool = False


class HostBatch(dict[str, Any]):
    """A batch in the loader's own layout, on its way to ``transfer_batch_to_device``."""


@dataclass(eq=False)
class _Stream:
    """A loader's batches on their way to a trainer: what both sides have in common.

    Attributes:
        loader: open loader that gives the batches.
        batch_size: samples of a batch that it was opened with.
        to_batch: see ``ToBatch``; ``None`` leaves them as they are.
        consumer: says who iterates, when an iteration begins.
        then: called behind the first batch of training, and behind the first one after ``park``;
            of a validation when the last batch has come.
        move: ``Transfer`` that moves the batches to a CUDA device; ``None`` before there is one.
    """

    loader: AutoLoader
    batch_size: int
    to_batch: ToBatch | None
    consumer: Callable[[], Consumer]
    then: Callable[[], None]
    move: Transfer | None = None

    def __post_init__(self) -> None:
        self._beginning = self.loader.state_dict()

    def __len__(self) -> int:
        """Batches of every epoch; the last one of a validation may be smaller.

        Raises:
            TypeError: the stream is endless and has no length.
        """
        return epoch_length(self.loader)

    def begun_by(self) -> tuple[Consumer, Callable[[Batch], Any]]:
        """(the consumer that begins to iterate, what makes its batches)."""
        consumer = self.consumer()
        if self.move is not None:
            self.move.active = consumer.moves
        if consumer.moves:
            return consumer, HostBatch
        if self.to_batch is None:
            return consumer, as_it_is
        return consumer, partial(self._in_layout, self.to_batch)

    def _in_layout(self, to_batch: ToBatch, batch: Batch) -> Any:
        return to_batch(batch, self.loader.dataset_names)

    def rewind(self) -> None:
        """Go to the first sample."""
        if self.loader.batches != self._beginning["batches"]:
            self.loader.load_state_dict(self._beginning)


class TrainStream(_Stream):
    """The training side; every iteration goes on where the last one stopped.

    Attributes:
        resumed: whether the next iteration is the first behind a state that was loaded.
    """

    resumed = _training = False

    def __iter__(self) -> Iterator[Any]:
        return Iteration(self.awaited, self.begin)

    def begin(self) -> Way:
        """Begin an iteration: for a repeating consumer at the first sample, unless resumed."""
        consumer, change = self.begun_by()
        if consumer.repeats and not self.resumed:
            self.rewind()
        resumed, self.resumed = self.resumed, False
        # One that counts, or is given a whole epoch's number, is led over the loader's own ends.
        try:
            left = math.inf if consumer.counts else None if resumed else len(self)
        except TypeError:
            left = math.inf
        return Way(left, consumer.moves, change)

    def awaited(self, after: int) -> InHand:
        """Wait for the next batch; the first one behind a validation is told."""
        one = self.loader.awaited(after)
        if not (self._training or one.ends):
            self.then()
            self._training = True
        return one

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Go to a saved state; ``None`` is the beginning.

        Raises:
            UsageError: the loader refuses it; this stream stays where it was.
        """
        if state is None:
            self.rewind()
        else:
            self.loader.load_state_dict(state)
        self.resumed = state is not None

    def park(self) -> None:
        """Stop reading ahead until the next batch is asked for: another stream is in use."""
        self._training = False
        self.loader.park()


class ValidationStream(_Stream):
    """The validation side: an epoch of its loader, from the first sample, at every iteration."""

    def __iter__(self) -> Iterator[Any]:
        return _Validation(self)

    def begin(self) -> Way:
        """Begin an iteration at the first sample."""
        _, change = self.begun_by()
        self.rewind()
        return Way(len(self), change=change)

    def prepare(self) -> None:
        """Have the first batches ready for the next validation, while training goes on."""
        self.rewind()
        self.loader.prepare()

    def release(self) -> None:
        """Hold no memory until it is this stream's turn."""
        self.loader.suspend()
        self.rewind()


class _Validation(Iteration):
    """An iteration that tells the stream of its end before it gives the last batch."""

    def __init__(self, stream: ValidationStream) -> None:
        super().__init__(stream.loader.awaited, stream.begin)
        self._stream = stream
        self._last: Any = None

    def __next__(self) -> Any:
        if self._last is None:
            batch = super().__next__()
            if self._left != 0:
                return batch
            self._last = batch
        self._stream.then()  # before the batch goes out, so that the next stream is ready sooner
        batch = self._last
        try:
            self._last = None
            return batch  # noqa: TRY300 right behind it
        except BaseException:  # it was not returned
            self._last = batch
            raise
