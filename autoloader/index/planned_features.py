"""What else the samples of a planned run hold, gathered from the indexes.

Not here: their form in a batch (``samples.features``), the run itself (``index.planned``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from autoloader.index.episodes import GatheredEpisodes
from autoloader.samples import windows
from autoloader.samples.features import FeatureRows
from autoloader.samples.resolve import ResolvedDataset
from autoloader.samples.schema import held_role


def gather_features(
    found: FeatureRows,
    dataset: ResolvedDataset,
    episodes: GatheredEpisodes,
    own: slice,
    window: windows.WindowRows,
) -> None:
    """Put the features of a dataset's samples ``own`` into ``found``.

    Args:
        found: takes them.
        dataset: whose.
        episodes: their n episodes.
        own: which of the run's samples they are.
        window: the state's rows of these samples.
    """
    if not dataset.held:
        return
    raw = window.index * dataset.stride
    for name, feature in dataset.held.items():
        role = held_role(feature)
        if role != "text":
            found.numbers(name, own, episodes.numbers(role, feature.path, raw), window)
            continue
        columns = raw.T if feature.per_step else raw.T[:1]
        texts = [episodes.language(feature.path, column) for column in columns]
        found.texts(name, own, texts, window)


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
