"""What else the samples of a planned run hold, gathered from the indexes.

Not here: their form in a batch (``samples.features``), the run itself (``index.planned``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.index.episodes import GatheredEpisodes
from autoloader.samples import windows
from autoloader.samples.features import FeatureRows
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import held_role


def gather_features(
    found: FeatureRows,
    parts: Sequence[tuple[ResolvedDataset, GatheredEpisodes]],
    own: slice,
    window: windows.WindowRows,
    raw: NDArray[np.int64],
) -> None:
    """Put the features of the samples ``own`` into ``found``.

    Masks and edges are those of all the samples; only the values are gathered by dataset.

    Args:
        found: takes them.
        parts: dataset after dataset, the episodes of its samples.
        own: which of the run's samples they are, of m.
        window: the state's rows of these samples.
        raw: [m, R] the steps of these rows, before the stride.
    """
    counts = [len(episodes.steps) for _, episodes in parts]
    numbers: dict[str, list[NDArray[Any]]] = {}
    texts: dict[str, list[list[bytes]]] = {}
    for name, form in found.forms.items():
        if form.kind == "text":
            texts[name] = [[] for _ in range(form.rows(raw.shape[1]))]
        else:
            numbers[name] = []
    at = 0
    for (dataset, episodes), count in zip(parts, counts, strict=True):
        steps, held = raw[at : at + count], dataset.held
        at += count
        there = [name for name in numbers if name in held]
        stored = [(held_role(held[name]), held[name].path) for name in there]
        for name, pieces in zip(there, episodes.several(stored, steps), strict=True):
            numbers[name] += pieces
        for name in numbers.keys() - held.keys():
            numbers[name].append(found.nothing(name, count))
        for name, by_row in texts.items():
            for row, told in enumerate(by_row):
                told += (
                    episodes.language(held[name].path, steps[:, row])
                    if name in held
                    else [b""] * count
                )
    for name in found.forms:
        has = np.repeat([name in dataset.held for dataset, _ in parts], counts)
        if name in texts:
            found.texts(name, own, texts[name], window, has)
        else:
            found.numbers(name, own, np.concatenate(numbers[name]), window, has)


def present_frames(
    dataset: ResolvedDataset, episodes: GatheredEpisodes, raw: NDArray[Any]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """(camera, whether it is there: [n, F] or [n, 1] bool) of the cameras that have a flag.

    Args:
        dataset: whose.
        episodes: their n episodes.
        raw: [n, F] steps before the stride.
    """
    for camera, feature in dataset.present.items():
        flags = episodes.numbers(held_role(feature), feature.path, raw)
        yield camera, flags[..., 0] != 0
