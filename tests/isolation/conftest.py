import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from leftovers import loader_children

sys.path.insert(0, str(Path(__file__).parent))

from autoloader import PipelineSpec
from autoloader.host.supervision import LIMITS_S, Kind


@pytest.fixture(scope="session")
def small_spec(small_mix: Path) -> PipelineSpec:
    """A spec of small frames, so that batches are cheap, and of short passes that end together."""
    spec = PipelineSpec.from_yaml(small_mix)
    plain = spec.model_dump(mode="json")
    plain["datasets"].pop()  # more samples than the others have together
    plain["cameras"]["primary"]["size"] = [32, 32]
    plain["batch"]["size"] = 16
    plain["weights"] = "natural_scaled"
    for dataset in plain["datasets"]:
        dataset["weight"] = 1.0
    return PipelineSpec.from_mapping(plain)


@pytest.fixture(params=["process", "thread"])
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stopped_is_found_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that is stopped is taken for hung after a fifth of the time."""
    monkeypatch.setitem(LIMITS_S, Kind.STOPPED, LIMITS_S[Kind.STOPPED] / 5)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Every test ends without a child of the loader but one that its module keeps."""
    kept = loader_children()
    yield
    left = [pid for pid in loader_children() if pid not in kept]
    assert not left, f"children left behind: {left}"
