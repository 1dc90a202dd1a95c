"""What ``autoloader plan`` says of the frame cache: what so much memory would hold, hit and give.

The rate is that of the decode stage: decode threads that can run at once, over the seconds that a
sample takes of one thread. Of what hits only the copy is left, and what an interpreter does for
each sample, one at a time.

Told is the rule of the next use, which is the loader's. Beside it stands what a fixed part of the
same bytes would hit. On several nodes all is told of one, whose samples are its ranks'.

Not here: the forecast itself (``cache.forecast``), timing a copy (``decode.probe``), showing it
(``cli.plan``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from autoloader.cache.flow import Ahead
from autoloader.cache.forecast import (
    HELD_SAMPLE_S,
    SAMPLE_S,
    Forecast,
    FrameSet,
    Holding,
    forecast,
    hit_ratio,
)
from autoloader.order.next_use import LOOKS


def cache_document(
    sets: Sequence[FrameSet],
    *,
    cache_bytes: int,
    left_bytes: int,
    threads: int,
    copy_bytes_per_s: Callable[[], float],
    ahead: Ahead,
    interpreters: int = 1,
    nodes: int = 1,
) -> dict[str, Any] | None:
    """The document's part; ``None`` where there is nothing to hold.

    Args:
        sets: of the mixture.
        cache_bytes: as the knob is set.
        left_bytes: what the floor leaves beside all else.
        threads: decode threads that run at once.
        copy_bytes_per_s: times how one of them copies.
        ahead: how far ahead samples are planned.
        interpreters: processes that build batches.
        nodes: over which the samples are dealt; ``sets`` are one node's.
    """
    whole = sum(one.frames_bytes for one in sets)
    if not whole:
        return None
    sizes = {"none": 0, "as set": cache_bytes, "all that the floor leaves": left_bytes}
    sizes["twice that"] = 2 * left_bytes
    copied_per_s = copy_bytes_per_s()
    return {
        "all_frames": round(whole),
        "forecasts": [
            {"memory": memory}
            | _forecast(
                forecast(sets, size, known_uses=math.inf if nodes == 1 else LOOKS, ahead=ahead),
                threads,
                copied_per_s,
                interpreters,
                nodes,
            )
            for memory, size in sizes.items()
            if size or memory == "none"
        ],
    }


def _forecast(
    found: tuple[Forecast, Forecast],
    threads: int,
    copy_bytes_per_s: float,
    interpreters: int,
    nodes: int,
) -> dict[str, Any]:
    by_rule = {one.rule: one for one in found}
    told = by_rule["next use"]
    shown_bytes = sum(one.frames.uses_per_position * one.frames.frame_bytes for one in told.sets)
    # A node shows the sample of one position in so many as there are nodes.
    interpreter_s = SAMPLE_S + (HELD_SAMPLE_S - SAMPLE_S) * told.hit_ratio
    sample_s = nodes * (told.missed_s + shown_bytes / copy_bytes_per_s) + interpreter_s
    limits = sorted(told.longest_positions(one.frames) for one in told.sets)
    datasets: dict[str, list[Holding]] = {}
    for one in told.sets:
        datasets.setdefault(one.frames.dataset, []).append(one)
    return {
        "cache_bytes": told.cache_bytes,
        "rule": found[0].rule,
        "hit_ratio": told.hit_ratio,
        "fixed_part_hit_ratio": by_rule["never evict"].hit_ratio,
        "held_bytes": round(told.held_bytes),
        "threshold": told.threshold if told.threshold < math.inf else None,
        "shown_again_within": [limits[0], limits[-1]] if told.threshold < math.inf else None,
        "samples_per_s": min(threads / sample_s, interpreters / interpreter_s),
        "datasets": {
            name: {"hit_ratio": hit_ratio(own), "held_bytes": round(sum(x.held_bytes for x in own))}
            for name, own in datasets.items()
        },
    }
