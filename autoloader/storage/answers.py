"""What ``formats.files`` asks of remote files, answered by the clients of this package.

Not here: the same by TensorFlow (``pipeline.graph.files``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from autoloader.storage.store import store

_TOGETHER = 16


def answer_of(question: str, arguments: tuple[Any, ...]) -> Any:
    """The answer, or the ``OSError``; see ``formats.files.Answer``."""
    try:
        return _QUESTIONS[question](*arguments)
    except OSError as error:
        return error


def fetch_together(paths: Sequence[str]) -> None:
    """Fetch small files at the same time; they are kept for who reads them soon."""

    def fetch(path: str) -> None:
        with contextlib.suppress(OSError):
            store.read_all(path, keep=True)

    with ThreadPoolExecutor(_TOGETHER, "autoloader-remote") as pool:
        list(pool.map(fetch, paths))


def sizes_of(paths: Sequence[str]) -> list[int]:
    """Bytes of files, asked for at the same time.

    Raises:
        OSError: its ``filename`` is a path that is not there, or cannot be asked for.
    """
    with ThreadPoolExecutor(_TOGETHER, "autoloader-remote") as pool:
        return list(pool.map(lambda path: store.identity(path).size, paths))


def _read(path: str, offset: int, count: int) -> bytes:
    identity = store.identity(path)
    stop = identity.size if count < 0 else min(identity.size, offset + count)
    return store.read(path, offset, stop, identity) if offset < stop else b""


def _whole(path: str, most: str) -> bytes:
    return store.read_all(path, keep=True, most=most)


def _size(path: str) -> int | None:
    try:
        return store.identity(path).size
    except FileNotFoundError:
        return None


def _names(directory: str) -> list[str]:
    """Names in a directory, those of directories with a slash at the end."""
    found = store.listing(directory)
    return [name if one is not None else f"{name}/" for name, one in found.items()]


def _is_directory(path: str) -> bool:
    return bool(store.listing(path))


_QUESTIONS: Mapping[str, Callable[..., Any]] = {
    "read": _read,
    "whole": _whole,
    "size": _size,
    "names": _names,
    "is_directory": _is_directory,
}
