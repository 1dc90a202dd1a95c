"""Every pass holds every sample once, whatever happens to the loader in between."""

import contextlib
import os
import random
import signal
from typing import Any

import pytest
from passes import Passes, read

from autoloader import AutoLoader, PipelineSpec

KNOBS: dict[str, Any] = {"cycle_length": 2, "num_parallel_calls": 2, "queue_samples": 16}


@pytest.mark.parametrize(("reader", "kills"), [("indexed", 2), ("stream", 1)])
def test_a_killed_child_costs_no_sample_and_no_exception(
    small_spec: PipelineSpec, reader: str, kills: int
):
    drawn = random.Random(5)
    knobs = {**KNOBS, "reader": reader}
    with AutoLoader(small_spec, output="numpy", ram_floor="1GB", knobs=knobs) as loader:
        passes = Passes(loader)
        for _ in range(kills):
            read(loader, passes, drawn.randint(1, 12))
            os.kill(loader.statistics().worker_pids[0], signal.SIGKILL)
        while not passes.complete(1):
            read(loader, passes, 10)
        statistics = loader.statistics()
        slots, slot_bytes = loader.knobs.ring_slots, loader.plan.mixture.layout.slot_bytes
    assert passes.faults() == []
    assert statistics.restarts == kills
    assert statistics.ring.allocated_bytes <= slots * slot_bytes


def test_with_locality_kills_retunes_and_resumes_on_two_and_three_ranks_lose_nothing(
    small_spec: PipelineSpec,
):
    lanes = 6
    near = {"block": "64KiB", "window": 4, "lanes": lanes}
    spec = PipelineSpec.from_mapping(
        small_spec.model_dump(mode="json") | {"mixing": {"locality": near}}
    )
    arguments: dict[str, Any] = {"output": "numpy", "ram_floor": "1GB"}
    with AutoLoader(spec, **arguments) as loader:
        passes = Passes(loader)
        read(loader, passes, 6)
        os.kill(loader.statistics().worker_pids[0], signal.SIGKILL)
        read(loader, passes, 4)
        loader.retune(io_threads=1, decode_threads=2, read_ahead=1)
        read(loader, passes, 4)
        state = loader.state_dict()
        read(loader, Passes(loader), 2)  # what the state does not know of comes again
    other = spec.mixing.model_copy(update={"locality": None})
    with (
        AutoLoader(
            spec.model_copy(update={"mixing": other}), isolation="thread", **arguments
        ) as loader,
        pytest.raises(ValueError, match=r"mixing\.locality"),
    ):
        loader.load_state_dict(state)
    for world_size in (2, 3):
        passes.resume(lanes)  # one is in a later pass than another, also of the same rank
        with contextlib.ExitStack() as stack:
            ranks = [
                stack.enter_context(
                    AutoLoader(
                        spec, rank=rank, world_size=world_size, isolation="thread", **arguments
                    )
                )
                for rank in range(world_size)
            ]
            for one in ranks:
                one.load_state_dict(state)
            batches = [iter(one) for one in ranks]
            while not passes.complete(world_size):
                for lane in range(lanes):  # or another number, the same each time
                    rank = lane % world_size
                    while (batch := next(batches[rank], None)) is None:
                        batches[rank] = iter(ranks[rank])
                    passes.note(batch, lane)
            state = ranks[-1].state_dict()
    assert passes.faults() == []
