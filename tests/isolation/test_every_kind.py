"""What holds of a loader with either reader, in the child and in a thread.

One child serves all loaders of this module that have one: TensorFlow is imported once in it.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from checksums import checksum
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


def test_a_saved_state_resumes_with_exactly_what_was_missing(
    short_spec: PipelineSpec, isolation: str, reader: str
) -> None:
    arguments: dict[str, Any] = {
        "isolation": isolation, "output": "numpy", "ram_floor": "1GB",
        "knobs": {**KNOBS, "reader": reader},
    }  # fmt: skip
    with AutoLoader(short_spec, **arguments) as loader:
        passes = Passes(loader)
        read(loader, passes, 17)
        state = json.loads(json.dumps(loader.state_dict()))
        # What is handed out after the state was saved comes again.
        next(iter(loader))
    with AutoLoader(short_spec, **arguments) as loader:
        loader.load_state_dict(state)
        while not passes.complete(2):
            read(loader, passes, 5)
    assert passes.faults() == []


def test_kept_batches_stay_as_they_were(loader: AutoLoader) -> None:
    kept, sums = [], []
    for number, batch in zip(range(60), loader, strict=False):
        if number % 5 == 0:
            kept.append(batch)
            sums.append(checksum(batch["images"]["primary"]))
    assert loader.statistics().ring.copies > 0
    assert [checksum(batch["images"]["primary"]) for batch in kept] == sums
    loader.close()
    assert [checksum(batch["images"]["primary"]) for batch in kept] == sums


def test_a_smaller_ring_gives_its_pages_back_to_the_kernel(loader: AutoLoader) -> None:
    loader.retune(ring_slots=16)
    iterator = itertools.chain.from_iterable(itertools.repeat(loader))
    for _ in range(80):
        next(iterator)
    slot_bytes = loader.plan.mixture.layout.slot_bytes
    full = loader.statistics().ring.allocated_bytes
    assert full > 8 * slot_bytes
    loader.retune(ring_slots=4)
    for _ in range(20):
        next(iterator)
    # The controller may have given it more slots meanwhile.
    assert loader.statistics().ring.allocated_bytes <= loader.knobs.ring_slots * slot_bytes
