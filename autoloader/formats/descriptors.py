"""Open files of this process: one budget for all its loaders and datasets.

Theory of operation. The system limits the descriptors of a process (``ulimit -n``), and sockets,
shared memory and TensorFlow need some of them. Data files stay open between reads, at most
``MOST_FILES``; index files stay mapped, at most ``MOST_MAPS`` (a map holds a descriptor). Every few
opens, the budget counts the process's other descriptors. It then closes the files and maps that
were used longest ago until the rest fits into the limit, less a reserve. So no limit has to be
divided among loaders beforehand.

Thread-safe; files are opened outside the lock, since storage may be slow.

Not here: reading (``pipeline.read.planned``, ``index.shard``).
"""

from __future__ import annotations

import collections
import errno
import os
import resource
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from autoloader.errors import SourceError
from autoloader.spec.regular_files import DocumentError, open_regular

MOST_FILES = 256
"""Data files that are open at a time."""
MOST_MAPS = 256
"""Index files that are mapped at a time: each holds resident pages too."""
RAISED_LIMIT = 65_536
"""The soft limit that a process of the loader's own asks for, where the hard one allows it."""
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_RESERVE_RATIO = 4
_LARGEST_RESERVE = 256
_LEAST_KEPT = 4
_COUNTED_EVERY = 16


class Mapped(Protocol):
    """Something that holds a map and can map again later; see ``index.shard.ShardIndex``."""

    def unmap(self) -> None:
        """Let go of the map."""
        ...


class OpenFile:
    """A data file that is open.

    Attributes:
        path: path of the open file.
        descriptor: of the file, while it is borrowed.
    """

    __slots__ = ("descriptor", "path", "retired", "users")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.users = 0
        self.retired = False

    def retire(self) -> None:
        """Close it, now or when the last borrower gives it back."""
        self.retired = True
        if not self.users and self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Descriptors:
    """The budget. A process has one, ``descriptors``.

    Args:
        most_files, most_maps: kept open at most.
    """

    def __init__(self, most_files: int = MOST_FILES, most_maps: int = MOST_MAPS) -> None:
        self._most_files = most_files
        self._most_maps = most_maps
        self._lock = threading.Lock()
        self._files: collections.OrderedDict[tuple[str, int], OpenFile] = collections.OrderedDict()
        self._maps: collections.deque[weakref.ref[Mapped]] = collections.deque()
        self._readers = self._age = 0
        self._others = 0
        self._until_count = 0
        self.opens = 0

    def open(self, path: str | Path, *, links: bool = True) -> int:
        """A new read-only descriptor, which the caller closes. Raises OSError."""
        while True:
            try:
                found = open_regular(path, links=links)
            except DocumentError as error:
                raise OSError(errno.EINVAL, error.what, str(path)) from error
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS or not self._close_one():
                    raise
            else:
                self.opens += 1
                return found

    def age(self) -> int:
        """Grows where a file that is open was replaced by another one of its name.

        Readers of one age share files: who has an index of the old one goes on in it.
        """
        with self._lock:
            now = [(path, file) for (path, age), file in self._files.items() if age == self._age]
            self._age += any(_was_replaced(path, file.descriptor) for path, file in now)
            return self._age

    @contextmanager
    def borrowed(self, path: str, age: int = 0) -> Iterator[OpenFile]:
        """A data file, open for reads here and there. Raises OSError.

        Args:
            path: path of the data file.
            age: when the reader began; of ``age``.
        """
        file = self._borrow(path, age)
        try:
            yield file
        finally:
            with self._lock:
                file.users -= 1
                if file.retired:
                    file.retire()

    def _borrow(self, path: str, age: int) -> OpenFile:
        key = path, age
        with self._lock:
            found = self._files.get(key)
            if found is not None:
                return self._used(key, found)
        mine = OpenFile(path, self.open(path))  # outside the lock: storage may be slow
        os.posix_fadvise(mine.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        with self._lock:
            found = self._used(key, self._files.setdefault(key, mine))
        if found is not mine:
            mine.retire()
        self._fit()
        return found

    def _used(self, key: tuple[str, int], file: OpenFile) -> OpenFile:
        """The file, which has one more user from now on."""
        self._files.move_to_end(key)
        file.users += 1
        return file

    def note_map(self, holder: Mapped) -> None:
        """``holder`` has made a map; the budget may call its ``unmap`` from now on."""
        with self._lock:
            self._maps.append(weakref.ref(holder))
        self._fit()

    def enter(self) -> None:
        """One more reader borrows files from now on."""
        with self._lock:
            self._readers += 1

    def leave(self) -> None:
        """A reader is done; with the last one all data files are closed."""
        with self._lock:
            self._readers -= 1
            while not self._readers and self._files:
                self._files.popitem()[1].retire()

    def _fit(self) -> None:
        """Close what the limits leave no room for."""
        with self._lock:
            while self._maps and self._maps[0]() is None:
                self._maps.popleft()
            files, maps = len(self._files), len(self._maps)
            if self._until_count <= 0:
                self._until_count = _COUNTED_EVERY
                self._others = len(list(Path("/proc/self/fd").iterdir())) - files - maps
            self._until_count -= 1
        limit = descriptor_limit()
        reserve = min(_LARGEST_RESERVE, limit // _RESERVE_RATIO)
        kept = max(_LEAST_KEPT, limit - reserve - self._others)
        surplus = max(
            files + maps - kept,
            files - self._most_files if files >= maps else maps - self._most_maps,
        )
        for _ in range(surplus):
            self._close_one()

    def _close_one(self) -> bool:
        """Close the oldest file or map, of whichever there are more; whether there was any."""
        with self._lock:
            if self._files and len(self._files) >= len(self._maps):
                self._files.popitem(last=False)[1].retire()
                return True
            while self._maps:
                oldest = self._maps.popleft()()
                if oldest is not None:
                    oldest.unmap()
                    return True
        return False


descriptors = Descriptors()


def _was_replaced(path: str, descriptor: int) -> bool:
    try:
        return not os.path.samestat(os.stat(path), os.fstat(descriptor))  # noqa: PTH116
    except OSError:
        return True


def descriptor_limit() -> int:
    """Number of descriptors that this process may have (``ulimit -n``)."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return RAISED_LIMIT if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Have the soft limit at the hard one, or ``RAISED_LIMIT``; for processes of the loader's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = RAISED_LIMIT if hard == resource.RLIM_INFINITY else min(hard, RAISED_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def too_many_open(error: OSError | None, path: str, *, dataset: str) -> SourceError:
    """The error for a file for which there was no descriptor.

    Args:
        error: one of ``OUT_OF_DESCRIPTORS``; ``None`` of TensorFlow's, which tells EMFILE alone.
        path: path of the file.
        dataset: its dataset's name; may be empty.
    """
    whose = f"dataset {dataset}: " if dataset else ""
    if error is not None and error.errno == errno.ENFILE:
        return SourceError(
            f"{whose}{path} cannot be opened: this machine has as many files open as it allows",
            remedy="close other programs, or raise fs.file-max: sysctl fs.file-max",
            dataset=dataset,
        )
    return SourceError(
        f"{whose}{path} cannot be opened: this process has all the {descriptor_limit()} files and "
        "sockets open that it may have (ulimit -n)",
        remedy="raise the limit before training starts (ulimit -n 4096; LimitNOFILE= of a systemd "
        "unit), or have fewer loaders, or a smaller cycle_length of streams",
        dataset=dataset,
    )
