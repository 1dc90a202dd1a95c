"""Nothing of the loader outlives its use, and what was handed out outlives the loader."""

import errno
import gc
import os
import signal
import subprocess
import sys
import textwrap
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from leftovers import ends_within
from streams import endless, opened, rows

from autoloader import AutoLoader, PipelineSpec
from autoloader.decode import ring
from autoloader.decode.ring import SlotPool
from autoloader.errors import PipelineError
from autoloader.pipeline.pipeline import Pipeline
from autoloader.process import control

SCRIPT = """
import os, sys, threading, time
from autoloader import AutoLoader, PipelineSpec
def make():
    global loader
    loader = AutoLoader(sys.argv[1], output="numpy", ram_floor="1GB")
    next(iter(loader))
{body}
"""


def script(body: str, mix: Path) -> subprocess.Popen[str]:
    text = SCRIPT.replace("{body}", textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, "-c", text, str(mix)], stdout=subprocess.PIPE, text=True
    )


def line(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


def wait_until_gone(pid: int) -> bool:
    """Whether a process that is no child of ours ends within 2 s."""
    return ends_within(pid, 2)


def test_a_killed_trainer_takes_its_child_along_though_a_fork_of_it_holds_the_socket(
    small_mix: Path,
):
    process = script(
        """
        make()
        sibling = os.fork()
        if sibling == 0:
            time.sleep(60)
        print(loader.statistics().worker_pids[0], sibling, flush=True)
        time.sleep(60)
        """,
        small_mix,
    )
    child, sibling = map(int, line(process).split())
    process.kill()
    try:
        assert wait_until_gone(child)
    finally:
        os.kill(sibling, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("ending", ["pass", "del loader", "raise SystemExit(0)"])
def test_a_script_that_forgets_to_close_ends_cleanly_whichever_thread_started_the_child(
    small_mix: Path, ending: str
):
    process = script(
        f"""
        starter = threading.Thread(target=make)
        starter.start()
        starter.join()
        for _ in range(3):
            next(iter(loader))
        print(loader.statistics().worker_pids[0], loader.statistics().restarts)
        print(sorted({{'tensorflow', 'cv2', 'optuna'}} & set(sys.modules)), flush=True)
        {ending}
        """,
        small_mix,
    )
    child, restarts = line(process).split()
    assert restarts == "0"
    assert line(process) == "[]"  # the trainer imports neither TensorFlow nor a decoder
    process.communicate()
    assert process.returncode == 0
    assert wait_until_gone(int(child))


def test_an_interrupted_script_ends_and_so_does_its_child(small_mix: Path):
    process = script(
        """
        import signal
        # Where the tests run in a shell's background, its children ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        make()
        print(loader.statistics().worker_pids[0], flush=True)
        while True:
            for batch in loader:
                pass
        """,
        small_mix,
    )
    child = int(line(process))
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode != 0
    assert wait_until_gone(child)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (control, "RingMemory"),
        (Pipeline, "_hand_out"),
        (Pipeline, "next"),
        (SlotPool, "hand_out"),
        (Pipeline, "retune"),
    ],
)
def test_whatever_the_kernel_refuses_where_nobody_reckons_with_it_reaches_the_trainer(
    small_spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
):
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, "cannot allocate memory")

    monkeypatch.setattr(owner, name, refused)
    with AutoLoader(
        small_spec, isolation="thread", ram_floor="64MiB", knobs={"reader": "indexed"}
    ) as loader:
        loader.retune(ring_slots=5)
        with pytest.raises(PipelineError, match="cannot allocate memory") as caught:
            deque(loader, maxlen=0)
        assert caught.value.remedy.startswith("free memory")


@pytest.mark.parametrize(
    "name", ["DeclaredMixture", "RingMemory", "open_pipeline", "Observer", "LoaderThread"]
)
def test_a_pipeline_that_cannot_begin_leaves_no_ring_open(
    small_spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch, name: str
):
    def rings() -> list[str]:
        gc.collect()
        found = []
        for one in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # that of the folder itself
                found.append(str(one.readlink()))
        return [one for one in found if one.startswith("/memfd:autoloader ")]

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, "cannot allocate memory")

    before = rings()
    with monkeypatch.context() as patched:
        patched.setattr(control, name, refused)
        with (
            AutoLoader(
                small_spec, isolation="thread", ram_floor="64MiB", knobs={"reader": "indexed"}
            ) as loader,
            pytest.raises(PipelineError, match="cannot allocate memory"),
        ):
            next(iter(loader))
    del loader
    assert rings() == before


def test_a_trainer_that_keeps_more_batches_than_a_smaller_ring_has_slots_gets_further_ones(
    small_spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ring, "DRAIN_S", 0.01)
    with opened(
        small_spec, knobs={"reader": "indexed", "ring_slots": 8}, controller=False
    ) as loader:
        batches = endless(loader)
        kept = [next(batches) for _ in range(6)]
        loader.retune(ring_slots=2)
        got = rows(batches, 8)
        got = rows(iter(kept), 6) + got
        del kept
        loader.retune(ring_slots=6)
        got += rows(batches, 4)
    with opened(small_spec) as loader:
        assert got == rows(endless(loader), 18)
