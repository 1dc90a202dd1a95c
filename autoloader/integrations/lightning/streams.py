"""Iterables for a trainer: one endless sequence cut into epochs, and a fixed piece of another.

Theory of operation. A trainer's epochs are its own (``limit_train_batches``, a resume, an early
stop), the loader's are the spec's; so the training stream cuts the loader's sequence wherever the
trainer does, and goes on from there. Lightning fetches a batch, and hands it to the training step
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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoloader.batch import Batch
from autoloader.loader import AutoLoader
from autoloader.process.delivery import InHand, Iteration
from autoloader.process.torch_side import Transfer

ToBatch = Callable[[Batch, Sequence[str]], Any]
"""Maps a loader's batch, with ``loader.dataset_names``, to what a trainer wants."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """Facts that a stream needs of its consumer.

    Attributes:
        counts: it counts batches by itself and stops in time (a Lightning fit).
        hands: it says when it hands a batch to the training step (``TrainStream.fetched``); until
            then the batch counts as not delivered.
        repeats: every iteration begins with the first sample again (``overfit_batches``).
        moves: the data module moves every batch to the device for it, and brings the batch into
            the trainer's layout then. For other consumers the stream does that.
    """

    counts: bool = False
    hands: bool = False
    repeats: bool = False
    moves: bool = False


PLAIN_LOOP = Consumer()
"""A ``for`` loop without a trainer."""


class HostBatch(dict[str, Any]):
    """A batch in the loader's own layout, on its way to ``transfer_batch_to_device``."""


class TrainStream:
    """The training side; every iteration goes on where the last one stopped.

    Args:
        loader: open loader that gives the batches.
        to_batch: see ``ToBatch``; ``None`` leaves them as they are.
        consumer: says who iterates, when an iteration begins.
        on_training: called behind the first batch of training, and behind the first one after
            ``park``.

    Attributes:
        move: what moves its batches to a CUDA device, once there is one.
    """

    def __init__(
        self,
        loader: AutoLoader,
        to_batch: ToBatch | None,
        consumer: Callable[[], Consumer],
        on_training: Callable[[], None] = lambda: None,
    ) -> None:
        self.loader = loader
        self._on_training = on_training
        self._training = False
        self._to_batch = to_batch
        self._consumer = consumer
        self.move: Transfer | None = None
        self._beginning = loader.state_dict()
        self._resumed = False
        self._parked = False

    def __len__(self) -> int:
        """Batches of the loader's current epoch.

        Raises:
            TypeError: the stream is endless and has no length.
        """
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return _Training(self)

    def begin(self) -> tuple[Consumer, bool]:
        """An iteration begins: who iterates, and whether behind a state that was loaded."""
        consumer = self._consumer()
        if self.move is not None:
            self.move.active = consumer.moves
        resumed = self._resumed
        if consumer.repeats and not resumed:
            self.restore(None)
        self._resumed = False
        return consumer, resumed

    def awaited(self, after: int) -> InHand:
        """The next batch, as ``AutoLoader`` puts it in hand; reading goes on for it."""
        self.unpark()
        one = self.loader.awaited(after)
        if not (self._training or one.ends):
            self._on_training()
            self._training = True
        return one

    def changed(self, batch: Batch, consumer: Consumer) -> Any:
        """A batch as its consumer gets it."""
        return handed_out(self.loader, batch, self._to_batch, consumer)

    def fetched(self) -> InHand | None:
        """The oldest batch that was fetched; who hands it to the training step deletes it."""
        return self.loader.shown()

    def state(self) -> dict[str, Any]:
        """Where the training step is, to the batch."""
        return self.loader.state_dict()

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Go to a saved state; ``None`` is the beginning.

        Raises:
            UsageError: the loader refuses it; this stream stays where it was.
        """
        if state is not None or self.loader.batches != self._beginning["batches"]:
            self.loader.load_state_dict(self._beginning if state is None else state)
        self._resumed = state is not None

    def park(self) -> None:
        """Another stream is in use: stop reading ahead until the next batch is asked for."""
        self._training = False
        if not self._parked:
            self._parked = True
            self.loader.park()

    def unpark(self) -> None:
        """Go on."""
        if self._parked:
            self.loader.park(False)
            self._parked = False


class _Training(Iteration):
    """An iteration of the training stream; it begins with its first ``next``."""

    def __init__(self, stream: TrainStream) -> None:
        super().__init__(stream.awaited)
        self._stream = stream
        self._consumer: Consumer | None = None

    def _begin(self) -> None:
        if self._consumer is not None:
            return
        stream = self._stream
        consumer, resumed = stream.begin()
        self._holds = consumer.hands
        try:
            left = None if consumer.counts or resumed else len(stream)
            endless = consumer.counts
        except TypeError:
            left, endless = None, True
        self._left = left
        # One that counts, or is given a whole epoch's number, is led over the loader's own ends.
        self._crosses = self._crosses_always = endless or left is not None
        self._consumer = consumer

    def _changed(self, batch: Batch) -> Any:
        return self._stream.changed(batch, self._consumer or PLAIN_LOOP)


class ValidationStream:
    """The validation side: an epoch of its loader, from the first sample, at every iteration.

    Args:
        loader: its epoch is what a validation sees.
        to_batch: function of a batch, as for ``TrainStream``.
        on_begin: called when an iteration begins; says who iterates.
        on_end: called when the last batch has come.
    """

    def __init__(
        self,
        loader: AutoLoader,
        to_batch: ToBatch | None,
        on_begin: Callable[[], Consumer],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.loader = loader
        self._to_batch = to_batch
        self._on_begin = on_begin
        self._on_end = on_end
        self.move: Transfer | None = None
        self._beginning = loader.state_dict()

    def __len__(self) -> int:
        """Batches of a validation; the last one may be smaller."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return _Validation(self)

    def begin(self) -> Consumer:
        """An iteration begins, from the first sample; who iterates."""
        consumer = self._on_begin()
        if self.move is not None:
            self.move.active = consumer.moves
        self._rewind()
        return consumer

    def awaited(self, after: int) -> InHand:
        """The next batch, as ``AutoLoader`` puts it in hand."""
        return self.loader.awaited(after)

    def changed(self, batch: Batch, consumer: Consumer) -> Any:
        """A batch as its consumer gets it."""
        return handed_out(self.loader, batch, self._to_batch, consumer)

    def end(self) -> None:
        """The last batch has come."""
        self._on_end()

    def prepare(self) -> None:
        """Have the first batches ready for the next validation, while training goes on."""
        self._rewind()
        self.loader.prepare()

    def release(self) -> None:
        """Hold no memory until it is this stream's turn."""
        self.loader.suspend()
        self._rewind()

    def _rewind(self) -> None:
        if self.loader.batches != self._beginning["batches"]:
            self.loader.load_state_dict(self._beginning)


class _Validation(Iteration):
    """An iteration of a validation stream; it begins with its first ``next``."""

    def __init__(self, stream: ValidationStream) -> None:
        super().__init__(stream.awaited)
        self._stream = stream
        self._consumer: Consumer | None = None
        self._last: Any = None

    def __next__(self) -> Any:
        if self._last is None:
            batch = super().__next__()
            if self._left != 0:
                return batch
            self._last = batch
        self._stream.end()  # before the batch goes out, so that the next stream is ready sooner
        batch = self._last
        try:
            self._last = None
            return batch  # noqa: TRY300 right behind it
        except BaseException:  # it was not returned
            self._last = batch
            raise

    def _begin(self) -> None:
        if self._consumer is None:
            consumer = self._stream.begin()
            self._left = len(self._stream)
            self._consumer = consumer

    def _changed(self, batch: Batch) -> Any:
        return self._stream.changed(batch, self._consumer or PLAIN_LOOP)


def handed_out(
    loader: AutoLoader, batch: Batch, to_batch: ToBatch | None, consumer: Consumer
) -> Any:
    """A loader's batch, as its consumer gets it."""
    if consumer.moves:
        return HostBatch(batch)
    return batch if to_batch is None else to_batch(batch, loader.dataset_names)
