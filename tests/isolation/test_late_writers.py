"""Threads that do not end when they are told to: what they write to is used when they have."""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rlds_files import Written, episode, write_dataset, written_steps
from slow_pictures import SCANS_MOST, slow_jpeg
from streams import endless, spec_of, until

from autoloader import AutoLoader
from autoloader.decode.frames import FrameDecoder
from autoloader.host.supervision import read_vitals
from autoloader.process import control
from autoloader.process.child import ThreadChild

LONG_S = 60.0
THREAD: dict[str, Any] = {
    "isolation": "thread",
    "output": "numpy",
    "ram_floor": "1GB",
    "controller": False,
    "profile": "local_dev",
}
KNOBS: dict[str, Any] = {"decode_threads": 3, "ring_slots": 4, "read_ahead": 1}


class Gate:
    """Holds decoding threads, once it is shut, until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Semaphore(0)

    def pass_through(self) -> None:
        if not self.open.is_set():
            self.waiting.release()
            self.open.wait(LONG_S)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate, decode = Gate(), FrameDecoder.decode_into

    def held(decoder: FrameDecoder, encoded: Any, out: Any) -> None:
        gate.pass_through()
        decode(decoder, encoded, out)

    monkeypatch.setattr(FrameDecoder, "decode_into", held)
    monkeypatch.setattr(control, "STUCK_S", 0.2)
    yield gate
    gate.open.set()


written = written_steps([[12] * 5] * 2, name="a")


def pictures(batch: dict[str, Any]) -> Any:
    return batch["images"]["primary"].copy()


def take(batches: Iterator[dict[str, Any]], count: int) -> list[Any]:
    return [pictures(batch) for batch in itertools.islice(batches, count)]


@pytest.mark.parametrize(
    ("reader", "cache_bytes"), [("indexed", 0), ("indexed", "16MiB"), ("stream", 0)]
)
def test_a_pipeline_begins_anew_when_late_threads_of_the_one_before_have_ended(
    written: Written, gate: Gate, reader: str, cache_bytes: Any
):
    spec = spec_of(written)
    knobs = {**KNOBS, "reader": reader, "cache_bytes": cache_bytes}
    with AutoLoader(spec, knobs=knobs, **THREAD) as fresh:
        wanted = take(endless(fresh), 80)
    with AutoLoader(spec, knobs=knobs, **THREAD) as loader:
        state = loader.state_dict()
        batches = endless(loader)
        take(batches, 3)
        until(lambda: loader.statistics().ring.filled >= 3)
        gate.open.clear()
        take(batches, 2)
        assert gate.waiting.acquire(timeout=LONG_S)
        old, gate.open = gate.open, threading.Event()
        gate.open.set()  # before the pipeline that comes has threads
        loader.load_state_dict(state)
        loader.load_state_dict(state)
        child = loader._child
        assert isinstance(child, ThreadChild)
        until(lambda: not child.service.served)
        late = [one for one in threading.enumerate() if "decode" in one.name]
        old.set()
        assert late
        after = take(batches, 80)
    assert not any(one.is_alive() for one in late)
    assert all(map(np.array_equal, after, wanted))


CALLED = """
import time
from pathlib import Path
from autoloader.process import control

control.STUCK_S = 1.0  # of the child

def shade(batch, folder=None):
    if folder is not None:
        if len(list(Path(folder).iterdir())) == 3:
            Path(folder, "began").touch()
            time.sleep(3)
        Path(folder, str(time.monotonic_ns())).touch()
    return {"shade": batch["images"]["primary"][:, 0, 0, 0, 0].copy()}
"""
SHADE = {"call": "called_late:shade", "gives": {"shade": {"dtype": "uint8", "shape": []}}}


def importable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``called_late`` importable, which lets the child wait a second for its threads."""
    monkeypatch.setattr(control, "STUCK_S", 1.0)  # and set back, where it is imported here too
    folder.mkdir()
    (folder / "called_late.py").write_text(CALLED)
    monkeypatch.syspath_prepend(str(folder))


def decoding_s(pid: int) -> float:
    """Processor seconds of the child's decoding thread that had most."""
    tasks = Path(f"/proc/{pid}/task")
    found = read_vitals(pid).threads
    own = [0.0]
    for number, one in found.items():
        with contextlib.suppress(FileNotFoundError):  # the thread has ended
            if (tasks / str(number) / "comm").read_text().startswith("loader-decode"):
                own.append(one.cpu_s)
    return max(own)


def test_a_child_whose_threads_decode_on_begins_anew_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AUTOLOADER_PICTURE_COST", str(2**50))
    importable(tmp_path / "module", monkeypatch)
    shards: list[list[Any]] = [[episode(number, 8) for number in range(6)]]
    quick = spec_of(write_dataset(tmp_path / "quick", shards), batch={"size": 2})
    with AutoLoader(quick, knobs=KNOBS, **THREAD) as loader:
        rows = [batch["provenance"].tolist() for batch in itertools.islice(endless(loader), 24)]
    at = next(k for k, two in enumerate(rows) if [3, 0] in [[row[3], row[4]] for row in two])
    slow = slow_jpeg(4000, 4000, SCANS_MOST, 40)
    shards[0][3]["observation/image"] = [slow, *shards[0][3]["observation/image"][1:]]
    written = write_dataset(tmp_path / "slow", shards)
    spec = spec_of(written, batch={"size": 2, **SHADE}, reader="indexed")
    with AutoLoader(spec, knobs=KNOBS, **{**THREAD, "isolation": "process"}) as loader:
        state = loader.state_dict()
        batches = endless(loader)
        take(batches, max(1, at - 1))  # the slow picture is next
        (pid,) = loader.statistics().worker_pids
        until(lambda: decoding_s(pid) >= 0.2)  # the others take some 0.1 ms
        loader.load_state_dict(state)
        again = list(itertools.islice(batches, 24))
        assert loader.statistics().restarts == 1
    assert [batch["provenance"].tolist() for batch in again] == rows
    for batch in again:
        for row, picture in zip(batch["provenance"].tolist(), pictures(batch), strict=True):
            red = 40 if row[3:] == [3, 0] else (8 * row[3] + 4) % 256
            assert abs(int(picture[0, 0, 0, 0]) - red) <= 6


def test_a_child_whose_batch_call_does_not_return_begins_anew(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    counted = tmp_path / "counted"
    counted.mkdir()
    importable(tmp_path / "module", monkeypatch)
    batch = {"size": 4, **SHADE, "kwargs": {"folder": str(counted)}}
    arguments = {**THREAD, "isolation": "process"}
    with AutoLoader(spec_of(written, batch=batch), knobs=KNOBS, **arguments) as loader:
        state = loader.state_dict()
        until((counted / "began").exists)
        loader.load_state_dict(state)
        came = list(itertools.islice(endless(loader), 12))
        assert loader.statistics().restarts == 1
    for one in came:
        assert np.array_equal(one["shade"], pictures(one)[:, 0, 0, 0, 0])
