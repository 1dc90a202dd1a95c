"""What passing features costs: processor time a sample with them and without, in turn.

    python -m bench.feature_cost [--spec mix.yaml] [--turns 60] [--batches 6]

Six features of the steps and the episode (``FEATURES``) are named in every dataset that has them.

Decoding is most of a sample's time and does not know of features, but its own variation is larger
than what they cost. So the cost is measured where nothing is decoded: both specs say of every
camera that it is ``present`` where ``is_terminal`` is set, which is at one step of an episode. Two
loaders over the same seed stand open in this process and take turns of a few batches, A B B A. A
turn ends when the process has come to rest (nothing is read ahead any more), so that all that a
batch costs, in any thread, falls into its own loader's turn. The clock is the processor time of
the process: other work on the machine counts little.

The difference of a pair of turns is what the features cost. It is told as a share of what a sample
costs with its frames decoded, measured by the same clock; the interval holds 95 % of the medians
of resampled pairs, over the least of the measured costs of a sample.

Not here: samples per second (``bench.suite``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autoloader import AutoLoader, PipelineSpec
from autoloader.demo.build import ensure_demo
from autoloader.samples.resolve import resolve

FEATURES = {
    "reward": "reward",
    "discount": "discount",
    "is_first": "is_first",
    "is_last": "is_last",
    "is_terminal": "is_terminal",
    "file_path": "episode_metadata/file_path",
}
SELDOM = "is_terminal"
"""The flag under which cameras are there, where none shall be decoded."""
_WARM_BATCHES = 6
_REST_S, _QUIET_LOOKS = 0.01, 4
_LONGEST_REST_S = 20.0
_RESAMPLED = 4000


def with_features(spec: PipelineSpec) -> PipelineSpec:
    """The spec with those of ``FEATURES`` that each dataset has."""
    datasets = []
    for declared, found in zip(spec.datasets, resolve(spec).datasets, strict=True):
        there = {name: path for name, path in FEATURES.items() if path in found.features}
        datasets.append(declared.model_copy(update={"features": there}))
    return spec.model_copy(update={"datasets": tuple(datasets)})


def without_frames(spec: PipelineSpec) -> PipelineSpec:
    """The spec of the datasets that have ``SELDOM``, their cameras there where it is set."""
    datasets = []
    for declared, found in zip(spec.datasets, resolve(spec).datasets, strict=True):
        if SELDOM in found.features:
            plain = declared.model_dump(mode="json")
            images = {
                camera: {"path": choice.paths[0], "present": SELDOM}
                for camera, choice in declared.images.items()
            }
            datasets.append(type(declared).model_validate({**plain, "images": images}))
    return spec.model_copy(update={"datasets": tuple(datasets)})


@contextlib.contextmanager
def opened(spec: PipelineSpec, **knobs: Any) -> Iterator[Iterator[Any]]:
    """Batches of a loader in this process, by index, with one decode thread."""
    with AutoLoader(
        spec,
        isolation="thread",
        controller=False,
        ram_floor="256MB",
        output="numpy",
        knobs={"reader": "indexed", "decode_threads": 1, "ring_slots": 4, **knobs},
    ) as loader:
        batches = iter(loader)
        for _ in range(_WARM_BATCHES):
            next(batches)
        rest()
        yield batches


def rest() -> None:
    """Wait until no other thread of this process runs, waits for a processor, or reads."""
    quiet, until = 0, time.monotonic() + _LONGEST_REST_S
    while quiet < _QUIET_LOOKS and time.monotonic() < until:
        time.sleep(_REST_S)
        quiet = 0 if _has_work() else quiet + 1


def _has_work() -> bool:
    own = threading.get_native_id()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state in "RD" and int(task.name) != own:
                return True
    return False


def turn_s(batches: Iterator[Any], count: int) -> float:
    """Processor seconds a sample of so many batches, and of all that they set going."""
    before, samples = time.process_time(), 0
    for _ in range(count):
        samples += len(next(batches)["language"])
    rest()
    return (time.process_time() - before) / samples


def interval(values: Sequence[float]) -> tuple[float, float]:
    """What holds 95 % of the medians of resampled ``values``."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), (_RESAMPLED, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m bench.feature_cost")
    parser.add_argument("--spec", type=Path)
    parser.add_argument("--turns", type=int, default=60, help="of each loader")
    parser.add_argument("--batches", type=int, default=6, help="of a turn")
    given = parser.parse_args(arguments)
    spec = PipelineSpec.from_yaml(given.spec or ensure_demo())
    spec = spec.model_copy(
        update={"mixing": spec.mixing.model_copy(update={"epoch": "forever"}), "reader": "indexed"}
    )
    bare = without_frames(spec)
    with opened(spec.model_copy(update={"datasets": _those_of(spec, bare)})) as batches:
        whole = [turn_s(batches, given.batches) for _ in range(max(3, given.turns // 10))]
    differences, costs = [], []
    with opened(bare) as plain, opened(with_features(bare)) as featured:
        for turn in range(given.turns):
            if turn % 2:
                second = turn_s(featured, given.batches)
                first = turn_s(plain, given.batches)
            else:
                first = turn_s(plain, given.batches)
                second = turn_s(featured, given.batches)
            differences.append(second - first)
            costs.append(first)
    low, high = interval(differences)
    sample_s = statistics.median(whole)
    document = {
        "datasets": len(bare.datasets),
        "turns": given.turns,
        "batches": given.batches,
        "processor_us_per_sample": {
            "decoded": round(sample_s * 1e6, 2),
            "least_decoded": round(min(whole) * 1e6, 2),
            "not_decoded": round(statistics.median(costs) * 1e6, 2),
            "features": round(statistics.median(differences) * 1e6, 2),
        },
        "cost_ratio": round(statistics.median(differences) / sample_s, 4),
        "interval": [round(low / min(whole), 4), round(high / min(whole), 4)],
    }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 0


def _those_of(spec: PipelineSpec, bare: PipelineSpec) -> tuple[Any, ...]:
    """The spec's own entries of the datasets that ``bare`` has."""
    names = {one.name for one in bare.datasets}
    return tuple(one for one in spec.datasets if one.name in names)


if __name__ == "__main__":
    sys.exit(main())
