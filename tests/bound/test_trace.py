"""What a process used is read from the kernel, by thread, and comes back from JSON."""

import json
import os
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from autoloader.host.threads import LoaderThread
from autoloader.spec.block import adapter
from autoloader.tune.measurement import Recorder, Trace


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_processor_time_is_dealt_to_the_stage_whose_thread_used_it(tmp_path: Path):
    file = tmp_path / "data"
    file.write_bytes(os.urandom(1_000_000))
    go, done, hold = threading.Event(), threading.Event(), threading.Event()

    def decode() -> None:
        go.wait()
        burn(0.15)
        done.set()
        hold.wait()

    def read() -> None:
        go.wait()
        file.read_bytes()
        hold.wait()

    workers = [
        LoaderThread(target=decode, name="autoloader-decode-0"),
        LoaderThread(target=read, name="autoloader-read"),
    ]
    for worker in workers:
        worker.start()
    try:
        with Recorder() as recorder:
            recorder.begin()
            go.set()
            burn(0.05)
            done.wait()
            trace = recorder.end(samples=100)
    finally:
        hold.set()
        for worker in workers:
            worker.join()
    assert trace.stages["decode"].cpu_s == pytest.approx(0.0015, rel=0.3)
    assert trace.stages["consumer"].cpu_s >= 0.0005
    assert trace.stages["read"].cpu_s < 0.0005
    assert trace.one_thread_s >= 0.0005, "the consumer's thread is one of its kind"
    assert trace.read_bytes is not None
    assert trace.read_bytes >= 10_000
    assert trace.cpu_s == pytest.approx(sum(stage.cpu_s for stage in trace.stages.values()))
    plain = json.loads(json.dumps(asdict(trace), allow_nan=False))
    assert adapter(Trace).validate_python(plain) == trace
