"""Validations beside training: nothing of training is rebuilt, and the next one is ready early."""

import itertools
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from fits import data
from left_behind import KNOBS, places
from streams import until

from autoloader import AutoLoader, PipelineSpec
from autoloader.integrations.lightning.streams import ValidationStream
from autoloader.lightning import AutoLoaderDataModule
from autoloader.loader import IdleLoader


def streams(module: AutoLoaderDataModule) -> tuple[Iterator[Any], list[ValidationStream]]:
    train, found = iter(module.train_dataloader()), module.val_dataloader()
    return train, found if isinstance(found, list) else [found]


def is_full(loader: AutoLoader) -> bool:
    """Whether all slots are filled, or under the last batch that was handed out."""
    return loader._pipeline.activity().ring.out == KNOBS["ring_slots"]


@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_training_goes_on_from_the_pipeline_it_had_and_validation_has_its_batches_ready(
    mix: PipelineSpec, reader: str
):
    knobs = {**KNOBS, "reader": reader}
    seen: list[Any] = []
    with closing(data(mix, "process", knobs=knobs)) as module:
        train, (validation,) = streams(module)
        assert validation.loader.statistics().starts == 0
        for call, cut in enumerate((None, 1, None, None)):
            seen += places(next(train))
            # While training goes on, however the last validation ended:
            until(lambda: is_full(validation.loader))
            assert validation.loader.statistics().starts == 1 + call
            found = [places(batch) for batch in itertools.islice(validation, cut)]
            if not call:
                whole = found
            assert found == whole[:cut]
        seen += places(next(train))
        told = module.loader.statistics()
    assert (told.starts, told.restarts) == (1, 0)
    assert {one.generations for one in told.datasets.values()} == {1}
    assert len(seen) == len(set(seen))


def test_a_suspended_loader_goes_on_where_it_was(mix: PipelineSpec, isolation: str):
    with IdleLoader(mix, isolation=isolation, ram_floor="64MiB", knobs=KNOBS) as loader:  # type: ignore[arg-type]
        assert loader.statistics().starts == 0
        batches = iter(loader)
        found = [places(next(batches))]
        loader.suspend()
        loader.suspend()
        assert loader.statistics().ring.filled == 0
        found.append(places(next(batches)))
        assert loader.statistics().starts == 2
    with AutoLoader(mix, isolation="thread", ram_floor="64MiB", knobs=KNOBS) as loader:
        assert found == [places(batch) for batch in itertools.islice(loader, 2)]
