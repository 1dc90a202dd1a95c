"""What kind of mixture this is, for the profile whose knobs come nearest.

Read off metadata alone: no file of data is opened.

Not here: how far two kinds are (``profile.kinds``).
"""

from __future__ import annotations

import math
from collections import Counter

from autoloader.profile import MixtureKind
from autoloader.samples.resolve.mixture import ResolvedMixture


def kind_of(mixture: ResolvedMixture) -> MixtureKind:
    """The mixture's kind; what its metadata does not say is left out."""
    layout = mixture.layout
    frames = len(layout.cameras) * layout.frames
    shown = [height * width for height, width in layout.cameras.values()]
    stored: list[int] = []
    encodings: Counter[str] = Counter()
    for dataset in mixture.datasets:
        for features in dataset.cameras.values():
            feature = features[0]
            encodings[feature.encoding or "unknown"] += 1
            height_and_width = feature.shape[:2]
            if len(height_and_width) == 2 and None not in height_and_width:
                stored.append(math.prod(size or 1 for size in height_and_width))
    del encodings["unknown"]
    return MixtureKind(
        datasets=len(mixture.datasets),
        batch=layout.batch_size,
        frames=frames,
        pixels=_mean(shown),
        source_pixels=_mean(stored),
        encoding=min(encodings, key=lambda one: (-encodings[one], one)) if encodings else None,
    )


def _mean(pixels: list[int]) -> int | None:
    return round(sum(pixels) / len(pixels)) if pixels else None
