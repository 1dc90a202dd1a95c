"""The loader's child for tests whose subject is not its start: a fork that has its imports.

Starting one takes 0.7 seconds of a processor, for imports alone, and the suite starts hundreds.
A decode process that a loader in this process starts is such a fork too.
So each process of the suite keeps one process that has made them, in a child's environment. It
forks for each child that is asked for. The fork is a child of the process that asks, as one that
``host.supervision`` starts: its number, its command line, its streams, its end and its signals
are the same. What it runs is the product's own ``main``. Tests of the stream reader, which needs
TensorFlow, have a second such process, in which that is imported too.

A folder or file of tests whose subject is the start has it as it is: ``COLD``. So has every script
that a test runs. A fork would differ in the limits and the group of the process that keeps the
imports, and in what the C library reads from the environment. Where one of these is not that of the
process that asks, the child is started as it is for users.

Not here: forks for scripts (``warm_python``).
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import platform
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

from autoloader.host import supervision

COLD = (
    "supervision", "ranks/test_discovery.py", "isolation/test_lifetime.py",
    "isolation/test_restart_small.py", "isolation/test_start.py",
)  # fmt: skip
_MODULES = ("autoloader.process.worker", "autoloader.pipeline.decode_process")
STREAMS = ("reference/test_one_count.py", "sampling/test_sample_weights.py")
"""Beside tests with "stream" in their names."""
_TENSORFLOW = "autoloader.pipeline.graph.tensorflow"
_LATER = ("cv2", "autoloader.pipeline.pipeline", "autoloader.pipeline.read.planned")
"""Imported by a child once it opens a pipeline."""
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine(), 0)
_CLONE_PARENT = 0x8000
_LINE_BYTES = 4096
_SIZE = struct.Struct("<I")
_READ_AT_START = (
    "AUTOLOADER_PICTURE_COST", "GLIBC_", "LD_", "MALLOC_", "OMP_", "OPENBLAS_", "OPENCV_",
    "PYDANTIC_", "PYTHON",
)  # fmt: skip


class _Fork(subprocess.Popen[bytes]):
    """A process that another one forked to be our child."""

    def __init__(self, args: Sequence[str], pid: int) -> None:
        self.args, self.pid, self.returncode = args, pid, None
        self.stdin = self.stdout = self.stderr = None
        self._waitpid_lock = threading.Lock()
        self._child_created, self._sigint_wait_secs = True, 0.25


class _Keeper:
    """The process that has the imports, as the process of the suite sees it."""

    def __init__(self, environment: Mapping[str, str], *also: str) -> None:
        self.owner = os.getpid()
        self._one_by_one = threading.Lock()
        self._link, theirs = socket.socketpair()
        # The kernel ends forks with the thread that starts it: with one that stays.
        self._starts = ThreadPoolExecutor(1)
        with theirs:
            self.process = self._starts.submit(
                subprocess.Popen,
                [sys.executable, __file__, str(theirs.fileno()), "." * _LINE_BYTES, *also],
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd="/",
            ).result()

    def fork(
        self,
        line: Sequence[str],
        environment: Mapping[str, str],
        streams: Sequence[int],
        descriptors: Sequence[int],
    ) -> _Fork:
        """A child of this process that runs a command line of ``supervision.command``."""
        told = json.dumps(
            [line, dict(environment), str(Path.cwd()), [0, 1, 2, *descriptors]]
        ).encode()
        with self._one_by_one:
            socket.send_fds(self._link, [_SIZE.pack(len(told))], [*streams, *descriptors])
            self._link.sendall(told)
            return _Fork(line, *_SIZE.unpack(self._link.recv(_SIZE.size, socket.MSG_WAITALL)))

    def close(self) -> None:
        """End it; its forks go on."""
        self._link.close()
        self.process.wait()


class WarmChildren:
    """Starts processes in the place of ``supervision.start``."""

    def __init__(self) -> None:
        self.warm, self.streams = True, False
        self.usual: object = None
        self._start = supervision.start
        self._begins = threading.Lock()
        self.keepers: dict[bool, _Keeper] = {}

    def start(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        changes: Mapping[str, str] | None = None,
        **popen: Any,
    ) -> subprocess.Popen[Any]:
        """As ``supervision.start``."""
        if self.warm and module in _MODULES and _inherited() == self.usual:
            environment = supervision.environment(**(changes or {}))
            streams = self.streams and module == _MODULES[0]
            with self._begins:
                if streams not in self.keepers:
                    self.keepers[streams] = _Keeper(environment, *[_TENSORFLOW] * streams)
            keeper = self.keepers[streams]
            if keeper.owner == os.getpid():  # no fork of a test
                line = supervision.command(module, arguments)
                with Path(os.devnull).open("rb") as nothing:
                    outputs = [nothing.fileno(), popen["stdout"], popen["stderr"]]
                    return keeper.fork(line, environment, outputs, popen["pass_fds"])
        return self._start(module, arguments, changes=changes, **popen)

    def close(self) -> None:
        """End the processes that have the imports."""
        for keeper in self.keepers.values():
            keeper.close()


_children = WarmChildren()


def keepers() -> set[int]:
    """Process ids of the processes that keep imports, which outlive a test."""
    return {keeper.process.pid for keeper in _children.keepers.values()}


def _inherited() -> object:
    """What a process has from the one that forks it, or reads once in its life.

    Every child raises its own limit of open files.
    """
    limits = Path("/proc/self/limits").read_text().splitlines()
    return (
        {name: value for name, value in os.environ.items() if name.startswith(_READ_AT_START)},
        [line for line in limits if not line.startswith("Max open files")],
        sys.executable,
        os.sched_getaffinity(0),
        Path("/proc/self/cgroup").read_text(),
    )


@pytest.fixture(scope="session", autouse=True)
def _warm_children() -> Iterator[None]:
    """Has loaders of this process start their children so."""
    with pytest.MonkeyPatch.context() as patch:
        _children.usual = _inherited()
        if _CLONE:
            patch.setattr(supervision, "start", _children.start)
        yield
    _children.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Choose how children of a test are started."""
    place = item.path.relative_to(Path(__file__).parent).as_posix()
    _children.warm = not place.startswith(COLD)
    _children.streams = "stream" in item.name or place in STREAMS


def _serve(link: socket.socket, line: int) -> NoReturn:
    """Fork for each message, until the other side is gone.

    Args:
        link: connection to the process of the suite.
        line: address of this process's command line.
    """
    libc = ctypes.PyDLL(None)
    while True:
        size, streams, _, _ = socket.recv_fds(link, _SIZE.size, 16)
        if not size:
            os._exit(0)
        told = json.loads(link.recv(_SIZE.unpack(size)[0], socket.MSG_WAITALL))
        ctypes.pythonapi.PyOS_BeforeFork()
        pid = libc.syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
        if not pid:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            _run(streams, line, *told)
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        for stream in streams:
            os.close(stream)
        link.sendall(_SIZE.pack(pid))


def _run(
    streams: list[int],
    address: int,
    line: list[str],
    environment: dict[str, str],
    folder: str,
    numbers: list[int],
) -> NoReturn:
    """Be the process of this command line."""
    status = 1
    try:
        written = b"\0".join(map(os.fsencode, line))[: _LINE_BYTES - 1]
        ctypes.memmove(address, written.ljust(_LINE_BYTES, b"\0"), _LINE_BYTES)
        free = max(*streams, *numbers) + 1
        moved = [os.dup2(stream, free + at) for at, stream in enumerate(streams)]
        os.closerange(0, free)
        for stream, number in zip(moved, numbers, strict=True):
            os.dup2(stream, number)
        os.closerange(free, free + len(moved))
        os.chdir(folder)
        given = json.loads(environment.pop("AUTOLOADER_IMPORT_PATH"))
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = [*given, *(entry for entry in sys.path if entry not in given)]
        importlib.invalidate_caches()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = line[next(at for at, word in enumerate(line) if word in _MODULES) :]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 as the interpreter does
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _own_line() -> int:
    """Address of this process's command line, which is long enough for that of a child."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    assert end - start > _LINE_BYTES
    return start


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(10_000)
    path = json.loads(os.environ["AUTOLOADER_IMPORT_PATH"])
    sys.path[:] = [*path, *(entry for entry in sys.path[1:] if entry not in path)]
    for name in (*_MODULES, *_LATER, *sys.argv[3:]):
        importlib.import_module(name)
    for name in _MODULES:
        del sys.modules[name]  # a fork runs it
    _serve(socket.socket(fileno=int(sys.argv[1])), _own_line())
