"""Any sequence of reading, retuning, killing, saving, loading and validating is exactly once."""

from __future__ import annotations

import copy
import json
import os
import signal
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from passes import Passes

from autoloader import AutoLoader, PipelineSpec


class LoaderMachine(RuleBasedStateMachine):
    """Drives one loader; ``passes`` is the model of what was handed out."""

    spec: PipelineSpec
    arguments: ClassVar[dict[str, Any]] = {"output": "numpy", "ram_floor": "1GB"}

    def __init__(self) -> None:
        super().__init__()
        self.loader = AutoLoader(self.spec, **self.arguments)
        self.passes = Passes(self.loader)
        self.saved: tuple[str, Passes] | None = None
        self.kills = 0

    @rule(batches=st.integers(1, 12))
    def read(self, batches: int) -> None:
        while batches:
            for batch in self.loader:
                self.passes.note(batch)
                batches -= 1
                if not batches:
                    break

    @rule(
        cycle=st.integers(1, 3),
        parse=st.integers(1, 2),
        prefetch=st.integers(0, 2),
        queue=st.sampled_from([1, 16, 64]),
        shuffle=st.sampled_from([0, 24]),
        threads=st.integers(1, 3),
        slots=st.integers(4, 10),
    )
    def retune(
        self,
        cycle: int,
        parse: int,
        prefetch: int,
        queue: int,
        shuffle: int,
        threads: int,
        slots: int,
    ) -> None:
        self.loader.retune(
            cycle_length=cycle,
            num_parallel_calls=cycle,
            parse_parallel_calls=parse,
            stream_prefetch=prefetch,
            queue_samples=queue,
            shuffle_samples=shuffle,
            decode_threads=threads,
            ring_slots=slots,
        )

    @precondition(lambda self: self.kills < 2)
    @rule()
    def kill(self) -> None:
        self.kills += 1
        os.kill(self.loader.statistics().worker_pids[0], signal.SIGKILL)

    @rule()
    def save(self) -> None:
        self.saved = (json.dumps(self.loader.state_dict()), copy.deepcopy(self.passes))

    @precondition(lambda self: self.saved is not None)
    @rule()
    def load(self) -> None:
        assert self.saved is not None
        state, passes = self.saved
        self.loader.load_state_dict(json.loads(state))
        self.passes = copy.deepcopy(passes)

    @rule(batches=st.integers(1, 3))
    def validate(self, batches: int) -> None:
        with AutoLoader(self.spec, **self.arguments) as other:
            seen = Passes(other)
            for _, batch in zip(range(batches), other, strict=False):
                seen.note(batch)
            assert seen.faults() == []

    @invariant()
    def every_sample_once_a_pass(self) -> None:
        assert self.passes.faults() == []

    def teardown(self) -> None:
        self.read(4)
        self.loader.close()
        assert self.passes.faults() == []


@pytest.mark.slow
def test_any_sequence_is_exactly_once(small_spec: PipelineSpec) -> None:
    LoaderMachine.spec = small_spec
    run_state_machine_as_test(
        LoaderMachine,
        settings=settings(
            max_examples=5,
            stateful_step_count=8,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
