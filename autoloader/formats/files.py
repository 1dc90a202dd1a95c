"""Files of datasets: local ones by the operating system, remote ones by a client of their store.

Theory of operation. A path with a scheme (``gs://bucket/…``) names a file far away. Where one of
the clients for the scheme is installed, that is asked (``storage.store``), else TensorFlow,
which this module does not import: it asks ``tensorflow_process``. In a process that streams with
TensorFlow, it asks the function that ``pipeline.graph.files`` has entered here. Each question is
one round trip or a few. What fails for a moment is asked again, with growing pauses.

All faults are ``OSError``: ``FileNotFoundError`` and ``PermissionError`` as of local files,
those of ``storage.faults`` where the file system does not answer now, or nothing opens the
scheme. ``unreadable`` words them for people.

The open files of this process have one budget, ``descriptors``. The system limits the descriptors
of a process (``ulimit -n``): sockets, shared memory and TensorFlow need most of them. Data files
stay open between reads, and index files stay mapped (Python's ``mmap`` holds a descriptor). Of each
kind that is an eighth of the limit, at most ``MOST_KEPT``; the files used longest ago are closed.
An open that finds no descriptor left closes such files too, one by one. So no limit has to be
divided among loaders beforehand. Thread-safe; files are opened outside the lock, since storage may
be slow.

Not here: TFRecord framing (``records``), metadata (``tfds``, ``lerobot.metadata``).
"""

from __future__ import annotations

import collections
import errno
import os
import posixpath
import resource
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from autoloader.errors import SourceError
from autoloader.formats import tensorflow_process
from autoloader.host.files import DocumentError, open_regular
from autoloader.host.threads import free_in_forks
from autoloader.host.units import expanded
from autoloader.storage import faults
from autoloader.storage.places import CLIENTS, SCHEME, has_client, scheme_of

FRONT_BYTES = 2 * 2**20
"""Read at once of a remote file where TensorFlow runs elsewhere: mostly fronts of files."""


Unmap = Callable[[], None]
"""Method that lets go of a map; see ``index.shard.ShardIndex``."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
Answer = Callable[[str, tuple[Any, ...]], Any]
"""(question, its arguments) → the answer, or the ``OSError``; see ``pipeline.graph.files``."""


_here: Answer | None = None
_window_bytes = FRONT_BYTES


def enter(answer: Answer, window_bytes: int) -> None:
    """Have this process answer questions about remote files itself.

    Args:
        answer: answers a question.
        window_bytes: bytes that ``RemoteFile`` reads at once.
    """
    global _here, _window_bytes
    _here, _window_bytes = answer, window_bytes


class UnreadableError(ValueError):
    """A file, or a part of one such as an episode, cannot be used. Internal: a quarantine.

    Args:
        what: reason, one clause for people.
        remedy: what to do; "": nothing is known.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Name what an ``UnreadableError``, or an ``OSError``, is about."""
    try:
        yield
    except UnreadableError as error:
        raise UnreadableError(f"{what}: {error.what}", error.remedy) from error
    except OSError as error:
        raise UnreadableError(f"{what}: {error.strerror or error}") from error


class Found(dict[_Key, _Value]):
    """Values of ``find`` by key, each found once; an ``UnreadableError`` is kept and raised again.

    Args:
        find: finds the value of a key.
    """

    def __init__(self, find: Callable[[_Key], _Value]) -> None:
        super().__init__()
        self._find = find
        self._faults: dict[_Key, tuple[str, str]] = {}

    def __missing__(self, key: _Key) -> _Value:
        if key in self._faults:
            raise UnreadableError(*self._faults[key])
        try:
            found = self[key] = self._find(key)
        except UnreadableError as error:
            self._faults[key] = error.what, error.remedy
            raise
        return found


def is_remote(path: str | Path) -> bool:
    """True if a path has a scheme, so that a client opens it; also of a ``Path`` of an URL."""
    return SCHEME.match(str(path)) is not None


def normal(path: str | Path) -> str:
    """The path as text: absolute where it is local, with ``scheme://`` and no last slash else."""
    text = str(path)
    found = SCHEME.match(text)
    if found is None:
        place = str(expanded(text).absolute())
        plain = os.path.normpath(place)
        same = "/.." in place and os.path.realpath(plain) == os.path.realpath(place)
        return plain if same else place  # else ".." may follow a link
    scheme = found[1].lower()
    root = "/" if scheme == "file" else ""
    return f"{scheme}://{root}{text[found.end() :].rstrip('/')}"


def join(directory: str, *names: str) -> str:
    """A path below ``directory``."""
    return posixpath.join(directory, *names)


_STAND_INS = (
    (b"version https://git-lfs.", "a Git LFS pointer, and not the file", "run git lfs pull"),
    (b"/annex/objects/", "a git-annex pointer, and not the file", "run git annex get"),
    (b"\x1f\x8b", "gzip-compressed", "unpack it: gunzip < FILE > NEW && mv NEW FILE"),
    (b"<!doctype html", "a web page, and not the file", "fetch it again, with a login if need be"),
    (b"<html", "a web page, and not the file", "fetch it again, with a login if need be"),
)


def stand_in(path: str | Path) -> tuple[str, str] | None:
    """(what lies in a local file's place, what to do); ``None`` where nothing is known.

    Looks at its first bytes: a pointer of Git LFS, a compressed file, a web page of a server.
    """
    try:
        with opened(path) as fd:
            front = os.pread(fd, 64, 0).lower()
    except OSError:
        return None
    return next(((what, how) for begin, what, how in _STAND_INS if front.startswith(begin)), None)


def told_stand_in(path: str | Path) -> str:
    """The answer of ``stand_in`` as the end of a sentence; "" where nothing is known."""
    found = stand_in(path)
    return f"it is {found[0]}: {found[1]}" if found else ""


def refuse_stand_ins(paths: Sequence[str], *, dataset: str) -> None:
    """Refuse local data files in whose place something else lies, all of them.

    Raises:
        SourceError: the files are pointers of Git LFS, compressed files or the like.
    """
    found = [None if is_remote(path) else stand_in(path) for path in paths]
    if found and all(found) and found[0] is not None:
        raise SourceError(
            f"dataset {dataset}: {paths[0]} is {found[0][0]}",
            remedy=f"{found[0][1]}; the other files may need the same",
        )


def name_of(path: str) -> str:
    """The last part of a path."""
    return posixpath.basename(path)


def parent_of(path: str) -> str:
    """The directory that holds ``path``; of a bucket the bucket itself."""
    parent = posixpath.dirname(path)
    return path if parent.endswith(":") else parent


def read_text(path: str) -> str:
    """The text of a description of a dataset. Raises OSError, and UnicodeDecodeError."""
    if not is_remote(path):
        return read_local(path, "document_bytes").decode("utf-8")
    if _here is None and has_client(path):
        from autoloader.storage.store import store  # most specs name local files alone

        return store.read_all(path, keep=True).decode("utf-8")
    limits = faults.Limits.of_environment()
    content = read_bytes(path, 0, limits.document_bytes + 1)
    faults.check_bytes(path, len(content), "document_bytes", limits)
    return content.decode("utf-8")


def read_local(path: str | Path, most: str) -> bytes:
    """Content of a local file.

    Args:
        path: path of the file.
        most: field of ``storage.faults.Limits`` that bounds it.

    Raises:
        OSError: the file cannot be read, is no regular file, or holds more than it may.
    """
    limits = faults.Limits.of_environment()
    with opened_regular(path, most) as file:
        content = file.read(getattr(limits, most) + 1)
    faults.check_bytes(str(path), len(content), most, limits)
    return content


@contextmanager
def opened_regular(path: str | Path, most: str = "") -> Iterator[BinaryIO]:
    """A local file, open for reading; anything but a regular file is refused, not waited for.

    Args:
        path: path of the file.
        most: field of ``storage.faults.Limits`` that bounds it; "": nothing does.

    Raises:
        OSError: the file cannot be opened, is no regular file, or holds more than it may.
    """
    with os.fdopen(descriptors.open(path), "rb") as file:
        if most:
            size = os.fstat(file.fileno()).st_size
            faults.check_bytes(str(path), size, most, faults.Limits.of_environment())
        yield file


def read_bytes(path: str, offset: int = 0, count: int = -1) -> bytes:
    """Up to ``count`` bytes of a remote file from ``offset`` on; -1 is all. Raises OSError."""
    return bytes(_ask("read", path, offset, count))


def version_of(path: str, *, one_by_one: bool = True) -> tuple[int, int]:
    """(bytes, number of the version) of a file: its time in ns, or what its store numbers by.

    The number is 0 where only TensorFlow reads the file system.

    Args:
        path: the file, local or remote.
        one_by_one: whether a file is asked for where no listing tells; else both are 0 there.

    Raises:
        OSError: the file is not there, or cannot be asked.
    """
    if not is_remote(path):
        stat = Path(path).stat()
        return stat.st_size, stat.st_mtime_ns
    if has_client(path):
        from autoloader.storage.store import store  # local data goes without

        found = store.identity(path) if one_by_one else store.listed(path)
        return (0, 0) if found is None else (found.size, found.number)
    return (_existing_size(path) if one_by_one else 0), 0


def _existing_size(path: str) -> int:
    """Size of a remote file in bytes; ``FileNotFoundError`` where there is none."""
    size: int | None = _ask("size", path)
    if size is None:
        raise FileNotFoundError(2, "there is no such file", path)
    return size


def is_directory(path: str) -> bool:
    """True if ``path`` is a directory; of a store, if some object lies below. Raises OSError."""
    return bool(_ask("is_directory", path)) if is_remote(path) else Path(path).is_dir()


def file_names(directory: str) -> list[str]:
    """Names of the files in a directory, unordered. Raises OSError."""
    if is_remote(directory):
        return [name for name in _ask("names", directory) if not name.endswith("/")]
    return [entry.name for entry in _entries(directory) if entry.is_file()]


def directory_names(directory: str) -> list[str]:
    """Names of the directories in a directory, in order. Raises OSError."""
    if is_remote(directory):
        return sorted(name[:-1] for name in _ask("names", directory) if name.endswith("/"))
    return sorted(entry.name for entry in _entries(directory) if entry.is_dir())


def _entries(directory: str) -> list[os.DirEntry[str]]:
    """Entries of a local directory. Raises OSError; ``LimitError``: too many."""
    limits, found = faults.Limits.of_environment(), []
    with os.scandir(directory) as entries:
        for entry in entries:
            found.append(entry)
            faults.check_names(directory, len(found), limits)
    return found


def ask_ahead(paths: Sequence[str]) -> None:
    """Have small remote files fetched together that will be read one after the other.

    An error of a fetch is raised by the later read.
    """
    if _here is None and (away := [path for path in paths if has_client(path)]):
        from autoloader.storage.store import fetch_together

        fetch_together(away)


class RemoteFile:
    """A remote file that is read here and there: holds the last stretch that was fetched.

    Args:
        path: URL of the file.

    Attributes:
        size: bytes of the file.

    Raises:
        OSError: the file is not there, or cannot be reached; as does ``pread``.
    """

    def __init__(self, path: str) -> None:
        self.size = _existing_size(path)
        self._path = path
        self._start = 0
        self._data = b""
        self._lock = threading.Lock()

    def pread(self, count: int, position: int) -> bytes:
        """Up to ``count`` bytes at ``position``; fewer at the end of the file."""
        with self._lock:
            first = position - self._start
            there = self._data[first : first + count] if 0 <= first < len(self._data) else b""
            missing = min(count, self.size - position) - len(there)
            if missing <= 0:
                return there
            at = position + len(there)
            self._start, self._data = at, read_bytes(self._path, at, max(missing, _window_bytes))
            return there + self._data[:missing]


def pread(source: int | RemoteFile, count: int, position: int) -> bytes:
    """``os.pread`` of a descriptor or a remote file."""
    return (
        os.pread(source, count, position)
        if isinstance(source, int)
        else source.pread(count, position)
    )


def source_bytes(source: int | RemoteFile) -> int:
    """Size of an open file in bytes."""
    return os.fstat(source).st_size if isinstance(source, int) else source.size


@contextmanager
def opened(path: str | Path, *, links: bool = True) -> Iterator[int]:
    """A read-only descriptor of a local file. Raises OSError."""
    fd = descriptors.open(path, links=links)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def opened_anywhere(path: str | Path) -> Iterator[int | RemoteFile]:
    """A descriptor, or a remote file: something that ``pread`` reads. Raises OSError."""
    if is_remote(path):
        yield RemoteFile(str(path))
        return
    with opened(path) as fd:
        yield fd


def unreadable(error: OSError, path: str, *, dataset: str) -> SourceError:
    """Make the error for a dataset's file that cannot be read, local or remote; it is returned."""
    if error.errno in OUT_OF_DESCRIPTORS:
        return no_descriptor_left(error, path, dataset=dataset)
    scheme, what = scheme_of(path), f"dataset {dataset}: {path}: {error.strerror or error}"
    if isinstance(error, faults.LimitError):
        remedy = (
            "check that the address is right; if so, change the limit with the environment "
            f"variable {error.variable}"
        )
    elif not scheme:
        what = f"dataset {dataset}: {path} cannot be read: {error.strerror or error}"
        remedy = "check that the file exists and that this user may read it"
    elif isinstance(error, FileNotFoundError):
        remedy = f"check the path in {parent_of(path)}, its bucket and its spelling"
    elif isinstance(error, PermissionError):
        known = CLIENTS.get(scheme)
        remedy = (known and known.access) or (
            f"give this user the right to read it, or the credentials that {scheme}:// takes"
        )
    elif isinstance(error, faults.NoFileSystemError):
        remedy = (
            "pip install 'autoloader-rlds[remote]' (or tensorflow-io, where that does not open "
            f"{scheme}://); or copy the files to a local disk"
        )
    elif isinstance(error, faults.ChangedError):
        remedy = (
            "start the run again to read the files as they are now; if index files lie beside "
            "them, write those again first (autoloader index --output)"
        )
    elif isinstance(error, faults.UnreachableError):
        remedy = "check the network (and https_proxy, where there is one), then start again"
    else:
        remedy = "check the address, and that the server gives the whole file"
    return SourceError(what, remedy=remedy)


@contextmanager
def reading(path: str, *, dataset: str) -> Iterator[None]:
    """Word an ``OSError`` as ``unreadable``, of the file that it names, or else of ``path``."""
    try:
        yield
    except OSError as error:
        raise unreadable(error, str(error.filename or path), dataset=dataset) from error


def _ask(question: str, *arguments: Any) -> Any:
    """Ask about a remote file: this process, a client of its scheme, or TensorFlow's process."""
    if _here is not None:
        answer = _here(question, arguments)
    elif has_client(str(arguments[0])):
        from autoloader.storage.store import store  # as above

        return getattr(store, question)(*arguments)
    else:
        try:
            answer = tensorflow_process.process.ask(
                ("files", question, arguments), about=str(arguments[0])
            )
        except EOFError as error:
            raise faults.UnreachableError(5, str(error), arguments[0]) from error
    if isinstance(answer, OSError):
        raise answer
    return answer


# -- open files of this process ------------------------------------------------------------------

MOST_KEPT = 256
"""Data files that stay open, and index files that stay mapped; a map holds resident pages too."""
RAISED_LIMIT = 65_536
"""The soft limit that a process of the loader's own asks for, where the hard one allows it."""
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class OpenFile:
    """A data file that is open as long as somebody refers to it.

    Attributes:
        path: path of the open file.
        descriptor: descriptor of the file.
    """

    __slots__ = ("descriptor", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)


class Descriptors:
    """Budget of open data files and mapped index files. A process has one, ``descriptors``.

    Args:
        most: files that stay open, and maps that are kept, at most.
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._lock = free_in_forks(threading.Lock())
        self._files: collections.OrderedDict[tuple[str, int], OpenFile] = collections.OrderedDict()
        self._maps: collections.deque[weakref.WeakMethod[Unmap]] = collections.deque()
        self._readers = self._age = 0

    def open(self, path: str | Path, *, links: bool = True) -> int:
        """A new read-only descriptor, which the caller closes. Raises OSError."""
        while True:
            try:
                return open_regular(path, links=links)
            except DocumentError as error:
                raise OSError(errno.EINVAL, error.what, str(path)) from error
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS or not self._close_one():
                    raise

    def age(self) -> int:
        """Number that grows when an open file was replaced by another one of its name.

        Readers of one age share open files. So a reader with an index of the old file goes on in
        the old file.
        """
        with self._lock:
            now = [(path, file) for (path, age), file in self._files.items() if age == self._age]
            self._age += any(_was_replaced(path, file.descriptor) for path, file in now)
            return self._age

    def borrowed(self, path: str, age: int = 0) -> OpenFile:
        """A data file for reads here and there, which stays open while it is borrowed.

        Args:
            path: path of the data file.
            age: answer of ``age`` when the reader began.

        Raises:
            OSError: the file cannot be opened.
        """
        key = path, age
        with self._lock:
            if (found := self._files.get(key)) is not None:
                self._files.move_to_end(key)
                return found
        mine = OpenFile(path, self.open(path))  # outside the lock: storage may be slow
        os.posix_fadvise(mine.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        with self._lock:
            found = self._files.setdefault(key, mine)
        self._fit()
        return found

    def note_map(self, unmap: Unmap) -> None:
        """Register a map by the method of its owner that drops it; the budget may call that."""
        with self._lock:
            self._maps.append(weakref.WeakMethod(unmap))
        self._fit()

    def enter(self) -> None:
        """Register a reader, which borrows files until it calls ``leave``."""
        with self._lock:
            self._readers += 1

    def leave(self) -> None:
        """Unregister a reader; with the last one all data files are closed."""
        with self._lock:
            self._readers -= 1
            if not self._readers:
                self._files.clear()

    def _fit(self) -> None:
        """Close what the limits leave no room for."""
        while self._close_one(min(self._most, descriptor_limit() // 8)):
            pass

    def _close_one(self, most: int = 0) -> bool:
        """Close the oldest file, or map, if there are more than so many; false if not."""
        with self._lock:
            if len(self._files) > most:
                self._files.popitem(last=False)
                return True
            while len(self._maps) > most:
                unmap = self._maps.popleft()()
                if unmap is not None:
                    unmap()
                    return True
        return False


descriptors = Descriptors()


def _was_replaced(path: str, descriptor: int) -> bool:
    """True if a path no longer leads to the file that a descriptor has open."""
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


def no_descriptor_left(error: OSError | None, path: str, *, dataset: str) -> SourceError:
    """Make the error for a file that found no free descriptor; it is returned, not raised.

    Args:
        error: error with an ``errno`` of ``OUT_OF_DESCRIPTORS``; ``None``: TensorFlow told EMFILE,
            as text.
        path: path of the file.
        dataset: name of the file's dataset; "" where the caller does not know it.
    """
    whose = f"dataset {dataset}: " if dataset else ""
    if error is not None and error.errno == errno.ENFILE:
        why = "this machine has as many files open as it allows"
        remedy = "close other programs, or raise fs.file-max: sysctl fs.file-max"
    else:
        why = (
            f"this process has all the {descriptor_limit()} files and sockets open that it may "
            "have (ulimit -n)"
        )
        remedy = (
            "raise the limit before training starts (ulimit -n 4096; LimitNOFILE= of a systemd "
            "unit), open fewer loaders, or lower the knob cycle_length"
        )
    return SourceError(f"{whose}{path} cannot be opened: {why}", remedy=remedy)
