"""What holds of a loader with either reader, in the child and in a thread.

One child serves all loaders of this module that have one: TensorFlow is imported once in it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from passes import Passes, read

from autoloader import AutoLoader, PipelineSpec

KNOBS: dict[str, Any] = {"cycle_length": 2, "num_parallel_calls": 2, "queue_samples": 16}


@pytest.fixture(scope="module")
def short_spec(small_spec: PipelineSpec) -> PipelineSpec:
    """Without the dataset that has more samples than the others together: passes end soon."""
    return small_spec.model_copy(update={"datasets": small_spec.datasets[:-1]})


@pytest.fixture(scope="module", autouse=True)
def warm(short_spec: PipelineSpec) -> Iterator[None]:
    """Keeps the child."""
    with AutoLoader(
        short_spec, output="numpy", ram_floor="1GB", knobs={**KNOBS, "reader": "stream"}
    ) as kept:
        next(iter(kept))
        yield


@pytest.fixture
def loader(short_spec: PipelineSpec, isolation: str, reader: str) -> Iterator[AutoLoader]:
    with AutoLoader(
        short_spec,
        isolation=isolation,
        output="numpy",
        ram_floor="1GB",
        knobs={**KNOBS, "reader": reader},
    ) as made:
        yield made


def test_an_undisturbed_run_gives_every_sample_once_a_pass(loader: AutoLoader) -> None:
    passes = Passes(loader)
    while not passes.complete(2):
        read(loader, passes, 10)
    assert passes.faults() == []
    assert passes.ended() >= 2 * len(passes.names)


def test_random_retunes_lose_and_double_nothing(loader: AutoLoader) -> None:
    drawn = random.Random(3)
    passes = Passes(loader)
    while not passes.complete(3):
        cycle = drawn.randint(1, 2)
        loader.retune(
            cycle_length=cycle,
            num_parallel_calls=drawn.randint(1, cycle),
            parse_parallel_calls=drawn.randint(1, 3),
            stream_prefetch=drawn.randint(0, 2),
            queue_samples=drawn.choice([1, 8, 64]),
            shuffle_samples=drawn.choice([0, 0, 40]),
            decode_threads=drawn.randint(1, 3),
            ring_slots=drawn.randint(4, 12),
        )
        read(loader, passes, drawn.randint(1, 6))
    assert passes.faults() == []
