"""Wrong types, and a loader that is closed: one error each, that says what to do."""

from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

import pytest
from rlds_files import once, png, write_steps
from streams import opened, spec_of

from autoloader import AutoLoader, Batch, PipelineSpec
from autoloader.errors import AutoloaderError, KnobError, SpecError, UsageError
from autoloader.process.child import Child

WRONG: list[Any] = [None, {}, [], True, 1.5, -1, object(), b"x"]
TAKEN: dict[str, Callable[[Any], bool]] = {
    "spec": lambda value: value == {},  # what a dict says is the spec's to refuse
    "profile": lambda value: value is None,
    "ram_floor": lambda value: value is None,
    "knobs": lambda value: value is None or value == {},
    "controller": lambda value: value is True,
    "reproducible": lambda value: value is True,
    "rank": lambda value: value is None,
    "world_size": lambda value: value is None,
}
ARGUMENTS = [
    "spec", "profile", "ram_floor", "split", "knobs", "isolation", "controller", "rank",
    "world_size", "output", "reproducible",
]  # fmt: skip


spec = once(lambda folder: spec_of(write_steps(folder, [[8] * 4], encode=png)))


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: repr(wrong).partition(" at 0x")[0])
def test_an_argument_of_a_wrong_type_is_refused_by_name_before_anything_starts(
    name: str, wrong: Any, spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
):
    if TAKEN.get(name, lambda _: False)(wrong):
        return
    monkeypatch.setattr(Child, "shared", lambda *_, **__: pytest.fail("a child was started"))
    arguments: dict[str, Any] = {"spec": spec, name: wrong}
    if name in ("rank", "world_size"):
        arguments = {"rank": 0, "world_size": 1, **arguments}
    with pytest.raises(AutoloaderError) as caught:
        AutoLoader(**arguments)
    assert caught.value.exit_code == 2
    assert name in caught.value.what
    assert caught.value.remedy


def test_an_error_of_a_start_shows_the_callers_line_and_one_of_ours(spec: PipelineSpec):
    with pytest.raises(KnobError) as caught:
        AutoLoader(spec, knobs={"ring_slot": 3}, rank=0, world_size=1)
    assert len(caught.traceback) == 2


@pytest.fixture(scope="module", params=["process", "thread"])
def closed(request: pytest.FixtureRequest, spec: PipelineSpec) -> AutoLoader:
    loader = AutoLoader(spec, isolation=request.param, ram_floor="64MiB", output="numpy")
    next(iter(loader))
    loader.statistics()
    loader.close()
    return loader


def test_a_closed_loader_still_tells_what_it_did(closed: AutoLoader):
    told = closed.statistics()
    assert (told.batches, told.samples, told.worker_pids) == (1, 4, ())
    assert set(told.datasets) == {"robot"}
    assert told.loader_bytes == 0
    assert closed.state_dict()["position"] == 4
    assert len(closed) == 8
    assert closed.knobs.ring_slots >= 2
    closed.close()


def test_wrong_calls_of_an_open_loader_change_nothing(spec: PipelineSpec):
    with opened(spec) as loader:
        before, state = loader.knobs, loader.state_dict()
        for wrong in (None, [], True):
            with pytest.raises(UsageError, match="retune"):
                loader.retune(wrong)  # type: ignore[arg-type]
        for wrong in (None, {}, [], True):
            with pytest.raises(KnobError, match="decode_threads"):
                loader.retune(decode_threads=wrong)
            with pytest.raises(UsageError):
                loader.transfer(wrong)
        for wrong in (None, [], True):
            with pytest.raises(UsageError, match="a state is a mapping"):
                loader.load_state_dict(wrong)  # type: ignore[arg-type]
        assert (loader.knobs, loader.state_dict()) == (before, state)
        next(iter(loader))


def test_a_dict_is_a_spec_and_a_batch_has_the_keys_of_its_type(spec: PipelineSpec):
    plain = spec.model_dump(mode="json", exclude_defaults=True)
    held: dict[str, Any] = {"isolation": "thread", "ram_floor": "64MiB", "output": "numpy"}
    with AutoLoader(plain, **held) as loader:
        assert isinstance(loader, Iterable)
        batch = next(iter(loader))
    assert set(get_type_hints(Batch)) - set(batch) == {
        "features", "feature_mask", "has_action", "sample_weight"
    }  # fmt: skip
    assert set(batch) < set(get_type_hints(Batch))
    assert type(batch) is dict
    with pytest.raises(SpecError, match="camerass"):
        AutoLoader({**plain, "camerass": {}}, **held)
