"""Texts as runs of steps that have the same one: what ``keep`` looks at.

Texts repeat from step to step, so a run holds the steps and each text is held once.

Not here: the rules (``keep``), the texts of all episodes (``autoloader.index``).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloader.catalog import Feature
from autoloader.transforms.fields import is_text, text_of_points

ALL_STEPS = 2**31 - 1
"""Steps that a text of the whole episode covers."""


@dataclass(frozen=True, slots=True)
class TextRuns:
    """The texts of one feature.

    Attributes:
        runs: [K, 4] int64: episode, first step, the step behind the last, which text; steps before
            the stride. Episodes in order.
        texts: every text once, UTF-8.
    """

    runs: NDArray[np.int64]
    texts: tuple[bytes, ...]


def runs_of_episode(values: Any, feature: Feature) -> TextRuns:
    """The texts of one episode, which is episode 0.

    Args:
        values: of the feature: byte strings, or integers, flat.
        feature: whose.
    """
    runs: list[tuple[int, int, int, int]] = []
    ids: dict[bytes, int] = {}
    step = 0
    for text, same in groupby(_texts(values, feature)):
        stop = step + len(list(same)) if feature.per_step else ALL_STEPS
        runs.append((0, step, stop, ids.setdefault(text, len(ids))))
        step = stop
    return TextRuns(np.asarray(runs, np.int64).reshape(-1, 4), tuple(ids))


def _texts(values: Any, feature: Feature) -> list[bytes]:
    """The text of every step, or the episode's one; absent is empty."""
    if is_text(feature):
        return list(values) or ([] if feature.per_step else [b""])
    if not feature.shape:
        return [str(number).encode() for number in values.tolist()]
    rows = values.astype(np.int64, copy=False).reshape(-1, int(feature.shape[0] or 1))
    return [text_of_points(row) for row in rows]
