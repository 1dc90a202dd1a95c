"""A small mixture on disk, a tiny model that notes what it sees, and a check for what is left."""

import threading
from collections.abc import Iterator

import pytest
from leftovers import loader_children
from rlds_files import episode, write_steps
from streams import dataset_of, spec_of

from autoloader import PipelineSpec


@pytest.fixture(scope="session")
def mix(tmp_path_factory: pytest.TempPathFactory) -> PipelineSpec:
    """Two datasets, 26 and 14 training samples in batches of four, 6 and 4 for validation."""
    folder = tmp_path_factory.mktemp("mix")
    datasets = []
    for name, lengths in (("a", [[9, 5], [12]]), ("b", [[7], [7]])):
        held = [[episode(20 + sum(map(len, lengths)), 4 if name == "b" else 6)]]
        written = write_steps(folder, lengths, name=name, splits={"val": held})
        datasets.append(dataset_of(written, split={"train": "train", "val": "val"}))
    return spec_of(*datasets, validation={"samples": 6})


@pytest.fixture(params=["process", "thread"])
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Every test ends without a child or a thread of the loader."""
    before = set(threading.enumerate())
    yield
    assert loader_children() == []
    left = [t for t in threading.enumerate() if t.name.startswith("autoloader-")]
    for thread in set(left) - before:
        thread.join(5)
        assert not thread.is_alive(), thread.name
