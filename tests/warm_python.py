"""``python`` for tests' scripts that use torch or TensorFlow: it forks a process that has both.

Importing them takes three to five seconds of a processor for each script. The process that
collected the tests has them, so a fork of it serves all of the session: it forks again for each
script. A fork forgets every module that is neither installed nor of autoloader, and autoloader too
where another copy of it is asked for.

``warm_python`` is an executable that takes the words that ``python`` takes: a script, or ``-m`` and
a module, or ``-c`` and code. Environment, folder, streams and the exit are the caller's. Signals
are passed on; SIGKILL ends both. The script's process id is another one than the caller sees.
``warm_with`` gives such an executable for packages that are not in ``.venv``.

Not here: forks of one script (``in_forks``), processes of the suite (``forked_workers``).
"""

import atexit
import contextlib
import importlib
import json
import logging
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import threading
import traceback
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

_CLIENT = """#!{python} -IS
import json, os, signal, socket, struct, sys
link = socket.socket(socket.AF_UNIX)
link.connect({address!r})
told = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(link, [struct.pack("<I", len(told))], [0, 1, 2])
link.sendall(told)
passed = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
for number in passed:
    signal.signal(number, lambda number, _: link.send(bytes([number])))
status = os.waitstatus_to_exitcode(struct.unpack("<i", link.recv(4))[0])
if status < 0:
    if -status in passed:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""
_ROOT = Path(__file__).parents[1]
_SETS_TENSORFLOW = (
    "autoloader.pipeline.graph",
    "autoloader.integrations.tfdata",
    "autoloader.tfdata",
)
"""Modules whose import changes TensorFlow's settings: a script's own import does."""
_INSTALLED = tuple(
    {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
    | {entry for entry in sys.path if entry.endswith("site-packages")}
)
_command = pytest.StashKey[Path]()
_server = pytest.StashKey[int]()


@pytest.fixture(scope="session")
def warm_python(pytestconfig: pytest.Config) -> Path:
    """The executable."""
    return pytestconfig.stash[_command]


@contextlib.contextmanager
def warm_with(
    modules: Sequence[str], packages: Path, folder: Path, environment: Mapping[str, str]
) -> Iterator[Path]:
    """The executable, for scripts that use modules of a folder of packages.

    Args:
        modules: imported once.
        packages: folder of the packages.
        folder: an empty one.
        environment: in which the modules can be imported.
    """
    with (
        _listening(folder) as (listener, command),
        subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno()), str(packages), *modules],
            pass_fds=[listener.fileno()],
            env=environment,
        ) as server,
    ):
        yield command
        server.terminate()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Fork the process that serves, before a test has begun a thread."""
    if session.config.option.collectonly or not session.items:
        return
    with _listening(session.config._tmp_path_factory.getbasetemp()) as (listener, command):
        session.config.stash[_command] = command
        session.config.stash[_server] = _fork()
        if not session.config.stash[_server]:
            atexit._clear()  # of the suite
            _in_fork(lambda: _serve(listener, _INSTALLED))


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the process that serves, so that what its scripts used is counted as ours."""
    if pid := config.stash.get(_server, 0):
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


@contextlib.contextmanager
def _listening(folder: Path) -> Iterator[tuple[socket.socket, Path]]:
    """A socket that scripts are asked for at, and the executable that asks."""
    address, command = str(folder / "warm"), folder / "python"
    command.write_text(_CLIENT.format(python=sys.executable, address=address))
    command.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        yield listener, command


def _fork() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 and newer: of a fork beside BLAS' threads
        return os.fork()


def _in_fork(run: Any) -> NoReturn:
    """Run what is to be run; nothing of the forked process's own goes on."""
    try:
        run()
    except BaseException:  # noqa: BLE001 the boundary of this process
        traceback.print_exc()
    finally:
        os._exit(1)


def _serve(listener: socket.socket, installed: tuple[str, ...]) -> None:
    """Fork for each client, until the process that started this one is gone.

    Args:
        listener: where clients ask.
        installed: folders whose modules scripts find imported.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, _reap)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    gone = os.pidfd_open(os.getppid())
    while True:
        ready, _, _ = select.select([listener, gone], [], [])
        if gone in ready:
            os._exit(0)
        link, _ = listener.accept()
        if not _fork():
            listener.close()
            _in_fork(lambda link=link: _attend(link, installed))
        link.close()


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _attend(link: socket.socket, installed: tuple[str, ...]) -> None:
    """Fork once more to run one client's script; pass signals on, and tell how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(link, 4, 3)
    told = link.recv(struct.unpack("<I", size)[0], socket.MSG_WAITALL)
    pid = _fork()
    if not pid:
        link.close()
        _run(streams, installed, *json.loads(told))
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([link, ended], [], [])
        if ended in ready:
            with contextlib.suppress(OSError):  # a client that was killed
                link.send(struct.pack("<i", os.waitpid(pid, 0)[1]))
            os._exit(0)
        for number in link.recv(16) or [signal.SIGKILL]:
            os.kill(pid, number)


def _run(
    streams: list[int],
    installed: tuple[str, ...],
    words: list[str],
    environment: dict[str, str],
    folder: str,
) -> NoReturn:
    """Be ``python`` with these words."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.root.handlers.clear()
    warnings.resetwarnings()  # then as Python begins
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)
    # Those of the suite know whether its own output was a file, which cannot be sought in a pipe.
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        errors = "backslashreplace" if number == 2 else "strict"
        stream = os.fdopen(number, "w" if number else "r", 1, errors=errors, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for log in logging.root.manager.loggerDict.values():
        for handler in getattr(log, "handlers", ()):
            if type(handler) is logging.StreamHandler:
                handler.setStream(sys.stderr)
    status = 1
    try:
        _run_main(words, environment.get("PYTHONPATH", ""), folder, installed)
        status = 0
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            sys.stderr.write(f"{end.code}\n")
        status = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 as the interpreter does
        traceback.print_exc()
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run_main(words: list[str], path: str, folder: str, installed: tuple[str, ...]) -> None:
    """Run a script, module or code as ``__main__``."""
    given = list(filter(None, path.split(os.pathsep)))
    others = [Path(place) for place in given if not place.startswith(installed)]
    entries = [entry for place in others for entry in place.iterdir()]
    modules = [one for one in entries if one.is_file() or (one / "__init__.py").is_file()]
    _forget({one.name.partition(".")[0] for one in modules}, installed)
    if "torch" in sys.modules and "OMP_NUM_THREADS" in os.environ:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    kind = words[0] if words[0] in ("-m", "-c") else ""
    first = folder if kind else str(Path(words[0]).parent.resolve())
    rest = [entry for entry in sys.path if entry.startswith(_INSTALLED)]
    sys.path[:] = [first, *given, *rest, str(_ROOT)]
    importlib.invalidate_caches()
    sys.argv = words[1:] if kind == "-m" else words
    if kind == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *words[2:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(words[1], vars(main))
    else:
        runpy.run_path(words[0], run_name="__main__")


def _forget(given: set[str], installed: tuple[str, ...]) -> None:
    """Forget modules that are not installed, or of which there is another version at hand.

    Args:
        given: names of packages in other folders of ``PYTHONPATH``.
        installed: folders whose modules stay.
    """
    kept = (*installed, *([] if "autoloader" in given else [str(_ROOT / "autoloader")]))
    gone = []
    for name, module in sys.modules.items():
        own = vars(module)
        places = filter(None, [own.get("__file__"), *own.get("__path__", ())])
        if (
            name == "__main__"
            or name.partition(".")[0] in given
            or not all(place.startswith(kept) for place in places)
            or name.startswith(_SETS_TENSORFLOW)
        ):
            gone.append(name)
    for name in gone:  # a package's folders are looked up by its parent's, which is there until now
        del sys.modules[name]


if __name__ == "__main__":
    number, packages, *names = sys.argv[1:]
    for name in names:
        importlib.import_module(name)
    _serve(socket.socket(fileno=int(number)), (*_INSTALLED, packages))
