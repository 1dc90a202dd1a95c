"""Validation sets: the same samples at every call, one loader for all datasets or for each."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from rlds_files import Written, once, png, write_steps
from streams import dataset_of, spec_of

from autoloader import PipelineSpec
from autoloader.errors import KnobError
from autoloader.loader import ValidationLoader, validation_loaders, validation_specs

pytestmark = pytest.mark.usefixtures("one_child")

OPTIONS: dict[str, Any] = {
    "isolation": "thread",
    "ram_floor": "64MiB",
    "knobs": {"ring_slots": 4, "decode_threads": 1, "queue_samples": 4},
    "output": "numpy",
}
VAL = {"train": "train[:50%]", "val": "train[50%:]"}


# Three datasets of four episodes of 5 frames.
trio = once(
    lambda folder: [write_steps(folder, [[5] * 4], encode=png, name=name) for name in "abc"]
)


def spec(trio: list[Written], *, reader: str = "indexed", **validation: Any) -> PipelineSpec:
    """c takes no part in the validation, b has narrow actions and no state."""
    a, b, c = trio
    return spec_of(
        dataset_of(a, split=VAL, weight=3),
        dataset_of(b, split=VAL, action="action[:1]", state=None),
        dataset_of(c, split={"train": "train", "val": None}),
        validation=validation,
        reader=reader,
    )


def batches_of(loader: ValidationLoader) -> list[list[tuple[int, ...]]]:
    return [[tuple(row) for row in batch["provenance"].tolist()] for batch in loader]


@pytest.fixture
def opened() -> Iterator[list[ValidationLoader]]:
    loaders: list[ValidationLoader] = []
    yield loaders
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_every_iteration_gives_the_same_samples_however_the_last_one_ended(
    reader: str, trio: list[Written], opened: list[ValidationLoader]
):
    found = validation_loaders(spec(trio, reader=reader, samples=10), **OPTIONS)
    opened += found.values()
    loader = found["val"]
    assert loader.dataset_names == ("a", "b")
    first = batches_of(loader)
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert len(loader) == 3
    next(iter(loader))
    assert batches_of(loader) == first


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_the_second_validation_decodes_nothing_where_the_first_could_be_held(
    isolation: str, trio: list[Written], opened: list[ValidationLoader]
):
    own = validation_specs(spec(trio, samples=10, per_dataset=True))["a"]
    knobs = {**OPTIONS["knobs"], "cache_bytes": 2**20, "decode_threads": 2}
    opened.append(ValidationLoader(own, **{**OPTIONS, "knobs": knobs, "isolation": isolation}))
    loader = opened[0]
    first = [batch["images"]["primary"].copy() for batch in loader]
    decoded = loader.loader.statistics().cache.misses
    second = [batch["images"]["primary"].copy() for batch in loader]
    assert all(map(np.array_equal, first, second))
    assert loader.loader.statistics().cache.misses == decoded >= 10


def test_per_dataset_gives_one_named_loader_each_with_the_shapes_of_the_mixture(
    trio: list[Written], opened: list[ValidationLoader]
):
    found = validation_loaders(spec(trio, samples=7, per_dataset=True), **OPTIONS)
    opened += found.values()
    assert list(found) == ["a", "b"]
    for name, loader in found.items():
        assert loader.dataset_names == (name,)
        batches = batches_of(loader)
        rows = [row for batch in batches for row in batch]
        assert [len(batch) for batch in batches] == [4, 3]
        assert len(set(rows)) == 7
        assert batches_of(loader) == batches
        batch = next(iter(loader))
        assert (batch["action"].shape, batch["state"].shape) == ((4, 1, 2), (4, 1, 3))
        assert set(batch["dataset_index"].tolist()) == {0}


def test_loaders_that_were_opened_are_closed_when_a_later_one_fails(trio: list[Written]):
    before = set(threading.enumerate())
    knobs = {**OPTIONS["knobs"], "a.queue_samples": 4}  # b's loader has no a
    with pytest.raises(KnobError):
        validation_loaders(spec(trio, per_dataset=True), **{**OPTIONS, "knobs": knobs})
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive(), thread.name
