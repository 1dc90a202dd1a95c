"""A loader in the shape of torch's ``DataLoader``, for trainers that insist on one.

Such a trainer asks for the length, iterates once an epoch, and may save ``state_dict``. The loader
reads ahead by itself and belongs to the process that made it, so there are no workers here, and
nothing is shuffled, sharded or collated again: an item of the dataset is a whole batch.

Not here: the loader (``loader``); Lightning needs none of this (``integrations.lightning``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, cast

from torch.utils.data import DataLoader, IterableDataset

from autoloader.batch import Batch


class Resumable(Protocol):
    """Methods of an ``AutoLoader`` that are needed here."""

    def _iterate(
        self, change: Callable[[Batch], Any] | None = None, *, after_end: bool = False
    ) -> Iterator[Any]: ...

    def __len__(self) -> int: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class _Batches(IterableDataset[Batch]):
    """A loader's batches as items; its length is the epoch's, in batches.

    A trainer that counts to the length leaves the epoch behind its last batch, not ended.
    """

    def __init__(self, loader: Resumable) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Batch]:
        return self._loader._iterate(after_end=True)  # noqa: SLF001 of the package

    def __len__(self) -> int:
        return len(self._loader)


class LoaderAsDataLoader(DataLoader[Any]):
    """A ``DataLoader`` without workers whose items are a loader's batches.

    Args:
        loader: opened and closed by the caller.
        collate_fn: makes of each batch what the trainer wants.
    """

    def __init__(self, loader: Resumable, collate_fn: Callable[[Batch], Any] | None = None) -> None:
        self._loader = loader
        self._change = collate_fn
        super().__init__(
            _Batches(loader),
            batch_size=None,
            num_workers=0,
            collate_fn=cast("Callable[[Any], Any]", collate_fn or _as_it_is),
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """The loader's own iteration: what ``next`` returns is delivered, and nothing else.

        torch's would have a batch in hand that a raising signal handler loses.
        """
        return self._loader._iterate(self._change, after_end=True)  # noqa: SLF001

    def state_dict(self) -> dict[str, Any]:
        """The loader's place, to the sample."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where ``state`` was saved."""
        self._loader.load_state_dict(state)


def _as_it_is(batch: Batch) -> Batch:
    return batch
