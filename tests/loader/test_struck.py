"""Whatever is raised in the training loop's thread: no row twice, none missing, ``close`` ends."""

import contextlib
import gc
import logging
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from leftovers import loader_children
from strikes import LOOPS, LineRun, Sequences, SignalRun, mixture, opened, places
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from autoloader import AutoLoader, PipelineSpec, loader
from autoloader.errors import PipelineError, UsageError
from autoloader.process import delivery


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> PipelineSpec:
    return mixture(tmp_path_factory.mktemp("struck"))


@pytest.fixture(scope="module")
def sequences(spec: PipelineSpec) -> Iterator[Sequences]:
    found = Sequences(spec)
    yield found
    found.close()


@pytest.fixture
def _beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_SHORT_STEP_S", 0.0)  # the next batch is made beside the loop


@pytest.mark.usefixtures("_beside")
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_an_exception_at_any_line_loses_no_row_and_repeats_none(
    spec: PipelineSpec, sequences: Sequences, isolation: str, loop: str
):
    run = LineRun(spec, sequences, isolation, LOOPS[loop])
    tally = run.run(1, every=3)
    assert tally.strikes > 60
    assert tally.clean, tally


def test_close_that_is_struck_at_any_line_ends_when_it_is_called_again(
    spec: PipelineSpec, sequences: Sequences
):
    run = LineRun(spec, sequences, "process", iter)
    run.loader.close()  # the child would go on for it
    tally = run.closes(every=8)
    assert tally.clean, tally
    assert loader_children() == []


@pytest.mark.usefixtures("_beside")
@pytest.mark.parametrize("by_next", [False, True])
def test_signals_at_any_moment_lose_no_row_and_repeat_none(
    spec: PipelineSpec, sequences: Sequences, by_next: bool
):
    tally = SignalRun(spec, sequences, iter, 1, by_next=by_next).run(25)
    assert tally.clean, tally


def test_ctrl_c_while_a_batch_is_awaited_leaves_it_to_the_following_next(spec: PipelineSpec):
    with opened(spec, "process") as plain:
        wanted = [places(batch) for batch in plain]

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with opened(spec, "process") as found:
            batches, got = iter(found), []
            while len(got) < 6:
                got.append(places(next(batches)))
                found.suspend()  # the next one has to be awaited
                signal.setitimer(signal.ITIMER_REAL, 0.005)
                with pytest.raises(TimeoutError):
                    got.append(places(next(batches)))
                assert found.state_dict()["position"] == sum(map(len, got))
            got += [places(batch) for batch in batches]
            assert got == wanted
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_handler_may_close_the_loader_whose_batch_is_awaited(spec: PipelineSpec):
    found = opened(spec, "process")
    next(iter(found))
    found.suspend()
    pid = found._pipeline.child.pid
    os.kill(pid, signal.SIGSTOP)
    took: list[float] = []

    def close(*_: object) -> None:
        began_s = time.monotonic()
        found.close()
        took.append(time.monotonic() - began_s)

    before = signal.signal(signal.SIGALRM, close)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(PipelineError, match="closed while training waited"):
            next(iter(found))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert took[0] < 10
    assert not psutil.pid_exists(pid)


def test_close_is_bounded_and_says_what_it_leaves_behind(
    spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(loader, "_CLOSE_S", 0.3)
    found, hung = opened(spec, "process"), threading.Event()
    pid = found._pipeline.child.pid
    found._background.post(hung.wait)
    with caplog.at_level(logging.WARNING):
        found.close()
    assert f"process {pid}" in caplog.text
    assert "autoloader-hand" in caplog.text
    hung.set()
    monkeypatch.undo()
    found.close()
    assert not psutil.pid_exists(pid)


def test_a_batch_that_a_users_function_refuses_comes_again(spec: PipelineSpec):
    with opened(spec, "thread") as plain:
        wanted = [places(batch) for batch in plain]
    refused: list[Any] = []

    def collate(batch: Any) -> Any:
        if len(refused) < 3:
            refused.append(places(batch))
            raise ValueError("refused")
        return places(batch)

    with opened(spec, "thread") as found:
        batches = iter(found.as_torch_dataloader(collate))
        for _ in range(3):
            with pytest.raises(ValueError, match="refused"):
                next(batches)
        assert list(batches) == wanted
        assert refused == [wanted[0]] * 3


# --- torch's workers, and objects that a notebook keeps -----------------------------------------


class Opening(IterableDataset[Any]):
    """Opens a loader in each worker."""

    def __init__(self, spec: PipelineSpec, *, ranks: bool) -> None:
        self._spec, self._ranks = spec, ranks

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        assert worker is not None
        own = {"rank": worker.id, "world_size": worker.num_workers} if self._ranks else {}
        with opened(self._spec, "thread", **own) as found:
            for batch in found:
                yield from places(batch)


def test_a_worker_of_a_torch_dataloader_must_say_which_samples_are_its_own(spec: PipelineSpec):
    refused = DataLoader(Opening(spec, ranks=False), batch_size=None, num_workers=2)
    with pytest.raises(Exception, match=r"UsageError[\s\S]*rank=…, world_size=…"):
        list(refused)
    shared = DataLoader(Opening(spec, ranks=True), batch_size=None, num_workers=2)
    rows = [tuple(row) for row in shared]
    assert rows
    assert len(set(rows)) == len(rows)


def test_a_loader_that_is_given_to_a_torch_dataloader_names_what_to_do(spec: PipelineSpec):
    with opened(spec, "process") as found:
        with pytest.raises(UsageError, match="as_torch_dataloader"):
            found[0]
        with pytest.raises(Exception, match="as_torch_dataloader"):
            next(iter(DataLoader(found, num_workers=2)))  # type: ignore[arg-type]


def connections() -> Counter[str]:
    """Open files of this process, but for the ring's mapping, whose pages are given back."""
    found: Counter[str] = Counter()
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            name = re.sub(r":\[\d+\]$", "", str(one.readlink()))  # sockets and pipes by their kind
            found[name] += "memfd:autoloader" not in name
    return found


def test_what_a_notebook_keeps_of_a_closed_loader_holds_no_child(spec: PipelineSpec):
    with opened(spec, "process") as first:  # what is imported and opened once for the process
        next(iter(first))
    del first
    gc.collect()
    before, threads, out = connections(), threading.active_count(), []
    for _ in range(2):
        found = opened(spec, "process")
        batches = iter(found)
        next(batches)
        out += [found, batches, found.as_torch_dataloader(), found.statistics()]
        found.close()
        assert loader_children() == []
        assert threading.active_count() == threads
    assert connections() <= before
    assert isinstance(out[0], AutoLoader)
    assert out[0].statistics().batches == 1


CELL = """
loader = opened(spec, "process")
for batch in loader:
    if loader.batches == 2:
        break
Out[len(Out)] = loader
"""


def test_a_cell_that_runs_again_leaves_one_running_loader_though_a_notebook_keeps_all(
    spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)  # as IPython sets it
    out: dict[int, Any] = {}
    names = {"opened": opened, "spec": spec, "Out": out}
    held = []
    for _ in range(10):
        exec(CELL, names)
        (child,) = map(int, loader_children())
        held.append(out[0].statistics().ring.allocated_bytes)
    assert psutil.Process(child).is_running()
    assert held[0] > 0
    assert set(held[2:]) == {0}  # the second finds the last batch of the first in use
    states = {repr(one).split(",")[0] for one in list(out.values())[:-1]}
    assert states == {"AutoLoader: suspended"}
    batches = [places(next(iter(out[number]))) for number in (0, 9)]  # both go on where they were
    assert batches[0] == batches[1]
    names.clear()
    for one in out.values():
        one.close()
    assert loader_children() == []


def test_a_program_may_have_two_loaders_of_the_same_samples(spec: PipelineSpec):
    with opened(spec, "process") as one, opened(spec, "process") as other:
        next(iter(one))
        with opened(spec, "process"):
            assert "suspended" not in repr(one) + repr(other)


def test_a_second_thread_of_the_program_may_ask_for_a_state(spec: PipelineSpec):
    with opened(spec, "process") as found:
        states: list[int] = []
        done = threading.Event()

        def ask() -> None:
            while not done.is_set():
                states.append(found.state_dict()["position"])

        thread = threading.Thread(target=ask)
        thread.start()
        rows = sum(len(places(batch)) for batch in found)
        done.set()
        thread.join()
        assert states == sorted(states)
        assert found.state_dict()["position"] == rows
