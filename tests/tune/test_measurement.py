"""A measurement counts what a trainer would feel. The loader is a fake on a hand-driven clock."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from doubles import ManualClock

from autoloader.errors import PipelineError, SpecError
from autoloader.spec.knobs import Knobs
from autoloader.tune.measurement import (
    MOST_WINDOWS,
    REPORT_BATCHES,
    WINDOW_BATCHES,
    measure,
)
from autoloader.tune.trial import TrialProgress


class FakeLoader:
    """Batches of 4 samples, three of dataset 0 and one of dataset 1, each ``wait_s`` late."""

    dataset_names = ("a", "b")

    def __init__(
        self,
        clock: ManualClock,
        *,
        open_s: float = 2.0,
        wait_s: float = 0.5,
        epoch: int = 1000,
        breaks_at: int | None = None,
    ) -> None:
        clock.advance(open_s)
        self.knobs = Knobs.build({"decode_threads": 3})
        self.closed = False
        self.asked = 0
        self._clock = clock
        self._wait_s = wait_s
        self._epoch = epoch
        self._breaks_at = breaks_at

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _ in range(self._epoch):
            self.asked += 1
            if self.asked == self._breaks_at:
                raise PipelineError("a shard is torn", remedy="mend it", dataset="a")
            self._clock.advance(self._wait_s)
            batch: dict[str, Any] = {"action": np.zeros((4, 1, 7), np.float32)}
            batch["dataset_index"] = np.array([0, 0, 0, 1])
            yield batch

    def statistics(self) -> Any:
        class Snapshot:
            def as_dict(self) -> dict[str, Any]:
                return {
                    "decodes_per_sample": 1.25,
                    "datasets": {
                        "a": {"weight": 3.0, "share": 0.7},
                        "b": {"weight": 1.0, "share": 0.3},
                    },
                }

        return Snapshot()

    def close(self) -> None:
        self.closed = True


def test_a_warm_up_goes_on_until_two_windows_pass_equally_fast():
    def asked(waits: list[float]) -> int:
        clock, made = ManualClock(), []

        class Uneven(FakeLoader):
            def __iter__(self) -> Iterator[dict[str, Any]]:
                for batch in super().__iter__():
                    clock.advance(waits[min(self.asked - 1, len(waits) - 1)])
                    yield batch

        def open_loader() -> FakeLoader:
            made.append(Uneven(clock, wait_s=0.0))
            return made[0]

        measure(
            open_loader, warmup=4, batches=10, settle=True, now_s=clock.now_s, sleep=clock.sleep
        )
        return int(made[0].asked)

    assert asked([1.0]) == 4 + 2 * WINDOW_BATCHES + 10
    assert asked([0.0] * (4 + 8) + [1.0]) == 4 + 3 * WINDOW_BATCHES + 10, "a full ring comes first"
    never = [2.0**n for n in range(40)]
    assert asked(never) == 4 + MOST_WINDOWS * WINDOW_BATCHES + 10, "patience ends"


def measured(
    clock: ManualClock,
    loader_options: dict[str, Any] | None = None,
    *,
    warmup: int = 8,
    batches: int = 20,
    step_time_s: float = 0.0,
    told: list[TrialProgress] | None = None,
) -> tuple[dict[str, Any], FakeLoader]:
    made: list[FakeLoader] = []

    def open_loader() -> FakeLoader:
        made.append(FakeLoader(clock, **(loader_options or {})))
        return made[0]

    found = measure(
        open_loader,
        warmup=warmup,
        batches=batches,
        step_time_s=step_time_s,
        progress=None if told is None else told.append,
        now_s=clock.now_s,
        sleep=clock.sleep,
    )
    return found, made[0]


def test_waiting_and_stepping_are_told_apart():
    found, _ = measured(ManualClock(), {"wait_s": 0.5}, step_time_s=1.5)
    assert found["wait_ratio"] == pytest.approx(0.25)
    assert found["samples_per_s"] == pytest.approx(2.0)
    assert found["batch_latency_s"] == pytest.approx({"p50": 0.5, "p90": 0.5, "p99": 0.5})


def test_decodes_of_a_sample_are_told():
    found, _ = measured(ManualClock())
    assert found["decodes_per_sample"] == 1.25


def test_an_epoch_without_a_batch_is_an_error_and_no_hang():
    with pytest.raises(SpecError, match="fewer samples than one batch"):
        measured(ManualClock(), {"epoch": 0})


def test_progress_tells_the_running_rate_up_to_the_last_batch():
    told: list[TrialProgress] = []
    measured(ManualClock(), batches=2 * REPORT_BATCHES + 3, told=told)
    assert [p.batches for p in told] == [REPORT_BATCHES, 2 * REPORT_BATCHES, 2 * REPORT_BATCHES + 3]
    assert [p.samples_per_s for p in told] == pytest.approx([8.0] * 3)


def test_a_loader_that_fails_is_closed_and_its_error_is_seen():
    clock = ManualClock()
    loader = FakeLoader(clock, breaks_at=5)
    with pytest.raises(PipelineError, match="torn"):
        measure(lambda: loader, warmup=1, batches=20, now_s=clock.now_s, sleep=clock.sleep)
    assert loader.closed


def test_ctrl_c_leaves_the_figures_of_the_batches_so_far():
    clock = ManualClock()
    loader = FakeLoader(clock)

    def told(progress: TrialProgress) -> None:
        raise KeyboardInterrupt

    found = measure(
        lambda: loader, warmup=1, batches=50, progress=told, now_s=clock.now_s, sleep=clock.sleep
    )
    assert loader.closed
    assert (found["interrupted"], found["samples"]) == (True, 4 * REPORT_BATCHES)
    assert found["samples_per_s"] == pytest.approx(8.0)
    with pytest.raises(KeyboardInterrupt):  # a study's trial ends whole
        measure(
            lambda: FakeLoader(clock), warmup=1, batches=50, progress=told, settle=True,
            now_s=clock.now_s, sleep=clock.sleep,
        )  # fmt: skip


def test_the_document_has_the_keys_of_the_contract_and_is_json():
    found, _ = measured(ManualClock())
    document = json.loads(json.dumps(found, allow_nan=False))
    assert set(document) == {
        "samples_per_s", "batches_per_s", "batch_latency_s", "interrupted", "time_to_first_batch_s",
        "peak_rss_bytes", "min_headroom_bytes", "wait_ratio", "mixture", "knobs", "samples",
        "datasets", "decodes_per_sample", "batch_call_s", "cache", "trace",
    }  # fmt: skip
    assert set(document["batch_latency_s"]) == {"p50", "p90", "p99"}
    assert document["knobs"]["decode_threads"] == 3
    assert document["peak_rss_bytes"] >= 0
    assert document["min_headroom_bytes"] > 0
