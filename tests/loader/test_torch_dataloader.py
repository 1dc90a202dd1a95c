"""``as_torch_dataloader``: a loader for trainers that insist on torch's ``DataLoader``."""

from typing import Any

from rlds_files import once, png, write_steps
from streams import spec_of
from torch.utils.data import DataLoader

from autoloader import AutoLoader, Batch, PipelineSpec

HELD: dict[str, Any] = {"isolation": "thread", "ram_floor": "64MiB"}


spec = once(lambda folder: spec_of(write_steps(folder, [[8] * 4], encode=png)))


def places(batches: Any) -> list[Any]:
    return [batch["provenance"].tolist() for batch in batches]


def test_it_gives_the_loaders_batches_epoch_after_epoch(spec: PipelineSpec):
    with AutoLoader(spec, **HELD) as loader:
        plain = [places(loader), places(loader)]
    with AutoLoader(spec, **HELD) as loader:
        wrapped = loader.as_torch_dataloader()
        assert isinstance(wrapped, DataLoader)
        assert (len(wrapped), wrapped.num_workers) == (len(plain[0]), 0)
        assert [places(wrapped), places(wrapped)] == plain


def test_its_state_is_the_loaders_and_resumes_another_one(spec: PipelineSpec):
    with AutoLoader(spec, **HELD) as loader:
        wrapped = loader.as_torch_dataloader()
        batches = iter(wrapped)
        for _ in range(3):
            next(batches)
        state = wrapped.state_dict()
        rest = places(batches)
    with AutoLoader(spec, **HELD) as loader:
        wrapped = loader.as_torch_dataloader()
        wrapped.load_state_dict(state)
        assert places(wrapped) == rest != []


def test_a_function_of_the_users_makes_what_the_trainer_wants(spec: PipelineSpec):
    def inputs(batch: Batch) -> dict[str, Any]:
        return {"pixel_values": batch["images"]["primary"], "labels": batch["action"]}

    with AutoLoader(spec, **HELD) as loader:
        first = next(iter(loader.as_torch_dataloader(inputs)))
        assert set(first) == {"pixel_values", "labels"}
        assert first["pixel_values"].shape == (4, 1, 12, 16, 3)


def test_a_trainer_that_counts_to_the_length_gets_the_next_epoch_then(spec: PipelineSpec):
    with AutoLoader(spec, **HELD) as loader:
        plain = [places(loader), places(loader)]
    with AutoLoader(spec, **HELD) as loader:
        wrapped = loader.as_torch_dataloader()
        found = []
        for _ in range(2):
            batches = iter(wrapped)
            found.append(places(next(batches) for _ in range(len(wrapped))))
            del batches
        assert found == plain


def test_every_epoch_of_a_trainer_has_the_length_that_it_asked_for_once(spec: PipelineSpec):
    """With batches of three an epoch of the loader leaves some samples to the next one."""
    spec = spec.with_batch_size(3)
    with AutoLoader(spec, **HELD) as loader:
        plain = [batch for _ in range(6) for batch in places(loader)]
    with AutoLoader(spec, **HELD) as loader:
        wrapped = loader.as_torch_dataloader()
        length = len(wrapped)
        found = [places(wrapped) for _ in range(4)]
        batches = iter(wrapped)
        found[-1] += [next(batches)["provenance"].tolist() for _ in range(2)]
        state = wrapped.state_dict()
    with AutoLoader(spec, **HELD) as loader:
        wrapped = loader.as_torch_dataloader()
        wrapped.load_state_dict(state)
        assert len(wrapped) == length
        found += [places(wrapped)]
    assert len(set(map(len, [plain[:length], *found[:3]]))) == 1
    assert (len(found[3]), len(found[4])) == (length + 2, length - 2)
    assert [batch for epoch in found for batch in epoch] == plain[: 5 * length]
