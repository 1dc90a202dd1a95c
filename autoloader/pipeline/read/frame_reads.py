"""Reads stretches of files into memory, neighbours in one read, and lends that memory to runs.

Theory of operation. A run's encoded frames lie in one piece of memory, read there by the kernel,
and each frame is a view of it. The piece is in use while any view lives. When the last view dies,
the piece is free for the next run. So frames are never copied, nothing is allocated frame by frame,
and pages that were faulted in once are written again. At most ``kept`` free pieces wait; the kernel
has the others back.

Not here: which stretches (``index.planned``), when (``pipeline.read.planned``,
``pipeline.read.blocks``).
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from autoloader.cache.slab import FILE_BITS
from autoloader.errors import SourceError
from autoloader.formats.files import (
    OUT_OF_DESCRIPTORS,
    OpenFile,
    descriptors,
    is_remote,
    no_descriptor_left,
    unreadable,
)
from autoloader.host.files import read_whole
from autoloader.host.frozen import frozen
from autoloader.samples.resolve import ResolvedDataset
from autoloader.telemetry.progress import shard_words

logger = logging.getLogger(__name__)

Ints = NDArray[np.int64]
MERGE_GAP_BYTES = 16_384
"""Two frames of a run that lie no further apart are read together."""
_GRAIN_BYTES = 2**18
_MOST_REMEMBERED = 4096
"""Files beside those of shards, pictures and videos, whose status is remembered: a few MB."""
Piece = NDArray[np.uint8]


@frozen
class Stretches:
    """Stretches of files in the order in which they lie, and the reads that bring them.

    Attributes:
        order: [n] which of those asked for each is.
        file: [n] of each, as a number.
        start: [n] its first byte.
        stop: [n] where the bytes end that its read needs up to this stretch, exclusive.
        edges: [r + 1] where in ``order`` each read begins; the last is n.
    """

    order: Ints
    file: Ints
    start: Ints
    stop: Ints
    edges: Ints

    @classmethod
    def of(cls, file: Ints, offset: Ints, length: Ints, gap: int) -> Stretches:
        """Of n stretches, those no more than ``gap`` bytes apart in one read."""
        order = np.lexsort((offset, file))
        file, offset, length = file[order], offset[order], length[order]
        # Places in one long row of all files, so that one running maximum tells where reads end.
        base = file.astype(np.int64) << FILE_BITS
        reach = np.maximum.accumulate(base + offset + length)
        apart = np.flatnonzero(base[1:] + offset[1:] > reach[:-1] + gap) + 1
        return cls(order, file, offset, reach - base, np.concatenate([[0], apart, [len(order)]]))

    def reads(self) -> tuple[Ints, Ints, Ints]:
        """(file, first byte, bytes) of each read, [r] each."""
        first = self.edges[:-1]
        start = self.start[first]
        return self.file[first], start, self.stop[self.edges[1:] - 1] - start


class NowRead:
    """Which file each of several threads of a reader reads now; any thread may ask.

    Args:
        first: path → status of the files that were indexed, where it is known.

    Attributes:
        age: age of the files that are read; see ``Descriptors.age``.
    """

    def __init__(self, first: dict[str, os.stat_result] | None = None) -> None:
        self.age = descriptors.age()
        self._paths: dict[int, str] = {}
        self._first = {} if first is None else first
        self._told = False

    def note(self, path: str) -> None:
        """The calling thread reads this file from now on."""
        self._paths[threading.get_ident()] = path

    def check(self, file: OpenFile) -> None:
        """Refuse a file that is not what was indexed, or was when it was opened first.

        A copy with its size and time will do. One whose time alone is another may be the same.

        Raises:
            OSError: it is another file, or has another size.
        """
        now = os.fstat(file.descriptor)
        first = self._first.get(file.path, now)
        if first is now and len(self._first) < _MOST_REMEMBERED:
            self._first[file.path] = now
        if first.st_mtime_ns == now.st_mtime_ns and first.st_size == now.st_size:
            return
        if not os.path.samestat(first, now):
            raise OSError(errno.ESTALE, "another file was put in its place")
        if first.st_size != now.st_size:
            raise OSError(errno.ESTALE, "it was written to, and has another size")
        self._first[file.path] = now
        logger.log(
            logging.INFO if self._told else logging.WARNING,
            "%s was written to or touched while it is read; if it holds something else now, "
            "samples are wrong: go on from a saved state with a new loader",
            file.path,
        )
        self._told = True

    def over(self) -> None:
        """The calling thread reads none any more."""
        self._paths.pop(threading.get_ident(), None)

    def told(self, datasets: Sequence[ResolvedDataset]) -> tuple[str, str]:
        """(dataset, "reading shard 3/1024") of a file that is read; ("", "") where none is."""
        for path in list(self._paths.values()):
            doing = "fetching" if is_remote(path) else "reading"
            return _owner(datasets, path), f"{doing} {shard_words(path)}"
        return "", ""


def read_all(
    datasets: Sequence[ResolvedDataset],
    files: Sequence[str],
    reads: tuple[Ints, Ints, Ints],
    memory: memoryview,
    wanted: Callable[[], bool],
    now: NowRead,
) -> list[memoryview]:
    """Bytes of each read, one behind the other in ``memory``.

    Args:
        datasets: datasets of the files, to name one where its file cannot be read.
        files: paths, by number; remote files come through the cache of shards.
        reads: reads as ``Stretches.reads`` gives them.
        memory: memory for the bytes of all reads.
        wanted: whether it is still worth while to wait for remote files.
        now: told of each file before it is asked for.

    Raises:
        SourceError: a file cannot be read, or ends too early.
    """
    filled, path = 0, ""
    found: list[memoryview] = []
    away: dict[str, list[tuple[int, memoryview]]] = {}
    try:
        every = zip(*(column.tolist() for column in reads), strict=True)
        for file, some in groupby(every, itemgetter(0)):
            path, own = files[file], []
            for _, first, size in some:
                own.append((first, memory[filled : filled + size]))
                filled += size
            found += [into for _, into in own]
            if is_remote(path):
                away[path] = own
                continue
            now.note(path)
            shared = descriptors.borrowed(path, now.age)
            for first, into in own:
                read_whole(shared.descriptor, into, first)
            now.check(shared)  # behind the reads: a write before them shows
        if away:
            from autoloader.storage.shards import shard_cache  # local data goes without

            now.note(next(iter(away)))
            shard_cache().read(away, wanted)
    except OSError as error:
        raise _unreadable(datasets, error, str(error.filename) if away else path) from error
    finally:
        now.over()
    return found


def _owner(datasets: Sequence[ResolvedDataset], path: str) -> str:
    owners = (one for one in datasets if any(part.path == path for part in one.slices))
    return next((one.name for one in owners), "")


def _unreadable(datasets: Sequence[ResolvedDataset], error: OSError, path: str) -> SourceError:
    """The error for a file that cannot be read, with its dataset."""
    name = _owner(datasets, path)
    if error.errno in OUT_OF_DESCRIPTORS:
        return no_descriptor_left(error, path, dataset=name)
    if is_remote(path):
        return unreadable(error, path, dataset=name)
    return SourceError(
        f"dataset {name}: {path} cannot be read any more: {error.strerror or error}",
        remedy="put the file back as it was; or start the run again, without the dataset if the "
        "file is gone",
    )


class RunMemory:
    """Pieces of memory; any thread.

    Args:
        kept: number of free pieces that may wait.
    """

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self._free: list[Piece] = []
        self._largest = 0

    def take(self, size: int) -> memoryview:
        """``size`` writable bytes; theirs until the last view of them is gone."""
        # A little over the largest run so far: the next ones find room in the same pieces.
        if size > self._largest:
            self._largest = -(-(size + size // 8) // _GRAIN_BYTES) * _GRAIN_BYTES
        whole = self._piece()
        lent = whole[:size]
        weakref.finalize(lent, self._is_back, whole)
        return lent.data

    def _is_back(self, whole: Piece) -> None:
        """The last view has died, wherever that was, maybe with a lock held: this takes none."""
        if len(self._free) < self.kept and len(whole) >= self._largest:
            self._free.append(whole)

    def release(self, kept: int | None = None) -> None:
        """Let free pieces go, and have at most ``kept`` wait from now on (default: as before)."""
        if kept is not None:
            self.kept = kept
        self._free.clear()

    def _piece(self) -> Piece:
        try:
            whole = self._free.pop()
        except IndexError:
            whole = np.empty(0, np.uint8)
        return whole if len(whole) >= self._largest else np.empty(self._largest, np.uint8)
