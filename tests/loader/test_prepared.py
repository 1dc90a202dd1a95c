"""The next batch is made while the trainer does its step; what comes in between changes no row."""

import gc
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from coded_rows import CodedRows, coded_spec, write_coded

from autoloader import AutoLoader
from autoloader.errors import PipelineError, UsageError
from autoloader.host import threads as host_threads
from autoloader.host.threads import LoaderThread
from autoloader.process import delivery

pytestmark = pytest.mark.usefixtures("one_child")

STEPS = 24
KNOBS = {"ring_slots": 6}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> CodedRows:
    return CodedRows(write_coded(tmp_path_factory.mktemp("coded")))


@pytest.fixture(autouse=True)
def _every_step_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_SHORT_STEP_S", -math.inf)  # the first batch has no step


def opened(rows: CodedRows, **own: Any) -> AutoLoader:
    spec = coded_spec(rows.written, mixing={"epoch": "forever"}, batch={"size": 16})
    return AutoLoader(
        spec,
        **{"output": "numpy", "ram_floor": "64MiB", "knobs": KNOBS, "controller": False, **own},
    )


def prepared(loader: AutoLoader) -> bool:
    """Whether the next batch is made in the end, if there is a slot that may be lent."""
    own, thread = loader._delivery, loader._background
    if not own.lender.may_lend(loader.knobs.ring_slots):
        return True
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        thread.call(lambda: None)
        if made(loader):
            return True
        time.sleep(0.01)
        thread.post(lambda: own.make_ahead(loader._pipeline, -1))
    return False


def made(loader: AutoLoader) -> bool:
    return loader._delivery.in_hand(-1) is not None


def expected(rows: CodedRows) -> list[list[list[int]]]:
    with opened(rows, isolation="thread") as loader:
        return [
            batch["provenance"].tolist() for _, batch in zip(range(STEPS), loader, strict=False)
        ]


def test_the_next_batch_is_made_during_the_step_and_is_the_one_that_would_have_come(
    rows: CodedRows,
):
    wanted = expected(rows)
    with opened(rows) as loader:
        iterator = iter(loader)
        for number in range(STEPS):
            batch = next(iterator)
            assert batch["provenance"].tolist() == wanted[number]
            assert not rows.wrong(batch).any()
            del batch
            assert prepared(loader)
            assert loader.batches == number + 1
            assert loader.state_dict()["position"] == 16 * (number + 1)
        assert loader.statistics().ring.copies == 0


def kill(loader: AutoLoader) -> None:
    os.kill(loader.statistics().worker_pids[0], signal.SIGKILL)


def fork(loader: AutoLoader) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            next(iter(loader))
        except UsageError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_weights_that_are_set_hold_from_the_next_batch_also_where_that_is_made(rows: CodedRows):
    with opened(rows) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        assert prepared(loader)
        last = loader.dataset_names[-1]
        loader.set_weights({name: float(name == last) for name in loader.dataset_names})
        for _ in range(4):
            assert set(next(iterator)["dataset_index"].tolist()) == {len(loader.dataset_names) - 1}


def threads() -> Iterator[str]:
    return (one.name for one in threading.enumerate() if one.name == "autoloader-hand")


def test_where_no_thread_can_be_started_batches_come_as_without_one(
    rows: CodedRows, monkeypatch: pytest.MonkeyPatch
):
    wanted = expected(rows)

    class Refused(LoaderThread):
        def start(self) -> None:
            raise PipelineError("no thread can be started", remedy="none")

    monkeypatch.setattr(host_threads, "LoaderThread", Refused)
    with opened(rows) as loader:
        assert list(threads()) == []
        for batch, want in zip(loader, wanted, strict=False):
            assert batch["provenance"].tolist() == want


def test_what_cannot_be_made_is_raised_by_the_next_call_and_nothing_is_lost(
    rows: CodedRows, monkeypatch: pytest.MonkeyPatch
):
    wanted = expected(rows)
    with opened(rows) as loader:
        iterator = iter(loader)
        next(iterator)
        assert prepared(loader)
        next(iterator)

        def broken(*_: object, **__: object) -> None:
            raise PipelineError("broken", remedy="none")

        with monkeypatch.context() as patched:
            patched.setattr(delivery, "assemble", broken)
            loader._call(lambda: (loader._delivery.drop(), loader._follow(loader._order)))
            for _ in range(2):
                with pytest.raises(PipelineError, match="broken"):
                    next(iterator)
                gc.collect()
                loader._call(loader._take_back)
                assert loader._delivery.lender.lent  # the child fills the slot of the batch no more
        assert next(iterator)["provenance"].tolist() == wanted[2]
