"""Finds and calls the user's transform; every way in which it can fail becomes a reason.

Theory of operation. A function is named ``module:function`` and imported where it is called, on the
import path of the trainer's process. What it is known by is a hash of its module's file, its
arguments and the version that the spec gives it, so that nothing has to be imported to tell
whether kept results are still its own.

A caller turns the library's episode (NumPy) into what the framework's functions take, and back.
NumPy's is here. TensorFlow's is in ``graph.hooks``, which enters itself in ``CALLERS`` where a
graph is built; elsewhere a process of its own runs such functions (``python -m
autoloader.graph.hooks``), one for all of them, so that indexing and planning import no TensorFlow.

Functions are called one at a time: they need not be thread-safe.

Not here: what an episode is (``rlds``), records (``transform``).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import json
import operator
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from autoloader.errors import SpecError
from autoloader.spec import TransformSpec

Caller = Callable[[Callable[..., Any], dict[str, Any], int, Mapping[str, Any]], Any]
"""(function, episode, its steps, keyword arguments) → what the function gave, as NumPy arrays."""


class HookFailedError(Exception):
    """A transform could not be found or raised; the message says what. Internal: a reason."""


def _call_numpy(
    function: Callable[..., Any], episode: dict[str, Any], steps: int, kwargs: Mapping[str, Any]
) -> Any:
    del steps
    return function(episode, **kwargs)


CALLERS: dict[str, Caller] = {"numpy": _call_numpy}
calling = threading.RLock()


def import_path() -> list[str]:
    """The import path of this process, for one that starts elsewhere."""
    return [str(Path(entry or ".").absolute()) for entry in sys.path]


def extend_import_path(entries: Sequence[str]) -> None:
    """Look in another process's import path too, behind our own."""
    sys.path.extend(entry for entry in entries if entry not in sys.path)


def hook_identity(spec: TransformSpec, *, where: str) -> str:
    """A hash of all that decides what a transform gives for a record; imports nothing of it.

    Args:
        spec: the transform.
        where: path of the dataset in the spec.

    Raises:
        SpecError: its module cannot be found, or has no source.
    """
    module = spec.call.partition(":")[0]
    field = f"{where}.transform.call"
    try:
        importlib.invalidate_caches()
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError) as error:
        raise _not_found(spec, field, str(error)) from error
    except Exception as error:  # the package above it is the user's code
        raise _not_found(spec, field, f"{type(error).__name__}: {error}") from error
    if found is None or found.origin is None:
        raise _not_found(spec, field, f"there is no module {module!r}")
    try:
        source = Path(found.origin).read_bytes()
    except OSError as error:
        raise _not_found(spec, field, f"{found.origin}: {error.strerror or error}") from error
    said = json.dumps(spec.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(said.encode() + b"\0" + source).hexdigest()


def _not_found(spec: TransformSpec, field: str, reason: str) -> SpecError:
    return SpecError(
        f"{field}: {spec.call!r} cannot be imported: {reason}",
        remedy="put its file where this Python imports from (PYTHONPATH, an installed package, or "
        "the folder of the script)",
        path=field,
    )


def call_here(spec: TransformSpec, caller: Caller, episode: dict[str, Any], steps: int) -> Any:
    """What a transform gives for an episode, as NumPy arrays, called in this process.

    Raises:
        HookFailedError: it cannot be found, or raised.
    """
    with calling:
        function = _function(spec.call)
        try:
            return caller(function, episode, steps, json.loads(json.dumps(dict(spec.kwargs))))
        except Exception as error:  # the user's code: one bad episode is that episode's
            raise HookFailedError(f"{spec.call} raised {_told(error)}") from error


@functools.lru_cache(maxsize=256)
def _function(call: str) -> Callable[..., Any]:
    module, _, name = call.partition(":")
    try:
        found = operator.attrgetter(name)(importlib.import_module(module))
    except Exception as error:  # importing runs the user's code
        raise HookFailedError(f"{call} cannot be imported: {_told(error)}") from error
    if not callable(found):
        raise HookFailedError(f"{call} is {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _told(error: Exception) -> str:
    words = " ".join(str(error).split())[:300]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {words}{place}"


# -- a process of its own, for frameworks that this one does not import --------------------------


class _Remote:
    """The process that runs functions of frameworks which this process does not import."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._owner = 0

    def ask(self, question: object) -> Any:
        """Its answer; started at the first question.

        Raises:
            HookFailedError: it ended.
        """
        with self._lock:
            if self._process is None or self._owner != os.getpid():
                self._start()
            try:
                pipe = self._pipe("stdin")
                send(pipe, question)
                return receive(self._pipe("stdout"))
            except (OSError, EOFError) as error:
                self._end()
                raise HookFailedError(
                    "the process that runs TensorFlow transforms ended"
                ) from error

    def close(self) -> None:
        with self._lock:
            self._end()

    def _start(self) -> None:
        # Functions may print; what TensorFlow prints while it is imported is nobody's business.
        screen = os.dup(2)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "autoloader.graph.hooks", str(screen)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(screen,),
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
            )
        finally:
            os.close(screen)
        self._owner = os.getpid()
        send(self._pipe("stdin"), import_path())

    def _pipe(self, name: str) -> IO[bytes]:
        pipe: IO[bytes] = getattr(self._process, name)
        return pipe

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


remote = _Remote()
atexit.register(remote.close)


def prepare(framework: str) -> None:
    """Have the process started that functions of ``framework`` need, if they need one.

    Raises:
        HookFailedError: it ended.
    """
    if framework not in CALLERS:
        remote.ask(("prepare", None, ()))


def send(pipe: IO[bytes], message: object) -> None:
    """One message into a pipe between the library's own processes."""
    pipe.write(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """The next message of such a pipe.

    Raises:
        EOFError: the other end is gone.
    """
    try:
        return pickle.load(pipe)  # noqa: S301 written by ``send`` of our own process
    except pickle.UnpicklingError as error:
        raise EOFError(str(error)) from error
