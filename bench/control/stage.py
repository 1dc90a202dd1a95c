"""The surroundings of one run: its cgroup, its neighbour, and the files that may tell otherwise.

A stage is a ``with`` block that leaves nothing behind. What can be real is: the cgroup and its
limit, memory and cores that another process takes, a file system that answers slowly. What no
machine can be asked to do is told through the files that the loader reads anyway: NVML is a module
of that name put first on the import path, PSI and ``/proc/meminfo`` are files mounted over the
kernel's in a mount namespace that only the trainer and the loader have.

Not here: when something happens (``bench.control.runner``).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from bench.child import Player
from bench.control.group import MemoryGroup
from bench.control.memory import headroom_bytes
from bench.control.scenario import Event, Reader, Scenario, size
from bench.control.slow_files import slow_files

FAKE_MODULES = Path(__file__).with_name("fake_nvml")
ROOT = Path(__file__).parents[2]
LONGEST_TAKE_S = 60.0
"""How long a neighbour may need for its memory, where the machine is busy."""


class Stage:
    """Surroundings; see the module.

    Args:
        scenario: what is needed.
        reader: of the loader.
        spec: the mixture's file.
    """

    def __init__(self, scenario: Scenario, reader: Reader, spec: Path) -> None:
        self._scenario = scenario
        self._reader: Reader = reader
        self.spec = spec
        self._group: MemoryGroup | None = None
        self._stack = contextlib.ExitStack()
        self._neighbour: Player | None = None
        self._files: Player | None = None
        self._fed = threading.Event()
        self._reached = threading.Event()
        self._meminfo: Path | None = None
        self._pressure: Path | None = None
        self._nvml: Path | None = None
        self.folder = Path()
        self.binds: list[tuple[str, str]] = []
        self.environment: dict[str, str] = {}

    def __enter__(self) -> Stage:
        scenario = self._scenario
        with contextlib.ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scene-")))
            if scenario.limit_bytes is not None:
                self._group = stack.enter_context(MemoryGroup(scenario.limit_bytes))
            self._set_environment()
            if scenario.slow_files:
                self._files = stack.enter_context(
                    slow_files(self.spec.parent, self.folder / "data")
                )
                self.spec = self.folder / "data" / self.spec.name
            if any("neighbour" in name for one in scenario.script for name in one.what):
                group = "" if self._group is None else self._group.beside
                env = {**os.environ, "PYTHONPATH": self.environment["PYTHONPATH"]}
                self._neighbour = stack.enter_context(
                    Player("bench.control.neighbour", group, env=env, hears=self._hear)
                )
                self._reached.wait(LONGEST_TAKE_S)  # it says that it is ready
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._fed.set()
        self._stack.close()

    @property
    def run_group(self) -> str:
        """Where trainer and loader go; "" where there is no cgroup."""
        return "" if self._group is None else self._group.run

    @property
    def neighbour_pid(self) -> int:
        """Of the neighbour; 0 where there is none."""
        return 0 if self._neighbour is None else self._neighbour.process.pid

    @property
    def oom_kills(self) -> int:
        """Processes that the kernel killed for memory in the cgroup."""
        return 0 if self._group is None else self._group.oom_kills

    def perform(self, event: Event) -> dict[str, Any]:
        """Let one thing happen; returns what it amounted to, in numbers."""
        ((what, value),) = event.what.items()
        floor = self._scenario.floor_bytes
        if what in ("neighbour_leaves", "neighbour_keeps", "neighbour_takes"):
            self._reached.clear()
            if what == "neighbour_takes":
                self._tell({"hold": value})
            else:
                self._tell({"take": floor + size(value), "keep": what == "neighbour_keeps"})
            return {"reached": self._reached.wait(LONGEST_TAKE_S)}
        if what == "neighbour_lets_go":
            self._tell({"let_go": True})
        elif what == "neighbour_burns":
            self._tell({"burn": value})
        elif what == "limit":
            assert self._group is not None
            limit = size(value[self._reader])
            self._group.press(limit)
            return {"limit_bytes": limit, "headroom_bytes": headroom_bytes(self.run_group)}
        elif what == "gpu":
            assert self._nvml is not None
            self._nvml.write_text(str(value))
        elif what == "pressure":
            self._write_pressure(float(value))
        elif what == "readable":
            self._readable(bool(value))
        elif what in ("storage_ms", "stalls"):
            assert self._files is not None
            self._files.say({what: value})
        else:
            raise ValueError(f"nobody on the stage knows how to do {what}")
        return {}

    def _set_environment(self) -> None:
        scenario, path = self._scenario, [str(ROOT)]
        if scenario.gpu is not None:
            self._nvml = self.folder / "nvml"
            self._nvml.write_text(str(scenario.gpu))
            self.environment["BENCH_FAKE_NVML"] = str(self._nvml)
            path.insert(0, str(FAKE_MODULES))
        if scenario.pressure is not None or scenario.own_meminfo:
            self._pressure = self.folder / "pressure"
            self._write_pressure(scenario.pressure or 0.0)
            self.binds.append((str(self._pressure), "/proc/pressure/memory"))
        if scenario.own_meminfo:
            self._meminfo = self.folder / "meminfo"
            self._readable(True)
            self.binds.append((str(self._meminfo), "/proc/meminfo"))
        earlier = [text for text in [os.environ.get("PYTHONPATH")] if text]
        self.environment |= {
            "PYTHONPATH": os.pathsep.join([*path, *earlier]),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            # Indexes of a mount that is gone tomorrow must not stay in the user's cache.
            **({"AUTOLOADER_CACHE_DIR": str(self.folder)} if scenario.slow_files else {}),
            "CUDA_VISIBLE_DEVICES": "0" if scenario.gpu is not None else "",
        }

    def _write_pressure(self, percent: float) -> None:
        assert self._pressure is not None
        line = f"avg10={percent:.2f} avg60=0.00 avg300=0.00 total=0"
        self._pressure.write_text(f"some {line}\nfull {line}\n")

    def _readable(self, readable: bool) -> None:
        """``/proc/meminfo`` as the loader sees it: a copy, fresh 20 times a second, or nothing."""
        assert self._meminfo is not None
        assert self._pressure is not None
        self._fed.set()
        if not readable:
            self._meminfo.write_text("")
            self._pressure.write_text("")
            return
        self._write_pressure(self._scenario.pressure or 0.0)
        self._fed = threading.Event()
        _copy_meminfo(self._meminfo)
        threading.Thread(target=_feed, args=(self._meminfo, self._fed), daemon=True).start()

    def _hear(self, line: str | None) -> None:
        if line:
            self._reached.set()

    def _tell(self, command: dict[str, Any]) -> None:
        assert self._neighbour is not None
        self._neighbour.say(command)


def _feed(copy: Path, done: threading.Event) -> None:
    while not done.wait(0.05):
        _copy_meminfo(copy)


def _copy_meminfo(copy: Path) -> None:
    """In place and of one length, so that a reader never sees it half."""
    text = Path("/proc/meminfo").read_bytes()
    with copy.open("r+b" if copy.exists() else "wb") as file:
        os.pwrite(file.fileno(), text, 0)
