"""Indexes in a folder, and one episode as its index tells it, gathered as runs of samples are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoloader.index import DatasetIndex, open_indexes, opening
from autoloader.samples.resolve import ResolvedDataset


def open_in(folder: Path, *datasets: ResolvedDataset, **how: Any) -> tuple[DatasetIndex, ...]:
    """The indexes of datasets, whose files lie in this folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "index_directory", lambda: folder)
        return open_indexes(datasets, **how)


class EpisodeView:
    """Episode ``e`` of an index: its place, and its values at all raw steps T."""

    def __init__(self, index: DatasetIndex, e: int) -> None:
        self._index, self._e = index, e
        self.steps = int(index.steps[e])
        self.slice, self.record = int(index.slice_of[e]), int(index.record_of[e])
        self.path = index.dataset.slices[self.slice].path

    def frames(self, feature_path: str) -> tuple[Any, Any]:
        """[T] byte offsets and [T] lengths of the encoded frames in ``path``."""
        one = self._index.episodes_at(np.array([self._e]))
        found = one.frames(feature_path, np.arange(self.steps)[None], {})
        return found.offset[0], found.length[0]

    def column(self, feature_path: str) -> Any:
        """[T, width] values of a numeric feature."""
        one = self._index.episodes_at(np.array([self._e]))
        gathered = one.column(feature_path, np.arange(self.steps)[None])[0]
        assert np.array_equal(gathered, self._index.column(self._e, feature_path), equal_nan=True)
        return gathered

    def language(self, feature_path: str, steps: np.ndarray) -> list[bytes]:
        """Texts at these raw steps."""
        return self._index.episodes_at(np.full(len(steps), self._e)).language(feature_path, steps)


def number_of(index: DatasetIndex, slice_: int, record: int) -> int | None:
    """Which episode a record is; ``None`` where it is left out."""
    found = np.flatnonzero((index.slice_of == slice_) & (index.record_of == record))
    return int(found[0]) if len(found) else None
