"""Mixtures of three datasets, and loaders of them that give the same samples each time."""

from typing import Any

from rlds_files import Written
from streams import dataset_of, spec_of

from autoloader import AutoLoader, PipelineSpec

KNOBS = {"ring_slots": 4, "decode_threads": 1, "io_threads": 1, "read_ahead": 1, "queue_samples": 4}


def mixture(written: list[Written], shares: list[float], **top: Any) -> PipelineSpec:
    """Batches of three samples, without an end."""
    datasets = [dataset_of(one, weight=w) for one, w in zip(written, shares, strict=True)]
    return spec_of(*datasets, **{"batch": {"size": 3}, "mixing": {"epoch": "forever"}, **top})


def opened(spec: PipelineSpec, kind: type[AutoLoader] = AutoLoader, **own: Any) -> AutoLoader:
    """In a thread, unless ``own`` says otherwise."""
    options = {"ram_floor": "64MiB", "knobs": KNOBS, "output": "numpy", "isolation": "thread"}
    return kind(spec, **{**options, "reproducible": True, **own})
