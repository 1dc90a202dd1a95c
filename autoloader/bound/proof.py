"""Proves what held frames give: one measurement that begins when the cache is in its steady state.

A trial of a study is over before a frame is shown again, so what memory for decoded frames gives is
a forecast (``bound.model``). The proof takes the winner's knobs with the forecast's bytes and warms
up for four passes of the data: after two hits are what they stay, and the runs that are planned
ahead need as long again to become as long as held frames let them. It runs where a study that went
through has time left, or where it is asked for (``--prove-cache``); else the report says how long
it would take.

Not here: running the measurement (``tune.offline``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autoloader.units import format_seconds

PASSES = 4
"""After which the rate is what it stays; after two it is four fifths of that, as measured."""

_PATIENCE, _OPENING_S = 5.0, 60.0
"""A measurement that takes so many times what it should, and a minute more, has failed."""

Primed = Callable[[int, int, int, float], tuple[Mapping[str, Any] | None, str]]
"""(bytes of the cache, warm-up and measured batches, timeout in s) → measurement, or why not."""


@dataclass(frozen=True, slots=True)
class CacheProof:
    """What a primed measurement found.

    Attributes:
        cache_bytes: of the frame cache.
        warmup_batches: that prime it.
        samples_per_s: then; ``None``: not measured.
        hit_ratio: since the loader began, its first passes included; ``None``: not measured.
        why_not: why it was not measured; "" where it was.
    """

    cache_bytes: int
    warmup_batches: int
    samples_per_s: float | None = None
    hit_ratio: float | None = None
    why_not: str = ""

    def as_dict(self) -> dict[str, Any]:
        """What ``tune --json`` says of it."""
        return asdict(self)

    def describe(self) -> str:
        """One line for people."""
        if self.samples_per_s is None:
            return f"not proven: {self.why_not}"
        hits = "" if self.hit_ratio is None else f", {self.hit_ratio:.0%} of the frames from there"
        return f"measured after {PASSES} passes: {self.samples_per_s:.0f} samples/s{hits}"


def prove(
    primed: Primed,
    *,
    cache_bytes: int,
    pass_samples: int,
    batch_size: int,
    batches: int,
    samples_per_s: float,
    cached_samples_per_s: float,
    left_s: float,
) -> CacheProof:
    """Measure with a primed cache, where there is time.

    Args:
        primed: measures.
        cache_bytes: of decoded frames that may be held.
        pass_samples: samples of all datasets together.
        batch_size: samples of a batch.
        batches: measured ones, at least: those of two passes, where that is more.
        samples_per_s: rate with no frame held, as in the first pass.
        cached_samples_per_s: the forecast, for the passes after it.
        left_s: seconds that are left for it; infinite: it may take what it takes.
    """
    warmup = math.ceil(PASSES * pass_samples / batch_size)
    measured = max(batches, 2 * warmup // PASSES)
    later = (warmup + measured) * batch_size - pass_samples
    takes_s = pass_samples / max(samples_per_s, 1e-9) + later / max(cached_samples_per_s, 1e-9)
    if takes_s > left_s:
        why = (
            f"{PASSES} passes take about {format_seconds(takes_s)}; --prove-cache takes them, and "
            f"`autoloader measure --set cache_bytes={cache_bytes} --warmup {warmup}`"
        )
        return CacheProof(cache_bytes, warmup, why_not=why)
    found, why = primed(
        cache_bytes, warmup, measured, min(left_s, _PATIENCE * takes_s + _OPENING_S)
    )
    if found is None:
        return CacheProof(cache_bytes, warmup, why_not=why)
    hits = (found.get("cache") or {}).get("hit_ratio")
    return CacheProof(cache_bytes, warmup, float(found["samples_per_s"]), hits)
