"""Files of TensorFlow's file systems: what ``formats.files`` asks, answered where TensorFlow runs.

What TensorFlow raises becomes an ``OSError`` here; its clients have repeated by then whatever may
pass. A scheme that TensorFlow does not know is looked for in ``tensorflow_io``, which brings more,
where it is installed; a file of that name in another folder is not it.

Not here: streams of records, which tf.data opens by itself (``pipeline.graph.reader``).
"""

from __future__ import annotations

import errno
import site
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

from autoloader.formats import files, tensorflow_process
from autoloader.pipeline.graph.tensorflow import READ_BUFFER_BYTES, tf
from autoloader.storage.faults import NoFileSystemError, UnreachableError
from autoloader.storage.places import scheme_of

_PASSING = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnknownError,
    tf.errors.InternalError,
    tf.errors.ResourceExhaustedError,
    tf.errors.CancelledError,
)
"""What may be gone when it is tried again; ``AbortedError``: a client has repeated enough."""


def enter() -> None:
    """Have this process read remote files itself; the process that did so is ended."""
    files.enter(answer, READ_BUFFER_BYTES)
    tensorflow_process.process.close()


def answer(question: str, arguments: tuple[Any, ...]) -> Any:
    """Answer a question about a file; an ``OSError`` is returned (``formats.files.Answer``)."""
    path = str(arguments[0])
    try:
        _register(path)
        return _QUESTIONS[question](*arguments)
    except OSError as error:
        return error
    except tf.errors.OpError as error:
        return as_os_error(error, path)


def as_os_error(error: Any, path: str) -> OSError:
    """The ``OSError`` that says the same as one of TensorFlow's errors about a file."""
    words = " ".join(str(error.message).split())[:300]
    if isinstance(error, tf.errors.NotFoundError) or "response code 404" in words:
        return FileNotFoundError(errno.ENOENT, "there is no such file or directory", path)
    if isinstance(error, tf.errors.PermissionDeniedError | tf.errors.UnauthenticatedError):
        return PermissionError(errno.EACCES, f"access is refused: {words}", path)
    if isinstance(error, tf.errors.UnimplementedError):
        return NoFileSystemError(errno.EPROTONOSUPPORT, words, path)
    # A name that is not resolved, too: TensorFlow takes that for a setting that cannot be.
    if isinstance(error, _PASSING) or "libcurl code" in words:
        return UnreachableError(errno.EHOSTUNREACH, f"it cannot be reached: {words}", path)
    return OSError(errno.EIO, words, path)


def _register(path: str) -> None:
    """Have TensorFlow know the scheme of a path, by ``tensorflow_io`` where that is installed."""
    scheme = scheme_of(path)
    if scheme and scheme not in tf.io.gfile.get_registered_schemes():
        try:
            _import_installed("tensorflow_io")
        except ImportError as error:
            raise NoFileSystemError(
                errno.EPROTONOSUPPORT, f"TensorFlow has no file system for {scheme}://", path
            ) from error


def _import_installed(name: str) -> None:
    """Import an installed package, never a file of its name elsewhere on the import path.

    Raises:
        ImportError: the package is not installed.
    """
    own = {*site.getsitepackages(), site.getusersitepackages()}
    installed = [
        entry
        for entry in sys.path
        if entry in own or Path(entry).name in ("site-packages", "dist-packages")
    ]
    found = PathFinder.find_spec(name, installed)
    if found is None or found.loader is None:
        raise ModuleNotFoundError(f"{name} is not installed", name=name)
    module = sys.modules[name] = module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _read(path: str, offset: int, count: int) -> bytes:
    """Up to ``count`` bytes of a file from ``offset`` on."""
    with tf.io.gfile.GFile(path, "rb") as file:
        if offset:
            file.seek(offset)
        return bytes(file.read(count))


def _size(path: str) -> int | None:
    """Size of a file in bytes; ``None``: there is none."""
    try:
        found = tf.io.gfile.stat(path)
    except tf.errors.NotFoundError:
        return None
    return None if found.is_directory else int(found.length)


def _names(directory: str) -> list[str]:
    """Names in a directory, those of directories with a slash at the end."""
    names = [str(name) for name in tf.io.gfile.listdir(directory)]
    if any(name.endswith("/") for name in names):
        return names
    # Only some file systems tell the two apart.
    return [
        f"{name}/" if tf.io.gfile.isdir(files.join(directory, name)) else name for name in names
    ]


_QUESTIONS: Mapping[str, Callable[..., Any]] = {
    "read": _read,
    "size": _size,
    "names": _names,
    "is_directory": lambda path: bool(tf.io.gfile.isdir(path)),
}
