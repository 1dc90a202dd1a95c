"""What the frame cache of a running loader hits, over files of a made-up case.

The files hold the case's episodes under its datasets' names, so the plan is the same one. Their
frames are small and all alike: what is shown is of no account here.

Not here: cases and what is foretold of them (``bench.cache_hits``), seconds of any kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from autoloader import AutoLoader
from bench import drawn
from bench.records import Values, example_bytes, write_records
from bench.versions import write_version

SIDE = 20
WARM, COUNTED = 2, 2
"""Of the longest passes: those that fill the cache, and those that count."""
KNOBS: Mapping[str, int | str] = {
    "reader": "indexed",
    "ring_slots": 4,
    "decode_threads": 2,
    "read_ahead": 1,
}


def write_files(place: Path, steps: Mapping[str, Sequence[int]]) -> None:
    """A dataset for every name, with episodes of so many steps.

    Args:
        place: a folder that exists.
        steps: name → steps of its episodes.
    """
    drawing = drawn.Drawing(dict.fromkeys(steps, 1), 1, 1, 1, 2 * SIDE, 2 * SIDE, size=SIDE)
    features = json.dumps(drawn.features(drawing))
    picture = drawn.encoded_picture(drawing, np.random.default_rng(0))
    for name, own in steps.items():
        (path,) = write_version(place, name, features, [len(own)])
        write_records(path, (_episode(picture, count) for count in own))


def _episode(picture: bytes, steps: int) -> bytes:
    pictures: Values = [picture] * steps
    return example_bytes(
        {
            "steps/observation/image": pictures,
            "steps/action": np.zeros(7 * steps, np.float32),
        }
    )


def hits_of_loader(
    place: Path,
    weights: Mapping[str, float],
    *,
    sample: Mapping[str, Any],
    natural: bool,
    knobs: Mapping[str, int | str],
    longest_pass: int,
    isolation: Literal["process", "thread"] = "process",
) -> float:
    """The hit ratio of a loader over such files.

    Args:
        place: where they are.
        weights: of each dataset.
        sample: as in a spec.
        natural: whether an epoch is a pass of all.
        knobs: that differ from the host's.
        longest_pass: positions.
        isolation: see ``AutoLoader``.
    """
    spec = {
        "schema_version": 1,
        "weights": "natural" if natural else "explicit",
        "reader": "indexed",
        "datasets": [
            {
                "name": name,
                "path": str(place / name / "1.0.0"),
                "weight": weight,
                "images": {"primary": "observation/image"},
                "action": "action",
            }
            for name, weight in weights.items()
        ],
        "sample": dict(sample),
        "cameras": {"primary": {"size": [SIDE, SIDE]}},
        "mixing": {"epoch": "pass" if natural else "forever"},
        "batch": {"size": 8},
    }
    with AutoLoader(
        spec,
        knobs=knobs,
        controller=False,
        output="numpy",
        isolation=isolation,
        ram_floor="64MiB",
    ) as loader:
        batches = _endless(loader)
        _take(batches, WARM * longest_pass)
        before = loader.statistics().cache
        _take(batches, COUNTED * longest_pass)
        after = loader.statistics().cache
    hits, misses = after.hits - before.hits, after.misses - before.misses
    return hits / (hits + misses)


def _endless(loader: AutoLoader) -> Iterator[Any]:
    while True:
        yield from loader


def _take(batches: Iterator[Any], samples: int) -> None:
    while samples > 0:
        samples -= len(next(batches)["dataset_index"])
