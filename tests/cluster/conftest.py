import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from leftovers import loader_children

sys.path.insert(0, str(Path(__file__).parent))

from ray_cluster import RayCluster, ray_cluster

from autoloader import PipelineSpec


@pytest.fixture(scope="session")
def spec(small_mix: Path) -> PipelineSpec:
    """Small frames and batches of a mixture of four small datasets."""
    plain = PipelineSpec.from_yaml(small_mix).model_dump(mode="json")
    plain["cameras"]["primary"]["size"] = [32, 32]
    plain["batch"]["size"] = 16
    return PipelineSpec.from_mapping(plain)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster of two nodes with a processor each, beside a head without any."""
    if find_spec("ray") is None:
        pytest.skip("needs Ray: pip install 'autoloader-rlds[ray]'")
    with ray_cluster(nodes=2) as running:
        yield running


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    kept = loader_children()
    yield
    left = [pid for pid in loader_children() if pid not in kept]
    assert not left, f"children left behind: {left}"
