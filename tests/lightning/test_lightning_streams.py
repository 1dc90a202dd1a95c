"""The training stream under a consumer that cuts, fetches ahead, saves and resumes at will."""

import itertools
import json
import random
from typing import Any

import pytest
from left_behind import KNOBS, places

from autoloader import AutoLoader, PipelineSpec
from autoloader.integrations.lightning.streams import Consumer, TrainStream

BATCHES = 60


def opened(spec: PipelineSpec, **own: Any) -> AutoLoader:
    return AutoLoader(
        spec, isolation="thread", ram_floor="64MiB", knobs=KNOBS, controller=False, **own
    )


@pytest.fixture(scope="module")
def sequence(mix: PipelineSpec) -> list[list[tuple[int, ...]]]:
    """The first batches, over epochs."""
    with opened(mix) as loader:
        epochs = itertools.chain.from_iterable(iter(lambda: list(map(places, loader)), None))
        return list(itertools.islice(epochs, BATCHES))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_consumer_does_it_trains_on_the_sequence(
    mix: PipelineSpec, sequence: list[list[tuple[int, ...]]], seed: int
):
    """Dropped iterators, batches fetched ahead, states saved and gone back to: nothing is lost."""
    drawn = random.Random(seed)
    with opened(mix) as loader:
        consumer = Consumer(counts=True, moves=True)
        stream = TrainStream(loader, mix.batch.size, None, lambda: consumer, lambda: None)
        trained = 0
        saved = (0, loader.state_dict())
        while trained < BATCHES - 12:
            batches = iter(stream)
            ahead: list[Any] = []
            for _ in range(drawn.randint(1, 12)):
                if len(ahead) <= drawn.randint(0, 1):
                    ahead.append(next(batches))
                else:
                    assert places(ahead.pop(0)) == sequence[trained]
                    del stream.loader.shown().batch  # type: ignore[union-attr]
                    trained += 1
            match drawn.randint(0, 4):
                case 0:
                    saved = (trained, json.loads(json.dumps(loader.state_dict())))
                case 1:
                    trained = saved[0]
                    stream.restore(saved[1])
                case 2:
                    stream.park()
