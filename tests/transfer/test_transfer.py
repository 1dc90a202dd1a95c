"""Batches reach the device unchanged, and a slot comes back, and is punched, only when it may."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fake_device import FakeDevice
from rlds_files import episode, write_dataset
from streams import dataset_of, spec_of

from autoloader import AutoLoader, PipelineSpec
from autoloader.errors import UsageError
from autoloader.process.transfer import CudaDevice, Device, Transfer, mapped

pytestmark = pytest.mark.usefixtures("one_child")

KNOBS = {"ring_slots": 6, "decode_threads": 1, "reader": "indexed"}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> PipelineSpec:
    folder = tmp_path_factory.mktemp("mix")
    shards = [[episode(number, 20) for number in range(4)]]
    return spec_of(dataset_of(write_dataset(folder, shards)), mixing={"epoch": "forever"})


@pytest.fixture(params=["thread", "process"])
def loader(mix: PipelineSpec, request: pytest.FixtureRequest) -> Iterator[AutoLoader]:
    with AutoLoader(
        mix, isolation=request.param, ram_floor="64MiB", knobs=KNOBS, controller=False
    ) as made:
        yield made


@pytest.fixture
def here(mix: PipelineSpec) -> Iterator[AutoLoader]:
    """A loader in this process."""
    with AutoLoader(
        mix, isolation="thread", ram_floor="64MiB", knobs=KNOBS, controller=False
    ) as made:
        yield made


@pytest.fixture(params=["fake", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
def device(request: pytest.FixtureRequest) -> FakeDevice | CudaDevice:
    return FakeDevice() if request.param == "fake" else CudaDevice(torch.device("cuda", 0))


def synchronize(device: FakeDevice | CudaDevice) -> None:
    if isinstance(device, FakeDevice):
        device.advance()
    else:
        torch.cuda.synchronize(device.device)


def kept(batch: dict[str, Any]) -> dict[str, Any]:
    return mapped(batch, lambda tensor: tensor.clone())


def same(moved: Any, host: Any) -> bool:
    if isinstance(host, dict):
        return moved.keys() == host.keys() and all(same(moved[k], host[k]) for k in host)
    if isinstance(host, torch.Tensor):
        return torch.equal(moved.cpu(), host) and moved.dtype == host.dtype
    return bool(moved == host)


# --- the suite that the fake and the real device pass --------------------------------------------


def test_batches_arrive_as_they_were_lent(loader: AutoLoader, device: FakeDevice | CudaDevice):
    move = loader.transfer(device)
    expected, moved = [], []
    batches = iter(loader)
    for _ in range(20):
        batch = next(batches)
        expected.append(kept(batch))
        moved.append(move(batch))
        del batch
        if len(moved) % 3 == 0:
            synchronize(device)
    synchronize(device)
    assert all(same(m, e) for m, e in zip(moved, expected, strict=True))


def test_a_slot_is_pinned_once_and_not_at_all_after_the_end(
    loader: AutoLoader, device: FakeDevice | CudaDevice
):
    move = loader.transfer(device)
    assert loader.transfer(device) is move
    batches = iter(loader)
    for _ in range(30):
        move(next(batches))
        synchronize(device)
    assert 0 < len(move.pinned) <= KNOBS["ring_slots"]
    if isinstance(device, FakeDevice):
        assert device.registrations == len(move.pinned)
    loader.close()
    assert move.pinned == frozenset()
    move.close()


# --- what only the fake can show ------------------------------------------------------------------


def test_a_slot_stays_lent_until_its_copies_are_done(here: AutoLoader):
    device = FakeDevice()
    move = here.transfer(device)
    batches = iter(here)
    moved = move(next(batches))
    lent = here._delivery.lender.lent
    for _ in range(12):  # the ring goes round; nothing is copied yet
        next(batches)
    assert lent <= here._delivery.lender.lent
    assert not torch.equal(moved["provenance"], torch.zeros_like(moved["provenance"]))
    device.advance()
    move.drop_copied()
    assert lent <= set(here._delivery.lender.collect())


def test_a_killed_child_costs_no_batch_and_its_ring_is_given_back(mix: PipelineSpec):
    import os
    import signal

    with AutoLoader(mix, ram_floor="64MiB", knobs=KNOBS, controller=False) as loader:
        device = FakeDevice()
        move = loader.transfer(device)
        seen, batches = [], iter(loader)
        for number in range(20):
            batch = next(batches)
            seen.append([tuple(row) for row in batch["provenance"].tolist()])
            move(batch)
            del batch
            device.advance()
            if number == 9:
                os.kill(loader.statistics().worker_pids[0], signal.SIGKILL)
        assert loader.statistics().restarts == 1
        assert len({place for batch in seen for place in batch}) == 80


def test_anybody_else_gets_pageable_memory(here: AutoLoader):
    device = FakeDevice()
    move = here.transfer(device)
    batches = iter(here)
    for _ in range(12):
        move(next(batches))
        device.advance()
    move.active = False
    kept_alive = [next(batches) for _ in range(3)]
    offsets = [
        batch["provenance"].data_ptr() - here._delivery.memory.address for batch in kept_alive
    ]
    slots = {offset // here._delivery.memory.slot_bytes for offset in offsets}
    assert not slots & move.pinned


def test_a_driver_that_refuses_leaves_plain_copies(here: AutoLoader):
    device = FakeDevice()
    device.refuses = True
    move = here.transfer(device)
    batch = next(iter(here))
    expected = kept(batch)
    moved = move(batch)
    device.advance()
    assert same(moved, expected)
    assert move.pinned == frozenset()


def test_a_device_that_is_not_there_is_refused(here: AutoLoader):
    with pytest.raises(UsageError, match=r"cuda:99: torch .* finds"):
        here.transfer("cuda:99")


def test_a_transfer_works_over_anything_with_slots():
    class Memory:
        def __init__(self) -> None:
            self.block = torch.zeros(4 * 8192, dtype=torch.uint8)
            self.address = self.block.data_ptr() + (-self.block.data_ptr()) % 4096
            self.slot_bytes, self.slots = 4096, 2
            self.flags: dict[int, bool] = {}

        def note_pinned(self, slot: int, pinned: bool) -> None:
            self.flags[slot] = pinned

    memory, device = Memory(), FakeDevice()
    start = memory.address - memory.block.data_ptr()
    move = Transfer(device, memory)
    moved = move([memory.block[start + 4096 : start + 4100], torch.ones(2), "text"])
    assert memory.flags == {1: True}
    move.close()
    assert memory.flags == {1: False}
    assert moved[1].tolist() == [1.0, 1.0]
    assert device.registered == {}


def test_two_threads_that_drop_a_copy_at_once_do_not_meet(here: AutoLoader):
    """The training loop moves the next batch just when the loader's thread has found one copied."""

    class Meets(Device):
        between: Callable[[], object] = staticmethod(lambda: None)

        def query(self) -> bool:
            between, self.between = self.between, lambda: None
            between()
            return True

    device, batches = Meets(), iter(here)
    transfer = here.transfer(device)
    transfer(next(batches))
    device.between = lambda: transfer(next(batches))
    transfer.drop_copied()
    transfer.drop_copied()
    assert next(batches)["action"].shape == transfer(next(batches))["action"].shape


def test_a_loader_that_is_closed_while_copies_are_begun_has_nothing_registered_afterwards(
    here: AutoLoader,
):
    """By another thread, or by the handler of a signal; a smaller ring unpins slots likewise."""

    class Between(FakeDevice):
        between: Callable[[], object] = staticmethod(lambda: None)

        def copy(self, tensor: torch.Tensor) -> torch.Tensor:
            copied = super().copy(tensor)
            between, self.between = self.between, lambda: None
            between()
            return copied

    device, batches = Between(), iter(here)
    transfer = here.transfer(device)
    device.between = lambda: transfer.drop_copied(0)
    moved = transfer(batch := next(batches))
    device.advance()
    assert same(moved, batch)
    device.between = here.close
    moved = transfer(batch := next(batches))
    assert same(moved, batch)
    assert (device.registered, transfer.pinned) == ({}, frozenset())
