"""A loader as a torch ``DataLoader``, for trainers that insist on one.

Such a trainer asks for the length, iterates once an epoch, and may save ``state_dict``. The loader
reads ahead by itself and belongs to the process that made it. So there are no workers here, and
nothing is shuffled, sharded or collated again.

Not here: the loader (``loader``), Lightning (``integrations.lightning``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from torch.utils.data import DataLoader, IterableDataset

from autoloader.process.delivery import Iteration, Way, as_it_is
from autoloader.samples.layout import Batch


class _Batches(IterableDataset[Batch]):
    """A loader's batches as items; its length is every epoch's, in batches.

    Trainers ask for the length once, and leave each epoch behind so many batches.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Batch]:
        return _iteration(self._loader)

    def __len__(self) -> int:
        return epoch_length(self._loader)


def epoch_length(loader: Any) -> int:
    """Batches of every epoch of a trainer that asks once; ``TypeError``: they are endless."""
    epoch = loader.even_epoch
    return len(loader) if epoch is None else epoch.length


def _iteration(loader: Any, change: Callable[[Batch], Any] = as_it_is) -> Iteration:
    """One epoch, as a trainer counts it; it leads over ends of the loader's own."""

    def begin() -> Way:
        epoch = loader.even_epoch
        return Way(epoch and epoch.left, change=change)

    return Iteration(loader.awaited, begin)


class LoaderAsDataLoader(DataLoader[Any]):
    """A ``DataLoader`` without workers whose items are a loader's batches.

    Args:
        loader: an ``AutoLoader``, opened and closed by the caller.
        collate_fn: makes of each batch what the trainer wants.
    """

    def __init__(self, loader: Any, collate_fn: Callable[[Batch], Any] | None = None) -> None:
        self._loader = loader
        self._change = collate_fn or as_it_is
        super().__init__(
            _Batches(loader),
            batch_size=None,
            num_workers=0,
            collate_fn=cast("Callable[[Any], Any]", self._change),
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """The loader's own iteration: what ``next`` returns is delivered, and nothing else.

        torch's would have a batch in hand that a raising signal handler loses.
        """
        return _iteration(self._loader, self._change)

    def state_dict(self) -> Any:
        """Position of the loader, to the sample."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where ``state`` was saved."""
        self._loader.load_state_dict(state)
