"""What a trainer iterates: one endless sequence cut into epochs, and one fixed piece of another.

Theory of operation. A trainer's epochs are its own (``limit_train_batches``, a resume, an early
stop), the loader's are the spec's; so the training stream cuts the loader's sequence wherever the
trainer does, and goes on from there. Lightning counts batches by ``len`` where there is one; where
there is none (an endless epoch) it fetches one batch ahead, to know which is the last. Such a batch
waits here until it is handed to the training step: a saved state begins with it, and an iterator
that is dropped before gives it to the next one.

Iterators are generators: one that is made and never advanced takes nothing, and Lightning makes
several of those.

Invariants:
    1. Every batch of the loader is handed to the training step once, in order.
    2. A state begins with the first batch that was not handed out.
    3. The validation stream gives the same samples at every call.

Not here: the move to the device (``delivery``), Lightning (``datamodule``), the sequence itself
(``loader``).
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoloader.batch import Batch
from autoloader.device.transfer import Transfer
from autoloader.loader import AutoLoader

ToBatch = Callable[[Batch, Sequence[str]], Any]
"""Maps a loader's batch, with ``loader.dataset_names``, to what a trainer wants."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """What a stream has to know of who iterates it.

    Attributes:
        counts: it counts batches by itself and stops in time (a Lightning fit).
        ahead: it may fetch a batch before it hands the last one to the training step. It says when
            it hands one over (``TrainStream.handed``).
        repeats: every iteration begins with the first sample again (``overfit_batches``).
        moves: the data module moves every batch to the device for it, and brings the batch into
            the trainer's layout then. For other consumers the stream does that.
    """

    counts: bool = False
    ahead: bool = False
    repeats: bool = False
    moves: bool = False


PLAIN_LOOP = Consumer()
"""A ``for`` loop without a trainer."""


class HostBatch(dict[str, Any]):
    """A batch in the loader's own layout, on its way to ``transfer_batch_to_device``."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A batch that was fetched and not handed out yet, and the state it begins with."""

    state: dict[str, Any]
    batch: Any


class TrainStream:
    """The training side; every iteration goes on where the last one stopped.

    Args:
        loader: gives the batches.
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
        self._ahead: collections.deque[_Ahead] = collections.deque()
        self._beginning = loader.state_dict()
        self._at_beginning = True
        self._resumed = False
        self._parked = False

    def __len__(self) -> int:
        """Batches of the loader's current epoch.

        Raises:
            TypeError: it is endless.
        """
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        consumer = self._consumer()
        if self.move is not None:
            self.move.active = consumer.moves
        resumed, self._resumed = self._resumed, False
        if consumer.repeats and not resumed and not self._at_beginning:
            self.restore(self._beginning)
            self._resumed = False
        for entry in list(self._ahead):
            self.loader.owner.check()
            yield entry.batch
        if consumer.counts or (left := self._length()) is None:
            while True:
                yield from self._one_epoch(consumer)
        elif resumed:
            yield from self._one_epoch(consumer)
        else:
            while left:
                for batch in self._one_epoch(consumer):
                    yield batch
                    left -= 1
                    if not left:
                        break

    def _length(self) -> int | None:
        try:
            return len(self.loader)
        except TypeError:
            return None

    def _one_epoch(self, consumer: Consumer) -> Iterator[Any]:
        batches = iter(self.loader)
        while True:
            self.unpark()
            before = self.loader.state_dict() if consumer.ahead else {}
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._at_beginning = False
            if not self._training:
                self._training = True
                self._on_training()
            made = handed_out(self.loader, batch, self._to_batch, consumer)
            del batch
            if consumer.ahead:
                self._ahead.append(_Ahead(before, made))
            yield made
            del made

    def handed(self) -> None:
        """The oldest batch that was fetched ahead is now with the training step."""
        if self._ahead:
            self._ahead.popleft()

    def state(self) -> dict[str, Any]:
        """Where the training step is, to the batch."""
        return self._ahead[0].state if self._ahead else self.loader.state_dict()

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Go to a saved state; ``None`` is the beginning.

        Raises:
            UsageError: the loader refuses it; this stream stays where it was.
        """
        if state is not None or not self._at_beginning:
            self.loader.load_state_dict(self._beginning if state is None else state)
            self._at_beginning = state is None
            self._resumed = state is not None
        self._ahead.clear()

    def park(self) -> None:
        """Another stream is in use: stop reading ahead until the next batch is asked for."""
        self._training = False
        if not self._parked:
            self._parked = True
            self.loader._park()  # noqa: SLF001 internal to the package

    def unpark(self) -> None:
        """Go on."""
        if self._parked:
            self._parked = False
            self.loader._unpark()  # noqa: SLF001 internal to the package


class ValidationStream:
    """The validation side: an epoch of its loader, from the first sample, at every iteration.

    Args:
        loader: its epoch is what a validation sees.
        to_batch: as for ``TrainStream``.
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
        self._at_beginning = True

    def __len__(self) -> int:
        """Batches of a validation; the last one may be smaller."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        consumer = self._on_begin()
        if self.move is not None:
            self.move.active = consumer.moves
        self._rewind()
        left = len(self.loader)
        for batch in self.loader:
            self._at_beginning = False
            left -= 1
            made = handed_out(self.loader, batch, self._to_batch, consumer)
            del batch
            if not left:
                self._on_end()  # before the batch goes out, so that the next stream is ready sooner
                yield made
                return
            yield made
            del made

    def prepare(self) -> None:
        """Have the first batches ready for the next validation, while training goes on."""
        self._rewind()
        self.loader._prepare()  # noqa: SLF001 internal to the package

    def release(self) -> None:
        """Hold no memory until it is this stream's turn."""
        self.loader._suspend()  # noqa: SLF001 internal to the package
        self._rewind()

    def _rewind(self) -> None:
        if not self._at_beginning:
            self.loader.load_state_dict(self._beginning)
            self._at_beginning = True


def handed_out(
    loader: AutoLoader, batch: Batch, to_batch: ToBatch | None, consumer: Consumer
) -> Any:
    """A loader's batch, as its consumer gets it."""
    if consumer.moves:
        return HostBatch(batch)
    return batch if to_batch is None else to_batch(batch, loader.dataset_names)
